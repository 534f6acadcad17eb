"""One bad file among good ones is left out and told with its reason, once for all that have it; strict refuses it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from har_pipeline import PipelineError, prepare
from har_pipeline.cli import app
from tests.har_pipeline import layouts

OPTIONS: dict[str, Any] = {
    "files": r"(?P<client>[a-z]+\d*)\.csv",
    "labels": ["walk"],
    "activity": {"fixed": "walk"},
    "time": "t",
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"]},
    "gyro": {"columns": ["gx", "gy", "gz"]},
}
HEADER = b"t,x,y,z,gx,gy,gz\n"


def good(seconds: float = 10.0) -> bytes:
    random = np.random.default_rng(0)
    rows = [[f"{i / 50:.2f}", *random.normal(0, 1, 2).round(3), 9.8, 0, 0, 1] for i in range(int(50 * seconds))]
    return HEADER + b"\n".join(",".join(map(str, row)).encode() for row in rows) + b"\n"


BAD = {
    "empty": b"",
    "utf-16": "t,x\n1,2\n".encode("utf-16"),
    "zero bytes": HEADER + b"1,2,3\0\n" * 50,
    "a long line": HEADER + b"1" * (1 << 21),
    "other columns": good().replace(b"t,x,y", b"t,u,v"),
    "words": HEADER + b"a,b,c,d,e,f,g\n" * 50,
    "a clock that stands": HEADER + b"7,1,2,3,4,5,6\n" * 500,
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_among_good_ones_is_left_out_and_listed_unless_strict(tmp_path, caplog, kind):
    root = layouts.unpacked({"anna.csv": good(), "bert.csv": BAD[kind], "cleo.csv": good()}, tmp_path)
    with caplog.at_level(logging.WARNING):
        found = prepare("described", root, options=OPTIONS)
    assert {name for name, windows in found.clients.items() if len(windows)} == {"anna", "cleo"}
    told = caplog.text + " ".join(f"{each.client} {each.message}" for each in found.findings)
    assert "bert" in told
    assert "left out" in told
    with pytest.raises(PipelineError, match="bert"):
        prepare("described", root, options={**OPTIONS, "strict": True})


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_alone_are_refused_with_the_reason_of_the_first(tmp_path, kind):
    root = layouts.unpacked({"anna.csv": BAD[kind], "bert.csv": BAD[kind]}, tmp_path)
    with pytest.raises(PipelineError, match=r"anna\.csv"):
        prepare("described", root, options=OPTIONS)


def test_one_reason_of_seventy_files_is_told_once_with_their_count(tmp_path, caplog):
    files = {f"p{number}.csv": BAD["words"] for number in range(70)}
    root = layouts.unpacked({"anna.csv": good(), **files}, tmp_path)
    with caplog.at_level(logging.WARNING):
        prepare("described", root, options=OPTIONS)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "'a' in column 't' is no number" in told[0]
    assert "(and 69 more: p1.csv" in told[0]
    assert told[1] == "70 of 71 files are left out"


def test_prepare_refuses_by_an_option(tmp_path):
    root = layouts.unpacked({"anna.csv": good(), "bert.csv": b""}, tmp_path / "data")
    toml = tmp_path / "data.toml"
    toml.write_text(
        "files = '(?P<client>[a-z]+)\\.csv'\nlabels = ['walk']\nactivity = { fixed = 'walk' }\ntime = 't'\n"
        "acceleration = 'specific force'\nacc = { columns = ['x', 'y', 'z'] }\n"
    )
    arguments = ["prepare", "--describe", str(toml), "--data-root", str(root), "--cache", str(tmp_path / "cache")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    refused = CliRunner().invoke(app, [*arguments, "--strict"])
    assert refused.exit_code == 2
    assert "bert.csv is empty" in refused.output


def test_activities_and_time_without_windows_are_found_with_the_limit_of_a_gap(tmp_path):
    rows = good(60).splitlines(keepends=True)
    # a pause of a second after each two and a half
    kept = [row for number, row in enumerate(rows[1:]) if number % 175 < 125 or number < 750]
    files = {"anna.csv": HEADER + b"".join(kept), "bert.csv": good(60)}
    found = prepare("described", layouts.unpacked(files, tmp_path), options=OPTIONS)
    (few,) = [each for each in found.findings if each.code == "few_windows"]
    assert few.client == "anna"
    assert "without a gap of more than 0.1 s" in few.message
    rows = [row.strip() + (b",run" if number > 1500 else b",walk") for number, row in enumerate(rows[1:])]
    kept = [row for number, row in enumerate(rows) if number < 1500 or number % 75 < 60]
    lively = {"anna.csv": b"\n".join([HEADER.strip() + b",what", *kept, b""])}
    options = {**OPTIONS, "activity": "what", "labels": ["walk", "run"]}
    found = prepare("described", layouts.unpacked(lively, tmp_path / "b"), options=options)
    (without,) = [each for each in found.findings if each.code == "activity_without_windows"]
    assert "'run' was recorded for 30 s and has no window" in without.message


def test_an_activity_that_never_lasts_for_a_window_is_no_finding(tmp_path):
    rows = good(60).splitlines(keepends=True)[1:]
    rows = [row.strip() + (b",rise" if number % 500 < 50 else b",walk") for number, row in enumerate(rows)]
    files = {"anna.csv": b"\n".join([HEADER.strip() + b",what", *rows, b""])}
    options = {**OPTIONS, "activity": "what", "labels": ["walk", "rise"]}
    found = prepare("described", layouts.unpacked(files, tmp_path), options=options)
    assert not {each.code for each in found.findings} & {"activity_without_windows", "few_windows"}
