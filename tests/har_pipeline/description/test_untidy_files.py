"""Files as strangers keep them: rows out of order, spellings, damaged archives, two persons in one; all of it said."""

from __future__ import annotations

import gzip
import logging
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gaitway.python310 import tomllib
from har_pipeline import PipelineSettings, SourceError, prepare, recordings
from har_pipeline.cli import app
from har_pipeline.description import description_of, find_files
from har_pipeline.description.guess.draft import draft
from har_pipeline.description.inspection import inspect
from har_pipeline.readers.archive import walk
from tests.har_pipeline import layouts

OPTIONS: dict[str, Any] = {
    "files": r"(?P<client>[a-z]+)_[^/]*\.csv",
    "labels": ["walking", "sitting"],
    "activity": "what",
    "time": "t",
    "acc": {"columns": ["x", "y", "z"]},
    "acceleration": "specific force",
}
EPOCH = 1_700_000_000.0


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr("har_pipeline.cli.console.width", 300)

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "300", "NO_COLOR": "1"})
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    return invoke


def rows(
    began: float = 0.0, seconds: float = 30.0, *, words: tuple[str, ...] = ("walking",), seed: int = 0
) -> list[str]:
    """50 rows a second of somebody who moves a little; the words take turns."""
    random, count = np.random.default_rng(seed), int(50 * seconds)
    acc = np.array([0, 0, 9.8]) + random.normal(0, 0.3, (count, 3))
    labels = [words[i * len(words) // count] for i in range(count)]
    return [
        f"{began + i / 50:.2f},{x:.3f},{y:.3f},{z:.3f},{label}"
        for i, ((x, y, z), label) in enumerate(zip(acc, labels, strict=True))
    ]


def csv(lines: list[str]) -> bytes:
    return "\n".join(["t,x,y,z,what", *lines, ""]).encode()


@pytest.mark.parametrize(
    ("order", "column_of_persons"),
    [
        ("shuffled", True),
        ("two halves", False),
        *(pytest.param(*each, marks=pytest.mark.ci) for each in [("shuffled", False), ("two halves", True)]),
        *(pytest.param("backwards", each, marks=pytest.mark.ci) for each in (False, True)),
    ],
)
def test_rows_out_of_order_are_sorted_and_said(tmp_path, caplog, order, column_of_persons):
    lines = rows(EPOCH, seconds=60.0, words=("walking", "sitting"))
    options = OPTIONS
    if column_of_persons:
        lines = [f"{line},{'ab'[number % 2]}" for number, line in enumerate(lines)]
        options = {**OPTIONS, "files": r"[a-z_]+\.csv", "client": "who"}
    content = {
        "shuffled": np.random.default_rng(0).permutation(lines).tolist(),
        "backwards": lines[::-1],
        "two halves": lines[len(lines) // 2 :] + lines[: len(lines) // 2],
    }
    for name, each in {"sorted": lines, order: content[order]}.items():
        text = "\n".join([f"t,x,y,z,what{',who' * column_of_persons}", *each, ""])
        layouts.unpacked({f"{name.replace(' ', '')}/anna_x.csv": text.encode()}, tmp_path)
    with caplog.at_level(logging.WARNING):
        found = prepare("described", tmp_path / order.replace(" ", ""), options=options)
    expected = prepare("described", tmp_path / "sorted", options=options)
    assert {name: len(each) for name, each in found.clients.items()} == {
        name: len(each) for name, each in expected.clients.items()
    }
    for name, windows in found.clients.items():
        assert np.array_equal(windows.x, expected.clients[name].x)
        assert np.array_equal(windows.y, expected.clients[name].y)
    assert ("sorted" in caplog.text) == (order == "shuffled")


def test_a_file_out_of_order_that_is_too_long_to_sort_is_refused_in_that_word(tmp_path, monkeypatch):
    monkeypatch.setattr("har_pipeline.description.samples.MAX_SORTED_ROWS", 1000)
    lines = np.random.default_rng(0).permutation(rows(seconds=60)).tolist()
    layouts.unpacked({"anna_x.csv": csv(lines)}, tmp_path)
    with pytest.raises(SourceError, match=r"not in the order of their times.* sort"):
        list(recordings("described", tmp_path, options=OPTIONS))


def test_spellings_of_one_label_are_one_and_said(tmp_path, caplog, call):
    words = ("walking", "Walking ", "WALKING", "sitting", " Sitting", "sit  ting")
    layouts.unpacked({"anna_x.csv": csv(rows(seconds=120, words=words))}, tmp_path)
    found = draft(tmp_path)
    assert found.guesses["labels"].value == ["sit  ting", "sitting", "walking"]
    assert "'WALKING', 'Walking' count as 'walking': labels ignore case and blanks" in found.toml()
    options = {**OPTIONS, "labels": {"names": ["walking", "sitting", "sit ting"]}}
    with caplog.at_level(logging.WARNING):
        (windows,) = prepare("described", tmp_path, PipelineSettings(), options=options).clients.values()
    assert set(windows.y.tolist()) == {0, 1, 2}
    assert "activity 'WALKING' counts as 'walking'" in caplog.text
    assert caplog.text.count("'WALKING' counts") == 1
    toml = tmp_path / "data.toml"
    toml.write_text(
        "files = '(?P<client>[a-z]+)_x.csv'\n"
        'labels = ["walking", "sitting", "sit ting"]\nactivity = "what"\ntime = "t"\n'
        'acc = { columns = ["x", "y", "z"] }\n' + 'acceleration = "specific force"\n'
    )
    assert "'Sitting' counts as 'sitting'" in call("info", "--describe", toml, "--data-root", tmp_path)


GOOD = csv(rows(seconds=20, words=("walking", "sitting")))
DAMAGED = {
    "cut off": layouts.zipped({"dora_x.csv": GOOD})[:-400],
    "no zip": b"PK\3\4 not a zip",
    "empty": b"",
    "nested": layouts.zipped({"inner.zip": layouts.zipped({"dora_x.csv": GOOD})[:-400], "emil_x.csv": GOOD}),
}


@pytest.mark.parametrize("kind", [*DAMAGED, "gz"])
def test_a_damaged_archive_among_good_ones_is_left_out_and_said(tmp_path, caplog, call, kind):
    bad = "bert.zip" if kind != "gz" else "bert_x.csv.gz"
    content = gzip.compress(GOOD)[:-100] if kind == "gz" else DAMAGED[kind]
    files = {
        "anna.zip": layouts.zipped({"anna_x.csv": GOOD}),
        bad: content,
        "cleo.zip": layouts.zipped({"cleo_x.csv": GOOD}),
    }
    data, toml = layouts.unpacked(files, tmp_path / "data"), tmp_path / "data.toml"
    said = call("describe", data, "--out", toml)
    assert "left out" in said
    assert bad in said
    expected = {"anna", "cleo", *(["emil"] if kind == "nested" else [])}
    options = {**OPTIONS, "files": OPTIONS["files"].replace(r"\.csv", r"\.csv(?:\.gz)?")}
    with caplog.at_level(logging.WARNING):
        assert set(prepare("described", data, options=options).clients) == expected
    assert bad in caplog.text
    shown = call("info", "--describe", toml, "--data-root", data)
    assert bad in shown


def test_a_damaged_archive_alone_is_refused_and_so_it_is_where_nobody_listens(tmp_path):
    layouts.unpacked({"bert.zip": DAMAGED["cut off"]}, tmp_path)
    for root in (tmp_path, tmp_path / "bert.zip"):
        with pytest.raises(SourceError, match=r"bert\.zip.* cannot be read as an archive"):
            draft(root)
        with pytest.raises(SourceError, match=r"bert\.zip.* cannot be read as an archive"):
            list(recordings("described", root, options=OPTIONS))
    with pytest.raises(SourceError, match="cannot be read as an archive"):
        list(walk(tmp_path, lambda archive: True))


@pytest.mark.parametrize(
    ("begins", "overlapping"),
    [
        ((EPOCH, EPOCH + 10), True),
        ((54_321.0, 54_331.5), True),
        ((EPOCH, EPOCH + 40), False),
        ((0, 0), False),
        ((0, 3), False),
    ],
    ids=["epoch", "uptime", "one after another", "trials from 0", "trials from about 0"],
)
def test_two_persons_in_one_client_are_noticed_by_overlapping_times(tmp_path, caplog, call, begins, overlapping):
    files = {f"anna_{at}.csv": csv(rows(begin, seed=at)) for at, begin in enumerate(begins)}
    data, toml = layouts.unpacked(files, tmp_path / "data"), tmp_path / "data.toml"
    words = "anna_0.csv and anna_1.csv were recorded at the same time"
    with caplog.at_level(logging.WARNING):
        prepare("described", data, options=OPTIONS)
    assert (words in caplog.text) == overlapping
    guessed = draft(data).toml()
    assert tomllib.loads(guessed)["acc"]["columns"] == ["x", "y", "z"]
    lines = [line for line in guessed.splitlines() if not line.startswith(("files", "client"))]
    toml.write_text("\n".join([f"files = '{OPTIONS['files']}'", *lines]))
    assert (words in call("info", "--describe", toml, "--data-root", data)) == overlapping


def test_one_person_in_one_file_whose_clock_is_set_back_is_no_two(tmp_path):
    layouts.unpacked({"anna_x.csv": csv(rows(0) + rows(0))}, tmp_path)
    described = description_of(OPTIONS)
    (report,) = inspect(described, find_files(described, tmp_path))
    assert len(report.spans) == 2
