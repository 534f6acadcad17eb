"""Times that were never set, a header that stands in the middle, and two clocks in one file are told, never read."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from har_pipeline import prepare
from har_pipeline.description.guess.draft import draft
from tests.har_pipeline import layouts

OPTIONS: dict[str, Any] = {
    "files": r"(?P<client>[a-z]+)\.csv",
    "labels": ["walk", "sit"],
    "activity": "what",
    "time": {"column": "t", "unit": "ms"},
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"]},
}
HEADER = "t,x,y,z,what"


def rows(count: int = 1500, *, begin_ms: int = 49_000_000) -> list[str]:
    random = np.random.default_rng(0)
    values = random.normal([0, 0, 9.8], 0.5, (count, 3)).round(3)
    return [
        f"{begin_ms + 50 * i},{x},{y},{z},{'walk' if i < count // 2 else 'sit'}" for i, (x, y, z) in enumerate(values)
    ]


def text(lines: list[str]) -> bytes:
    return "\n".join([HEADER, *lines, ""]).encode()


@pytest.mark.parametrize("at", [0, 700, 1499])
def test_a_time_that_was_never_set_loses_its_row_alone(tmp_path, at):
    lines = rows()
    lines[at] = f"0,{lines[at].partition(',')[2]}"
    root = layouts.unpacked({"anna.csv": text(lines), "bert.csv": text(rows())}, tmp_path)
    found = prepare("described", root, options=OPTIONS)
    assert abs(len(found.clients["anna"]) - len(found.clients["bert"])) <= 1
    assert found.rates_hz["anna"]["acc"] == pytest.approx(20, rel=0.02)
    (lost,) = [each for each in found.findings if (each.code, each.sensor) == ("rows_without_numbers", "acc")]
    assert lost.message.startswith("1 rows")


def test_a_clock_that_begins_at_zero_keeps_its_first_row(tmp_path):
    root = layouts.unpacked({"anna.csv": text(rows(begin_ms=0))}, tmp_path)
    found = prepare("described", root, options=OPTIONS)
    assert found.clients["anna"].start_s[0] == 0
    assert "rows_without_numbers" not in {each.code for each in found.findings}


def test_describe_keeps_a_column_of_times_in_which_one_is_zero(tmp_path):
    lines = rows()
    lines[200] = f"0,{lines[200].partition(',')[2]}"
    plain = [line.replace(",", ";") for line in lines]
    root = layouts.unpacked({"anna.txt": "\n".join([*plain, ""]).encode()}, tmp_path)
    found = draft(root)
    assert found.guesses["time"].value == {"column": 1, "unit": "ms"}
    assert "rate_hz" not in found.guesses


def test_a_header_among_the_rows_is_left_out_and_counted(tmp_path, caplog):
    lines = rows()
    files = {"anna.csv": text([*lines[:300], HEADER, *lines[300:900], HEADER, *lines[900:]]), "bert.csv": text(lines)}
    root = layouts.unpacked(files, tmp_path)
    with caplog.at_level(logging.WARNING):
        found = prepare("described", root, options=OPTIONS)
    assert np.array_equal(found.clients["anna"].x, found.clients["bert"].x)
    assert "anna.csv: its header stands 2 more times among the rows" in caplog.text
    assert draft(root / "anna.csv").guesses["labels"].value == ["sit", "walk"]


@pytest.mark.parametrize(("apart_s", "found"), [(0.3, True), (-40.0, True), (0.0, False), (1.7e9, False)])
def test_a_second_clock_in_a_file_is_told(tmp_path, caplog, apart_s, found):
    random = np.random.default_rng(0)
    times = np.arange(1000) / 50 + random.uniform(0, 0.001, 1000)
    lines = [f"{t:.5f},1,2,9.8,{t + apart_s:.5f},0,0,{i % 2}" for i, t in enumerate(times)]
    options = {
        **OPTIONS,
        "header": False,
        "time": {"column": 1, "unit": "s"},
        "activity": {"fixed": "walk"},
        "acc": {"columns": [2, 3, 4]},
        "gyro": {"columns": [6, 7, 8]},
    }
    root = layouts.unpacked({"anna.csv": "\n".join([*lines, ""]).encode()}, tmp_path)
    with caplog.at_level(logging.WARNING):
        prepare("described", root, options=options)
    assert ("column 5 is a clock as well" in caplog.text) == found
