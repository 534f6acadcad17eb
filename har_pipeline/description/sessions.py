"""Combines all described files: sessions of each client in order of time, both sensors in step.

Acceleration from which something was left out, such as gravity, gets it back from the samples of its session that have
it, in whatever files these are: interpolated to its times, and lost where the nearest is too far away.

Rows are read once, file by file, into temporary files, a piece for each file, session and sensor; a clock that jumps
back begins another piece. Pieces make one session that have its name and that do not overlap in any sensor: the two
sensors' files of one trial, or the hours of one day. What overlaps stays apart, and is paired as `pairing` says.
Sessions of one client that overlap, such as trials whose clocks all begin at zero, are laid one after another on one
clock; others keep their times.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from har_pipeline.description.clocks import TimeSpan, overlaps, restarts
from har_pipeline.description.files import DescribedFile, DescribedFiles
from har_pipeline.description.model import Description
from har_pipeline.description.pairing import Extent, JoinedPieces, Piece, StoredFile, missing_part, paired
from har_pipeline.description.samples import PARTS, Part, file_parts
from har_pipeline.errors import GroupedReport, LabelError, PipelineError, Report, SourceError
from har_pipeline.readers.tables import TemporaryColumns
from har_pipeline.recording import Categorical, Recording, known_numbers
from har_pipeline.streaming.interpolate import MAX_GAP_S, readings_at

log = logging.getLogger(__name__)

ROW = np.dtype([("time", "<f8"), ("values", "<f8", 3), ("line", "<u4"), ("label", "<i4"), ("number", "<f8")])
MAX_RESTARTS = 1000
PAUSE_S = 10.0
CHUNK_S, CHUNK_ROWS = 600.0, 2_000_000
"""What of a piece is in memory at once; more rows than these have no times that could be right."""
PART_ROWS = 32_768


@dataclass
class _Stored:
    """The rows of all files, their labels by index, and the extents of their pieces in the order of reading."""

    rows: TemporaryColumns[Piece]
    files: list[StoredFile] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    extents: dict[Piece, Extent] = field(default_factory=dict)
    restarts: dict[tuple[str, str, int, Part], int] = field(default_factory=dict)

    def spans(self) -> Iterator[TimeSpan]:
        """Yield when each piece begins and ends."""
        for piece, extent in self.extents.items():
            yield TimeSpan(piece.client, piece.part, extent.begin_s, extent.end_s, self.files[piece.file].name)


def recordings(
    description: Description,
    files: DescribedFiles,
    clients: Collection[str] | None = None,
    report: Report = log.warning,
) -> Iterator[Recording]:
    """Yield every client's sessions, chunks of accelerometer and gyroscope in turn, in constant memory.

    A file that is damaged, no such table, or has an unknown activity is left out as a whole and reported, or refused
    where the description is strict; so it is where no file can be read. Each reason is reported once, with its places.
    Raises PipelineError.
    """
    with GroupedReport(report) as grouped, SessionStore(grouped, description.acc.add_gap_s) as store:
        for damaged in files.damaged:
            grouped(f"{damaged}. It is left out")
        refused = [error for file in files.each() if (error := _store(description, file, clients, store, grouped))]
        unreadable = [error for error in refused if isinstance(error, SourceError)]
        if unreadable and len(unreadable) == store.file_count:
            raise unreadable[0]
        if refused and store.file_count > 1:
            grouped(f"{len(refused)} of {store.file_count} files are left out")
        yield from store.recordings()


def _store(
    description: Description, file: DescribedFile, clients: Collection[str] | None, store: SessionStore, report: Report
) -> PipelineError | None:
    """Store a file's samples; one that is left out is reported, and returned why."""
    store.begin_file(file.name, file.matched.visit)
    try:
        for part, recording in file_parts(description, file, report):
            if clients is None or recording.client in clients:
                store.add(part, recording)
    except (LabelError, SourceError) as error:
        if description.strict or (isinstance(error, LabelError) and description.labels.strict):
            raise
        report(f"{error}. The file is left out")
        store.forget_file()
        return error
    return None


class SessionStore:
    """Takes the samples of files in any order, and gives back whole sessions, in constant memory; used by `with`.

    What is left out is told to `report`. Something that is added to acceleration counts up to `add_gap_s` away from
    its nearest sample.
    """

    def __init__(self, report: Report, add_gap_s: float = MAX_GAP_S) -> None:
        self._report, self._add_gap_s = report, add_gap_s
        self._rows = TemporaryColumns[Piece](ROW)
        self._stored = _Stored(self._rows)

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.remove()

    @property
    def file_count(self) -> int:
        """How many files were begun."""
        return len(self._stored.files)

    def begin_file(self, name: str, visit: str = "") -> None:
        """Count what comes now as this file's; files of one visit differ in their sensor alone."""
        self._stored.files.append(StoredFile(name, visit))

    def add(self, part: Part, recording: Recording) -> None:
        """Take a stretch of one part; raises SourceError where the clock of a file is no clock."""
        _add(part, recording, len(self._stored.files) - 1, self._stored)

    def forget_file(self) -> None:
        """Forget what came of the latest file."""
        number = len(self._stored.files) - 1
        for piece in [piece for piece in self._stored.extents if piece.file == number]:
            del self._stored.extents[piece]

    def recordings(self) -> Iterator[Recording]:
        """Yield every client's sessions, one after another; times of a client that overlap are reported."""
        for words in overlaps(self._stored.spans()):
            self._report(words)
        by_client: dict[str, list[Piece]] = {}
        for piece in self._stored.extents:
            by_client.setdefault(piece.client, []).append(piece)
        complete, doubts = False, list[str]()
        for client in sorted(by_client):
            pairing = paired(by_client[client], self._stored.extents, self._stored.files)
            self._tell_set_back(client, pairing.set_back)
            doubts += [self._doubt(client, session) for session in pairing.doubtful]
            for session in _on_one_clock(pairing.sessions, self._stored):
                if missing := missing_part(session.pieces):
                    self._report(f"{self._place(client, session)}: there is no {missing}; left out")
                else:
                    complete = True
                    yield from self._in_step(client, session)
        if doubts and not complete:
            raise SourceError(doubts[0])
        for doubt in doubts:
            self._report(f"{doubt}. They are left out")

    def _place(self, client: str, session: JoinedPieces) -> str:
        files = dict.fromkeys(self._stored.files[piece.file].name for piece in session.pieces)
        return f"client {client}, session {session.name} ({', '.join(files)})"

    def _doubt(self, client: str, session: JoinedPieces) -> str:
        """Say that nothing tells which of a session's pieces belong together, and how that can be cured."""
        counts = Counter(piece.part for piece in session.pieces)
        stretches = " and ".join(f"{count} of {part}" for part, count in sorted(counts.items()))
        return (
            f"{self._place(client, session)}: {stretches} were recorded at the same time, and nothing says which "
            "belong together. If rows are of several devices, name the column that tells them apart, as in "
            'session = { column = "device" }, or client; if they are of several trials, give each its own session'
        )

    def _tell_set_back(self, client: str, pieces: list[tuple[Piece, Piece]]) -> None:
        for piece, other in pieces:
            name, extent = self._stored.files[piece.file].name, self._stored.extents[piece]
            self._report(
                f"client {client}, {name}: its clock was set back and that of {self._stored.files[other.file].name} "
                f"was not; the {extent.end_s - extent.begin_s:.0f} s from line {extent.first_line} on are left out"
            )

    def _in_step(self, client: str, session: JoinedPieces) -> Iterator[Recording]:
        added = _Added(session, self._stored, self._add_gap_s)
        for recording, part in _in_step(client, session, self._stored):
            yield added.to(recording) if part == "linear" else recording
        if added.lost:
            self._report(
                f"client {client}, session {session.name}: {added.lost} of {added.samples} samples of the "
                f"accelerometer have nothing to add within {self._add_gap_s:g} s"
                f"{added.apart()}; they are left out"
            )


class _Added:
    """What is added to the acceleration of a session, on its clock: mapped from disk, or in memory if it is unsorted.

    `samples` and `lost` count those of the accelerometer, and those of them that nothing lies near.
    """

    def __init__(self, session: JoinedPieces, stored: _Stored, gap_s: float) -> None:
        self._gap_s, self._shift_s = gap_s, session.shift_s
        self.samples = self.lost = 0
        self._first_s, self._last_s = np.inf, -np.inf
        pieces = [piece for piece in session.pieces if piece.part == "added"]
        self._rows = [_sorted_rows(piece, stored) for piece in sorted(pieces, key=lambda p: stored.extents[p].begin_s)]

    def to(self, recording: Recording) -> Recording:
        """Return a stretch of the accelerometer with what is added to it; NaN where nothing is near."""
        times_s = recording.times_s - self._shift_s
        rows = np.concatenate([self._between(rows, times_s[0], times_s[-1]) for rows in self._rows])
        found, near = readings_at(times_s, rows["time"], rows["values"], self._gap_s)
        self.samples, self.lost = self.samples + len(near), self.lost + int(len(near) - near.sum())
        self._first_s, self._last_s = min(self._first_s, times_s[0]), max(self._last_s, times_s[-1])
        return recording._replace(values=recording.values + found)

    def _between(self, rows: np.ndarray, first_s: float, last_s: float) -> np.ndarray:
        """Return the rows from the last one before a stretch to the first one after it, without lost samples."""
        low = int(np.searchsorted(rows["time"], first_s - self._gap_s)) - 1
        high = int(np.searchsorted(rows["time"], last_s + self._gap_s, side="right")) + 1
        part = np.asarray(rows[max(low, 0) : high])
        usable: np.ndarray = part[np.isfinite(part["values"]).all(axis=1)]
        return usable

    def apart(self) -> str:
        """Say so where the two do not overlap in time at all; "" otherwise."""
        first = min((float(rows["time"][0]) for rows in self._rows if len(rows)), default=np.inf)
        last = max((float(rows["time"][-1]) for rows in self._rows if len(rows)), default=-np.inf)
        if first <= self._last_s and self._first_s <= last:
            return ""
        return (
            f": the times of the two do not overlap ({self._first_s:.3f} to {self._last_s:.3f} s, and {first:.3f} to "
            f"{last:.3f} s)"
        )


def _sorted_rows(piece: Piece, stored: _Stored) -> np.ndarray:
    rows = stored.rows.mapped(piece)
    return rows if stored.extents[piece].in_order else rows[np.argsort(rows["time"], kind="stable")]


def _add(part: Part, recording: Recording, number: int, stored: _Stored) -> None:
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
    rows["number"] = np.nan if recording.number is None else recording.number
    activity = recording.activity
    words = activity if isinstance(activity, Categorical) else Categorical.of(np.full(len(timed), activity))
    codes = [stored.labels.setdefault(name, len(stored.labels)) for name in words.names.tolist()]
    rows["label"] = np.array(codes, dtype=np.int32)[words.codes]
    key = recording.client, recording.session, number, part
    restart = stored.restarts.setdefault(key, 0)
    piece = Piece(*key[:3], restart, part)
    before = stored.extents[piece].last_s if piece in stored.extents else rows["time"][0]
    back = restarts(rows["time"], before).tolist()
    if restart + len(back) > MAX_RESTARTS:
        raise SourceError(
            f"{recording.where()}: times have gone back {MAX_RESTARTS} times; is time.column right, and does a column "
            "say the client or the session, or the sensor of each row?"
        )
    for low, high in zip([0, *back], [*back, len(rows)], strict=True):
        if low in back:
            stored.restarts[key] += 1
        if low < high:
            _append(Piece(*key[:3], stored.restarts[key], part), rows[low:high], stored)


def _append(piece: Piece, rows: np.ndarray, stored: _Stored) -> None:
    stored.rows.append(piece, rows)
    times = rows["time"]
    begin_s, end_s, last_s = float(times.min()), float(times.max()), float(times[-1])
    first_line, last_line = int(rows["line"].min()), int(rows["line"].max())
    known = stored.extents.setdefault(piece, Extent(begin_s, float(times[0]), end_s, True, first_line, last_line))
    known.in_order &= bool((np.diff(times, prepend=known.last_s) >= 0).all())
    known.begin_s, known.end_s, known.last_s = min(known.begin_s, begin_s), max(known.end_s, end_s), last_s
    known.first_line, known.last_line = min(known.first_line, first_line), max(known.last_line, last_line)


def _on_one_clock(sessions: list[JoinedPieces], stored: _Stored) -> list[JoinedPieces]:
    """Order one client's sessions by their times, then names, and shift those that would overlap the one before."""

    def begin_s(session: JoinedPieces) -> float:
        return min(stored.extents[piece].begin_s for piece in session.pieces)

    ordered, clock_s = sorted(sessions, key=lambda session: (begin_s(session), _in_numbers(session.name))), -np.inf
    for session in ordered:
        if begin_s(session) <= clock_s:
            session.shift_s = float(np.ceil(clock_s)) + PAUSE_S - begin_s(session)
        clock_s = max(stored.extents[piece].end_s for piece in session.pieces) + session.shift_s
    return ordered


def _in_numbers(name: str) -> list[tuple[int, str]]:
    """Return what sorts trial 2 before trial 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _in_step(client: str, session: JoinedPieces, stored: _Stored) -> Iterator[tuple[Recording, Part]]:
    """Yield CHUNK_S of every piece of a session, but of what is added, then the next."""
    names = np.array(list(stored.labels))
    samples = (piece for piece in session.pieces if piece.part != "added")
    pieces = sorted(samples, key=lambda piece: (stored.extents[piece].begin_s, PARTS.index(piece.part)))
    cursors = [_Cursor(piece, stored) for piece in pieces]
    while (start := min(cursor.next_s for cursor in cursors)) < np.inf:
        for cursor in cursors:
            part = cursor.until(start + CHUNK_S)
            if len(part):
                yield Recording(
                    client, session.name, Categorical(names, part["label"]),
                    "gyro" if cursor.piece.part == "gyro" else "acc",
                    part["time"] + session.shift_s, part["values"], stored.files[cursor.piece.file].name,
                    int(part["line"][0]), known_numbers(part["number"]),
                ), cursor.piece.part  # fmt: skip


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
