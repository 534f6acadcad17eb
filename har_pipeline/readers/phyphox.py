"""phyphox (RWTH Aachen), Android and iOS: the zip of its CSV export, or what is in it, in any of its number formats.

Staacks, Hütz, Heinke, Stampfer, "Advanced tools for smartphone-based experiments: phyphox", Physics Education 53,
2018. A zip holds a table for each sensor, `Accelerometer.csv`, or `Raw Data.csv` for experiments with one, with the
columns "Time (s)" and "X (m/s^2)" or "Acceleration x (m/s^2)"; `meta/time.csv` says when the clock, which stands still
in a pause, was started and paused; `meta/device.csv` names the model. Separators are comma, semicolon or tab, the
decimal mark is point or comma.

Which way is up: specific force on both platforms. The app multiplies what iOS measures by −9.81 and passes on what
Android does (`kG = -9.81` in phyphox-ios, ExperimentSensorInput.swift); a phone on a table, face up, reads +9.8 on z.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from har_pipeline.apps.export import AppExport, AppTable, PartSamples
from har_pipeline.apps.files import FileHead
from har_pipeline.apps.reader import AppReader
from har_pipeline.apps.tables import TableHead, refuse_size, rows_of_words, samples_of, table_head
from har_pipeline.description.files import DescribedFile
from har_pipeline.description.samples import Part
from har_pipeline.readers.reader import Options

NAME = "phyphox"
TIME = "Time (s)"
UNITS = {"m/s^2": ("acc", "linear", "added"), "rad/s": ("gyro",)}
COLUMN = re.compile(r"^(?:(?P<what>[\w ]+) )?(?P<axis>[xyzXYZ]) \((?P<unit>[^)]+)\)$")
MEANINGS: dict[str, Part] = {
    "acceleration": "acc",
    "accelerometer": "acc",
    "linear acceleration": "linear",
    "linear accelerometer": "linear",
    "gravity": "added",
    "gyroscope": "gyro",
}
"""What a table is of, by the words before its axes, or by its file's name where its columns are only X, Y and Z."""
META = re.compile(r"(^|/)meta/(device|time)\.csv$")
WITH_GRAVITY = (4.0, 25.0)


class _Table(NamedTuple):
    part: Part
    columns: tuple[str, str, str]
    head: TableHead
    file: FileHead


def _is_header(line: str) -> bool:
    return f'"{TIME}"' in line or line.startswith(TIME)


def _looks_like(file: FileHead) -> bool:
    if META.search(file.name):
        return any(row.get("property") or row.get("event") for row in rows_of_words(file))
    head = table_head(file, wants=_is_header)
    return head is not None and _axes(head) != {}


def _axes(head: TableHead) -> dict[tuple[str, str], dict[str, str]]:
    """Return the columns of each triple of axes, by what stands before them and their unit."""
    axes: dict[tuple[str, str], dict[str, str]] = {}
    for column in head.columns:
        if match := COLUMN.match(column):
            what = (match["what"] or "").lower()
            axes.setdefault((what, match["unit"]), {})[match["axis"].lower()] = column
    return {key: columns for key, columns in axes.items() if set(columns) == set("xyz")}


def _tables(file: FileHead, remarks: list[str]) -> Iterator[_Table]:
    head = table_head(file, wants=_is_header)
    for (what, unit), axes in (_axes(head) if head else {}).items():
        stem = PurePosixPath(file.name).name.partition(".")[0].lower()
        part = MEANINGS.get(what or stem)
        if head is not None and part is not None and part in UNITS.get(unit, ()):
            yield _Table(part, (axes["x"], axes["y"], axes["z"]), head, file)
        elif unit in UNITS:
            remarks.append(
                f"{PurePosixPath(file.name).name}: columns {list(axes.values())} don't belong to a known sensor"
            )


def _find(files: Sequence[FileHead], options: Options) -> list[AppExport]:
    folders: dict[str, list[FileHead]] = {}
    for file in files:
        folder = PurePosixPath(file.name).parent
        folders.setdefault(str(folder.parent if META.search(file.name) else folder), []).append(file)
    return [_export(name, held) for name, held in folders.items() if not all(META.search(file.name) for file in held)]


def _export(folder: str, files: list[FileHead]) -> AppExport:
    remarks: list[str] = []
    tables = {table.part: table for file in files if not META.search(file.name) for table in _tables(file, remarks)}
    events = [row for file in files if file.name.endswith("meta/time.csv") for row in rows_of_words(file)]
    device = {
        row.get("property", ""): row.get("value", "")
        for file in files
        if file.name.endswith("meta/device.csv")
        for row in rows_of_words(file)
    }
    used = [part for part in (("acc",) if "acc" in tables else ("linear", "added")) if part in tables] + ["gyro"]
    starts = _starts(events)
    if not starts:
        remarks.append("meta/time.csv is missing, so recordings are placed one after another and pauses don't show")
    read = {part: partial(_read, table=tables[part], starts=starts) for part in tables if part in used}
    return AppExport(
        folder,
        tuple({file.path for file in files}),
        about=device.get("deviceModel", ""),
        tables=tuple(AppTable(tables[part].file.name, "phone", reader) for part, reader in read.items()),
        problem=_problem(set(tables)),
        remarks=tuple(remarks),
    )


def _problem(parts: set[Part]) -> str:
    if "linear" in parts and not parts & {"acc", "added"}:
        return (
            "its acceleration lacks gravity; switch on 'Accelerometer' (acceleration with g) too, such as in the "
            "experiment 'All sensors' or one of your own"
        )
    if not parts & {"acc", "linear"}:
        return "it has no accelerometer; record an experiment with accelerometer and gyroscope, such as one of your own"
    if "gyro" not in parts:
        return "it has no gyroscope; record an experiment with accelerometer and gyroscope, such as one of your own"
    return ""


def _starts(events: list[dict[str, str]]) -> list[tuple[float, float]]:
    """Return when the clock was started: its own time and the system's, in s."""
    found = []
    for row in events:
        if row.get("event") == "START":
            times = [row.get(key, "").replace(",", ".") for key in ("experiment time", "system time")]
            try:
                found.append((float(times[0]), float(times[1])))
            except ValueError:
                continue
    return sorted(found)


def _read(file: DescribedFile, *, table: _Table, starts: list[tuple[float, float]]) -> Iterator[PartSamples]:
    def convert(numbers: np.ndarray) -> Iterator[PartSamples]:
        if table.part == "acc":
            refuse_size(
                file.name, "acceleration is around", numbers[:, 1:], *WITH_GRAVITY,
                "which no acceleration with gravity is; expected m/s² and a table with g",
            )  # fmt: skip
        yield PartSamples(table.part, _system_times(numbers[:, 0], starts), numbers[:, 1:])

    yield from samples_of(file, table.head.text, (TIME, *table.columns), convert)


def _system_times(times_s: np.ndarray, starts: list[tuple[float, float]]) -> np.ndarray:
    """Lay times (n,) of the experiment, which stand still in a pause, on the system's clock."""
    if not starts:
        return times_s
    own, system = np.array(starts).T
    at = np.clip(np.searchsorted(own, times_s, side="right") - 1, 0, None)
    moved: np.ndarray = times_s + (system - own)[at]
    return moved


READER = AppReader(
    name=NAME,
    summary="exports of phyphox (zip of CSV, any number format)",
    app="phyphox",
    expects="phyphox's CSV export: a zip, or a folder, with Accelerometer.csv and Gyroscope.csv, or Raw Data.csv",
    looks_like=_looks_like,
    find=_find,
)
