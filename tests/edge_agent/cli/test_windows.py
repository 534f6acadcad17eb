"""The commands `label`, `windows` and `models` as a person types them."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.cli.command import duration_s, moment
from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import LabelError
from edge_agent.storage.repair import DAMAGED_FILE
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import FILE_NAME, WindowStore
from tests.edge_agent.window_factories import LABELS, SETTINGS, window

NOW = datetime(2026, 11, 21, 15, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("14:05", datetime(2026, 11, 21, 14, 5)),
        ("9:05:30", datetime(2026, 11, 21, 9, 5, 30)),
        ("2026-11-20T08:00", datetime(2026, 11, 20, 8)),
        ("2026-11-20", datetime(2026, 11, 20)),
        ("2026-11-20T08:00+00:00", datetime.fromisoformat("2026-11-20T08:00+00:00")),
        ("1790000000.5", datetime.fromtimestamp(1790000000.5)),
    ],
)
def test_times_as_people_write_them(text: str, expected: datetime) -> None:
    assert moment(text, NOW) == expected.timestamp()


def test_durations_and_what_is_none() -> None:
    assert [duration_s(text) for text in ("90s", "10", "10m", "1.5h", "1d")] == [90, 600, 600, 5400, 86400]
    for wrong in ("soon", "25:00", "-5"):
        with pytest.raises(LabelError, match="expected"):
            moment(wrong, NOW)
        with pytest.raises(LabelError, match="expected 90s"):
            duration_s(wrong)


class Person:
    """Types commands about one device that has ten unlabelled windows of the last half minute, and two of last year."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.config = folder / "agent.toml"
        self.config.write_text(
            '[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "data"\n[server]\nurl = "http://127.0.0.1:9"\n'
        )
        self.began_s = time.time() - 26
        with closing(WindowStore(self.data)) as store:
            recent = [window(-1, n)._replace(start_s=self.began_s + 2.56 * n) for n in range(10)]
            old = [window(0, n)._replace(start_s=1_760_000_000.0 + n) for n in range(10, 12)]
            store.add(old + recent, LABELS, SETTINGS, WindowsSection(), origin="phone:1")
            store.put(labels=json.dumps(LABELS))

    def types(self, *words: str, says: str | None = None) -> Any:
        return CliRunner().invoke(app, [*words, "--config", str(self.config)], input=says)

    def classes(self) -> dict[str, int]:
        found: dict[str, Any] = json.loads(self.types("windows", "--json").stdout)
        return {row["activity"]: row["windows"] for row in found["classes"]}


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def test_the_last_minutes_are_labelled_and_that_is_taken_back(person: Person) -> None:
    assert "10" in person.types("label", "--list").stdout
    done = person.types("label", "--last", "10m", "--activity", "WALK")
    assert (done.exit_code, done.stdout.startswith("10 windows from")) == (0, True)
    assert person.classes() == {"sit": 2, "walk": 10}
    assert person.types("label", "--list").stdout == "every window has a label\n"
    assert "undone: walk; 10 windows" in person.types("label", "--undo").stdout
    assert person.classes() == {"sit": 2, "": 10}


def test_sessions_are_listed_and_labelled_whole(person: Person) -> None:
    listed = person.types("label", "--sessions").stdout
    assert next(line.split() for line in listed.splitlines() if "phone" in line)[1:3] == ["0", "│"]
    done = person.types("label", "--session", "0", "--activity", "walk")
    assert done.stdout == "12 windows are now walk; `label --undo` undoes this\n"
    assert person.classes() == {"walk": 12}
    person.types("label", "--undo")
    assert person.classes() == {"sit": 2, "": 10}
    assert person.types("label", "--file", "phone", "--activity", "run").stdout.startswith("12 windows are now run")


def test_a_span_by_its_ends(person: Person) -> None:
    begin, end = (str(person.began_s + 2.56 * n) for n in (2, 5))
    done = person.types("label", "--from", begin, "--to", end, "--activity", "run")
    assert done.stdout.startswith("3 windows")
    assert person.classes() == {"run": 3, "sit": 2, "": 7}
    ahead = person.types("label", "--from", str(time.time() + 50), "--to", str(time.time() + 99), "--activity", "run")
    assert "those to come will get it" in ahead.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--activity", "walk"], "give a time"),
        (["--last", "10m"], "give --activity with one of sit, walk, run"),
        (["--last", "10m", "--activity", "walking"], "did you mean 'walk'"),
        (["--last", "soon", "--activity", "walk"], "isn't a duration"),
        (["--from", "15:00", "--to", "14:00", "--activity", "walk"], "swap --from and --to"),
        (["--undo"], "no label command"),
        (["--session", "9", "--activity", "walk"], "there is no session 9; `label --sessions` lists"),
        (["--session", "5-2", "--activity", "walk"], "'5-2' isn't a session; expected a number"),
        (["--session", "0"], "give --activity"),
        (["--session", "0", "--file", "a", "--activity", "walk"], "either a file or a session"),
        (["--session", "0", "--last", "1h", "--activity", "walk"], "either a time, or a file or session"),
        (["--file", "fone", "--activity", "walk"], "'fone' doesn't name exactly one file; did you mean 'phone'"),
    ],
)
def test_what_cannot_be_labelled_is_said(person: Person, words: list[str], answer: str) -> None:
    refused = person.types("label", *words)
    assert (refused.exit_code, answer in refused.stderr.replace("\n", " ")) == (2, True), refused.stderr
    assert person.classes() == {"sit": 2, "": 10}


def test_the_table_and_the_days(person: Person) -> None:
    shown = person.types("windows").stdout
    assert "by activity" in shown
    assert "(none)" in shown
    found = json.loads(person.types("windows", "--json").stdout)
    assert [row["origin"] for row in found["classes"]] == ["phone", "phone"]
    assert found["days"][datetime.fromtimestamp(1_760_000_000).date().isoformat()] == {"sit": 2}
    assert sum(sum(day.values()) for day in found["days"].values()) == 12
    assert person.types("windows", "--activity", "none such").stdout == "no windows\n"


def test_a_selection_is_exported_for_numpy_without_pickle(person: Person) -> None:
    path = person.folder / "out" / "some.npz"
    done = person.types("windows", "--unlabelled", "--export", str(path))
    assert (done.exit_code, "10 windows written to" in done.stdout) == (0, True)
    with np.load(path, allow_pickle=False) as found:
        assert found["x"].shape == (10, 128, 6)
        assert found["x"][:, 0, 0].tolist() == list(range(10))
        assert set(found["activity"].tolist()) == {""}
        assert found["start_s"][0] == person.began_s
        assert found["origin"].tolist() == ["phone:1"] * 10
    assert person.types("windows", "--activity", "fly", "--export", str(path)).exit_code == 1


def test_deleting_asks_and_leaves_nothing_in_the_file(person: Person) -> None:
    (person.data / DAMAGED_FILE).write_bytes(b"broken")
    assert person.types("windows", "--activity", "sit", "--delete", says="n\n").exit_code == 1
    assert person.classes() == {"sit": 2, "": 10}
    trace = np.full(6, 11, np.float32).tobytes() * 20
    everything = b"".join(path.read_bytes() for path in person.data.iterdir())
    assert trace in everything
    done = person.types("windows", "--activity", "sit", "--delete", "--yes")
    assert "2 windows deleted" in done.stdout
    assert person.classes() == {"": 10}
    assert not (person.data / DAMAGED_FILE).exists()
    assert trace not in b"".join(path.read_bytes() for path in person.data.iterdir())
    cutoff = str(person.began_s + 2.56 * 5)
    assert "5 windows deleted" in person.types("windows", "--to", cutoff, "--delete", "--yes").stdout


def test_a_device_that_never_ran_is_an_error(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (person.data / FILE_NAME).unlink()
    for words in (["label", "--list"], ["windows"], ["models"]):
        refused = person.types(*words)
        assert (refused.exit_code, "start" in refused.stderr) == (1, True)


def test_models_are_shown_and_rolled_back(person: Person) -> None:
    notes = {}
    for name, number in (("model", 2), ("previous", 1)):
        path = person.data / f"r{number}.onnx"
        path.write_bytes(b"model %d" % number)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        model = {"path": str(path), "sha256": sha256, "round": number, "source": "global", "score": number / 10}
        notes[name] = json.dumps(model)
    with closing(StateStore(person.data)) as store:
        assert person.types("models").stdout.startswith("no model yet\nIt uses no model yet: the federation's comes")
        store.put(**notes)

    def listed() -> list[tuple[int, bool, bool]]:
        found = json.loads(person.types("models", "--json").stdout)["models"]
        return [(model["round"], model["adopted"], model["whole"]) for model in found]

    assert listed() == [(2, True, True), (1, False, True)]
    shown = person.types("models").stdout
    assert "0.200" in shown
    assert "0.100" in shown
    assert "global model of round 1" in person.types("models", "--rollback").stderr
    assert listed() == [(1, True, True), (2, False, True)]
    (person.data / "r2.onnx").unlink()
    assert "missing or damaged" in person.types("models", "--rollback").stderr.replace("\n", " ")
    assert listed() == [(1, True, True), (2, False, False)]
