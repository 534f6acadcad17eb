"""Recordings that the app has exported: a zip or folder of CSV files, or one JSON file, in constant memory.

Accelerometer.csv, Gravity.csv, TotalAcceleration.csv, Gyroscope.csv and Annotation.csv have a header with `time` in
nanoseconds; Metadata.csv says which platform it was. The JSON file is one array of the same rows, by sensor.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import threading
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from heapq import merge
from pathlib import Path
from typing import IO, Any, NamedTuple

from edge_agent.errors import SensorError
from edge_agent.sensors.replay import FileSource, PacedSink, Part
from edge_agent.sensors.sensor_logger.calibration import signed, wrong_units
from edge_agent.sensors.sensor_logger.inbox import Vocabulary
from edge_agent.sensors.sensor_logger.message import batch_of
from edge_agent.sensors.sensor_logger.stream import PhoneStream
from federation.plan import Plan

SENSORS = ("Accelerometer", "Gravity", "TotalAcceleration", "Gyroscope", "Annotation")
METADATA = "Metadata"
LONGEST_LINE = 1 << 16
BLOCK_CHARS = 1 << 16
DEEPEST = 4


class ExportedRow(NamedTuple):
    """One reading, as `message.Entry`."""

    name: str
    time: int
    values: dict[str, Any]


def exports_in(path: Path, depth: int = DEEPEST) -> list[Path]:
    """List the exports at or below a path, by name."""
    if path.is_file():
        return [path] if path.suffix.lower() in (".zip", ".json") else []
    if any((path / f"{name}.csv").is_file() for name in SENSORS):
        return [path]
    children = sorted(path.iterdir()) if depth and path.is_dir() else []
    return [found for child in children for found in exports_in(child, depth - 1)]


def platform_of(path: Path) -> str | None:
    """Say whose signs an export has, if it says so itself."""
    with ExitStack() as stack:
        for row in _reader(path, stack)(METADATA):
            if str(row.get("standardisation", "")).lower() == "true":
                return "standardised"
            found = str(row.get("platform", "")).lower()
            return found if found in ("ios", "android") else None
    return None


def rows_of(path: Path) -> Generator[ExportedRow, None, None]:
    """Yield an export's readings of all sensors in order of time.

    Raises:
        SensorError: if it is no export, with the file and what is wrong.
    """
    with ExitStack() as stack:
        read = _reader(path, stack)
        yield from merge(*(_rows(path, name, read(name)) for name in SENSORS), key=lambda row: row.time)


def _rows(path: Path, name: str, records: Iterator[dict[str, Any]]) -> Iterator[ExportedRow]:
    for record in records:
        try:
            time = int(record["time"])
        except (KeyError, TypeError, ValueError) as error:
            came = str(record.get("time"))[:50]
            raise SensorError(f"{path}: {came!r} in column time of {name} is no number of nanoseconds") from error
        yield ExportedRow(name.lower(), time, record)


Read = Callable[[str], Iterator[dict[str, Any]]]


def _reader(path: Path, stack: ExitStack) -> Read:
    """Return what yields the records of a sensor by name, nothing for one that was not recorded."""
    if path.is_dir():
        return lambda name: _csv(stack, path / f"{name}.csv") if (path / f"{name}.csv").is_file() else iter(())
    if path.suffix.lower() == ".json":
        return lambda name: _json(stack.enter_context(path.open(encoding="utf-8-sig")), path, name)
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except zipfile.BadZipFile as error:
        raise SensorError(f"{path} is no zip file: {error}; export the recording again") from error
    members = {Path(name).name: name for name in archive.namelist()}
    return lambda name: (
        _table(stack, path, archive.open(members[f"{name}.csv"]), name) if f"{name}.csv" in members else iter(())
    )


def _csv(stack: ExitStack, path: Path) -> Iterator[dict[str, Any]]:
    return _table(stack, path, path.open("rb"), path.stem)


def _table(stack: ExitStack, path: Path, stream: IO[bytes], name: str) -> Iterator[dict[str, Any]]:
    text = stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
    try:
        reader = csv.DictReader(iter(lambda: text.readline(LONGEST_LINE), ""))
        yield from reader
    except (csv.Error, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise SensorError(f"{path}: {name}.csv is not as the app writes it: {error}; export it again") from error


def _json(file: IO[str], path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the array's objects of one sensor; the file is read in blocks, once for each sensor."""
    for record in _objects(file, path):
        if str(record.get("sensor", "")).lower() == name.lower():
            yield record


FIRST, BETWEEN = re.compile(r"\s*\["), re.compile(r"[\s,]*")


def _objects(file: IO[str], path: Path) -> Iterator[dict[str, Any]]:
    decoder, text = json.JSONDecoder(), file.read(BLOCK_CHARS)
    if not (first := FIRST.match(text)):
        raise SensorError(f"{path} is not an array of records: it begins with {text[:50]!r}")
    end = first.end()
    while True:
        between = BETWEEN.match(text, end)  # always, if only nothing
        at = between.end() if between else end
        try:
            record, end = decoder.raw_decode(text, at)
        except ValueError as error:
            block = file.read(BLOCK_CHARS)
            if len(text) - at > LONGEST_LINE or (not block and text[at:].strip() not in ("", "]")):
                raise SensorError(f"{path} is not an array of records: {str(error)[:100]}; export it again") from error
            if not block:
                return
            text, end = text[at:] + block, 0
            continue
        except RecursionError as error:
            raise SensorError(f"{path} is nested too deeply for an export of Sensor Logger") from error
        if not isinstance(record, dict):
            raise SensorError(f"{path} is not an array of records: it holds {str(record)[:50]!r}")
        yield record


log = logging.getLogger(__name__)

CHUNK = 2000
PAUSE_NS = 10 * 10**9
"""A chunk does not reach over a pause: the middle of its times would lie in neither part."""


class ExportSource(FileSource[Part]):
    """Takes a zip, a JSON file or a folder of them."""

    kind = "export"

    def parts(self, path: Path) -> list[Part]:
        """List the exports."""
        return [Part(found.name, (found,)) for found in exports_in(path)]

    def settings(self) -> str:
        """Return what the phone's settings say of signs, times and annotations."""
        wanted = {"platform", "annotations", "stop_words", "reorder_s"}
        return self.config.phone.model_dump_json(include=wanted)

    def replay(self, part: Part, plan: Plan, sink: PacedSink, stop: threading.Event) -> list[str]:
        """Push one export; nothing is left out."""
        phone, (path,) = self.config.phone, part.paths
        platform = platform_of(path) or phone.platform
        stream = PhoneStream(sink, phone.reorder_s, Vocabulary(phone, plan.labels).activity_of)
        count = 0
        with closing(rows_of(path)) as found:
            for rows in _chunks(found):
                batch = batch_of(path.name, "", None, rows)
                if words := wrong_units(batch):
                    raise SensorError(f"{path}: {words}")
                stream.accept(signed(batch, platform))
                count += batch.samples
                if stop.is_set():
                    return []
        stream.finish()
        left_out = ", ".join(f"{number} {name}" for name, number in sorted(stream.counts.items()) if number)
        log.info("%s: %d samples, signs of %s%s", path.name, count, platform, f"; {left_out}" if left_out else "")
        return []


def _chunks(rows: Iterable[ExportedRow]) -> Iterator[list[ExportedRow]]:
    found: list[ExportedRow] = []
    for row in rows:
        if found and (len(found) == CHUNK or row.time - found[-1].time > PAUSE_NS):
            yield found
            found = []
        found.append(row)
    if found:
        yield found
