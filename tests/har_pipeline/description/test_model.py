"""A description is refused in one line that names the key, what came and what was expected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gaitway.python310 import tomllib
from har_pipeline import SettingsError
from har_pipeline.description import description_of, read_description

BASE: dict[str, Any] = {
    "labels": ["go", "rest"],
    "activity": "what",
    "time": {"column": "t", "unit": "ms"},
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"], "unit": "g"},
}
XYZ = {"columns": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": "walking"}, r"labels: expected a list of names, .*got 'walking'"),
        ({"labels": ["go", "go"]}, "labels: names has 'go' twice"),
        ({"labels": [1, 2]}, "labels.names: expected a word"),
        ({"labels": {"names": ["go"], "map": {"run": "og"}}}, "map turns 'run' into 'og', .*did you mean 'go'"),
        ({"labels": {"names": ["go"], "ignore": ["go"]}}, "'go' cannot be a label"),
        ({"labels": {"names": ["go", "run"], "map": {"run": "go"}}}, "'run' is in map, and in names"),
        ({"tyme": 3}, "unknown key 'tyme'; did you mean 'time'"),
        ({"acc": {**XYZ, "units": "g"}}, "acc: unknown key 'units'; did you mean 'unit'"),
        ({"acc": {**XYZ, "unit": "gg"}}, r"acc\.unit: unknown unit; did you mean 'g'.*got 'gg'"),
        ({"acc": {**XYZ, "unit": -1}}, r"acc\.unit: expected one of"),
        ({"acc": {"columns": ["x", "y"]}}, r"acc\.columns: expected three columns"),
        ({"acc": {"columns": ["x", "y", "y"]}}, "three different"),
        ({"acc": {"columns": [0, 1, 2]}}, "counted from 1"),
        ({"acc": {**XYZ, "scale": 0}}, "scale is 0"),
        ({"acc": {**XYZ, "scale": float("nan")}}, r"acc\.scale: expected a number"),
        ({"acc": {**XYZ, "matrix": [[1, 0, 0], [0, 1, 0], [1, 1, 0]]}}, "no inverse"),
        ({"acc": {**XYZ, "matrix": [[1, 0, 0], [0, 0, 1], [0, 1, 0]]}}, "mirrors .*change the sign of one row"),
        ({"acc": {**XYZ, "scale": -1}}, 'turns all three axes round; .*acceleration = "gravity points down"'),
        ({"acceleration": "gravity down"}, "acceleration: .*did you mean 'gravity points down'"),
        ({"acceleration": None}, "acceleration: .*Known: specific force"),
        ({"acc": {**XYZ, "matrix": [[1, 0, 0], [0, 1, 0]]}}, r"acc\.matrix: expected three rows of three numbers"),
        ({"acc": {**XYZ, "matrix": "y,-x,z"}}, r"acc\.matrix: expected three rows of three numbers"),
        ({"acc": {**XYZ, "unit": "G"}}, r"acc\.unit: unknown unit; did you mean 'g'"),
        ({"acc": {"unit": "g"}}, "acc: columns is missing; write it as in columns ="),
        ({"time": {"unit": "ms"}}, "time: column is missing; write it as in column ="),
        ({"acc": 5}, "acc: expected keys and values: columns"),
        ({"time": None}, "time: name the column of the times, or give rate_hz"),
        ({"time": {"column": "t", "unit": "min"}}, r"time\.unit: unknown unit"),
        ({"time": {"column": "t", "format": "%H"}}, 'set unit = "date"'),
        ({"acc": {**XYZ, "sensor": "a"}}, r"acc\.sensor: nothing says the sensor of a row"),
        ({"rate_hz": "50"}, "rate_hz: expected a number"),
        ({"rate_hz": float("nan")}, "rate_hz"),
        ({"files": "(("}, "files: not a regular expression"),
        ({"files": "(?P<clint>a)"}, "unknown named group 'clint'; did you mean 'client'"),
        ({"files": "(?P<activity>a)"}, "activity: it is a named group of files already"),
        ({"files": "a" * 501}, "at most 500"),
        ({"separator": "ab"}, "separator: expected one character"),
        ({"separator": ";", "decimal": ";"}, "decimal"),
        ({"decimal": ","}, "separator: it is the decimal mark as well"),
        ({"header": False}, "header is false, so columns are numbers"),
        ({"header": "yes"}, "header"),
        ({"activity": {}}, "either a column or a fixed word"),
        ({"activity": {"column": "a", "fixed": "b"}}, "either a column or a fixed word"),
        ({"activity": None}, "activity: there are labels, but not where they stand"),
        ({"skip_lines": -1}, "skip_lines"),
    ],
)
def test_a_wrong_key_is_named(changes, message):
    with pytest.raises(SettingsError, match=message) as refused:
        description_of({**BASE, **changes})
    assert "\n" not in str(refused.value)


def test_a_description_survives_json_and_toml_says_the_same(tmp_path):
    text = """
files = 'subject(?P<client>\\d+)/(?P<session>[^/]+)\\.csv'
labels = { names = ["go", "rest"], map = { run = "go" }, ignore = ["idle"] }
activity = "what"
time = { column = "t", unit = "ms" }
acceleration = "specific force"
acc = { columns = ["x", "y", "z"], unit = "g", scale = [1, 2, -3] }
"""
    path = tmp_path / "data.toml"
    path.write_text(text)
    read = read_description(path)
    assert read == description_of(json.loads(json.dumps(read.to_json()))) == description_of(tomllib.loads(text))
    assert read.groups == ("client", "session")
    assert [read.labels.label_of(word) for word in ("go", "run", "idle", "", "swim")] == ["go", "go", "", "", None]
    assert read.with_labels(["swim"]).labels.label_of("swim") == "swim"


@pytest.mark.parametrize("text", ["a = ", "\xff", "[acc]\ncolumns = 3", "x = " + "[" * 5000])
def test_a_file_that_is_no_description_is_named(tmp_path, text):
    path = tmp_path / "data.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"data\.toml: "):
        read_description(path)
    with pytest.raises(SettingsError, match="expected a description in TOML"):
        read_description(tmp_path / "none.toml")


def test_a_description_that_does_not_say_which_way_is_up_is_told_how_to():
    with pytest.raises(SettingsError, match=r'acceleration is missing; write it as in acceleration = "specific force"'):
        description_of({"time": "t", "acc": XYZ})


def test_a_description_without_an_accelerometer_says_how_to_write_it():
    with pytest.raises(SettingsError, match=r"description: acc is missing; write it as in acc = \{ columns ="):
        description_of({"time": "t", "acceleration": "specific force"})
