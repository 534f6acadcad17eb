"""From the rows of one file to recordings of either sensor in turn, chunk by chunk, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.description.files import DescribedFile
from har_pipeline.description.keys import DATE
from har_pipeline.description.model import Description
from har_pipeline.description.text import RowBlock, read_blocks
from har_pipeline.errors import LabelError, SourceError
from har_pipeline.readers.tables import LEAST_ROWS_TO_JUDGE
from har_pipeline.recording import LARGEST, Categorical, Recording, Sensor

ROWS = 8192
"""Of a chunk: a sensor is never more minutes ahead of the other than the pipeline keeps."""
LATEST_S = 1e11
"""Five thousand years: times beyond are of another unit."""


class _Samples(NamedTuple):
    """One sensor's samples in a block: rows (n,) of the block, times_s (n,) and values (n, 3)."""

    rows: np.ndarray
    times_s: np.ndarray
    values: np.ndarray


def file_recordings(description: Description, file: DescribedFile) -> Iterator[Recording]:
    """Read one file: a chunk of the accelerometer, then the same of the gyroscope, in the order of the rows.

    Without a client, the file's stem is it; without a session, the file's path, less what names the sensor. Without a
    gyroscope in the description it is zero at the accelerometer's times.

    A damaged row (too long, or with a word, a number that no sensor measures or no time of this age) is a lost sample,
    as a row is that lacks a number.

    Raises:
        LabelError: for an activity that the description does not know.
        SourceError: for what is no such table, with the line: half of the rows are damaged.
    """
    counted: Counter[Sensor] = Counter()
    rows_read = rows_damaged = 0
    why = ""
    usable: set[Sensor] = set()
    stem = PurePosixPath(file.name).name.partition(".")[0]
    for block in read_blocks(file, description):
        client = _carried(_words(description, "client", block, file, stem))
        session = _carried(_words(description, "session", block, file, file.matched.visit))
        activity = _labelled(description, _words(description, "activity", block, file, ""), block)
        samples = _samples(description, block, file, counted)
        rows_read, rows_damaged = rows_read + len(block), rows_damaged + int(block.damaged.sum())
        why = why or next(iter(block.why), "")
        if rows_read >= LEAST_ROWS_TO_JUDGE:
            _refuse_damaged(rows_damaged, rows_read, why)
        usable |= {sensor for sensor, each in samples.items() if np.isfinite(each.values).all(axis=1).any()}
        for low, high in pairwise(_edges(len(block), client, session)):
            who = _at(client, low), _at(session, low)
            for sensor, (rows, times_s, values) in samples.items():
                first, last = np.searchsorted(rows, [low, high])
                if first < last:
                    part, line = slice(int(first), int(last)), int(block.lines[rows[first]])
                    labels = _of_rows(activity, rows[part])
                    yield Recording(*who, labels, sensor, times_s[part], values[part], file.name, line)
    _refuse_damaged(rows_damaged, rows_read, why)
    empty = [sensor for sensor in counted if sensor not in usable]
    if empty:
        columns = description.sensors[empty[0]].columns
        raise SourceError(f"{file.name}: no row has a number in each of the columns {list(columns)} of {empty[0]}")


def _refuse_damaged(damaged: int, read: int, why: str) -> None:
    if damaged and 2 * damaged >= read:
        more = f" (and {damaged - 1} of {read} rows more)" if damaged > 1 else ""
        raise SourceError(f"{why}{more}")


def sensor_of(description: Description, word: str) -> Sensor | None:
    """Return the sensor that a word means: the description's own, else what begins with acc or gyr; None for others."""
    own: dict[str, Sensor] = {each.sensor: name for name, each in description.sensors.items() if each.sensor}
    if word in own or len(own) == len(description.sensors):
        return own.get(word)
    known: dict[str, Sensor] = {"acc": "acc", "gyr": "gyro"}
    found = known.get(word.lower()[:3])
    return found if found in description.sensors and found not in own.values() else None


def _samples(
    description: Description, block: RowBlock, file: DescribedFile, counted: Counter[Sensor]
) -> dict[Sensor, _Samples]:
    """Return each sensor's samples of a block; `counted` are those before, for times that rows do not have."""
    found: dict[Sensor, _Samples] = {}
    for sensor, rows in _rows_by_sensor(description, block, file).items():
        if len(rows):
            times_s = _times(description, block, rows, counted[sensor])
            counted[sensor] += len(rows)
            found[sensor] = _Samples(rows, times_s, _values(description, sensor, block, rows))
    if description.gyro is None and "acc" in found:
        found["gyro"] = found["acc"]._replace(values=np.zeros_like(found["acc"].values))
    return found


def _rows_by_sensor(description: Description, block: RowBlock, file: DescribedFile) -> dict[Sensor, np.ndarray]:
    everything = np.arange(len(block))
    if not description.sensor_by_row:
        return dict.fromkeys(description.sensors, everything)
    words = _words(description, "sensor", block, file, "")
    if isinstance(words, str):
        sensor = sensor_of(description, words)
        return {} if sensor is None else {sensor: everything}
    sensors = np.array([sensor_of(description, name) or "" for name in words.names.tolist()])[words.codes]
    return {sensor: np.flatnonzero(sensors == sensor) for sensor in description.sensors}


def _times(description: Description, block: RowBlock, rows: np.ndarray, before: int) -> np.ndarray:
    """Return the times (n,) in seconds of some rows; where rows have none, `before` samples came before."""
    time = description.time
    if time is None:
        times: np.ndarray = (before + np.arange(len(rows))) / (description.rate_hz or 1.0)
        return times
    if time.unit == DATE:
        dates: np.ndarray = block.dates(time.column, time.format)[rows]
        return dates
    times = block.numbers((time.column,), rows)[:, 0] * time.seconds
    late = np.abs(times) >= LATEST_S
    if late.any():
        at = int(np.argmax(late))
        block.damage(
            rows[late],
            f"{block.place(int(rows[at]))}: time {times[at]:.6g} s lies thousands of years away; is time.unit "
            f"{time.unit!r} right?",
        )
        times[late] = np.nan
    return times


def _values(description: Description, sensor: Sensor, block: RowBlock, rows: np.ndarray) -> np.ndarray:
    described = description.sensors[sensor]
    raw = block.numbers(described.columns, rows)
    with np.errstate(over="ignore", invalid="ignore"):  # of 1e308
        values = described.values(raw if described.add is None else raw + block.numbers(described.add, rows))
    wild = np.isfinite(raw).all(axis=1) & ~(np.abs(values) <= LARGEST).all(axis=1)
    if wild.any():
        at = int(np.argmax(wild))
        block.damage(
            rows[wild],
            f"{block.place(int(rows[at]))}: {', '.join(f'{each:.6g}' for each in raw[at])} in the columns of {sensor} "
            f"is beyond {LARGEST:,.0f} in m/s² or rad/s; are unit and scale right?",
        )
        values[wild] = np.nan
    return values


def _words(
    description: Description, name: str, block: RowBlock, file: DescribedFile, default: str
) -> Categorical | str:
    """Return the client, session, activity or sensor of a block: one for all rows, or a column's."""
    if name in description.groups:
        return file.matched.words.get(name) or default
    source = getattr(description, name)
    if source is None:
        return default
    return source.fixed if source.column is None else block.words(source.column)


def _carried(words: Categorical | str) -> Categorical | str:
    """Put the word of the row before for an empty one: a row that was cut off is of the same recording."""
    if isinstance(words, str) or "" not in words.names:
        return words
    rows = np.arange(len(words))
    told = words.names[words.codes] != ""
    before = np.maximum.accumulate(np.where(told, rows, 0 if not told.any() else int(np.argmax(told))))
    return Categorical(words.names, words.codes[before])


def _labelled(description: Description, words: Categorical | str, block: RowBlock) -> Categorical | str:
    """Return the labels of words, "" where they are ignored."""
    labels = description.labels
    if isinstance(words, str):
        return _label(description, words, block.name)
    known = {name: labels.label_of(name) for name in words.names.tolist()}
    unknown = next((name for name, label in known.items() if label is None), None)
    if unknown is not None:
        row = int(np.argmax(words.codes == words.names.tolist().index(unknown)))
        _label(description, unknown, block.place(row))
    return Categorical(np.array([label or "" for label in known.values()]), words.codes)


def _label(description: Description, word: str, place: str) -> str:
    label = description.labels.label_of(word)
    if label is None:
        raise LabelError(
            f"{place}: activity {word[:100]!r} is no label; {did_you_mean(word, description.labels.names)}. Write it "
            "in labels.ignore to leave it unlabelled, in labels.map to count it as another, or in labels.names"
        )
    return label


def _edges(count: int, *words: Categorical | str) -> list[int]:
    """Return where a chunk of `count` rows begins: where a word changes, and after ROWS rows; and `count`."""
    edges = set(range(0, count, ROWS)) | {count}
    for each in words:
        if isinstance(each, Categorical):
            edges.update((np.flatnonzero(each.codes[1:] != each.codes[:-1]) + 1).tolist())
    return sorted(edges)


def _of_rows(words: Categorical | str, rows: np.ndarray) -> Categorical | str:
    return words if isinstance(words, str) else Categorical(words.names, words.codes[rows])


def _at(words: Categorical | str, row: int) -> str:
    return words if isinstance(words, str) else str(words.names[words.codes[row]])
