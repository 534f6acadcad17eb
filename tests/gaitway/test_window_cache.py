"""`gaitway cache` shows what every program keeps, and empties it of nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gaitway.window_cache import default_cache_dir, main
from har_pipeline import cli as pipeline
from sim.cli import app as sim

RECORDINGS = {"subjects": 2, "phones": 1, "places": 1, "minutes": 1.5}


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_all_programs_keep_windows_in_the_folder_that_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["prepare", "synthetic", "--options", json.dumps(RECORDINGS)]
    assert CliRunner().invoke(pipeline.app, given).exit_code == 0
    sets = [word for name, value in RECORDINGS.items() for word in ("--set", f"data.{name}={value}")]
    words = [
        "run",
        "--model",
        "har_cnn",
        "--method",
        "analytic",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
        *sets,
    ]
    done = CliRunner().invoke(sim.app, words)
    assert done.exit_code == 0, done.output
    assert main([]) == 0
    size = next(default_cache_dir().iterdir()).stat().st_size / 1e6
    assert capsys.readouterr().out == (
        f"{tmp_path / 'cache' / 'gaitway' / 'windows'}: 1 prepared data sets\n  synthetic: 1, {size:,.1f} MB\n"
    )


def test_it_removes_what_was_prepared_and_leaves_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    folder = default_cache_dir()
    folder.mkdir(parents=True)
    prepared, other = folder / f"spsw-{'0a' * 12}.npz", folder / "mine.npz"
    for path in (prepared, other):
        path.write_bytes(bytes(2_000_000))
    assert main(["--clear"]) == 0
    assert "1 prepared data sets, removed\n  spsw: 1, 2.0 MB" in capsys.readouterr().out
    assert [*folder.iterdir()] == [other]


def test_without_a_folder_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.endswith(": 0 prepared data sets\n")
    assert main(["--nonsense"]) == 2
