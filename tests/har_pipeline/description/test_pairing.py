"""What belongs together by time and place, never by order: several devices in a file, and a clock that is set back."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from har_pipeline import SourceError, prepare
from tests.har_pipeline import layouts

DEVICES: dict[str, Any] = {
    "files": r"(?P<client>p\d)\.csv",
    "labels": ["walk"],
    "activity": {"fixed": "walk"},
    "sensor": "kind",
    "time": "t",
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"], "sensor": "0"},
    "gyro": {"columns": ["x", "y", "z"], "sensor": "1"},
}
TRIALS: dict[str, Any] = {
    "files": r"(?P<activity>D\d)/(?P<client>U\d)_(?P<session>R\d)_(?P<sensor>acc|gyr)\.csv",
    "labels": ["D1", "D2", "D3"],
    "time": "t",
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"]},
    "gyro": {"columns": ["x", "y", "z"]},
}


def device_rows(device: int, kind: int, value: float) -> list[list[Any]]:
    """Eight seconds of one sensor of one device, whose clock starts a little later than that of the one before."""
    return [[f"{0.037 * device + i / 50:.3f}", value, 0, 9.8 * (1 - kind), kind, device] for i in range(400)]


def devices(order: list[tuple[int, int]]) -> dict[str, bytes]:
    rows = [row for device, kind in order for row in device_rows(device, kind, 10 * device)]
    return {"p1.csv": layouts.table(["t", "x", "y", "z", "kind", "device"], rows)}


def trials(acc_s: dict[str, np.ndarray]) -> dict[str, bytes]:
    """Three activities of one person and one session's name; x of both sensors is the activity's number."""
    files = {}
    for number, activity in enumerate(("D1", "D2", "D3"), 1):
        for sensor in ("acc", "gyr"):
            times_s = np.arange(800) / 50 if sensor == "gyr" else acc_s.get(activity, np.arange(800) / 50)
            rows = [[f"{t:.3f}", number, 0, 9.8] for t in times_s]
            files[f"{activity}/U1_R1_{sensor}.csv"] = layouts.table(["t", "x", "y", "z"], rows)
    return files


@pytest.mark.parametrize(
    "order",
    [
        [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)],
        [(1, 0), (2, 0), (2, 1), (1, 1)],
        [(1, 0), (1, 1), (2, 0), (2, 1)],
    ],
    ids=["one without a gyroscope", "another order of the sensors", "in order"],
)
def test_several_devices_in_a_file_are_refused_until_a_column_tells_them_apart(tmp_path, order):
    root = layouts.unpacked(devices(order), tmp_path)
    with pytest.raises(SourceError, match=r'name the column that tells them apart, as in session = \{ column = "dev'):
        prepare("described", root, options=DEVICES)
    (windows,) = prepare("described", root, options={**DEVICES, "session": "device"}).clients.values()
    np.testing.assert_allclose(windows.x[..., 0], windows.x[..., 3], atol=1e-3)
    assert len(windows) == 2 * 5
    assert set(np.round(windows.x[:, 0, 3])) == {10, 20}


@pytest.mark.parametrize(
    ("times_s", "kept"),
    [
        (np.arange(800) / 50 - 3 * (np.arange(800) >= 400), 5),
        (np.arange(800) / 50 + 3 * (np.arange(800) < 400), 5),
        (np.arange(800) / 50 + 5 - 3 * (np.arange(800) >= 400), 0),
    ],
    ids=["set back", "put right", "neither agrees"],
)
def test_one_file_whose_clock_is_set_back_meets_no_other_trials_gyroscope(tmp_path, caplog, times_s, kept):
    root = layouts.unpacked(trials({"D2": times_s}), tmp_path)
    with caplog.at_level(logging.WARNING):
        (windows,) = prepare("described", root, options=TRIALS).clients.values()
    np.testing.assert_allclose(windows.x[..., 0], windows.x[..., 3], atol=1e-3)
    np.testing.assert_allclose(windows.x[:, 0, 0], windows.y + 1, atol=1e-3)
    assert np.bincount(windows.y).tolist() == [11, kept, 11]
    expected = "D2/U1_R1_acc.csv: its clock was set back" if kept else "nothing says which belong together"
    assert expected in caplog.text


def test_a_clock_that_is_set_back_in_both_files_pairs_the_stretches_of_one_time(tmp_path):
    times_s = np.arange(800) / 50 - 5 * (np.arange(800) >= 400)
    files = trials({"D2": times_s})
    rows = [[f"{t:.3f}", 2, 0, 9.8] for t in times_s]
    files["D2/U1_R1_gyr.csv"] = layouts.table(["t", "x", "y", "z"], rows)
    (windows,) = prepare("described", layouts.unpacked(files, tmp_path), options=TRIALS).clients.values()
    np.testing.assert_allclose(windows.x[..., 0], windows.x[..., 3], atol=1e-3)
    assert np.bincount(windows.y).tolist() == [11, 10, 11]
