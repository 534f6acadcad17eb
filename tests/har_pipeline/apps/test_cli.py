"""`describe` and `info` on what apps write: known by name, counted, and the next command that works."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from gaitway.terminal import Console
from har_pipeline.apps.export import ActivityWords, name_words
from har_pipeline.cli import app
from tests.har_pipeline import layouts
from tests.har_pipeline.apps import exports


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr("har_pipeline.cli.console", Console(width=10_000))

    def run(*words: object):
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (exports.sensor_logger(), "Sensor Logger"),
        (exports.phyphox(";", ","), "phyphox"),
        ({"a.csv": exports.androsensor()}, "AndroSensor"),
        ({"a.csv": exports.physics_toolbox()}, "Physics Toolbox"),
    ],
)
def test_describe_says_whose_export_it_is_and_guesses_nothing(call, tmp_path, files, name):
    layouts.unpacked({f"anna/walking/{file}": content for file, content in files.items()}, tmp_path / "data")
    result = call("describe", tmp_path / "data", "--out", tmp_path / "data.toml")
    assert result.exit_code == 0
    assert f"This is an export of {name}: no description needed." in result.output
    assert not (tmp_path / "data.toml").exists()


def test_the_next_command_works(call, tmp_path):
    layouts.unpacked({f"anna/walking/{name}": each for name, each in exports.phyphox().items()}, tmp_path / "data")
    output = call("describe", tmp_path / "data").output
    options = re.search(r"--options '(.*)'", output)
    assert options
    assert json.loads(options[1]) == {"labels": ["walking"]}
    result = call(
        "prepare", "phyphox", "--data-root", tmp_path / "data", "--options", options[1], "--cache", tmp_path / "c"
    )
    assert result.exit_code == 0, result.output
    assert "anna_phone" in result.output
    assert "anna_phone" in call("info", "phyphox", "--data-root", tmp_path / "data").output


def test_what_cannot_be_read_is_said_once_for_all_that_have_it(call, tmp_path):
    for name in ("a", "b", "c"):
        files = exports.sensor_logger()
        del files["Gyroscope.csv"]
        layouts.unpacked(files, tmp_path / name)
    output = call("describe", tmp_path).output
    assert "0 of 3 recordings can be read" in output
    assert output.count("there is no gyroscope; switch Gyroscope on") == 1


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("walking_12", "walking"),
        ("anna/Walking-2026-03-05_20-14-32.zip", "walking"),
        ("walking/sitting_1", "sitting"),
        ("sleepwalking", ""),
        ("walking-sitting", ""),
        ("STAIRS up", "stairs up"),
        ("my stairs", "stairs"),
        ("anna/1", ""),
    ],
)
def test_a_name_says_one_activity_or_none(name, activity):
    assert ActivityWords(["walking", "sitting", "stairs", "stairs up"]).activity_in_name(name) == activity


def test_words_of_names_leave_out_numbers_and_endings():
    assert name_words("x/walking fast 2026-03-05_20-14-32.csv.zip") == ["walking", "fast"]


def test_what_an_apps_reader_cannot_read_gets_a_description(call, tmp_path):
    """As Physics Toolbox's files without a gyroscope, or with other columns (huy-n1001/gait_calculation)."""
    rows = exports.physics_toolbox().decode().splitlines()
    kept = "\n".join(",".join(row.split(",")[:4]) for row in rows)
    layouts.unpacked({f"anna/{each}.csv": kept.encode() for each in ("walking", "sitting")}, tmp_path / "data")
    result = call("describe", tmp_path / "data", "--out", tmp_path / "data.toml")
    assert result.exit_code == 0, result.output
    assert "its reader can't read it, for the reasons below" in result.output
    assert "gFx" in (tmp_path / "data.toml").read_text()
