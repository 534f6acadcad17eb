"""AndroSensor (Fivasim), Android: one CSV with the last reading of every sensor in each row.

Columns are "ACCELEROMETER X (m/s²)", "GRAVITY X (m/s²)", "LINEAR ACCELERATION X (m/s²)", "GYROSCOPE X (rad/s)",
"Time since start in ms " and "YYYY-MO-DD HH-MI-SS_SSS" ("2018-08-06 15:01:06:525", local time), between semicolons or
commas, below a line "sep=;" or none. Units stand in the names. Rows come at the interval that the user sets, half a
second by default, which is too slow for movement; where they come faster than a sensor, its readings repeat.

Which way is up: specific force. The app writes what Android's sensors report ("when the device is sitting on a table
the accelerometer reads +9.81": android.hardware.SensorEvent), as its recordings of phones that lie face up have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import numpy as np

from gaitway.python310 import UTC
from har_pipeline.apps.export import AppExport, AppTable, PartSamples
from har_pipeline.apps.files import FileHead
from har_pipeline.apps.reader import AppReader
from har_pipeline.apps.tables import FirstReadings, TableHead, samples_of, table_head
from har_pipeline.description.files import DescribedFile
from har_pipeline.readers.reader import Options
from har_pipeline.recording import Sensor
from har_pipeline.units import ACC_UNITS, GYRO_UNITS

NAME = "androsensor"
COLUMN = re.compile(r"^(?P<what>[A-Z ]+) (?P<axis>[XYZ]) \((?P<unit>[^)]+)\)$")
TIME = re.compile(r"^time since start in ms$", re.IGNORECASE)
DATE = "YYYY-MO-DD HH-MI-SS_SSS"
DATE_FORM = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[:._](\d{3})$")
UNITS = {
    **dict.fromkeys(("m/s²", "m/s^2", "m/s2"), ACC_UNITS["m/s2"]),
    **dict.fromkeys(("g", "G"), ACC_UNITS["g"]),
    "rad/s": GYRO_UNITS["rad/s"],
    **dict.fromkeys(("°/s", "deg/s"), GYRO_UNITS["deg/s"]),
}


class _Sensor(NamedTuple):
    """Columns X, Y and Z of a sensor, and what its unit is in m/s² or rad/s."""

    sensor: Sensor
    columns: tuple[str, str, str]
    factor: float


def _is_header(line: str) -> bool:
    return "Time since start in ms" in line


def _triple(head: TableHead, what: str) -> tuple[tuple[str, str, str], str] | None:
    """Find the columns X, Y and Z of a sensor, and their unit."""
    axes: dict[str, str] = {}
    unit = ""
    for column in head.columns:
        if (match := COLUMN.match(column)) and match["what"] == what:
            axes[match["axis"]], unit = column, match["unit"]
    return ((axes["X"], axes["Y"], axes["Z"]), unit) if set(axes) == set("XYZ") else None


def _looks_like(file: FileHead) -> bool:
    head = table_head(file, wants=_is_header)
    return head is not None and any(COLUMN.match(column) for column in head.columns)


def _find(files: Sequence[FileHead], options: Options) -> list[AppExport]:
    return [_export(file, head) for file in files if (head := table_head(file, wants=_is_header))]


def _export(file: FileHead, head: TableHead) -> AppExport:
    found = {what: _triple(head, what) for what in ("ACCELEROMETER", "LINEAR ACCELERATION", "GRAVITY", "GYROSCOPE")}
    wanted = ["ACCELEROMETER"] if found["ACCELEROMETER"] else ["LINEAR ACCELERATION", "GRAVITY"]
    sensors, problem = list[_Sensor](), ""
    for what in (*wanted, "GYROSCOPE"):
        triple = found[what]
        if triple is None:
            problem = problem or f"it has no columns '{what} X (…)', Y and Z; switch on the sensor in the app"
        elif triple[1] not in UNITS:
            problem = problem or f"the unit {triple[1]!r} of {what} is not known; expected one of {', '.join(UNITS)}"
        else:
            sensors.append(_Sensor("gyro" if what == "GYROSCOPE" else "acc", triple[0], UNITS[triple[1]]))
    begin_s = _begin_s(head)
    return AppExport(
        file.name,
        (file.path,),
        tables=() if problem else (AppTable(file.name, "phone", partial(_read, head=head, sensors=sensors)),),
        problem=problem,
        remarks=() if begin_s else (f"no date in column {DATE!r}; its time is counted from its start",),
    )


def _begin_s(head: TableHead) -> float:
    """Return when the clock of the rows was zero, in s since 1970 as if local time were UTC; 0 if no date says so."""
    row = dict(zip(head.columns, head.first, strict=False))
    date = DATE_FORM.match(row.get(DATE, ""))
    since_ms = next((value for name, value in row.items() if TIME.match(name)), "")
    if date is None or not re.fullmatch(r"\d+", since_ms):
        return 0.0
    try:
        first = datetime.strptime(date[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return 0.0
    return first.timestamp() + int(date[2]) / 1000 - int(since_ms) / 1000


def _read(file: DescribedFile, *, head: TableHead, sensors: list[_Sensor]) -> Iterator[PartSamples]:
    begin_s = _begin_s(head)
    readings: dict[Sensor, FirstReadings] = {"acc": FirstReadings(), "gyro": FirstReadings()}

    def convert(numbers: np.ndarray) -> Iterator[PartSamples]:
        times_s, values = begin_s + numbers[:, 0] / 1000, dict.fromkeys(readings, np.zeros(3))
        for at, (sensor, _, factor) in enumerate(sensors):  # linear acceleration and gravity are added up
            values[sensor] = values[sensor] + numbers[:, 1 + 3 * at : 4 + 3 * at] * factor
        for sensor, new in readings.items():
            yield PartSamples(sensor, *new(times_s, values[sensor]))

    time = next(column for column in head.columns if TIME.match(column))
    columns = (time, *(column for sensor in sensors for column in sensor.columns))
    return samples_of(file, head.text, columns, convert)


READER = AppReader(
    name=NAME,
    summary="exports of AndroSensor (CSV)",
    app="AndroSensor",
    expects="AndroSensor's CSV, with 'ACCELEROMETER X (m/s²)', 'GYROSCOPE X (rad/s)' and 'Time since start in ms'",
    looks_like=_looks_like,
    find=_find,
)
