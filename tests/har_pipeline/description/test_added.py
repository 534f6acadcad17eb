"""Gravity from files of its own: interpolated to the accelerometer's times, a bounded gap, and what is missing said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline import Recording, SettingsError, prepare, recordings
from har_pipeline.description import description_of, file_recordings, find_files
from har_pipeline.description.inspection import inspect
from tests.har_pipeline import layouts

APART: dict[str, Any] = {
    "files": r"(?P<client>[^/]+)/(?P<sensor>Accelerometer|Gravity|Gyroscope)\.csv",
    "labels": ["walk"],
    "activity": {"fixed": "walk"},
    "time": {"column": "time", "unit": "ns"},
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"], "add_sensor": "Gravity"},
    "gyro": {"columns": ["x", "y", "z"]},
}


def options(**changes: Any) -> dict[str, Any]:
    return {**APART, **changes}


def turning(times_s: np.ndarray) -> np.ndarray:
    """Gravity (n, 3) as it turns once in forty seconds."""
    angle = 2 * np.pi * times_s / 40
    return 9.80665 * np.stack([np.sin(angle), 0 * angle, np.cos(angle)], axis=1)


def file(times_s: np.ndarray, values: np.ndarray) -> bytes:
    rows = [[1_700_000_000_000_000_000 + round(t * 1e9), z, y, x] for t, (x, y, z) in zip(times_s, values, strict=True)]
    return layouts.table(["time", "z", "y", "x"], rows)


def session(folder: Path, gravity_s: np.ndarray, name: str = "anna") -> Path:
    """Twenty seconds of the accelerometer without gravity, at 100 Hz; gravity at times of its own."""
    times_s = np.arange(2000) / 100
    return layouts.unpacked({
        f"{name}/Accelerometer.csv": file(times_s, np.tile([0.5, -0.25, 0.125], (2000, 1))),
        f"{name}/Gravity.csv": file(gravity_s, turning(gravity_s)),
        f"{name}/Gyroscope.csv": file(times_s, np.tile([0, 2 * np.pi / 40, 0], (2000, 1))),
    }, folder)  # fmt: skip


def acceleration(found: list[Recording]) -> tuple[np.ndarray, np.ndarray]:
    mine = [each for each in found if each.sensor == "acc"]
    return np.concatenate([each.times_s for each in mine]), np.concatenate([each.values for each in mine])


def test_gravity_of_another_file_is_interpolated_to_the_accelerometers_times(tmp_path):
    session(tmp_path, 0.003 + np.arange(-10, 1010) / 50)
    times_s, values = acceleration(list(recordings("described", tmp_path, options=options())))
    since_s = times_s - 1_700_000_000
    np.testing.assert_allclose(values, turning(since_s) + np.array([0.5, -0.25, 0.125]), atol=1e-4)


def test_the_windows_are_those_of_rows_that_have_both(tmp_path):
    times_s = np.arange(2000) / 100
    session(tmp_path / "apart", times_s)
    linear, gravity = np.tile([0.5, -0.25, 0.125], (2000, 1)), turning(times_s)
    gyro = np.tile([0, 2 * np.pi / 40, 0], (2000, 1))
    rows = [
        [1_700_000_000_000 + round(t * 1000), *one]
        for t, *one in zip(times_s, *linear.T, *gravity.T, *gyro.T, strict=True)
    ]
    both = layouts.table(["t", "x", "y", "z", "gx", "gy", "gz", "wx", "wy", "wz"], rows)
    layouts.unpacked({"together/anna.csv": both}, tmp_path)
    whole = options(
        files=r"(?P<client>anna)\.csv",
        time={"column": "t", "unit": "ms"},
        acc={"columns": ["x", "y", "z"], "add": ["gx", "gy", "gz"]},
        gyro={"columns": ["wx", "wy", "wz"]},
    )
    apart = prepare("described", tmp_path / "apart", options=options()).clients["anna"]
    together = prepare("described", tmp_path / "together", options=whole).clients["anna"]
    assert len(apart) == len(together) > 0
    np.testing.assert_allclose(apart.x, together.x, atol=1e-5)


def test_where_gravity_has_a_gap_the_samples_are_lost_and_counted(tmp_path, caplog):
    gravity_s = np.arange(2000) / 100
    session(tmp_path, gravity_s[(gravity_s < 5) | (gravity_s > 7)])
    with caplog.at_level(logging.WARNING):
        times_s, values = acceleration(list(recordings("described", tmp_path, options=options())))
    since_s = times_s - 1_700_000_000
    lost = np.isnan(values).all(axis=1)
    assert lost.sum() == pytest.approx(180, abs=3)
    assert 5.08 < since_s[lost].min() < since_s[lost].max() < 6.92
    assert "of 2000 samples of the accelerometer have nothing to add within 0.1 s; they are left out" in caplog.text


def test_what_does_not_overlap_at_all_and_what_is_missing_is_said(tmp_path, caplog):
    session(tmp_path, 100 + np.arange(500) / 100, "anna")
    session(tmp_path, np.arange(2000) / 100, "bert")
    (tmp_path / "bert/Gravity.csv").unlink()
    with caplog.at_level(logging.WARNING):
        list(recordings("described", tmp_path, options=options()))
    assert "the times of the two do not overlap" in caplog.text
    assert "client bert" in caplog.text
    assert "there is no sensor that is added to its acceleration; left out" in caplog.text


def test_an_offset_is_taken_off_once_and_units_hold_for_both(tmp_path):
    session(tmp_path, np.arange(2000) / 100)
    acc = {"columns": ["x", "y", "z"], "add_sensor": "Gravity", "offset": [0.5, 0, 0], "unit": 2.0}
    times_s, values = acceleration(list(recordings("described", tmp_path, options=options(acc=acc))))
    np.testing.assert_allclose(values, 2 * (turning(times_s - 1_700_000_000) + np.array([0, -0.25, 0.125])), atol=1e-4)


def test_info_counts_both_parts_and_a_file_alone_cannot_be_added_up(tmp_path):
    session(tmp_path, np.arange(500) / 25)
    description = description_of(options())
    files = find_files(description, tmp_path)
    reports = {report.name: report for report in inspect(description, files)}
    assert {name.split("/")[1]: dict(report.samples) for name, report in reports.items()} == {
        "Accelerometer.csv": {"linear": 2000}, "Gravity.csv": {"added": 500}, "Gyroscope.csv": {"gyro": 2000}
    }  # fmt: skip
    with pytest.raises(SettingsError, match="added over all files of a session"):
        list(file_recordings(description, next(files.each())))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": r"(?P<client>.+)\.csv"}, "nothing says the sensor of a row"),
        ({"acc": {"columns": ["x", "y", "z"], "sensor": "Acc", "add_sensor": "Acc"}}, "not added to itself"),
        ({"acc": {"columns": ["x", "y", "z"], "add_sensor": "G", "add_gap_s": 0}}, "expected more than 0"),
    ],
)
def test_what_cannot_be_added_is_refused_in_words(changes, words):
    with pytest.raises(SettingsError, match=words):
        description_of(options(**changes))
