"""Exports of other apps, boards and watches, rebuilt from their documentation: a first description fits each.

The layouts are those of SensorLog, MetaWear, Samsung's Gear, Muse Monitor, GENEActiv, Empatica's E4, ActiGraph,
Xsens DOT, the mHealth specification and WISDM's second set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from har_pipeline import SourceError
from har_pipeline.description.files import find_files
from har_pipeline.description.guess.draft import draft
from har_pipeline.description.inspection import inspect
from har_pipeline.description.model import description_of
from tests.har_pipeline.description.made import G, motion

COUNT = 600
ACTIVITIES = ("sitting", "walking")


class Visit(NamedTuple):
    """What a person does, as a sensor of so many Hz sees it: acc in g, gyro in deg/s."""

    who: int
    activity: str
    start: datetime
    rate_hz: float
    acc: np.ndarray
    gyro: np.ndarray

    def dates(self, form: str) -> Iterator[str]:
        """Yield the time of each row; milliseconds are what %f begins with."""
        for row in range(len(self.acc)):
            moment = self.start + timedelta(seconds=row / self.rate_hz)
            yield moment.strftime(form.replace("%f", f"{moment.microsecond // 1000:03d}"))


Written = Iterator[tuple[str, list[str]]]


def cells(mark: str, *parts: Any) -> list[str]:
    """Join columns to rows; numbers have five digits."""
    columns = [column for part in parts for column in (part.T if getattr(part, "ndim", 1) == 2 else [part])]
    rows = zip(*columns, strict=True)
    return [mark.join(each if isinstance(each, str) else f"{each:.10g}" for each in row) for row in rows]


def sensorlog(visit: Visit) -> Written:
    acc, times = -visit.acc, 62608 + np.arange(COUNT) / visit.rate_hz
    axes = [f"{name}{axis}({unit})" for name, unit in (
        ("accelerometerAcceleration", "G"), ("motionRotationRate", "rad/s"), ("motionUserAcceleration", "G")
    ) for axis in "XYZ"]  # fmt: skip
    header = ["loggingTime(txt)", "accelerometerTimestamp_sinceReboot(s)", *axes[:3], "motionTimestamp_sinceReboot(s)"]
    dates = list(visit.dates("%Y-%m-%dT%H:%M:%S.%f+02:00"))
    rows = cells(",", dates, times, acc, times + 0.004, np.deg2rad(visit.gyro), acc + np.array([0, 0, 1]))
    yield f"subject{visit.who}/{visit.activity}.csv", [",".join([*header, *axes[3:]]), *rows]


def metawear(visit: Visit) -> Written:
    epoch_ms = np.round(1.7e12 + 1e6 * visit.who + 1000 * np.arange(COUNT) / visit.rate_hz)
    for name, unit, values in (("Accelerometer", "g", visit.acc), ("Gyroscope", "deg/s", visit.gyro)):
        header = f"epoch (ms),time (01:00),elapsed (s),x-axis ({unit}),y-axis ({unit}),z-axis ({unit})"
        rows = cells(",", epoch_ms, list(visit.dates("%Y-%m-%dT%H:%M:%S.%f")), epoch_ms / 1000 - 1.7e9, values)
        yield f"P{visit.who}/{visit.activity}/MetaWear_C8B3A1F0_{name}.csv", [header, *rows]


def gear(visit: Visit) -> Written:
    times = 1000 * np.arange(COUNT) / visit.rate_hz
    acc, gyro = (["A"] * COUNT, times, visit.acc * G), (["R"] * COUNT, times + 5, np.deg2rad(visit.gyro))
    rows = cells(";", *acc, ["B"] * COUNT, times, [""] * COUNT, *gyro)
    header = "s_A;time_A;x_A;y_A;z_A;s_B;time_B;x_B;s_R;time_R;x_R;y_R;z_R"
    yield f"p{visit.who}/gear_s-{visit.activity}-20-1-2015.csv", [header, *rows]


def muse(visit: Visit) -> Written:
    header = "TimeStamp,RAW_TP9,AUX_RIGHT,Accelerometer_X,Accelerometer_Y,Accelerometer_Z,Gyro_X,Gyro_Y,Gyro_Z,Elements"
    waves, nothing = 800 + np.arange(COUNT) % 37, [""] * COUNT
    rows = cells(",", list(visit.dates("%Y-%m-%d %H:%M:%S.%f")), waves, nothing, visit.acc, visit.gyro, nothing)
    yield f"subject{visit.who}/{visit.activity}.csv", [header, *rows]


def geneactiv(visit: Visit) -> Written:
    about = ["Device Type,GENEActiv", "Device Model,1.1", *[f"Field {at},value" for at in range(17)], *[""] * 81]
    light = np.arange(COUNT) % 5
    rows = cells(",", list(visit.dates("%Y-%m-%d %H:%M:%S:%f")), visit.acc, light, [0] * COUNT, [24.5] * COUNT)
    yield f"subject{visit.who}/{visit.activity}.csv", [*about, *rows]


def empatica(visit: Visit) -> Written:
    start, rate = f"{visit.start.timestamp():.6f}", f"{visit.rate_hz:.6f}"
    head = [", ".join([start] * 3), ", ".join([rate] * 3)]
    yield f"S{visit.who}/{visit.activity}/ACC.csv", [*head, *cells(",", np.round(64 * visit.acc))]


def actigraph(visit: Visit) -> Written:
    about = ["------------ Data File Created By ActiGraph GT3X+ ActiLife v6.13.3 at 100 Hz -----------"]
    about += [f"Serial Number: MOS2D1612015{visit.who}", *[f"Field {at}: 0" for at in range(7)], "-" * 50]
    header = "Timestamp,Accelerometer X,Accelerometer Y,Accelerometer Z"
    rows = cells(",", list(visit.dates("%m/%d/%Y %H:%M:%S.%f")), visit.acc)
    yield f"{visit.activity}/subject{visit.who}RAW.csv", [*about, header, *rows]


def xsens(visit: Visit) -> Written:
    about = [f"DeviceTag:,{visit.who}", "OutputRate:,60Hz", "Measurement Mode:,Sensor fusion Mode - Extended", ""]
    header = "PacketCounter,SampleTimeFine,Euler_X,Euler_Y,Euler_Z,Acc_X,Acc_Y,Acc_Z,Gyr_X,Gyr_Y,Gyr_Z"
    counter = np.arange(1, COUNT + 1)
    angles = np.column_stack([counter % 7, counter % 5, counter % 3])
    times_us = np.round(192856375 + 1e6 * counter / visit.rate_hz)
    yield (
        f"s{visit.who}_{visit.activity}.csv",
        [*about, header, *cells(",", counter, times_us, angles, visit.acc * G, visit.gyro)],
    )


def mhealth(visit: Visit) -> Written:
    rows = cells(",", list(visit.dates("%Y-%m-%d %H:%M:%S.%f")), visit.acc)
    yield f"SPADES_{visit.who}/{visit.activity}.sensor.csv", ["HEADER_TIME_STAMP,X_IN_G,Y_IN_G,Z_IN_G", *rows]


def wisdm(visit: Visit) -> Written:
    code = chr(ord("A") + ACTIVITIES.index(visit.activity))
    times_ns = [str(252207666810782 + round(1e9 * row / visit.rate_hz)) for row in range(COUNT)]
    for name, values in (("accel", visit.acc * G), ("gyro", np.deg2rad(visit.gyro))):
        rows = cells(",", [f"{1600 + visit.who}"] * COUNT, [code] * COUNT, times_ns, values)
        yield f"raw/phone/{name}/data_{1600 + visit.who}_{name}_phone.txt", [f"{row};" for row in rows]


class Export(NamedTuple):
    """How an app writes, and what a description of it says."""

    write: Callable[[Visit], Written]
    rate_hz: float
    wanted: dict[str, Any]
    labels: tuple[str, ...] = ACTIVITIES


EXPORTS = [
    Export(sensorlog, 100, {"acceleration": "gravity points down", "gyro": {"time": "motionTimestamp_sinceReboot(s)"}}),
    Export(metawear, 50, {"acc": {"unit": "g"}, "gyro": {"unit": "deg/s"}}),
    Export(gear, 50, {"time": {"column": "time_A", "unit": "ms"}, "gyro": {"unit": "rad/s", "time": "time_R"}}),
    Export(muse, 52, {"time": {"column": "TimeStamp", "unit": "date"}, "gyro": {"unit": "deg/s"}}),
    Export(geneactiv, 100, {"skip_lines": 100, "time": {"column": 1, "unit": "date"}, "gyro": None}),
    Export(empatica, 32, {"skip_lines": 2, "rate_hz": 32.0, "acc": {"scale": 1 / 64}, "gyro": None}),
    Export(actigraph, 100, {"skip_lines": 10, "time": {"column": "Timestamp", "unit": "date"}, "gyro": None}),
    Export(xsens, 60, {"time": {"column": "SampleTimeFine", "unit": "us"}, "gyro": {"unit": "deg/s"}}),
    Export(mhealth, 80, {"acc": {"unit": "g"}, "gyro": None}),
    Export(wisdm, 20, {"time": {"column": 3, "unit": "ns"}, "gyro": {"unit": "rad/s"}}, ("A", "B")),
]


def written(export: Export, root: Path) -> None:
    """Let three persons do everything; a file that is written again is continued."""
    for who in (1, 2, 3):
        for number, activity in enumerate(ACTIVITIES):
            seed = 10 * who + number
            acc, gyro = motion(COUNT, export.rate_hz, moving=activity == "walking", seed=seed)
            start = datetime(2024, 3, 25, 8 + who, 10 * number)
            for name, lines in export.write(Visit(who, activity, start, export.rate_hz, acc, gyro)):
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.writelines(f"{line}\n" for line in lines)


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.write.__name__)
def test_a_first_description_reads_the_exports_of_others(export: Export, tmp_path: Path) -> None:
    written(export, tmp_path)
    found = draft(tmp_path)
    guessed = found.to_json()
    for key, value in export.wanted.items():
        if isinstance(value, dict):
            assert {name: guessed[key].get(name) for name in value} == value
        else:
            assert guessed.get(key) == value
    assert guessed["labels"] == [*export.labels]
    description = description_of(guessed)
    reports = list(inspect(description, find_files(description, tmp_path)))
    assert [report.problem for report in reports if report.problem] == []
    assert len(set[str]().union(*(report.clients for report in reports))) == 3
    assert sum(report.samples["acc"] for report in reports) == 6 * COUNT
    for report in reports:
        assert report.rate_hz == pytest.approx(export.rate_hz, rel=0.01)
        assert report.levels.get("acc", G) == pytest.approx(G, rel=0.1)


def test_decimal_commas_between_commas_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """As OpenBCI wrote outside the United States (pull request 49 of its Processing program)."""
    rows = [f"{row / 50:.2f}, 0.01, 0.02, 9.81".replace(".", ",") for row in range(COUNT)]
    (tmp_path / "a.csv").write_text("\n".join(["time, ax, ay, az", *rows, ""]))
    with pytest.raises(SourceError, match="if its numbers have decimal commas, save it with another separator"):
        draft(tmp_path)


def test_a_footer_of_words_is_a_lost_row(tmp_path: Path) -> None:
    """As Duet's boards end their recordings (issue 360 of DuetWebControl)."""
    rows = [f"{row / 50:.2f},0.01,0.0{row % 7},9.81" for row in range(COUNT)]
    (tmp_path / "a.csv").write_text("\n".join(["time,ax,ay,az", *rows, "Rate 935, overflows 4", ""]))
    description = description_of(draft(tmp_path).to_json())
    (report,) = inspect(description, find_files(description, tmp_path))
    assert (report.problem, report.lost, report.samples["acc"]) == ("", 1, COUNT + 1)


def visits(*, rate_hz: float = 50, count: int = COUNT) -> Iterator[tuple[str, Visit]]:
    """Yield two activities of one person, and their names."""
    for number, activity in enumerate(ACTIVITIES):
        acc, gyro = motion(count, rate_hz, moving=activity == "walking", seed=number)
        yield activity, Visit(1, activity, datetime(2024, 6, 7, 8, 10 * number), rate_hz, acc, gyro)


def saved(path: Path, lines: list[str]) -> None:
    """Write a file, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]))


def readable(root: Path) -> dict[str, Any]:
    """Guess a description, check that it reads every file that it matches, and return it."""
    guessed = draft(root).to_json()
    description = description_of(guessed)
    reports = list(inspect(description, find_files(description, root)))
    assert [report.problem for report in reports if report.problem] == []
    return guessed


@pytest.mark.parametrize("header", [["Accelerometer X,Accelerometer Y,Accelerometer Z"], []], ids=["named", "bare"])
def test_sentences_that_end_in_empty_cells_are_no_header_and_may_state_the_rate(
    tmp_path: Path, header: list[str]
) -> None:
    """As ActiLife's RAW files after a spreadsheet (paulhibbing/AGread and wadpac/GGIR have such)."""
    about = ["------ Data File Created By ActiGraph GT3X+ date format M/d/yyyy at 80 Hz  Filter Normal ------,,"]
    about += ["Serial Number: TAS1D50140012,,", "Current Memory Address: 0,,", "----------,,"]
    for activity, visit in visits(rate_hz=80):
        saved(tmp_path / f"{activity}.csv", [*about, *header, *cells(",", visit.acc)])
    guessed = readable(tmp_path)
    assert (guessed["skip_lines"], guessed["rate_hz"]) == (4, 80)
    assert guessed["acc"]["columns"] == (header[0].split(",") if header else [1, 2, 3])


def test_further_sensors_in_files_of_the_same_columns_are_left_out(tmp_path: Path) -> None:
    """As apps write a file for each sensor (LynnBokern/ML4QS): all were read as accelerometers."""
    for activity, visit in visits():
        times = np.arange(COUNT) / 50
        tables = {"Accelerometer": visit.acc * G, "Gyroscope": np.deg2rad(visit.gyro)}
        tables |= {"Linear Accelerometer": (visit.acc - [0, 0, 1]) * G, "Magnetometer": 40 + visit.acc}
        for name, values in tables.items():
            saved(tmp_path / activity / f"{name}.csv", ["timestamps,x,y,z", *cells(",", times, values)])
    found = draft(tmp_path)
    guessed = found.to_json()
    assert (guessed["acc"]["unit"], guessed["gyro"]["unit"]) == ("m/s2", "rad/s")
    assert guessed["acceleration"] == "specific force"
    description = description_of(guessed)
    reports = inspect(description, find_files(description, tmp_path))
    assert sum(report.samples["acc"] for report in reports if not report.problem) == 2 * COUNT


def test_gravity_beside_is_added_and_files_with_a_gyroscope_are_described(tmp_path: Path) -> None:
    """As Sensor Logger on an Apple Watch (tinawan110/SwimmingData), whose files had other names than its reader's."""
    axes = [f"{name}{axis}" for name in ("rotationRate", "gravity", "acceleration") for axis in "XYZ"]
    gravity = np.tile([0.0, 0.0, -1.0], (COUNT, 1))
    for activity, visit in visits():
        times_ns = [str(1_782_477_373_956_791_296 + 20_000_000 * row) for row in range(COUNT)]
        rows = cells(",", times_ns, np.deg2rad(visit.gyro), gravity, -visit.acc - gravity)
        saved(tmp_path / f"{activity}WristMotion.csv", [",".join(["time", *axes]), *rows])
        saved(tmp_path / f"{activity}Uncalibrated.csv", ["time,x,y,z", *cells(",", times_ns, -visit.acc)])
    guessed = draft(tmp_path).to_json()
    assert guessed["acc"]["columns"] == axes[6:]
    assert guessed["acc"]["add"] == axes[3:6]
    assert guessed["gyro"]["columns"] == axes[:3]
    assert guessed["acceleration"] == "gravity points down"


def test_moments_in_names_are_no_activities(tmp_path: Path) -> None:
    """As Empatica's EmbracePlus names its files (gotty44/Empatica_EmbracePlus)."""
    for number, (_, visit) in enumerate(visits()):
        times_us = np.round(1e6 * (1_764_754_258 + 100 * number + np.arange(COUNT) / 50))
        rows = cells(",", [f"{each:.0f}" for each in times_us], visit.acc)
        saved(tmp_path / f"accelerometer_1-1-01_{1_764_754_258 + 100 * number}.csv", ["unix_timestamp,x,y,z", *rows])
    guessed = readable(tmp_path)
    assert "labels" not in guessed
    assert "activity" not in guessed["files"]


def test_two_rows_a_second_are_called_too_slow_and_not_read_as_fifty(tmp_path: Path) -> None:
    """As AndroSensor records unless it is told otherwise (jmandzak/ActivityDetection, hcordner/sensor-data)."""
    for activity, visit in visits(rate_hz=2):
        rows = cells(",", visit.acc * G, 500 * np.arange(COUNT) + 13)
        saved(tmp_path / f"{activity}.csv", ["X (m/s²),Y (m/s²),Z (m/s²),Time since start in ms ", *rows])
    guess = draft(tmp_path).guesses["time"]
    assert guess.value == {"column": "Time since start in ms", "unit": "ms"}
    assert not guess.sure
    assert "too slow" in guess.why


def test_sizes_beside_are_no_gyroscope(tmp_path: Path) -> None:
    """As files that hold features beside their samples do (Hrishi-3331/HAR-Dataset)."""
    for activity, visit in visits():
        rows = cells(",", visit.acc, np.abs(visit.acc), np.abs(visit.gyro))
        saved(tmp_path / f"{activity}.csv", rows)
    guessed = readable(tmp_path)
    assert guessed["acc"]["columns"] == [1, 2, 3]
    assert "gyro" not in guessed


def test_a_gyroscope_at_rest_is_in_degrees_where_it_drifts(tmp_path: Path) -> None:
    """As ActiGraph's Link (paulhibbing/AGread): a body at rest does not turn by 0.8 rad/s."""
    for number in (1, 2):
        acc, gyro = motion(COUNT, 100, moving=False, seed=number)
        rows = cells(",", np.arange(COUNT) / 100, acc, 0.5 + 0.1 * gyro)
        saved(tmp_path / f"subject{number}.csv", ["Timestamp,Acc X,Acc Y,Acc Z,Gyro X,Gyro Y,Gyro Z", *rows])
    assert readable(tmp_path)["gyro"]["unit"] == "deg/s"


@pytest.mark.parametrize("month_first", [True, False])
def test_of_two_forms_of_a_date_the_one_is_taken_by_which_a_recording_is_short(
    tmp_path: Path, *, month_first: bool
) -> None:
    """As ActiGraph's exports of two countries (issues 18 and 125 of wadpac/GGIR)."""
    form = "%m/%d/%Y %H:%M:%S.%f" if month_first else "%d/%m/%Y %H:%M:%S.%f"
    start = datetime(2024, 6, 7, 23, 59, 55)
    acc, _ = motion(COUNT, 50, moving=True, seed=1)
    moments = [(start + timedelta(seconds=row / 50)).strftime(form) for row in range(COUNT)]
    saved(
        tmp_path / "subject1.csv",
        ["Timestamp,Accelerometer X,Accelerometer Y,Accelerometer Z", *cells(",", moments, acc)],
    )
    assert readable(tmp_path)["time"]["format"] == form


def test_tables_that_are_not_text_are_named_with_what_to_do(tmp_path: Path) -> None:
    """As MATLAB Mobile and Movesense save theirs (ErikLarssonDev/matlab-mobile-fitness-tracker)."""
    for name in ("walking.mat", "sitting.mat", "log.json"):
        saved(tmp_path / name, ["{}"])
    with pytest.raises(SourceError, match=r"2 \.mat, 1 \.json files are not read: save each of their tables as CSV"):
        draft(tmp_path)
