"""Which column of an HHAR file is what, where its header is missing or has other names for the times.

Both times advance together, one in milliseconds (Arrival_Time), one in nanoseconds (Creation_Time): a million to one.
So they are told apart by how fast they run, whatever they are called and in whatever order they come.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from itertools import permutations
from typing import IO, Any

import numpy as np

from har_pipeline.errors import SourceError

log = logging.getLogger(__name__)

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
