"""MobiAct: 67 subjects with a phone in the trouser pocket, twelve daily activities and four falls, up to 200 Hz.

Vavoulas, Chatzaki, Malliotakis, Pediaditis, Tsiknakis, "The MobiAct dataset: recognition of activities of daily living
using smartphones", ICT4AWE 2016. Two published forms, both found by looking:

- version 2, `Annotated Data/{ACT}/{ACT}_{subject}_{trial}_annotated.csv` with timestamp (ns), rel_time, acc_* (m/s²,
  with gravity), gyro_* (rad/s), azimuth, pitch, roll and a label per row, so that a fall is told from the lying after
  it and the scenarios of daily living (SLH, SBW, SLW, SBE, SRH) are labelled through;
- the raw files of both versions, `{ACT}_{acc|gyro}_{subject}_{trial}.txt`: comments, `@DATA`, then timestamp (ns),
  x, y, z. The whole file takes its name's activity, and a scenario is unlabelled. Read only without annotated files.

Sources: the readmes of both versions and raw files, as public copies hold them (github.com/AILAB-CEFET-RJ/fall-detect
and github.com/yehowlong/MobiAct_Dataset_v2.0-MobiFall_Dataset_v2.0); for the annotated columns, three programs that
read them. Not verified on annotated files: that their timestamps are ns as well. Timestamps count from the phone's
start, so the trials of a subject are laid one after another on one clock, by activity and trial.

Acceleration: specific force, of an Android phone: flat on a table, screen up, z is "0 m/s2 minus the force of gravity,
which is -9.81 m/s2" (developer.android.com, Motion sensors); the annotated files' angles say the same, at pitch −90°
the top edge is up and acc_y +9.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import IO

import numpy as np

from gaitway.errors import unknown_class
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers.archive import Layout, Member, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.readers.tables import COLUMNS, SampleColumns, read_columns, read_table
from har_pipeline.recording import UNLABELLED, Origin, Recording, Sensor

LABELS = (
    *("STD", "WAL", "JOG", "JUM", "STU", "STN", "SCH", "SIT", "CHU", "CSI", "CSO", "LYI"),
    *("FOL", "FKL", "BSC", "SDL"),
)
SCENARIOS = ("SLH", "SBW", "SLW", "SBE", "SRH")
NAMES = np.array([*LABELS, "null"])
ANNOTATED = ("timestamp", "acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
PAUSE_S, HEADER_LINES = 10.0, 64
LAYOUT = Layout(
    files=re.compile(
        r"(?:(?<=/)|^)(?:(?:Annotated Data|Raw Data)/)?(?:sub\d+/)?(?:(?:ADL|FALLS|SCENARIOS)/)?(?:[A-Z]{3}/)?"
        rf"({'|'.join((*LABELS, *SCENARIOS))})_(?:(\d+)_(\d+)_annotated\.csv|(acc|gyro)_(\d+)_(\d+)\.txt)(?:\.gz)?$"
    ),
    archives=re.compile(r"mobi.?act", re.IGNORECASE),
    expected="Annotated Data/{ACT}/{ACT}_{subject}_{trial}_annotated.csv, or {ACT}_{acc|gyro}_{subject}_{trial}.txt",
)

Key = tuple[str, tuple[int, int], Sensor]


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield accelerometer and gyroscope of each trial; client `s07` is subject 7, session `WAL_1` walking's trial 1."""
    source = require_source(source, "mobiact")
    annotated = any(match[2] for match, _ in source.members())
    with SampleColumns[Key](3) as stored:
        for match, member in source.members():
            client = f"s{int(match[2] or match[5]):02d}"
            if chosen(client, clients) and bool(match[2]) == annotated:
                (_read_annotated if annotated else _read_raw)(match, member, client, stored)
        for _, keys in groupby(sorted(stored), key=lambda key: key[0]):
            yield from _on_one_clock(list(keys), stored)


def _read_annotated(match: re.Match[str], member: Member, client: str, stored: SampleColumns[Key]) -> None:
    with member.open() as stream:
        table = read_table(stream, member.name, ANNOTATED, ("label",))
    codes = _codes(np.asarray(table.text["label"]), table.source, table.line)
    trial = _order(match[1]), int(match[3])
    for sensor, columns in COLUMNS:
        values = table.numbers[:, 1:][:, columns]
        stored.add((client, trial, sensor), table.numbers[:, 0] * 1e-9, values, codes, table)


def _read_raw(match: re.Match[str], member: Member, client: str, stored: SampleColumns[Key]) -> None:
    sensor: Sensor = "acc" if match[4] == "acc" else "gyro"
    code = LABELS.index(match[1]) if match[1] in LABELS else -1
    with member.open() as stream:
        line = _skip_header(stream, member.name)
        for table in read_columns(stream, member.name, 4, range(4), separator=",", line=line):
            times, values = table.numbers[:, 0] * 1e-9, table.numbers[:, 1:]
            stored.add((client, (_order(match[1]), int(match[6])), sensor), times, values, code, table)


def _skip_header(stream: IO[bytes], name: str) -> int:
    """Read to the line `@DATA` and return the number of the line after it."""
    for line in range(1, HEADER_LINES + 1):
        if stream.readline(1 << 10).strip() == b"@DATA":
            return line + 1
    raise SourceError(f"{name}: no line @DATA among the first {HEADER_LINES}; expected comments, @DATA, then numbers")


def _codes(names: np.ndarray, source: str, line: int) -> np.ndarray:
    known, index = np.unique(names, return_inverse=True)
    for name in known.tolist():
        if name not in LABELS and name not in UNLABELLED:
            at = line + int(np.argmax(names == name))
            raise SettingsError(f"{source}, line {at}: label {name!r}; {unknown_class(name, LABELS)}")
    return np.array([LABELS.index(name) if name in LABELS else -1 for name in known.tolist()])[index]


def _order(activity: str) -> int:
    return (*LABELS, *SCENARIOS).index(activity)


def _on_one_clock(keys: list[Key], stored: SampleColumns[Key]) -> Iterator[Recording]:
    clock_s = 0.0
    for trial, pair in groupby(keys, key=lambda key: key[1]):
        rows = {sensor: stored.samples((client, trial, sensor)) for client, _, sensor in pair}
        begin_s = min(float(np.fmin.reduce(samples.times_s)) for samples in rows.values())
        end_s = max(float(np.fmax.reduce(samples.times_s)) for samples in rows.values())
        session = f"{(*LABELS, *SCENARIOS)[trial[0]]}_{trial[1]}"
        for sensor, samples in rows.items():
            times, activity = clock_s + samples.times_s - begin_s, NAMES[samples.codes]
            yield Recording(keys[0][0], session, activity, sensor, times, samples.values, samples.source, samples.line)
        clock_s = float(np.ceil(clock_s + end_s - begin_s)) + PAUSE_S


READER = RecordingReader(
    name="mobiact",
    summary="MobiAct: 67 subjects, phone in the trouser pocket, 12 daily activities and 4 falls, up to 200 Hz",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    origin=lambda client: Origin("mobiact", client, "galaxy_s3", "pocket"),
)
