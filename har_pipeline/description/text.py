"""Reads text files as described: blocks of rows in constant memory, and the line of each row."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.description.files import Bytes, DescribedFile
from har_pipeline.errors import SourceError
from har_pipeline.readers.archive import max_unpacked_bytes, unpacking
from har_pipeline.readers.tables import MISSING, no_number, numbers_and_words
from har_pipeline.recording import Categorical

if TYPE_CHECKING:
    import pandas as pd

BLOCK_BYTES = 1 << 20
MAX_LINE = 1 << 20
MAX_COLUMNS = 10_000
WHITESPACE = "whitespace"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
ODDLY_QUOTED = "a quotation mark isn't closed on its line"

Lines = tuple[np.ndarray, list[bytes]]


class TextFormat(Protocol):
    """How a text table is written; `columns_of_words` are those whose cells are never read as numbers."""

    @property
    def header(self) -> bool:
        """Whether the first row has the names of the columns."""

    @property
    def separator(self) -> str:
        """What stands between cells: a character, or `whitespace`."""

    @property
    def trailing(self) -> str:
        """What every row ends with."""

    @property
    def comment(self) -> str:
        """What lines begin with that are no rows."""

    @property
    def decimal(self) -> str:
        """The decimal mark."""

    @property
    def skip_lines(self) -> int:
        """How many lines stand before the header."""

    @property
    def columns_of_words(self) -> tuple[str | int, ...]:
        """Names or numbers of columns of words."""


@dataclass(frozen=True)
class PlainText:
    """A table of numbers with a header."""

    separator: str = ","
    decimal: str = "."
    skip_lines: int = 0
    trailing: str = ""
    comment: str = ""
    header: bool = True
    columns_of_words: tuple[str | int, ...] = ()

    def with_words(self, *columns: str | int) -> PlainText:
        """Return the same with these columns of words."""
        return replace(self, columns_of_words=columns)


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some rows of a file: their cells, and `lines` (n,), where each stands in it.

    `damaged` (n,) becomes True where a row is found to be of no use, and `why` says what was wrong first. `headers` is
    how often the header stood among them again.
    """

    name: str
    frame: pd.DataFrame
    lines: np.ndarray
    header: tuple[str, ...]
    decimal: str
    damaged: np.ndarray
    why: list[str] = field(default_factory=list)
    headers: int = 0

    def damage(self, rows: np.ndarray, why: str) -> None:
        """Count rows, by their indices, as of no use."""
        self.damaged[rows] = True
        self.why[1:] = []
        self.why.append(why)

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        """Say in which file and line a row stands."""
        return f"{self.name}, line {self.lines[row]}"

    def index(self, column: str | int) -> int:
        """Find a column by its name or number; raises SourceError."""
        if isinstance(column, int):
            if column > self.frame.shape[1]:
                raise SourceError(f"{self.name}: no column {column}; its rows have {self.frame.shape[1]}")
            return column - 1
        count = self.header.count(column)
        if not count:
            raise SourceError(f"{self.name}: no column {column!r}; {did_you_mean(column, self.header[:100])}")
        if count > 1:
            raise SourceError(f"{self.name}: {count} columns are called {column!r}; give the column's number instead")
        return self.header.index(column)

    def indices(self, columns: Iterable[str | int]) -> set[int]:
        """Return the places of those columns that this file has: each sensor's files may have a header of their own."""
        return {self.index(column) for column in columns if isinstance(column, int) or column in self.header}

    def numbers(self, columns: tuple[str | int, ...], rows: np.ndarray | None = None) -> np.ndarray:
        """Return columns as float64 (n, columns), NaN where a cell is empty; of some rows only, where `rows` says so.
        A row with a word or an infinite number is damaged, and NaN there.
        """
        chosen = np.arange(len(self)) if rows is None else rows

        def place(row: int) -> str:
            return self.place(int(chosen[row]))

        found = np.empty((len(chosen), len(columns)))
        for at, column in enumerate(columns):
            series = self.frame[self.index(column)]
            series = series if rows is None else series.iloc[rows]
            found[:, at], words = numbers_and_words(series, self.decimal)
            if words.any():
                row = int(np.argmax(words))
                self.damage(
                    chosen[words], no_number(series, str(column), lambda row: self.place(int(chosen[row])), row)
                )
        if (infinite := np.isinf(found).any(axis=1)).any():
            first = place(int(np.argmax(infinite)))
            self.damage(chosen[infinite], f"{first}: infinite value; remove or repair the row")
            found[infinite] = np.nan
        return found

    def dates(self, column: str | int, form: str | None) -> np.ndarray:
        """Return text dates as seconds since 1970 (n,), in UTC where they name no zone; NaN where a cell is empty.

        A row with another text is damaged; raises SourceError where the format is none.
        """
        import pandas as pd

        texts = self.frame[self.index(column)].astype(str).str.strip()
        try:
            read = pd.to_datetime(texts, format=form or "ISO8601", errors="coerce", utc=True)
        except (ValueError, TypeError, OverflowError) as error:
            raise SourceError(f"{self.name}: time.format {form!r} cannot be used: {error}") from error
        bad = (read.isna() & ~texts.isin(MISSING)).to_numpy()
        if bad.any():
            at = int(np.argmax(bad))
            self.damage(
                np.flatnonzero(bad),
                f"{self.place(at)}: {str(texts.iloc[at])[:50]!r} in column {str(column)!r} is no date of the form "
                f"{form or 'ISO 8601'}; set time.format",
            )
        seconds: np.ndarray = (read - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(dtype=np.float64)
        return seconds

    def only(self, rows: np.ndarray) -> RowBlock:
        """Return some of the rows, by their indices."""
        return replace(self, frame=self.frame.iloc[rows], lines=self.lines[rows], damaged=self.damaged[rows])

    def words(self, column: str | int) -> Categorical:
        """Return a column's texts, without blanks around them."""
        texts = self.frame[self.index(column)].astype(str).astype("category").cat
        return Categorical(np.array([str(category).strip() for category in texts.categories]), texts.codes.to_numpy())


def read_blocks(file: DescribedFile, description: TextFormat) -> Iterator[RowBlock]:
    """Parse a file block by block; raises SourceError, with the line, for what is no table."""
    header: tuple[str, ...] | None = None
    width, heading = 0, b""
    with unpacking(file.name):
        opened = file.open()
    with opened as stream:
        for numbers, lines in _lines(stream, file, description):
            if not width:
                first = _cells(lines[0], description, f"{file.name}, line {numbers[0]}")
                width = len(first)
                header = tuple(cell.strip().strip("\"'") for cell in first) if description.header else ()
                if description.header:
                    heading, numbers, lines = lines[0], numbers[1:], lines[1:]
            rows = [at for at, line in enumerate(lines) if line != heading]
            if rows:
                repeated = len(lines) - len(rows)
                if repeated:
                    numbers, lines = numbers[rows], [lines[at] for at in rows]
                block = _block(lines, numbers, width, header or (), file.name, description)
                yield replace(block, headers=repeated) if repeated else block
    if not width:
        raise SourceError(f"{file.name} is empty; expected rows")


def _cells(line: bytes, description: TextFormat, place: str) -> list[str]:
    text = line.decode("utf-8", "replace")
    if description.separator == WHITESPACE:
        cells = text.split()
    else:
        try:
            cells = next(csv.reader([text], delimiter=description.separator, skipinitialspace=True), [])
        except csv.Error as error:
            raise SourceError(f"{place}: {error}; check that this is a text table") from error
    if not 0 < len(cells) <= MAX_COLUMNS:
        raise SourceError(f"{place}: {len(cells)} columns; check that this is a text table")
    return cells


def _block(
    lines: list[bytes], numbers: np.ndarray, width: int, header: tuple[str, ...], name: str, description: TextFormat
) -> RowBlock:
    """Parse lines; rows that are too long, or with a quotation mark too many, are damaged, and come out empty."""
    damaged, why = np.zeros(len(lines), dtype=bool), list[str]()
    texts = _word_columns(header, width, description)
    # pandas cuts a first row that is longer than the names to these in silence
    first_is_long = _too_long(lines[0], numbers[0], width, name, description)
    frame = None if first_is_long else _parsed(lines, width, texts, description)
    if frame is None:
        rows = zip(lines, numbers, strict=True)
        odd = np.array([line.count(b'"') % 2 == 1 for line in lines])
        damaged = odd | np.array([_too_long(line, number, width, name, description) for line, number in rows])
        empty = (b" " if description.separator == WHITESPACE else description.separator.encode()).join([b'""'] * width)
        kept = [empty if bad else line for line, bad in zip(lines, damaged, strict=True)]
        frame = _parsed(kept, width, texts, description)
        first = int(np.argmax(damaged)) if damaged.any() else 0
        wrong = ODDLY_QUOTED if odd[first] else f"not a row of {width} columns separated by {description.separator!r}"
        why = [f"{name}, line {numbers[first]}: {wrong}"]
    if frame is None:
        raise SourceError(why[0])
    return RowBlock(name, frame, numbers, header, description.decimal, damaged, why)


def _too_long(line: bytes, number: int, width: int, name: str, description: TextFormat) -> bool:
    return len(_cells(line, description, f"{name}, line {number}")) > width


def _word_columns(header: tuple[str, ...], width: int, description: TextFormat) -> list[int]:
    """Return where words stand: as numbers, subject 01 would be 1, or 01 again beside an empty cell."""
    known = [column for column in description.columns_of_words if isinstance(column, int) or column in header]
    return [at for column in known if (at := column - 1 if isinstance(column, int) else header.index(column)) < width]


def _parsed(lines: list[bytes], width: int, texts: list[int], description: TextFormat) -> pd.DataFrame | None:
    """Parse rows of so many cells; None where one is longer, goes on in the next, or else is no row of a table."""
    import pandas as pd

    spaced = description.separator == WHITESPACE
    try:
        frame = pd.read_csv(
            io.BytesIO(b"\n".join(lines)),
            sep=r"\s+" if spaced else description.separator,
            header=None,
            names=range(width),
            index_col=False,
            dtype=dict.fromkeys(texts, str),
            na_filter=False,
            skip_blank_lines=False,
            skipinitialspace=not spaced,
            decimal=description.decimal,
            encoding_errors="replace",
            low_memory=False,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OverflowError):
        return None
    return frame if len(frame) == len(lines) else None


def _lines(stream: Bytes, file: DescribedFile, description: TextFormat) -> Iterator[Lines]:
    """Yield lines that are neither blank, nor comments, nor to be skipped, cleaned; with their numbers."""
    comment, trailing = description.comment.encode(), description.trailing.encode()
    number = 1
    for lines in _raw_lines(stream, file):
        kept, numbers = [], []
        for at, line in enumerate(lines, number):
            row = line.strip(b" \r") if description.separator == "\t" else line.strip()
            if trailing:
                row = row.removesuffix(trailing).rstrip()
            if row and at > description.skip_lines and not (comment and row.startswith(comment)):
                kept.append(row)
                numbers.append(at)
        number += len(lines)
        if kept:
            yield np.array(numbers), kept


def _raw_lines(stream: Bytes, file: DescribedFile) -> Iterator[list[bytes]]:
    """Yield the whole lines that are there, without waiting for more: the file may be a pipe."""
    rest, total = b"", 0
    most = sys.maxsize if file.endless else max_unpacked_bytes(file.path)
    data = _read(stream, file)
    if data.startswith(UTF_16):
        raise SourceError(f"{file.name} is UTF-16; save it as UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    # lines of old Macs, and of some exports, end in CR alone; the last byte may be half of CR LF
    ending = b"\r" if b"\n" not in data and b"\r" in data[:-1] and not file.endless else b"\n"
    while data:
        total += len(data)
        if total > most:
            raise SourceError(f"{file.name} unpacks to more than {most >> 20} MiB; unpack it by hand if you trust it")
        if b"\0" in data:
            raise SourceError(f"{file.name} contains zero bytes; expected a text table: exclude it in `files`")
        whole, newline, rest = (rest + data).rpartition(ending)
        if newline:
            yield as_utf8(whole).split(ending)
        if len(rest) > MAX_LINE:
            raise SourceError(f"{file.name} has a line of more than 1 MiB; expected a text table")
        data = _read(stream, file)
    if rest:
        yield [as_utf8(rest)]


def as_utf8(text: bytes) -> bytes:
    """Return whole lines in UTF-8; what is none was written by a Windows program in Western Europe, as most is."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("cp1252", "replace").encode()
    return text


def _read(stream: Bytes, file: DescribedFile) -> bytes:
    with unpacking(file.name):
        return stream.read(BLOCK_BYTES)
