"""How a text file is laid out: separator, header, comments, trailing marks, decimal mark, from its first lines."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from har_pipeline.description.text import as_utf8

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
