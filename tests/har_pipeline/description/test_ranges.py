"""Labels that another file says as ranges of samples or of times, in the layouts of HAPT and of a set of exercises."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline import prepare
from har_pipeline.description.files import find_files
from har_pipeline.description.model import description_of
from har_pipeline.description.sessions import recordings
from har_pipeline.errors import LabelError, SettingsError, SourceError
from har_pipeline.recording import Categorical, Recording

HAPT: dict[str, Any] = {
    "files": r"(?P<sensor>acc|gyro)_exp(?P<session>\d+)_user(?P<client>\d+)\.txt",
    "header": False,
    "separator": "whitespace",
    "rate_hz": 50,
    "acceleration": "specific force",
    "acc": {"columns": [1, 2, 3], "unit": "g"},
    "gyro": {"columns": [1, 2, 3]},
    "labels": {"names": ["walking", "sitting"], "map": {"1": "walking", "4": "sitting"}, "ignore": ["7"]},
    "ranges": {
        "files": r"labels\.txt",
        "header": False,
        "separator": "whitespace",
        "session": 1,
        "client": 2,
        "label": 3,
        "begin": 4,
        "end": 5,
        "unit": "rows",
    },
}
ROWS = [(1, 1, 4, 11, 40), (1, 1, 1, 41, 60), (2, 1, 7, 1, 30), (2, 1, 1, 51, 100), (3, 2, 4, 1, 100)]


def hapt(root: Path, rows: Iterable[tuple[int, ...]] = ROWS) -> Path:
    """Write raw files of three experiments, 100 samples each, and the ranges of `rows` in labels.txt."""
    root.mkdir(exist_ok=True)
    for session, client in ((1, 1), (2, 1), (3, 2)):
        for sensor in ("acc", "gyro"):
            values = np.column_stack([np.arange(100.0), np.zeros(100), np.ones(100)])
            np.savetxt(root / f"{sensor}_exp{session:02d}_user{client:02d}.txt", values, fmt="%.6f")
    (root / "labels.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    return root


def labels(found: Iterable[Recording], sensor: str) -> dict[tuple[str, str], list[str]]:
    """Return the activity of every sample of a sensor, by client and session."""
    every: dict[tuple[str, str], list[str]] = {}
    for each in found:
        if each.sensor == sensor:
            assert isinstance(each.activity, Categorical)
            every.setdefault((each.client, each.session), []).extend(each.activity.names[each.activity.codes])
    return every


@pytest.mark.parametrize("sensor", ["acc", "gyro"])
def test_ranges_of_samples_label_both_sensors_of_their_session(tmp_path: Path, sensor: str) -> None:
    description = description_of(HAPT)
    found = recordings(description, find_files(description, hapt(tmp_path)), report=pytest.fail)
    assert labels(found, sensor) == {
        ("01", "01"): [""] * 10 + ["sitting"] * 30 + ["walking"] * 20 + [""] * 40,
        ("01", "02"): [""] * 50 + ["walking"] * 50,
        ("02", "03"): ["sitting"] * 100,
    }


def test_files_of_ranges_are_no_recordings_and_count_for_the_cache(tmp_path: Path) -> None:
    files = find_files(description_of({**HAPT, "files": r"(?P<sensor>acc|gyro|lab)\w+\.txt"}), hapt(tmp_path))
    assert files.count == 6
    assert "labels.txt" not in files.matches
    assert tmp_path / "labels.txt" in files.inputs
    root = hapt(tmp_path / "data", [(*who, 4, 1, 100) for who in ((1, 1), (2, 1), (3, 2))])
    options = {**HAPT, "rate_hz": 10}
    first = prepare("described", root, options=options, cache_dir=tmp_path / "cache")
    hapt(root, [(*who, 1, 1, 100) for who in ((1, 1), (2, 1), (3, 2))])
    again = prepare("described", root, options=options, cache_dir=tmp_path / "cache")
    assert {*first.clients["01"].y} == {1}
    assert {*again.clients["01"].y} == {0}


@pytest.mark.parametrize("shuffled", [False, True])
def test_ranges_of_times_keep_the_folders_activity_within_and_none_outside(tmp_path: Path, shuffled: bool) -> None:
    order = np.random.default_rng(0).permutation(200) if shuffled else np.arange(200)
    rows = np.column_stack([np.arange(1, 201), np.zeros((200, 2)), np.full(200, 9.8), np.zeros((200, 3))])[order]
    for who, activity in (("s1", "e1"), ("s1", "e2"), ("s2", "e1")):
        folder = tmp_path / who / activity
        folder.mkdir(parents=True)
        np.savetxt(folder / "test.txt", rows, delimiter=";", header="time index;a;b;c;d;e;f", comments="", fmt="%g")
        (folder / "template_times.txt").write_text("execution type;start;end\n1;50;99.5\n2;120;160\n")
    description = description_of(
        {
            "files": r"(?P<client>s\d)/(?P<activity>e\d)/test\.txt",
            "separator": ";",
            "time": {"column": "time index", "unit": 0.04},
            "acceleration": "specific force",
            "acc": {"columns": ["a", "b", "c"]},
            "gyro": {"columns": ["d", "e", "f"]},
            "labels": ["e1", "e2"],
            "ranges": {
                "files": r"(?P<client>s\d)/(?P<activity>e\d)/template_times\.txt",
                "separator": ";",
                "begin": "start",
                "end": "end",
            },
        }
    )
    said: list[str] = []
    found = labels(recordings(description, find_files(description, tmp_path), report=said.append), "acc")
    assert [who for who, _ in found] == ["s1", "s1", "s2"]
    assert sorted({word for words in found.values() for word in words}) == ["", "e1", "e2"]
    for words in found.values():
        inside = [bool(word) for word in words]
        assert inside == [50 <= number <= 99 or 120 <= number <= 160 for number in range(1, 201)]
    assert all("sorted" in words for words in said)
    assert bool(said) == shuffled


def test_a_recording_without_a_range_is_said(tmp_path: Path) -> None:
    description = description_of(HAPT)
    said: list[str] = []
    found = labels(
        recordings(description, find_files(description, hapt(tmp_path, ROWS[:4])), report=said.append), "acc"
    )
    assert found["02", "03"] == [""] * 100
    assert said[0].startswith("acc_exp03_user02.txt: no range says what client 02 did; its rows have no label")


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (
            [(1, 1, 4, 1, 50), (1, 1, 1, 40, 60)],
            SourceError,
            r"labels.txt, line 2: 40 to 60 overlaps 1 to 50 of .* 1 with",
        ),
        ([(1, 1, 4, 50, 1)], SourceError, "line 1: 50 to 1 isn't a range"),
        ([(1, 1, 5, 1, 50)], LabelError, "line 1: activity '5' isn't a label"),
        ([], SourceError, "labels.txt is empty"),
    ],
)
def test_odd_ranges_are_refused(
    tmp_path: Path, rows: list[tuple[int, ...]], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        find_files(description_of(HAPT), hapt(tmp_path, rows))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"begin": None}, 'begin is missing; write it as in begin = "start"'),
        ({"unit": "steps"}, "unknown unit"),
        ({"label": "what"}, "header is false, so columns are numbers, counted from 1; got 'what'"),
    ],
)
def test_a_section_of_ranges_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    given = {key: value for key, value in {**HAPT["ranges"], **changes}.items() if value is not None}
    with pytest.raises(SettingsError, match=words):
        description_of({**HAPT, "ranges": given})


def test_files_of_ranges_that_are_not_there_are_missed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no range of labels was found; expected files that match"):
        find_files(description_of({**HAPT, "ranges": {**HAPT["ranges"], "files": "none"}}), hapt(tmp_path))
