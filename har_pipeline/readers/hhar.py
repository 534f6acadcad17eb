"""HHAR: nine users × four phone models (two handsets each), six activities, 50 to 200 Hz, over a gigabyte a file.

Stisen et al., "Smart devices are different: assessing and mitigating mobile sensing heterogeneities for activity
recognition", SenSys 2015. Clients are user × model, `a_nexus4`; a session is one handset. The watches that the users
wore beside them (two models) are clients of their own, `a_gear`, with option `devices`: "all" or "watches"; "phones",
its default, is what papers count. Files may lack their header, or call their times otherwise: see `columns_of`.

Memory: each file is read once, in chunks, and its rows are spooled to one temporary binary file per handset and
sensor; then a handset's two files are mapped and walked in step, ten minutes at a time.

Clock: Creation_Time (ns) has true intervals but its own origin per device, sometimes per sensor, and restarts;
Arrival_Time (ms) is one clock for both sensors but jitters with delivery. So Creation_Time is shifted by the median of
Arrival_Time − Creation_Time, for each stretch between restarts: intervals of the one on the origin of the other.

Acceleration: specific force. The files hold what Android's sensors gave, unchanged: flat on a table, screen up, z is
"0 m/s2 minus the force of gravity, which is -9.81 m/s2" (developer.android.com, Motion sensors). Not verified by a
posture: how the phones lay in the pouch is not said.

Columns, where a header is missing or has other names for the times: both times advance together, one in milliseconds
(Arrival_Time), one in nanoseconds (Creation_Time): a million to one. So they are told apart by how fast they run,
whatever they are called and in whatever order they come.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import pairwise, permutations
from typing import IO, Any

import numpy as np

from gaitway.errors import did_you_mean, unknown_class
from har_pipeline.errors import SettingsError, SignalError, SourceError
from har_pipeline.readers.archive import Layout, Member, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.readers.tables import Header, Table, TemporaryColumns, read_chunks
from har_pipeline.recording import UNLABELLED, Categorical, Origin, Recording, Sensor, device_of, subject_of

log = logging.getLogger(__name__)

LABELS = ("sit", "stand", "walk", "stairsup", "stairsdown", "bike")
WATCHES = ("gear", "lgwatch")
SENSORS: dict[str, Sensor] = {"accelerometer": "acc", "gyroscope": "gyro"}
# 48 bytes, a multiple of eight, so that no number lies across two words.
ROW = np.dtype([("creation", "<f8"), ("arrival", "<f8"), ("values", "<f8", 3), ("line", "<u4"), ("label", "<i4")])
CHUNK_S = 600.0
RESTART_S = 60.0
UNKNOWN = -2
CODES = {name: code for code, name in enumerate(LABELS)} | dict.fromkeys(UNLABELLED, -1)
LAYOUT = Layout(
    files=re.compile(r"(?:(?<=/)|^)(?:(Phones|Watch)_)(accelerometer|gyroscope)\d*\.csv(\.gz)?$"),
    archives=re.compile(r"activity.recognition|hhar|heterogeneity", re.IGNORECASE),
    expected="Phones_accelerometer.csv and Phones_gyroscope.csv (Activity recognition exp)",
)
DEVICES = {"phones": ("Phones",), "watches": ("Watch",), "all": ("Phones", "Watch")}

Handset = tuple[str, str]


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield both sensors of each handset in step, in chunks of ten minutes."""
    devices = str(options["devices"])
    if devices not in DEVICES:
        raise SettingsError(f"hhar: option devices is {devices[:50]!r}; {did_you_mean(devices[:50], DEVICES)}")
    names: dict[Sensor, str] = {}
    with TemporaryColumns[tuple[Handset, Sensor]](ROW) as stored:
        for match, member in require_source(source, "hhar").members():
            if match[1] not in DEVICES[devices]:
                log.warning("%s is not read; give option devices, 'all' or 'watches', to read it", member.name)
                continue
            sensor = SENSORS[match[2]]
            names[sensor] = member.name
            _spool(member, sensor, clients, stored)
        if len(names) < 2:
            raise SourceError(f"hhar: found only {list(names.values())}; expected {LAYOUT.expected}")
        for handset in sorted({handset for handset, _ in stored}):
            yield from _walk(handset, stored, names)


def _spool(member: Member, sensor: Sensor, clients: Clients, stored: TemporaryColumns[tuple[Handset, Sensor]]) -> None:
    with member.open() as opened:
        stream = Peeked(opened)
        columns, header = columns_of(stream.head, member.name)
        buffered = BufferedReader(stream)
        for table in read_chunks(buffered, member.name, NUMBERS, WORDS, Header(columns, header)):
            rows = _rows(table)
            words = [table.text[name] for name in WORDS[:3]]
            # Rows come in long blocks of one handset; a block is written at once.
            changes = np.any([word.codes[1:] != word.codes[:-1] for word in words], axis=0)
            edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)]
            for low, high in pairwise(edges):
                user, model, device = (str(word.names[word.codes[low]]) for word in words)
                handset = (f"{user}_{model}", device)
                if chosen(handset[0], clients):
                    stored.append((handset, sensor), _timed(rows[low:high]))


def _rows(table: Table) -> np.ndarray:
    rows = np.empty(len(table.numbers), dtype=ROW)
    rows["creation"], rows["arrival"] = table.numbers[:, 0] * 1e-9, table.numbers[:, 1] * 1e-3
    rows["values"] = table.numbers[:, 2:]
    rows["line"] = table.line + np.arange(len(rows))
    truth = table.text["gt"]
    labels = truth.coded(CODES, UNKNOWN)
    if (labels == UNKNOWN).any():
        at = int(np.argmax(labels == UNKNOWN))
        name = str(truth.names[truth.codes[at]])
        raise SettingsError(f"{table.source}, line {table.line + at}: activity {name!r}; {unknown_class(name, LABELS)}")
    rows["label"] = labels
    return rows


def _timed(rows: np.ndarray) -> np.ndarray:
    """Leave out rows that lack a time."""
    lost = np.isnan(rows["creation"] + rows["arrival"])
    return rows[~lost] if lost.any() else rows


def _walk(
    handset: Handset, stored: TemporaryColumns[tuple[Handset, Sensor]], names: dict[Sensor, str]
) -> Iterator[Recording]:
    """Yield ten minutes of one sensor, then the same ten minutes of the other."""
    if any((handset, sensor) not in stored for sensor in SENSORS.values()):
        return
    words = np.array([*LABELS, "null"])
    streams: dict[Sensor, tuple[np.ndarray, np.ndarray]] = {}
    for sensor in SENSORS.values():
        rows = stored.mapped((handset, sensor))
        times = _on_arrival_clock(rows, names[sensor])
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            rows, times = rows[order], times[order]
        streams[sensor] = rows, times
    first = min(times[0] for _, times in streams.values())
    last = max(times[-1] for _, times in streams.values())
    for start in np.arange(first, last + CHUNK_S, CHUNK_S):
        for sensor, (rows, times) in streams.items():
            low, high = np.searchsorted(times, [start, start + CHUNK_S])
            part = rows[low:high]
            if len(part):
                line = int(part["line"][0])
                activity = Categorical(words, part["label"])
                yield Recording(
                    handset[0], handset[1], activity, sensor, times[low:high], part["values"], names[sensor], line
                )


def _on_arrival_clock(rows: np.ndarray, name: str) -> np.ndarray:
    """Return times (n,) in s: Creation_Time shifted to Arrival_Time's origin between restarts of its clock."""
    creation, arrival = np.asarray(rows["creation"]), np.asarray(rows["arrival"])
    offset = arrival - creation
    edges = [0, *(np.flatnonzero(np.abs(np.diff(offset)) > RESTART_S) + 1).tolist(), len(rows)]
    times = creation.copy()
    for low, high in pairwise(edges):
        elapsed, real = np.ptp(creation[low:high]), np.ptp(arrival[low:high])
        if real > RESTART_S and not 0.5 < elapsed / real < 2:
            raise SignalError(
                f"{name}, line {int(rows['line'][low])}: Creation_Time advances {elapsed:.3g} s while Arrival_Time "
                f"advances {real:.3g} s; expected nanoseconds and milliseconds"
            )
        times[low:high] += np.median(offset[low:high])
    return times


ARRIVAL, CREATION = "Arrival_Time", "Creation_Time"
NUMBERS = (CREATION, ARRIVAL, "x", "y", "z")
WORDS = ("User", "Model", "Device", "gt")
PUBLISHED = ("Index", ARRIVAL, CREATION, "x", "y", "z", *WORDS)
HEAD_BYTES = 1 << 18
RATIO, TOLERANCE = 1e6, 2.0
"""Nanoseconds of a millisecond; how far off clocks may be that jitter, of a few rows."""


class Peeked(io.RawIOBase):
    """A stream whose first bytes, `head`, were read already, and are read again."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        head = b""
        while len(head) < HEAD_BYTES and (more := stream.read(HEAD_BYTES - len(head))):
            head += more
        self.head = head
        self._rest = memoryview(head)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; returns how many."""
        room = memoryview(buffer)
        data = bytes(self._rest[: len(room)]) or self._stream.read(len(room))
        self._rest = self._rest[len(data) :]
        room[: len(data)] = data
        return len(data)


def columns_of(head: bytes, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the published names of a file's columns, in its order, and whether it has a header.

    Raises:
        SourceError: if it has neither the names nor the columns, or no two columns run as the times do.
    """
    lines = head.decode("utf-8-sig", "replace").splitlines()
    rows = list(csv.reader(lines if len(head) < HEAD_BYTES else lines[:-1]))
    if not rows:
        raise SourceError(f"{name} is empty; expected a header with {list(PUBLISHED)}")
    first = tuple(cell.strip() for cell in rows[0])
    header = not all(_is_number(cell) for cell in first[:3]) or bool({*NUMBERS, *WORDS} & {*first})
    if not header and len(first) != len(PUBLISHED):
        raise SourceError(
            f"{name} has no header, and {len(first)} columns; expected the {len(PUBLISHED)} {list(PUBLISHED)}"
        )
    columns = first if header else PUBLISHED
    return _with_times(columns, rows[1:] if header else rows, name), header


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _with_times(columns: tuple[str, ...], rows: Sequence[Sequence[str]], name: str) -> tuple[str, ...]:
    """Name the two columns of times as they run; those that do not run as such keep their names."""
    spans, named = _spans(columns, rows), (ARRIVAL, CREATION)
    fitting = [pair for pair in permutations(spans, 2) if _is_million(spans[pair[1]] / spans[pair[0]])]
    if not fitting or named in fitting:
        missing = [column for column in named if column not in columns]
        if missing and set(columns) >= {"x", "y", "z", *WORDS}:
            raise SourceError(
                f"{name}, line 1: no column {missing}, and no two others run a million to one, as milliseconds and "
                f"nanoseconds do; its columns are {list(columns)}"
            )
        return columns
    arrival, creation = min(fitting, key=lambda pair: abs(np.log(spans[pair[1]] / spans[pair[0]] / RATIO)))
    log.warning("%s: column %s runs as Arrival_Time does, and column %s as Creation_Time", name, arrival, creation)
    meant = {arrival: ARRIVAL, creation: CREATION}
    return tuple(meant.get(column, f"{column} (another)" if column in named else column) for column in columns)


def _spans(columns: tuple[str, ...], rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return by how much each column of numbers advances over the first rows, those of one handset."""
    kept = [row for row in rows if len(row) == len(columns)]
    if "Device" in columns and kept:
        device = columns.index("Device")
        kept = kept[: next((at for at, row in enumerate(kept) if row[device] != kept[0][device]), len(kept))]
    spans = {}
    for at, column in enumerate(columns):
        if column not in ("x", "y", "z", *WORDS) and kept and _is_number(kept[0][at]) and _is_number(kept[-1][at]):
            spans[column] = float(kept[-1][at]) - float(kept[0][at])
    return {column: span for column, span in spans.items() if span > 0}


def _is_million(ratio: float) -> bool:
    return RATIO / TOLERANCE < ratio < RATIO * TOLERANCE


READER = RecordingReader(
    name="hhar",
    summary="HHAR: 9 users × 4 phone models, 6 activities, 50 to 200 Hz",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    origin=lambda client: Origin(
        "hhar", subject_of(client), device_of(client), "wrist" if device_of(client) in WATCHES else "waist"
    ),
    defaults={"devices": "phones"},
)
