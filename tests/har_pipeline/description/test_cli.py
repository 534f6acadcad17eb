"""The way from unknown files to windows by the command line, and what it says where something is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from gaitway.python310 import tomllib
from har_pipeline.cli import app
from har_pipeline.description import Description, description_of
from har_pipeline.description.model import Accelerometer, LabelRanges, Labels, NumberColumn, TimeColumn
from tests.har_pipeline.description.made import respeck, sisfall
from tests.repository.imports import REPOSITORY

REFERENCE = REPOSITORY / "docs" / "data.md"


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr("har_pipeline.cli.console.width", 200)

    def invoke(*arguments: object):
        return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})

    return invoke


def test_describe_info_and_prepare_follow_one_another(call, tmp_path):
    data, toml = tmp_path / "data", tmp_path / "data.toml"
    respeck(data)
    (data / "notes.md").write_text("not a recording")
    result = call("describe", data, "--out", toml)
    assert result.exit_code == 0, result.output
    assert "check files, acceleration, labels" in result.output
    assert toml.read_text() in result.output
    assert "clients: 12, 3 (2)" in result.output
    assert "already exists" in call("describe", data, "--out", toml).output
    shown = call("info", "--describe", toml, "--data-root", data)
    assert shown.exit_code == 0, shown.output
    assert "4 files match" in shown.output
    assert "1 others do not: notes.md" in shown.output
    assert re.search(r"sitting\s*│ 3000\s*│ 2\s*│ 2", shown.output)
    assert re.search(r"subject12/respeck/sitting\.csv\s*│ 12\s*│ acc gyro\s*│ 25\s*│ 1\.0", shown.output)
    read = json.loads(call("info", "--describe", toml, "--data-root", data, "--json").output)
    assert read["labels"] == ["sitting", "walking_slow"]
    assert {(*row["clients"], *row["labels"]) for row in read["files"]} == {
        (client, label) for client in ("3", "12") for label in read["labels"]
    }
    prepared = call("prepare", "--describe", toml, "--data-root", data, "--cache", tmp_path / "cache")
    assert prepared.exit_code == 0, prepared.output
    assert "2 clients" in prepared.output
    fewer = call("prepare", "--describe", toml, "--data-root", data, "--cache", tmp_path / "cache",
                 "--options", json.dumps({"labels": {"names": ["sitting"], "ignore": ["walking_slow"]}}))  # fmt: skip
    assert "1 of 1" in fewer.output


def test_info_says_which_files_are_of_no_use_and_why(call, tmp_path):
    data, toml = tmp_path / "data", tmp_path / "data.toml"
    sisfall(data)
    (data / "D99_SA03_R01.txt").write_bytes((data / "D01_SA03_R01.txt").read_bytes())
    (data / "D01_SA03_R09.txt").write_text("1, 2, 3;\n")
    call("describe", data, "--out", toml)
    toml.write_text(toml.read_text().replace('"D99", ', "").replace(', "D99"', ""))
    result = call("info", "--describe", toml, "--data-root", data)
    assert result.exit_code == 0, result.output
    assert "D99_SA03_R01.txt: activity 'D99' isn't a label" in result.output
    assert "D01_SA03_R09.txt: no column 4; its rows have 3" in result.output
    assert "10 files match" in result.output
    assert "8 can be read" in result.output


def test_pauses_between_the_times_count_for_neither_rate_nor_minutes(call, tmp_path):
    """Three stretches of twenty seconds at 25 Hz, an hour apart, all in one file."""
    data, toml = tmp_path / "data", tmp_path / "data.toml"
    data.mkdir()
    ms = [3_600_000 * stretch + 40 * row for stretch in range(3) for row in range(500)]
    (data / "walks.csv").write_text("\n".join(["ms,ax,ay,az", *(f"{1_600_000_000_000 + t},0,0,1" for t in ms)]))
    assert "25 rows per second, counted from 1970" in call("describe", data).output
    toml.write_text(
        'labels = ["walking"]\nactivity = { fixed = "walking" }\n'
        'time = { column = "ms", unit = "ms" }\nacceleration = "specific force"\n'
        'acc = { columns = ["ax", "ay", "az"], unit = "g" }\n'
    )
    shown = call("info", "--describe", toml, "--data-root", data).output
    assert "1 clients, 1.0 min" in shown


def test_times_that_are_rounded_leave_the_rate_as_it_is(call, tmp_path):
    data, toml = tmp_path / "data", tmp_path / "data.toml"
    data.mkdir()
    (data / "walk.csv").write_text("\n".join(["s,ax,ay,az", *(f"{round(row / 64, 2)},0,0,9.8" for row in range(3000))]))
    toml.write_text('time = "s"\nacceleration = "specific force"\nacc = { columns = ["ax", "ay", "az"] }\n')
    shown = call("info", "--describe", toml, "--data-root", data).output
    assert re.search(r"walk\.csv\s*│ walk\s*│ acc\s*│ 64\s*│ 0\.8", shown)  # no gyroscope is read, so none is shown
    assert "gyro " not in shown


def test_many_files_of_one_fault_are_one_line_and_none_at_all_is_an_error(call, tmp_path):
    data, toml = tmp_path / "data", tmp_path / "data.toml"
    data.mkdir()
    for number in range(40):
        (data / f"{number}.csv").write_text("t,x,y,z\n" + "0,1,2,three\n" * (20 + number))
    toml.write_text('time = "t"\nacceleration = "specific force"\nacc = { columns = ["x", "y", "z"] }\n')
    result = call("info", "--describe", toml, "--data-root", data)
    assert result.exit_code == 2
    assert result.output.count("not read") == 1
    assert "'three' in column 'z' is no number (and 19 of 20 rows more) (and 39 more files" in result.output
    assert "this description can't read any of the files" in result.output


def test_a_file_of_a_header_alone_is_named(call, tmp_path):
    data, toml = tmp_path / "data", tmp_path / "data.toml"
    data.mkdir()
    rows = [f"{i * 0.02:.2f},{i % 5 / 10},0,9.8" for i in range(600)]
    (data / "walking.csv").write_text("\n".join(["t,x,y,z", *rows]))
    (data / "sitting.csv").write_text("t,x,y,z\n")
    assert call("describe", data, "--out", toml).exit_code == 0
    assert "sitting.csv: it has no rows" in call("info", "--describe", toml, "--data-root", data).output


def test_refusals_are_one_line(call, tmp_path):
    assert "no data set given; name one of" in call("prepare").output
    result = call("prepare", "motionsense", "--describe", tmp_path / "x.toml")
    assert result.exit_code == 2
    assert "leave out 'motionsense'" in result.output
    result = call("info", "--describe", tmp_path / "x.toml")
    assert result.exit_code == 2
    assert "No such file" in result.output
    assert call("describe", tmp_path).exit_code == 2


def keys_of(model: type[BaseModel], section: str) -> set[str]:
    return {f"{section}.{key}" for key in model.model_fields}


def test_the_reference_has_every_key_and_its_examples_are_descriptions():
    text = REFERENCE.read_text()
    table = text.partition("\n### Every key\n")[2].partition("\n### ")[0]
    keys = set(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE))
    sections = keys_of(Labels, "labels") | keys_of(TimeColumn, "time") | keys_of(Accelerometer, "acc")
    sections |= keys_of(NumberColumn, "number") | keys_of(LabelRanges, "ranges")
    assert keys == set(Description.model_fields) | sections
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert description_of(tomllib.loads(example)).labels.names
        assert len(example.splitlines()) <= 20


def test_paths_of_hostile_names_are_printed(call, tmp_path: Path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{i * 0.02:.2f},0,0,9.8,[/]go" for i in range(600)]
    (folder / "[red]x[:]\udcff.csv").write_text("\n".join(["t,x,y,z,label", *rows]))
    toml, where = tmp_path / "data.toml", ("--describe", tmp_path / "data.toml", "--data-root", folder)
    toml.write_text(
        'labels = ["[/]go"]\nactivity = "label"\ntime = "t"\n'
        'acceleration = "specific force"\nacc = { columns = ["x", "y", "z"] }\n'
    )
    for arguments in (("describe", folder), ("info", *where), ("prepare", *where, "--cache", tmp_path / "cache")):
        result = call(*arguments)
        assert result.exit_code == 0, result.exception
        assert "[/]go" in result.output
    toml.write_text(toml.read_text().replace("[/]go", "go[/]"))
    assert "'[/]go' isn't a label; Known: go[/]" in call("info", *where).output
    assert (
        "isn't a label" in call("prepare", *where, "--options", '{"labels": {"names": ["go"], "strict": true}}').output
    )
