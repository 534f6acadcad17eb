"""Where the words and times of rows stand: filtered rows, several places of one word, and a clock for each sensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline.description.files import find_files
from har_pipeline.description.model import description_of
from har_pipeline.description.sessions import recordings
from har_pipeline.errors import SettingsError
from har_pipeline.recording import Categorical, Recording

ACC, GYRO = {"columns": ["ax", "ay", "az"]}, {"columns": ["gx", "gy", "gz"]}
HEADER = "t,ax,ay,az,gx,gy,gz"


def read(folder: Path, **keys: Any) -> list[Recording]:
    given = {"acceleration": "specific force", "acc": ACC, "gyro": GYRO, "time": {"column": "t"}, **keys}
    described = description_of(given)
    return list(recordings(described, find_files(described, folder), report=pytest.fail))


def write(path: Path, header: str, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")


def of(found: list[Recording], sensor: str) -> np.ndarray:
    """Return times and values (n, 4) of a sensor, in the order in which they were read."""
    return np.concatenate([np.column_stack([r.times_s, r.values]) for r in found if r.sensor == sensor])


def test_only_the_rows_of_one_of_several_devices_are_read(tmp_path: Path) -> None:
    rows = [
        f"{n / 50},{device},{word},1,2,{3 + 10 * device},4,5,6"
        for n in range(100)
        for device, word in enumerate(("01", "1", "x"))
    ]
    write(tmp_path / "anna.csv", "t,number,device,ax,ay,az,gx,gy,gz", rows)
    for words, levels in (("1", {13}), (["01", "x"], {3, 23})):
        found = read(tmp_path, only={"device": words})
        assert {*of(found, "acc")[:, 3]} == levels
        assert len(of(found, "gyro")) == 100 * len(levels)
    write(tmp_path / "anna.csv", "1,1,2,3,4,5,6,7", ["2,1,2,3,4,5,6,8"] * 9)
    numbered = {"columns": [2, 3, 4]}, {"columns": [5, 6, 7]}
    found = read(tmp_path, header=False, time={"column": 1}, acc=numbered[0], gyro=numbered[1], only={"8": "8"})
    assert of(found, "acc")[:, 0].tolist() == [2.0] * 9


def test_a_client_is_what_a_group_and_a_column_say_together(tmp_path: Path) -> None:
    write(
        tmp_path / "anna.csv",
        f"place,{HEADER}",
        [f"{('wrist', 'hip')[n > 40]},{n / 50},1,2,3,4,5,6" for n in range(100)],
    )
    found = read(tmp_path, files=r"(?P<client>\w+)\.csv", client="place")
    assert {(each.client, each.sensor) for each in found} == {
        (client, sensor) for client in ("anna_hip", "anna_wrist") for sensor in ("acc", "gyro")
    }


def test_a_group_may_stand_at_two_places_of_a_path(tmp_path: Path) -> None:
    rows = [f"{n / 50},1,2,3,4,5,6" for n in range(100)]
    for name in ("anna/walking/left.csv", "anna/walking/right.csv", "bert/sitting.csv"):
        write(tmp_path / name, HEADER, rows)
    pattern = r"(?P<client>\w+)/(?:(?P<activity>\w+)/(?P<client_2>\w+)|(?P<activity_2>\w+))\.csv"
    found = read(tmp_path, files=pattern, labels=["sitting", "walking"])
    activities = {
        (each.client, word)
        for each in found
        if isinstance(each.activity, Categorical)
        for word in each.activity.names[each.activity.codes]
    }
    assert activities == {("anna_left", "walking"), ("anna_right", "walking"), ("bert", "sitting")}


@pytest.mark.parametrize("files", [True, False])
def test_each_sensor_may_have_a_column_of_times(tmp_path: Path, files: bool) -> None:
    if files:
        write(tmp_path / "a_acc.csv", "acc_time,ax,ay,az", [f"{20 * n},1,2,3" for n in range(100)])
        write(tmp_path / "a_gyro.csv", "gyro_time,gx,gy,gz", [f"{20 * n + 7},4,5,6" for n in range(100)])
    else:
        rows = [f"{20 * n},1,2,3,{20 * n + 7},4,5,6" for n in range(100)]
        write(tmp_path / "a.csv", "acc_time,ax,ay,az,gyro_time,gx,gy,gz", rows)
    found = read(
        tmp_path,
        files=r"a_(?P<sensor>acc|gyro)\.csv" if files else r"a\.csv",
        client={"fixed": "me"},
        time={"column": "acc_time", "unit": "ms"},
        gyro={**GYRO, "time": "gyro_time"},
    )
    np.testing.assert_allclose(of(found, "acc")[:, 0], np.arange(100) / 50)
    np.testing.assert_allclose(of(found, "gyro")[:, 0], np.arange(100) / 50 + 0.007)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"only": "phone"}, r"only: expected columns and their words, as in \{ device = \"phone\" \}"),
        ({"only": {"device": 3}}, "only.*expected a word"),
        ({"header": False, "acc": {"columns": [1, 2, 3]}, "gyro": None, "time": 4, "only": {"who": "a"}}, "got 'who'"),
        ({"time": None, "rate_hz": 50, "gyro": {**GYRO, "time": "g"}}, "gyro.time: nothing says its unit; set time"),
        ({"files": r"(?P<activity>\w+)", "activity": "what"}, "activity: it is a named group of files already"),
        ({"files": r"(?P<client>\w+)", "client": {"fixed": "me"}}, "client: it is a named group of files already"),
        ({"files": r"(?P<client2>\w+)"}, "unknown named group 'client2'; did you mean 'client'"),
    ],
)
def test_what_cannot_be_meant_is_refused(keys: dict[str, Any], words: str) -> None:
    given = {"acceleration": "specific force", "acc": ACC, "gyro": GYRO, "time": {"column": "t"}, **keys}
    with pytest.raises(SettingsError, match=words):
        description_of({key: value for key, value in given.items() if value is not None})
