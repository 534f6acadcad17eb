"""Samples the files: stretches of consecutive rows, and their numbers.

The first lines show a text file's layout: separator, header, comments, trailing marks, decimal mark.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

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


SEPARATORS = (",", ";", "\t", "|", "whitespace")
COMMENTS = ("#", "%", "//")
TRAILING = (";", ",", "\t", "|")
SAMPLE_LINES = 200
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|", re.IGNORECASE)
RATE = re.compile(r"(?<![\w.])(\d{1,4}(?:\.\d+)?) ?Hz\b", re.IGNORECASE)
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.IGNORECASE)


class TextLayout(NamedTuple):
    """What a description says of a text, and the cells of the rows that were looked at."""

    separator: str
    header: tuple[str, ...]
    comment: str
    trailing: str
    decimal: str
    skip_lines: int
    rows: tuple[tuple[str, ...], ...]
    preamble: tuple[str, ...] = ()

    @property
    def stated_hz(self) -> float | None:
        """The rate that the lines above the header state, as in "… at 80 Hz"."""
        found = next(filter(None, map(RATE.search, self.preamble)), None)
        return float(found[1]) if found else None


def guess_layout(head: bytes) -> TextLayout | None:
    """Guess from a file's first bytes, whose last line may be cut off; None where they are no table of numbers."""
    if b"\0" in head:
        return None
    whole, newline, cut = head.rpartition(b"\n")
    lines = (as_utf8(whole) + newline + cut).decode("utf-8-sig", "replace").splitlines()
    lines = lines[:-1] if len(lines) > 2 else lines
    found = [(number, line.strip(" \r")) for number, line in enumerate(lines, 1) if line.strip()]
    comment = next((mark for mark in COMMENTS if any(line.startswith(mark) for _, line in found)), "")
    kept = [(number, line) for number, line in found if not (comment and line.startswith(comment))]
    body = [line for _, line in kept[-SAMPLE_LINES:]]
    if not body:
        return None
    trailing = _trailing([kept[0][1], *body])
    best = max((_score(body, trailing, separator), -at, separator) for at, separator in enumerate(SEPARATORS))
    (numbers, width), separator = best[0], best[2]
    if numbers < 3:
        return None
    rows = [(number, split(line, separator, trailing)) for number, line in kept]
    first = _first_row(rows, width)
    titles = rows[first][1]
    named = len(rows) > first + 1 and not any(_is_number(cell) and cell for cell in titles)
    header = tuple(cell.strip().strip("\"'") for cell in titles) if named else ()
    data = tuple(tuple(cells) for _, cells in rows[first + named :] if len(cells) == width)
    # a decimal comma parts "1,5" in two where the comma is the separator, so there is none then
    commas = separator != "," and any(
        COMMA_NUMBER.fullmatch(cell.strip()) for row in data[:SAMPLE_LINES] for cell in row
    )
    skipped = kept[first][0] - 1 if first else 0
    preamble = tuple(line for number, line in found if number <= skipped)
    return TextLayout(separator, header, comment, trailing, "," if commas else ".", skipped, data, preamble)


def split(line: str, separator: str, trailing: str) -> list[str]:
    """Cut a line into cells."""
    line = line.removesuffix(trailing).rstrip() if trailing else line
    if separator == "whitespace":
        return line.split()
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return []


def _first_row(rows: Sequence[tuple[int, list[str]]], width: int) -> int:
    """Return where the header stands, or else the first row of numbers.

    Lines above them may be as wide: a spreadsheet, or ActiLife, ends sentences with the commas of empty cells.
    """
    wide = [at for at, (_, cells) in enumerate(rows) if len(cells) == width]
    numbers = next((at for at in wide if any(_is_number(cell) and cell.strip() for cell in rows[at][1])), wide[0])
    above = [at for at in wide if at < numbers]
    header = max(above, key=lambda at: sum(map(bool, map(str.strip, rows[at][1]))), default=numbers)
    filled = sum(map(bool, map(str.strip, rows[header][1])))
    return numbers if filled == 1 < width else header


def _trailing(body: Sequence[str]) -> str:
    """Return the mark that ends every row; where a header has as many without ending so, the last column is empty."""
    first, *rows = body
    for mark in TRAILING:
        named = bool(rows) and not first.endswith(mark) and first.count(mark) == rows[0].count(mark)
        if all(line.endswith(mark) for line in rows or body) and not named:
            return mark
    return ""


def _score(body: Sequence[str], trailing: str, separator: str) -> tuple[int, int]:
    """Return how many columns of numbers the commonest width has, and that width; zeros where rows differ much."""
    rows = [split(line, separator, trailing) for line in body]
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if count < 0.8 * len(rows):
        return 0, 0
    same = [row for row in rows if len(row) == width][-50:]
    return sum(all(_is_number(row[column]) for row in same[1:] or same) for column in range(width)), width


def _is_number(cell: str) -> bool:
    cell = cell.strip()
    return bool(NUMBER.fullmatch(cell) or COMMA_NUMBER.fullmatch(cell))
