"""Apps' tables with a header: their text layout, and their numbers chunk by chunk."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from har_pipeline.apps.export import PartSamples
from har_pipeline.apps.files import FileHead
from har_pipeline.description.files import DescribedFile
from har_pipeline.description.samples import ROWS, refuse_damaged
from har_pipeline.description.text import PlainText, RowBlock, read_blocks
from har_pipeline.errors import SourceError
from har_pipeline.readers.tables import MIN_ROWS_TO_JUDGE

SEPARATORS = (";", "\t", ",")
DECIMAL_COMMA = re.compile(r"^\s*\"?[-+\u2212]?\d+,\d")
CLOCK = re.compile(r"^\s*\d{1,2}:\d{2}:\d{2}[:.,]\d+\s*$")
CLOCK_PARTS = r"^\s*(?P<h>\d{1,2}):(?P<m>\d{2}):(?P<s>\d{2})[:.,](?P<f>\d{1,9})\s*$"
DAY_S = 86_400.0
REPEATED_S = 0.05

Convert = Callable[[np.ndarray], Iterator[PartSamples]]
"""Turns rows of numbers (n, columns) into samples; raises SourceError for impossible values."""


@dataclass(frozen=True)
class TableHead:
    """A table's layout, its stripped column names, and its first row."""

    text: PlainText
    columns: tuple[str, ...]
    first: tuple[str, ...]


def table_head(head: FileHead, *, wants: Callable[[str], bool]) -> TableHead | None:
    """Find a header that `wants` accepts in the first three lines; None if there isn't one."""
    lines = head.lines
    at = next((at for at, line in enumerate(lines[:3]) if wants(line)), None)
    if at is None:
        return None
    line = lines[at]
    separator = max(SEPARATORS, key=lambda candidate: line.count(candidate))
    columns = _cells(line, separator)
    first = _cells(lines[at + 1], separator) if len(lines) > at + 1 else ()
    decimal = "," if separator != "," and any(DECIMAL_COMMA.match(cell) for cell in first) else "."
    return TableHead(PlainText(separator, decimal, skip_lines=at), columns, first)


def _cells(line: str, separator: str) -> tuple[str, ...]:
    try:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return ()
    return tuple(cell.strip() for cell in cells)


def rows_of_words(head: FileHead) -> list[dict[str, str]]:
    """Read a small table of words, such as a recording's properties; empty if it isn't one."""
    lines = head.lines
    if not lines:
        return []
    separator = max(SEPARATORS, key=lambda candidate: lines[0].count(candidate))
    try:
        return [
            {(key or "").strip(): (cell or "").strip() for key, cell in row.items() if isinstance(cell, str | None)}
            for row in csv.DictReader(lines, delimiter=separator)
        ]
    except csv.Error:
        return []


def samples_of(
    file: DescribedFile, text: PlainText, columns: Sequence[str], convert: Convert, clock: str | None = None
) -> Iterator[PartSamples]:
    """Yield the samples of a table's `columns`; `clock` is a column of times of day, read before them, in s.

    Raises SourceError if half of the rows are damaged.
    """
    read = damaged = 0
    day_s, last_s, why = 0.0, -np.inf, ""
    for block in read_blocks(file, text):
        numbers = block.numbers(tuple(columns))
        if clock is not None:
            times_s = _seconds_of_day(block, clock)
            steps = np.diff(times_s, prepend=last_s if np.isfinite(last_s) else times_s[:1])
            times_s = times_s + day_s + DAY_S * np.cumsum(steps < -DAY_S / 2)
            if np.isfinite(times_s).any():
                latest_s = float(times_s[np.isfinite(times_s)][-1])
                day_s, last_s = DAY_S * np.floor(latest_s / DAY_S), latest_s % DAY_S
            numbers = np.column_stack([times_s, numbers])
        read, damaged, why = read + len(block), damaged + int(block.damaged.sum()), why or next(iter(block.why), "")
        if read >= MIN_ROWS_TO_JUDGE:
            refuse_damaged(damaged, read, why)
        for low in range(0, len(numbers), ROWS):
            for samples in convert(numbers[low : low + ROWS]):
                yield samples._replace(line=int(block.lines[low]))
    refuse_damaged(damaged, read, why)


def _seconds_of_day(block: RowBlock, column: str) -> np.ndarray:
    """Return times of day (n,) in s; NaN for damaged rows with other text."""
    import pandas as pd

    words = block.words(column)
    parts = pd.Series(words.names).str.extract(CLOCK_PARTS)
    fraction = parts["f"].map(lambda digits: int(digits) / 10 ** len(digits) if isinstance(digits, str) else np.nan)
    whole = parts[["h", "m", "s"]].astype(np.float64).to_numpy() @ np.array([3600.0, 60.0, 1.0])
    times_s: np.ndarray = (whole + fraction.to_numpy(dtype=np.float64))[words.codes]
    if (lost := np.isnan(times_s)).any():
        row = int(np.argmax(lost))
        block.damage(
            np.flatnonzero(lost),
            f"{block.place(row)}: {str(words.names[words.codes[row]])[:50]!r} isn't a time of day such as "
            f"13:05:10:123; saving a table in a spreadsheet destroys its times: export it again",
        )
    return times_s


class FirstReadings:
    """Drops rows that only repeat a sensor's last reading, because some apps write a row whenever any sensor has one.
    Rows before the first reading are zero, and a reading counts again after REPEATED_S.
    """

    def __init__(self) -> None:
        self._last = np.zeros(3)
        self._kept_s = -np.inf

    def __call__(self, times_s: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows of times_s (n,) and values (n, 3) are readings."""
        timed = np.isfinite(times_s)
        times_s, values = times_s[timed], values[timed]
        if not len(times_s):
            return times_s, values
        changed = (values != np.vstack([self._last, values[:-1]])).any(axis=1)
        since = np.maximum.accumulate(np.where(changed, times_s, self._kept_s))
        held = np.floor((times_s - since) / REPEATED_S)
        with np.errstate(invalid="ignore"):  # before the first reading both are infinite
            again = np.diff(held, prepend=held[:1]) > 0
        kept = changed | (again & np.isfinite(since))
        if kept.any():
            self._kept_s = float(times_s[kept][-1])
        self._last = values[-1]
        return times_s[kept], values[kept]


def refuse_size(name: str, what: str, values: np.ndarray, low: float, high: float, advice: str) -> None:
    """Raise SourceError if the median size of values (n, 3) isn't between two numbers."""
    sizes = np.linalg.norm(values, axis=1)
    sizes = sizes[np.isfinite(sizes)]
    if len(sizes) and not low <= (size := float(np.median(sizes))) <= high:
        raise SourceError(f"{name}: wrong units: {what} {size:.2f}, {advice}")
