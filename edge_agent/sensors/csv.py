"""Any CSV file with both sensors in each row, described by the columns and units of [csv]; in constant memory."""

from __future__ import annotations

import csv
import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from edge_agent.config.sensors import CsvSection
from edge_agent.errors import SensorError
from edge_agent.sensors.replay import FileSource, PacedSink
from federation.plan import Plan
from har_pipeline import Recording
from har_pipeline.recording import STANDARD_GRAVITY

ROWS = 2000
SENSORS: tuple[tuple[Literal["acc", "gyro"], int], ...] = (("acc", 1), ("gyro", 4))
"""And in which of a row's numbers each begins; the time comes first."""
TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ACC = {"m/s2": 1.0, "g": STANDARD_GRAVITY}
GYRO = {"rad/s": 1.0, "deg/s": math.pi / 180}


class Rows(NamedTuple):
    """Consecutive rows of one session: numbers (n, 7) are time, acceleration, rotation; `line` is that of the first."""

    session: str
    activities: list[str]
    numbers: np.ndarray
    line: int


class CsvSource(FileSource):
    """Replays a CSV file, or all *.csv in a folder by name."""

    kind = "csv"

    def files(self, path: Path) -> Sequence[Path]:
        """List the CSV files."""
        return sorted(path.glob("*.csv")) if path.is_dir() else [path]

    def settings(self) -> str:
        """Return the column map."""
        return self.config.csv.model_dump_json()

    def replay(self, path: Path, plan: Plan, sink: PacedSink, stop: threading.Event) -> None:
        """Push the file in chunks of rows."""
        session = None
        for rows in read_rows(path, self.config.csv):
            if session not in (None, rows.session):
                sink.end_session()
            session = rows.session
            activity, times_s = np.array(rows.activities), rows.numbers[:, 0]
            for sensor, first in SENSORS:
                values = rows.numbers[:, first : first + 3]
                name = f"{path.name}:{session}"
                sink.push(Recording("csv", name, activity, sensor, times_s, values, str(path), rows.line))
            if stop.is_set():
                return


def read_rows(path: Path, columns: CsvSection) -> Iterator[Rows]:
    """Read a file in chunks that end where the session changes; an empty cell is NaN, a lost sample.

    Raises:
        SensorError: with the file and the line, for a missing column or a cell that is no number.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=columns.separator)
        try:
            header = [name.strip() for name in next(reader, [])]
            place = _Places(path, header, columns)
            for session, rows in itertools.groupby(_numbered(reader), key=lambda row: place.session(row[1])):
                while chunk := list(itertools.islice(rows, ROWS)):
                    numbers = np.array([place.numbers(line, row) for line, row in chunk], dtype=np.float64)
                    activities = [place.activity(row) for _, row in chunk]
                    yield Rows(session, activities, numbers * place.units, chunk[0][0])
        except (csv.Error, UnicodeDecodeError) as error:
            raise SensorError(f"{path}, line {reader.line_num}: not a CSV file: {error}") from error


def _numbered(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    return ((line, row) for line, row in enumerate(reader, 2) if row)


class _Places:
    """Where the columns of a file are."""

    def __init__(self, path: Path, header: list[str], columns: CsvSection) -> None:
        self.path, self.width = path, len(header)
        self.names = [columns.time, *columns.acc, *columns.gyro]
        words = [name for name in (columns.activity, columns.session) if name]
        if missing := [name for name in (*self.names, *words) if name not in header]:
            raise SensorError(
                f"{path}, line 1: no column {', '.join(missing)}; it has {', '.join(header)[:500]}; set [csv]"
            )
        self.at = [header.index(name) for name in self.names]
        self.activity_at = header.index(columns.activity) if columns.activity else None
        self.session_at = header.index(columns.session) if columns.session else None
        acc, gyro = ACC[columns.acc_unit], GYRO[columns.gyro_unit]
        self.units = np.array([TIME[columns.time_unit], acc, acc, acc, gyro, gyro, gyro])

    def numbers(self, line: int, row: list[str]) -> list[float]:
        """Return the seven numbers of a row."""
        if len(row) != self.width:
            raise SensorError(f"{self.path}, line {line}: {len(row)} cells; expected {self.width}")
        found = []
        for name, at in zip(self.names, self.at, strict=True):
            try:
                found.append(float(row[at]) if row[at].strip() else math.nan)
            except ValueError as error:
                raise SensorError(
                    f"{self.path}, line {line}: {row[at][:50]!r} in column {name} is no number"
                ) from error
        return found

    def activity(self, row: list[str]) -> str:
        """Return a row's activity, '' where there is none."""
        return row[self.activity_at].strip() if self.activity_at is not None else ""

    def session(self, row: list[str]) -> str:
        """Return a row's session, '' where there is only one."""
        return row[self.session_at] if self.session_at is not None and self.session_at < len(row) else ""
