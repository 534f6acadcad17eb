"""The files that are looked at, by their layouts: stretches of rows that follow one another, and their numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from har_pipeline.description.guess.layout import TextLayout, guess_layout, split
from har_pipeline.description.text import UTF_16, as_utf8
from har_pipeline.errors import SourceError
from har_pipeline.readers.archive import unpacking, walk

Rows = tuple[tuple[str, ...], ...]
BINARY = re.compile(
    r"\.(jpe?g|png|gif|bmp|pdf|docx?|xlsx?|npz|npy|mat|h5|hdf5|parquet|py|pyc|md|html?|json|toml|ya?ml|mp4|avi|onnx|bin)$",
    re.IGNORECASE,
)
HEAD_BYTES = 1 << 16
STRIDE_BYTES, LATER_BYTES = 1 << 20, 1 << 14
"""Further on a file is looked at again after so many bytes: a column's words may change late."""
MAX_HEADS = 400
MAX_BYTES = 64 << 20
"""Of all files together, beyond their first bytes."""
MAX_PLAUSIBLE = 1e20
"""Nanoseconds since 1970 are 2e18; the squares of far larger numbers are infinite."""


@dataclass(frozen=True)
class RowStretch:
    """Rows of one file that follow one another."""

    name: str
    rows: Rows
    decimal: str

    @cached_property
    def numbers(self) -> np.ndarray:
        """All cells as float64 (rows, columns); NaN where one is no number, or huge."""
        import pandas as pd

        frame = pd.DataFrame(self.rows)
        if self.decimal != ".":
            frame = frame.apply(lambda column: column.str.replace(self.decimal, "."))
        found = np.array(frame.apply(pd.to_numeric, errors="coerce"), dtype=np.float64)
        found[~(np.abs(found) <= MAX_PLAUSIBLE)] = np.nan
        return found


@dataclass
class FileKind:
    """Files of one layout: their names and stretches; `decimal`, `skip_lines` and `comment` are the commonest.

    `stated_hz` counts the rates that their first lines state.
    """

    layout: TextLayout
    names: list[str] = field(default_factory=list)
    stretches: list[RowStretch] = field(default_factory=list)
    marks: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    stated_hz: Counter[float | None] = field(default_factory=Counter)

    @property
    def text(self) -> tuple[object, ...]:
        """What a description says of the text but for its header."""
        return self.layout.separator, self.layout.trailing, self.marks.most_common(1)[0][0]


@dataclass
class Looked:
    """What lies under a root: the kinds of files, those in UTF-16, and why others could not be read.

    `unread` counts the endings of files that are no text tables.
    """

    kinds: list[FileKind]
    utf_16: list[str]
    unreadable: list[str]
    unread: Counter[str] = field(default_factory=Counter)


def look(root: Path) -> Looked:
    """Sort the files under root by their layouts; what is damaged is left out, and said."""
    kinds: dict[object, FileKind] = {}
    looked, left, heads = Looked([], [], []), MAX_BYTES, 0
    for member in walk(root, lambda archive: True, looked.unreadable.append):
        if binary := BINARY.search(member.name):
            looked.unread[binary[0].lower()] += 1
        if binary or heads >= MAX_HEADS:
            continue
        try:
            with unpacking(member.name), member.open() as stream:
                head = stream.read(HEAD_BYTES)
                layout = guess_layout(head + b"\n" if len(head) < HEAD_BYTES else head)
                later = _later(stream, layout, left) if layout and len(head) == HEAD_BYTES else []
        except SourceError as error:
            looked.unreadable.append(str(error))
            continue
        if head.startswith(UTF_16):
            looked.utf_16.append(member.name)
        if layout is None or not layout.rows:
            continue
        heads, left = heads + 1, left - STRIDE_BYTES * len(later)
        what = layout.separator, layout.header or len(layout.rows[0]), layout.trailing
        kind = kinds.setdefault(what, FileKind(layout))
        kind.names.append(member.name)
        kind.marks[layout.decimal, layout.skip_lines, layout.comment] += 1
        kind.stated_hz[layout.stated_hz] += 1
        parts = (tuple(row for row in rows if row != layout.header) for rows in (layout.rows, *later))
        kind.stretches += [RowStretch(member.name, rows, layout.decimal) for rows in parts if rows]
    looked.kinds = sorted(kinds.values(), key=lambda kind: -len(kind.names))
    return looked


def _later(stream: IO[bytes], layout: TextLayout, left: int) -> list[Rows]:
    """Return rows from further on in a file, a stretch for each STRIDE_BYTES."""
    found, width = [], len(layout.rows[0])
    while left > 0 and (part := stream.read(STRIDE_BYTES)):
        left -= STRIDE_BYTES
        lines = as_utf8(part[-LATER_BYTES:]).decode("utf-8", "replace").splitlines()[1:-1]
        cut = (tuple(split(line.strip(" \r"), layout.separator, layout.trailing)) for line in lines)
        found.append(tuple(row for row in cut if len(row) == width))
    return found
