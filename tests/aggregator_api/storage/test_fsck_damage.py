"""`fsck` names every damaged row and file, and goes on: no damage ends it with a traceback."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.settings import Settings
from aggregator_api.federations import exports
from aggregator_api.maintenance import fsck
from aggregator_api.storage.db.models.base import Base
from aggregator_api.storage.findings import FsckResult, Severity
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends
from tests.aggregator_api.generated_devices import tiny_plan

KINDS = ["'{'", "x'ff00'", "CAST(x'ff41' AS TEXT)", "-1.5e300", "'" + "x" * 3000 + "'", "NULL"]
"""What a damaged value may be, in SQL."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that was stopped in a round, and with a version of a continuous federation's sums."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exports, "onnx", lambda made: b"onnx")
        bench = Bench(folder / "data", continuous_plan(min_changes=3))
        for device in "abc":
            bench.say(device, "ready")
            sends(bench, device, 1)
        wait_for(lambda: bench.now().round == 2)
        bench.stop()
    bench = Bench(folder / "rounds", tiny_plan())
    for device in "ab":
        bench.say(device, "ready")
    bench.upload(bench.update_of("a"))
    bench.begin(bench.update_of("b"))
    bench.stop()
    assert problems(folder / "data") == problems(folder / "rounds") == []
    return folder


def problems(folder: Path, *, repair: bool = False) -> list[FsckResult]:
    return [one for one in fsck.check(Settings(data_dir=folder), repair=repair) if one.level is not Severity.OK]


@pytest.fixture(params=["data", "rounds"])
def copied(request: pytest.FixtureRequest, stopped: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    for name in (request.param, f"{request.param}-ledger"):
        shutil.copytree(stopped / name, tmp_path / name)
    found: Path = tmp_path / request.param
    return found


def damages(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield table, column and a damaged value for every column of every table that has rows."""
    kinds = cycle(KINDS)
    with closing(sqlite3.connect(folder / "gaitway.sqlite3")) as database:
        for table in Base.metadata.sorted_tables:
            if database.execute(f'SELECT count(*) FROM "{table.name}"').fetchone()[0]:
                for column in table.columns:
                    yield table.name, column.name, next(kinds)


def set_value(folder: Path, table: str, column: str, value: str) -> str | None:
    """Write a value into the first row, and return what was there, in SQL; None where SQLite does not take it."""
    with closing(sqlite3.connect(folder / "gaitway.sqlite3")) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.text_factory = lambda text: text.decode(errors="replace")
        first = f'"{table}" WHERE rowid = (SELECT min(rowid) FROM "{table}")'
        number, before = database.execute(f'SELECT rowid, quote("{column}") FROM {first}').fetchone()
        try:
            database.execute(f'UPDATE "{table}" SET "{column}" = {value} WHERE rowid = ?', (number,))
        except sqlite3.IntegrityError:
            return None
        database.commit()
    return str(before)


def test_any_value_of_any_column_is_survived(copied: Path) -> None:
    tried, unnamed = 0, []
    for table, column, value in damages(copied):
        if (before := set_value(copied, table, column, value)) is None:
            continue
        tried += 1
        found = " | ".join(one.message for one in problems(copied))
        kind = Base.metadata.tables[table].columns[column].type.python_type
        if value.startswith(("x'", "CAST")) and kind is not bytes and table not in found:
            unnamed.append((table, column, value, found))
        assert set_value(copied, table, column, before) is not None
    assert problems(copied) == []
    assert unnamed == []
    assert tried > 50


@pytest.mark.parametrize("value", ["'{'", "'[]'", "'{}'", "'null'", "5", "x'ff'", "CAST(x'ff' AS TEXT)"])
def test_a_damaged_plan_is_named(copied: Path, value: str) -> None:
    assert set_value(copied, "federations", "plan", value) is not None
    found = problems(copied)
    assert found[0].message.startswith("federations: the row 1")
    assert all("backup" in one.advice for one in found)
    done = CliRunner().invoke(app, ["fsck", "--data-dir", str(copied)])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert "all " in done.output  # the blobs were looked at all the same


def replace_by_folder(path: Path) -> None:
    path.unlink()
    (path / "inner").mkdir(parents=True)


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "text": lambda path: path.write_text("[[[[", encoding="utf-8"),
    "folder": replace_by_folder,
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", FILES)
def test_any_damaged_file_is_survived_and_named(copied: Path, damage: str) -> None:
    keys = {"operator.key"}  # its hash is in the database
    files = [path for path in sorted(copied.parent.rglob("*")) if path.is_file() and path.stat().st_size]
    spare = copied.parent / "spare"
    unnamed = []
    for path in files:
        path.chmod(0o600)
        shutil.copyfile(path, spare)
        FILES[damage](path)
        try:
            found = problems(copied)
        except fsck.ConfigError:
            assert path.name == "gaitway.sqlite3"
            found = [FsckResult(Severity.PROBLEM, "no database")]
        if not found and path.name not in keys and not path.name.endswith((".part", ".have", ".lock")):
            unnamed.append(path.relative_to(copied.parent))
        if path.is_dir():
            shutil.rmtree(path)
        shutil.copyfile(spare, path)
        path.chmod(0o600)
    assert unnamed == []
    assert problems(copied) == []
    assert len(files) > 5


def test_a_folder_in_place_of_an_upload_is_repaired(copied: Path) -> None:
    folder = copied / "spool" / "walk" / "a"
    (folder / "u.json").mkdir(parents=True)
    (folder / "u.part").mkdir()
    assert [one.level for one in problems(copied, repair=True)] == [Severity.REPAIRED]
    assert problems(copied) == []
