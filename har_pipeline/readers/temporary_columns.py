"""Rows on disk by key until a container has been read: its files come in any order, the sessions go out in theirs."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Hashable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from gaitway.python310 import Self
from har_pipeline.readers.tables import Table
from har_pipeline.recording import Recording, Sensor

CHUNK_ROWS = 60_000
COLUMNS: tuple[tuple[Sensor, slice], ...] = (("acc", slice(0, 3)), ("gyro", slice(3, 6)))

Key = TypeVar("Key", bound=Hashable)


class Samples(NamedTuple):
    """Samples of one key: times_s (n,), values (n, columns) and codes (n,), mapped from disk; where they came from."""

    times_s: np.ndarray
    values: np.ndarray
    codes: np.ndarray
    source: str
    line: int


class TemporaryColumns(Generic[Key]):
    """Appends rows of one structured dtype to a temporary file per key, in constant memory; `with` removes them."""

    def __init__(self, row: np.dtype[np.void]) -> None:
        self._row = row
        self._folder = Path(mkdtemp(prefix="gaitway-columns-"))
        # also where a reader is left in the middle and never comes to the end of its `with`
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._paths: dict[Key, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def remove(self) -> None:
        """Remove all rows from disk."""
        self._remove()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._paths)

    def __contains__(self, key: object) -> bool:
        return key in self._paths

    def append(self, key: Key, rows: np.ndarray) -> None:
        """Add rows (n,) to those of the key."""
        path = self._paths.setdefault(key, self._folder / str(len(self._paths)))
        with path.open("ab") as file:
            file.write(rows.tobytes())

    def mapped(self, key: Key) -> np.ndarray:
        """Return all rows of a key, in the order in which they were added, mapped from disk."""
        path = self._paths[key]
        # An empty file cannot be mapped.
        return np.memmap(path, self._row, "r") if path.stat().st_size else np.empty(0, self._row)

    def part(self, key: Key, first: int, count: int) -> np.ndarray:
        """Read `count` rows of a key, -1 all, from row `first` on; unlike mapped ones they lie in memory."""
        return np.fromfile(self._paths[key], self._row, count, offset=first * self._row.itemsize)


class SampleColumns(TemporaryColumns[Key]):
    """Times, so many columns and label codes of samples; it remembers which file and line a key began with."""

    def __init__(self, columns: int) -> None:
        super().__init__(np.dtype([("time_s", "<f8"), ("values", "<f4", (columns,)), ("code", "<i1")]))
        self._where: dict[Key, tuple[str, int]] = {}

    def add(self, key: Key, times_s: np.ndarray, values: np.ndarray, codes: np.ndarray | int, table: Table) -> None:
        """Append times_s (n,), values (n, columns) and codes (n,), or one for all, that were read from `table`."""
        rows = np.empty(len(times_s), dtype=self._row)
        rows["time_s"], rows["values"], rows["code"] = times_s, values, codes
        self._where.setdefault(key, (table.source, table.line))
        self.append(key, rows)

    def samples(self, key: Key) -> Samples:
        """Return all samples of a key."""
        rows = self.mapped(key)
        return Samples(rows["time_s"], rows["values"], rows["code"], *self._where[key])


def interleave_chunks(
    client: str,
    session: str,
    times_s: np.ndarray,
    values: np.ndarray,
    activity: np.ndarray,
    source: str,
    line: int,
    number: np.ndarray | None = None,
) -> Iterator[Recording]:
    """Yield acc and gyro in turn, a chunk of each, from rows that hold both: values (n, 6), activity (n,) names.

    number (n,) is what a regression learns, NaN where a row does not say it; None: nothing.
    """
    for low in range(0, len(times_s), CHUNK_ROWS):
        part = slice(low, low + CHUNK_ROWS)
        for sensor, columns in COLUMNS:
            values_of = values[part, columns]
            numbers = None if number is None else number[part]
            yield Recording(
                client, session, activity[part], sensor, times_s[part], values_of, source, line + low, numbers
            )
