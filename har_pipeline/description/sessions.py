"""All described files together: sessions of each client in the order of their times, both sensors in step.

Rows are read once, file by file, into temporary files, a piece for each file, session and sensor; a clock that jumps
back begins another piece. Pieces make one session that have its name and that do not overlap in any sensor: the two
sensors' files of one trial, or the hours of one day. What overlaps stays apart. Sessions of one client that overlap,
such as trials whose clocks all begin at zero, are laid one after another on one clock; others keep their times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from har_pipeline.description.files import DescribedFile, DescribedFiles
from har_pipeline.description.model import Description
from har_pipeline.description.samples import file_recordings
from har_pipeline.errors import LabelError, SourceError
from har_pipeline.readers.temporary_columns import TemporaryColumns
from har_pipeline.recording import Categorical, Recording, Sensor

log = logging.getLogger(__name__)

ROW = np.dtype([("time", "<f8"), ("values", "<f8", 3), ("line", "<u4"), ("label", "<i4")])
RESTART_S = 1.0
"""A clock that goes back by more has been set anew; by less, samples came late."""
MOST_RESTARTS = 1000
PAUSE_S = 10.0
CHUNK_S, CHUNK_ROWS = 600.0, 2_000_000
"""What of a piece is in memory at once; more rows than these have no times that could be right."""
PART_ROWS = 32_768


class Piece(NamedTuple):
    """A stretch of one sensor of one file's session, in which the clock runs on: the key of its rows."""

    client: str
    session: str
    file: int
    restart: int
    sensor: Sensor


@dataclass
class JoinedPieces:
    """Pieces that belong together, and how much later than by their own clock they are laid."""

    name: str
    pieces: list[Piece]
    shift_s: float = 0.0


@dataclass
class _Extent:
    """What is known of a piece: when it begins, its last sample and its latest, in s, and if they are sorted."""

    begin_s: float
    last_s: float
    end_s: float
    in_order: bool


@dataclass
class _Stored:
    """The rows of all files, their labels by index, and the extents of their pieces in the order of reading."""

    rows: TemporaryColumns[Piece]
    files: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    extents: dict[Piece, _Extent] = field(default_factory=dict)
    restarts: dict[tuple[str, str, int, Sensor], int] = field(default_factory=dict)


def recordings(
    description: Description,
    files: DescribedFiles,
    clients: Collection[str] | None = None,
    report: Callable[[str], None] = log.warning,
) -> Iterator[Recording]:
    """Yield every client's sessions, chunks of accelerometer and gyroscope in turn, in constant memory.

    A file with an unknown activity is left out as a whole and reported, or refused where `labels.strict` says so.
    Raises PipelineError.
    """
    with TemporaryColumns[Piece](ROW) as rows:
        stored = _Stored(rows)
        for file in files.each():
            _store(description, file, clients, stored, report)
        by_client: dict[str, list[Piece]] = {}
        for piece in stored.extents:
            by_client.setdefault(piece.client, []).append(piece)
        for client in sorted(by_client):
            for session in _on_one_clock(_sessions(by_client[client], stored), stored):
                missing = {"acc", "gyro"} - {piece.sensor for piece in session.pieces}
                if missing:
                    where = ", ".join(dict.fromkeys(stored.files[piece.file] for piece in session.pieces))
                    report(f"client {client}, session {session.name} ({where}) has no {missing.pop()}; left out")
                else:
                    yield from _in_step(client, session, stored)


def _store(
    description: Description,
    file: DescribedFile,
    clients: Collection[str] | None,
    stored: _Stored,
    report: Callable[[str], None],
) -> None:
    number = len(stored.files)
    stored.files.append(file.name)
    try:
        for recording in file_recordings(description, file):
            if clients is None or recording.client in clients:
                _add(recording, number, stored)
    except LabelError as error:
        if description.labels.strict:
            raise
        report(f"{error}. The file is left out")
        for piece in [piece for piece in stored.extents if piece.file == number]:
            del stored.extents[piece]


def _add(recording: Recording, number: int, stored: _Stored) -> None:
    """Append a chunk to the pieces of its session."""
    timed = ~np.isnan(recording.times_s)
    if not timed.any():
        return
    rows = np.empty(len(timed), ROW)
    rows["time"], rows["values"] = recording.times_s, recording.values
    if not timed.all():  # lost samples, which are counted where the time of the one before says
        at = np.maximum.accumulate(np.where(timed, np.arange(len(timed)), int(np.argmax(timed))))
        rows["time"], rows["values"][~timed] = recording.times_s[at], np.nan
    rows["line"] = recording.line + np.arange(len(timed))
    activity = recording.activity
    words = activity if isinstance(activity, Categorical) else Categorical.of(np.full(len(timed), activity))
    codes = [stored.labels.setdefault(name, len(stored.labels)) for name in words.names.tolist()]
    rows["label"] = np.array(codes, dtype=np.int32)[words.codes]
    key = recording.client, recording.session, number, recording.sensor
    restart = stored.restarts.setdefault(key, 0)
    piece = Piece(*key[:3], restart, recording.sensor)
    before = stored.extents[piece].last_s if piece in stored.extents else rows["time"][0]
    back = np.flatnonzero(np.diff(rows["time"], prepend=before) < -RESTART_S).tolist()
    if restart + len(back) > MOST_RESTARTS:
        raise SourceError(
            f"{recording.where()}: times have gone back {MOST_RESTARTS} times; is time.column right, and does a column "
            "say the client or the session, or the sensor of each row?"
        )
    for low, high in zip([0, *back], [*back, len(rows)], strict=True):
        if low in back:
            stored.restarts[key] += 1
        if low < high:
            _append(Piece(*key[:3], stored.restarts[key], recording.sensor), rows[low:high], stored)


def _append(piece: Piece, rows: np.ndarray, stored: _Stored) -> None:
    stored.rows.append(piece, rows)
    times = rows["time"]
    begin_s, end_s, last_s = float(times.min()), float(times.max()), float(times[-1])
    known = stored.extents.setdefault(piece, _Extent(begin_s, float(times[0]), end_s, True))
    known.in_order &= bool((np.diff(times, prepend=known.last_s) >= 0).all())
    known.begin_s, known.end_s, known.last_s = min(known.begin_s, begin_s), max(known.end_s, end_s), last_s


def _sessions(pieces: list[Piece], stored: _Stored) -> list[JoinedPieces]:
    """Join the pieces of one client: those of a name go to its first session in which their sensor is not yet then."""
    found: dict[str, list[JoinedPieces]] = {}
    for piece in pieces:
        same_name = found.setdefault(piece.session, [])
        for session in same_name:
            if not any(_overlap(piece, other, stored) for other in session.pieces):
                session.pieces.append(piece)
                break
        else:
            number = len(same_name) + 1
            same_name.append(JoinedPieces(piece.session if number == 1 else f"{piece.session} ({number})", [piece]))
    return [session for same_name in found.values() for session in same_name]


def _overlap(piece: Piece, other: Piece, stored: _Stored) -> bool:
    if piece.sensor != other.sensor:
        return False
    mine, its = stored.extents[piece], stored.extents[other]
    return mine.begin_s <= its.end_s and its.begin_s <= mine.end_s


def _on_one_clock(sessions: list[JoinedPieces], stored: _Stored) -> list[JoinedPieces]:
    """Order one client's sessions by their times, and shift those that would overlap the one before."""

    def begin_s(session: JoinedPieces) -> float:
        return min(stored.extents[piece].begin_s for piece in session.pieces)

    ordered, clock_s = sorted(sessions, key=begin_s), -np.inf
    for session in ordered:
        if begin_s(session) <= clock_s:
            session.shift_s = float(np.ceil(clock_s)) + PAUSE_S - begin_s(session)
        clock_s = max(stored.extents[piece].end_s for piece in session.pieces) + session.shift_s
    return ordered


def _in_step(client: str, session: JoinedPieces, stored: _Stored) -> Iterator[Recording]:
    """Yield CHUNK_S of every piece of a session, then the next."""
    names = np.array(list(stored.labels))
    pieces = sorted(session.pieces, key=lambda piece: (stored.extents[piece].begin_s, piece.sensor))
    cursors = [_Cursor(piece, stored) for piece in pieces]
    while (start := min(cursor.next_s for cursor in cursors)) < np.inf:
        for cursor in cursors:
            part = cursor.until(start + CHUNK_S)
            if len(part):
                yield Recording(
                    client, session.name, Categorical(names, part["label"]), cursor.piece.sensor,
                    part["time"] + session.shift_s, part["values"], stored.files[cursor.piece.file],
                    int(part["line"][0]),
                )  # fmt: skip


class _Cursor:
    """Where the reading of a piece is; a piece whose samples came late here and there is read whole, and sorted."""

    def __init__(self, piece: Piece, stored: _Stored) -> None:
        self.piece, self._stored, self._read = piece, stored, 0
        self._extent = stored.extents[piece]
        self._rows: np.ndarray | None = None  # nothing is read before its time comes: a day may have a thousand pieces

    @property
    def next_s(self) -> float:
        """Time of the next row; infinite at the end."""
        if self._rows is None:
            return self._extent.begin_s
        return float(self._rows["time"][0]) if len(self._rows) else np.inf

    def until(self, end_s: float) -> np.ndarray:
        """Take the rows up to a time."""
        parts = [np.empty(0, ROW)]
        while self.next_s <= end_s and sum(map(len, parts)) < CHUNK_ROWS:
            rows = self._more() if self._rows is None else self._rows
            high = int(np.searchsorted(rows["time"], end_s, side="right"))
            parts.append(rows[:high])
            self._rows = rows[high:] if high < len(rows) else self._more()
        return np.concatenate(parts)

    def _more(self) -> np.ndarray:
        rows = self._stored.rows.part(self.piece, self._read, PART_ROWS if self._extent.in_order else -1)
        self._read += len(rows)
        return rows if self._extent.in_order else rows[np.argsort(rows["time"], kind="stable")]
