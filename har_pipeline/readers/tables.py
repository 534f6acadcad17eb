"""Reads text files as arrays of numbers, with the file and line of any error: CSV, and columns without names.

A row that lacks a number (an empty cell, NaN) is kept as NaN: the stream counts it as a lost sample. A word or an
infinity where a number belongs is refused.

`TemporaryColumns` keeps rows on disk by key until a container has been read: its files come in any order, the sessions
go out in theirs.
"""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import IO, TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from gaitway.python310 import Self
from har_pipeline.errors import SourceError
from har_pipeline.recording import Categorical, Recording, Sensor

if TYPE_CHECKING:
    import pandas as pd


MIN_ROWS_TO_JUDGE = 20
MISSING = ("", "NaN", "nan", "NA")
MAX_SHOWN_CHARS = 50

Place = Callable[[int], str]
"""Says in which file and line a row stands."""


class Table(NamedTuple):
    """Rows of a CSV: numbers (n, columns) float64, text by column as n words, and where they are from."""

    numbers: np.ndarray
    text: dict[str, Categorical]
    source: str
    line: int


class Header(NamedTuple):
    """Whether a CSV has a header, and the names of all of its columns where it has none, or says others."""

    names: Sequence[str] | None = None
    is_there: bool = True


def read_table(stream: IO[bytes], source: str, numeric: Sequence[str], text: Sequence[str] = ()) -> Table:
    """Read the named columns of a whole CSV; raises SourceError with file and line."""
    tables = list(read_chunks(stream, source, numeric, text, rows=None))
    if not tables:
        raise SourceError(f"{source} has no rows below its header")
    return tables[0]


def read_chunks(
    stream: IO[bytes],
    source: str,
    numeric: Sequence[str],
    text: Sequence[str] = (),
    header: Header = Header(),
    *,
    rows: int | None = 250_000,
) -> Iterator[Table]:
    """Read the named columns of a CSV in chunks of `rows` (None: as one), in constant memory."""
    import pandas as pd

    wanted = [*numeric, *text]
    with _errors_in_words(source, f"is empty; expected a header with {wanted}", f"not a CSV with columns {wanted}"):
        frames = pd.read_csv(
            stream,
            names=None if header.names is None else list(header.names),
            header=0 if header.is_there else None,
            usecols=lambda name: name in wanted,
            dtype=dict.fromkeys(text, "category"),
            # Looking each cell up among the missing ones would cost as much as reading it: see _numbers.
            na_filter=False,
            skip_blank_lines=False,
            chunksize=rows or 1 << 40,
            low_memory=False,
        )
        line = 2 if header.is_there else 1
        for frame in frames:
            missing = [name for name in wanted if name not in frame.columns]
            if missing:
                raise SourceError(f"{source}, line 1: no column {missing}; expected {wanted}")
            if len(frame):
                yield _table(frame, source, line, numeric, text)
            line += len(frame)


def read_columns(
    stream: IO[bytes],
    source: str,
    columns: int,
    used: Sequence[int],
    *,
    separator: str = r"\s+",
    line: int = 1,
) -> Iterator[Table]:
    """Read the `used` of so many columns that have no header, in chunks; `line` is that of the stream's first row.

    Raises SourceError with the file, for another number of columns, a word or an infinity.
    """
    import pandas as pd

    empty, unlike = f"has no rows; expected {columns} columns", f"not a row of {columns} columns"
    with _errors_in_words(source, empty, unlike, line):
        frames = pd.read_csv(stream, sep=separator, header=None, chunksize=100_000, skipinitialspace=True)
        for frame in frames:
            if frame.shape[1] != columns:
                raise SourceError(f"{source}, line {line}: {frame.shape[1]} columns; expected {columns}")
            place = _places(source, line)
            numbers = np.stack([numbers_of(frame[column], str(column + 1), place) for column in used], axis=1)
            refuse_infinite(numbers, place)
            yield Table(numbers, {}, source, line)
            line += len(frame)


@contextmanager
def _errors_in_words(source: str, empty: str, unlike: str, first: int = 1) -> Iterator[None]:
    """Raise pandas' errors as SourceError with the file and its line; `first` is that of the stream's first row."""
    import pandas as pd

    try:
        yield
    except pd.errors.EmptyDataError as error:
        raise SourceError(f"{source} {empty}") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        at = re.search(r"line (\d+)", str(error))
        place = f"{source}, line {first + int(at[1]) - 1}" if at else source
        raise SourceError(f"{place}: {unlike}; repair the file, or download it again: {error}") from error


def refuse_infinite(numbers: np.ndarray, place: Place) -> None:
    """Raise SourceError for the first row of numbers (n, columns) that has an infinite one."""
    infinite = np.isinf(numbers)
    if infinite.any():
        infinite = infinite.any(axis=1)
        raise SourceError(f"{place(int(np.argmax(infinite)))}: infinite value; remove or repair the row")


def _places(source: str, line: int) -> Place:
    return lambda row: f"{source}, line {line + row}"


def _table(frame: pd.DataFrame, source: str, line: int, numeric: Sequence[str], text: Sequence[str]) -> Table:
    # By column in memory, as the parser gives them and as most readers take them.
    numbers = np.empty((len(frame), len(numeric)), order="F")
    for column, name in enumerate(numeric):
        numbers[:, column] = numbers_of(frame[name], name, _places(source, line))
    if not np.isfinite(numbers).all():
        refuse_infinite(numbers, _places(source, line))
        _refuse_empty(numbers, source, line, numeric)
    words = {}
    for name in text:
        column_text = frame[name].cat
        names = np.array([str(category) for category in column_text.categories] + [""])
        words[name] = Categorical(names, column_text.codes.to_numpy())
    return Table(numbers, words, source, line)


def _refuse_empty(numbers: np.ndarray, source: str, line: int, numeric: Sequence[str]) -> None:
    lost = np.isnan(numbers).any(axis=1)
    if len(lost) >= MIN_ROWS_TO_JUDGE and lost.mean() > 0.5:
        raise SourceError(
            f"{source}, line {line + int(np.argmax(lost))}: {lost.sum()} of {len(lost)} rows lack a number in "
            f"{list(numeric)}; is this the right file?"
        )


def numbers_of(column: pd.Series, name: str, place: Place) -> np.ndarray:
    """Return a parsed column (n,) as float64, NaN where a cell is empty; `place` says where a row stands.

    Raises SourceError for a word.
    """
    numbers, words = numbers_and_words(column)
    if words.any():
        raise SourceError(no_number(column, name, place, int(np.argmax(words))))
    return numbers


def numbers_and_words(column: pd.Series, decimal: str = ".") -> tuple[np.ndarray, np.ndarray]:
    """Return a parsed column (n,) as float64, NaN where a cell is empty or a word, and where the words are (n,)."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column):
        column = column.astype(str)
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.float64), np.zeros(len(column), dtype=bool)
    texts = column if decimal == "." else column.astype(str).str.replace(decimal, ".")
    numbers = pd.to_numeric(texts, errors="coerce")
    words = (numbers.isna() & column.notna() & ~column.isin(MISSING)).to_numpy()
    return numbers.to_numpy(dtype=np.float64), words


def no_number(column: pd.Series, name: str, place: Place, row: int) -> str:
    """Say where a word stands that should be a number."""
    return f"{place(row)}: {str(column.iloc[row])[:MAX_SHOWN_CHARS]!r} in column {name!r} is no number"


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


def interleave_chunks(rows: Recording) -> Iterator[Recording]:
    """Yield acc and gyro in turn, a chunk of each, from rows that hold both: values (n, 6), activity (n,) names."""
    for low in range(0, len(rows.times_s), CHUNK_ROWS):
        part = slice(low, low + CHUNK_ROWS)
        chunk = rows._replace(
            activity=rows.activity[part],
            times_s=rows.times_s[part],
            line=rows.line + low,
            number=None if rows.number is None else rows.number[part],
        )
        for sensor, columns in COLUMNS:
            yield chunk._replace(sensor=sensor, values=rows.values[part, columns])
