"""Any CSV files with both sensors in each row, described by a map of their columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError
from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Layout, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, found
from har_pipeline.readers.tables import read_table
from har_pipeline.recording import STANDARD_GRAVITY, Recording, device_of, subject_of

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ACC_UNITS = {"m/s2": 1.0, "g": STANDARD_GRAVITY}
GYRO_UNITS = {"rad/s": 1.0, "deg/s": np.pi / 180}
DEFAULTS: dict[str, Any] = {
    "labels": (),
    "time": "time",
    "acc": ("acc_x", "acc_y", "acc_z"),
    "gyro": ("gyro_x", "gyro_y", "gyro_z"),
    "activity": "activity",
    "client": None,
    "session": None,
    "time_unit": "s",
    "acc_unit": "m/s2",
    "gyro_unit": "rad/s",
    "files": r"[^/]+\.csv(\.gz)?$",
}


def labels(options: Options) -> tuple[str, ...]:
    """Return the option `labels`; SettingsError where it is missing."""
    if not options["labels"]:
        raise SettingsError("generic_csv needs the option labels: the names of the activities, in order")
    return tuple(options["labels"])


def layout(options: Options) -> Layout:
    """Match files by the option `files`, a regular expression on the path from the root on."""
    return Layout(
        files=re.compile(rf"^(?:.*/)?{options['files']}"),
        archives=re.compile(r"."),
        expected=f"files that match {options['files']!r} with the columns {_columns(options)}",
    )


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield both sensors of each file and session.

    Options `client` and `session` name columns; without them the file's stem is the client and its path the session.
    Acceleration must be total, with gravity.
    """
    scale = [_unit(options, key, units) for key, units in UNITS]
    words = tuple(options[key] for key in ("activity", "client", "session") if options[key])
    for _, member in found(source, "generic_csv").members():
        with member.open() as stream:
            table = read_table(stream, member.name, (options["time"], *options["acc"], *options["gyro"]), words)
        stem = PurePosixPath(member.name).name.partition(".")[0]
        count = len(table.numbers)
        client = np.asarray(table.text[options["client"]]) if options["client"] else np.full(count, stem)
        session = np.asarray(table.text[options["session"]]) if options["session"] else np.full(count, "")
        changes = (client[1:] != client[:-1]) | (session[1:] != session[:-1])
        for low, high in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), count]):
            name = str(client[low])
            if not chosen(name, clients):
                continue
            rows = table.numbers[low:high] * np.repeat(scale, [1, 3, 3])
            activity = np.asarray(table.text[options["activity"]][low:high])
            where = (table.source, table.line + low)
            visit = f"{member.name}:{session[low]}"
            yield Recording(name, visit, activity, "acc", rows[:, 0], rows[:, 1:4], *where)
            yield Recording(name, visit, activity, "gyro", rows[:, 0], rows[:, 4:7], *where)


UNITS = (("time_unit", TIME_UNITS), ("acc_unit", ACC_UNITS), ("gyro_unit", GYRO_UNITS))


def _unit(options: Options, key: str, units: dict[str, float]) -> float:
    if options[key] not in units:
        raise SettingsError(f"option {key} is {options[key]!r}; {did_you_mean(str(options[key]), units)}")
    return units[options[key]]


def _columns(options: Options) -> list[str]:
    return [options["time"], *options["acc"], *options["gyro"], options["activity"]]


READER = RecordingReader(
    name="generic_csv",
    summary="any CSV files with both sensors in each row; options map the columns and units",
    labels=labels,
    layouts=lambda options: (layout(options),),
    recordings=recordings,
    origin=lambda client: Origin("generic_csv", subject_of(client), device_of(client)),
    defaults=DEFAULTS,
)
