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
