"""A first description reads every file where sensors, persons and activities stand in unusual places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from har_pipeline.cli import app
from har_pipeline.description.files import find_files
from har_pipeline.description.guess.draft import Draft, draft
from har_pipeline.description.inspection import FileReport, inspect
from har_pipeline.description.model import description_of
from tests.har_pipeline.description.made import G, motion

ACTIVITIES = {"Walking": 1.0, "Sitting": 0.0, "Jogging": 1.6}
RATE_HZ, COUNT = 50, 1000


class Visit(NamedTuple):
    """What one person does for a while: times (n,) in s, acc (n, 3) in m/s², gyro (n, 3) in rad/s."""

    who: int
    activity: str
    times_s: np.ndarray
    acc: np.ndarray
    gyro: np.ndarray


def visits() -> Iterator[Visit]:
    for who in (1, 2, 3):
        for number, (activity, strength) in enumerate(ACTIVITIES.items()):
            acc, gyro = motion(COUNT, RATE_HZ, moving=strength > 0, seed=10 * who + number)
            yield Visit(who, activity, np.arange(COUNT) / RATE_HZ, acc * G, np.deg2rad(gyro))


def write(path: Path, header: str, *columns: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, np.column_stack(columns), delimiter=",", header=header, comments="", fmt="%.6g")


def applied(found: Draft, root: Path) -> list[FileReport]:
    """Read every file by a first description; none may have a problem."""
    description = description_of(found.to_json())
    reports = list(inspect(description, find_files(description, root)))
    assert [report.problem for report in reports if report.problem] == []
    return reports


def clients(reports: list[FileReport]) -> set[str]:
    return set[str]().union(*(report.clients for report in reports))


@pytest.mark.parametrize(("acc_time", "gyro_time"), [("time", "time"), ("acc_time", "gyro_time")])
def test_a_gyroscopes_files_may_have_a_header_of_their_own(tmp_path: Path, acc_time: str, gyro_time: str) -> None:
    for who, activity, times_s, acc, gyro in visits():
        folder = tmp_path / f"subject{who}" / activity
        write(folder / "accelerometer.csv", f"{acc_time},ax,ay,az,accuracy", times_s, acc, np.full(COUNT, 3))
        write(folder / "gyroscope.csv", f"gx,gy,gz,{gyro_time}", gyro, times_s)
    found = draft(tmp_path)
    guessed = found.to_json()
    assert guessed["acc"] == {"columns": ["ax", "ay", "az"], "unit": "m/s2"}
    own = {} if gyro_time == acc_time else {"time": gyro_time}
    assert guessed["gyro"] == {"columns": ["gx", "gy", "gz"], "unit": "rad/s", **own}
    assert guessed["labels"] == sorted(ACTIVITIES)
    reports = applied(found, tmp_path)
    assert len(reports) == 18
    assert clients(reports) == {"1", "2", "3"}


def test_minutes_of_a_session_count_once_whatever_files_its_sensors_have(tmp_path: Path) -> None:
    for who, activity, times_s, acc, gyro in visits():
        folder = tmp_path / "data" / f"subject{who}" / activity
        write(folder / "accelerometer.csv", "time,x,y,z", times_s, acc)
        write(folder / "gyroscope.csv", "time,x,y,z", times_s, gyro)
    data, toml = str(tmp_path / "data"), str(tmp_path / "mine.toml")
    for words in (["describe", data, "--out", toml], ["info", "--describe", toml, "--data-root", data]):
        done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
    assert "18 can be read: 3 clients, 3.0 min" in done.output.replace("\n", " ")


def test_codes_of_sensors_are_told_apart_by_what_they_measure(tmp_path: Path) -> None:
    for who, activity, _, acc, gyro in visits():
        path = tmp_path / f"subject{who}" / f"{activity}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        field = np.array([20, -5, 40]) + np.random.default_rng(0).normal(0, 0.3, acc.shape)
        rows = [
            f"{20 * row},{code},{values[row, 0]:.5f},{values[row, 1]:.5f},{values[row, 2]:.5f}"
            for row in range(COUNT)
            for code, values in ((1, acc), (2, field), (4, gyro))
        ]
        path.write_text("\n".join(["timestamp,sensor,x,y,z", *rows, ""]))
    found = draft(tmp_path)
    guessed = found.to_json()
    assert guessed["acc"] == {"columns": ["x", "y", "z"], "unit": "m/s2", "sensor": "1"}
    assert guessed["gyro"] == {"columns": ["x", "y", "z"], "unit": "rad/s", "sensor": "4"}
    assert not found.guesses["acc"].sure
    assert all(report.samples == {"acc": COUNT, "gyro": COUNT} for report in applied(found, tmp_path))


def test_nothing_is_sure_of_a_description_by_which_no_file_can_be_read(tmp_path: Path) -> None:
    rows = [f"{20 * row},magnetometer,0,{row % 7},9.8" for row in range(COUNT)]
    (tmp_path / "a.csv").write_text("\n".join(["timestamp,sensor,x,y,z", *rows, ""]))
    found = draft(tmp_path)
    assert found.problems
    assert not any(guess.sure for guess in found.guesses.values())
    assert "these lines can't read any file, for the reasons below" in found.remarks


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("S{who}/2024-01-02 {what}.csv", "S{who}/{what}.csv", "S{who}/late {what}.csv"), sorted(ACTIVITIES)),
        (("S{who}/{what}_1.csv", "S{who}/{what}_left_1.csv", "S{who}/{what}_2_b_1.csv"), sorted(ACTIVITIES)),
        (("x_{who}_{what}_1.csv",) * 3, sorted(ACTIVITIES)),
        (("S{who:02d}R01_{what}.csv",) * 3, sorted(ACTIVITIES)),
    ],
)
def test_a_group_holds_whole_words(tmp_path: Path, names: tuple[str, ...], labels: list[str]) -> None:
    for number, (who, activity, times_s, acc, gyro) in enumerate(visits()):
        name = names[number % 3].format(who=who, what=activity)
        write(tmp_path / name, "time,ax,ay,az,gx,gy,gz", times_s, acc, gyro)
    found = draft(tmp_path)
    assert found.guesses["labels"].value == labels
    assert len(clients(applied(found, tmp_path))) == 3


def test_a_second_accelerometer_is_no_gyroscope_and_codes_of_activities_are_seen(tmp_path: Path) -> None:
    """As Daphnet's freezing of gait: three accelerometers in mg, one off at times, `S01R02`, annotations of 0 to 2."""
    for who in (1, 2, 3):
        for run in (1, 2):
            parts = [motion(3 * COUNT, 64, moving=True, seed=100 * who + 10 * run + place)[0] for place in range(3)]
            parts[1][: COUNT // 2] = 0
            codes = np.repeat([0, 1, 2], COUNT)
            still = np.where(codes == 2, 0.2, 1.0)[:, None]
            values = [np.round(1000 * ((part - [0, 0, 1]) * still + [0, 0, 1])) for part in parts]
            values[1][: COUNT // 2] = 0
            times_ms = np.floor(15.625 * np.arange(1, 3 * COUNT + 1))
            write(tmp_path / f"S{who:02d}R{run:02d}.txt", "time,A0,A1,A2,U0,U1,U2,T1,T2,T3,N", times_ms, *values, codes)
    found = draft(tmp_path)
    guessed = found.to_json()
    assert "gyro" not in guessed
    assert guessed["activity"] == "N"
    assert guessed["labels"] == ["0", "1", "2"]
    assert guessed["acc"]["unit"] == "mg"
    reports = applied(found, tmp_path)
    assert clients(reports) == {"S01", "S02", "S03"}
    assert set[str]().union(*(report.sessions for report in reports)) == {"R01", "R02"}


def test_units_of_a_person_are_clients_of_their_own_and_a_counter_of_rows_is_offered_as_time(tmp_path: Path) -> None:
    """As a set of exercises: s1/e1/u2/test.txt, whose rows are counted from 1."""
    for who in (1, 2):
        for number, activity in enumerate(("e1", "e2")):
            for unit in (1, 2):
                acc, gyro = motion(COUNT, 25, moving=bool(number), seed=100 * who + 10 * number + unit)
                header = "time index,acc_x,acc_y,acc_z,gyr_x,gyr_y,gyr_z"
                path = tmp_path / f"s{who}" / activity / f"u{unit}" / "test.txt"
                write(path, header, np.arange(1, COUNT + 1), acc * G, np.deg2rad(gyro))
    found = draft(tmp_path)
    assert found.guesses["time"].value == {"column": "time index", "unit": 0.02}
    assert not found.guesses["time"].sure
    assert clients(applied(found, tmp_path)) == {"s1_u1", "s1_u2", "s2_u1", "s2_u2"}
    assert any("u1, u2 contain the same recordings" in remark for remark in found.remarks)
