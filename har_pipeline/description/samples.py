"""Turns one file's rows into recordings of the two sensors in turn, chunk by chunk, in constant memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal, NamedTuple, get_args

import numpy as np

from gaitway.errors import unknown_class
from har_pipeline.description.clocks import RESTART_S, other_clock, restarts, unset_times
from har_pipeline.description.files import DescribedFile
from har_pipeline.description.keys import DATE
from har_pipeline.description.model import Description
from har_pipeline.description.text import RowBlock, read_blocks
from har_pipeline.errors import LabelError, SettingsError, SourceError
from har_pipeline.readers.tables import MIN_ROWS_TO_JUDGE
from har_pipeline.recording import MAX_VALUE, Categorical, Recording, Sensor, known_numbers
from har_pipeline.units import in_seconds

log = logging.getLogger(__name__)

ROWS = 8192
"""Of a chunk: a sensor is never more minutes ahead of the other than the pipeline keeps."""
MAX_SORTED_ROWS = 10_000_000
"""Of a file whose rows are in no order: half a gigabyte."""
SHUFFLED = 0.05
"""Where so many of the times jump back, it is no clock that was set anew."""
MAX_TIME_S = 1e11
"""Five thousand years: times beyond are of another unit."""


Part = Literal["acc", "linear", "added", "gyro"]
"""What a row is of: a whole sensor, or acceleration from which something was left out, and what is to be added."""
Words = Categorical | str
"""A word for each row, or one for all."""
PARTS: tuple[Part, ...] = get_args(Part)


class _Samples(NamedTuple):
    """One sensor's samples in a block: rows (n,) of the block, times_s (n,), values (n, 3), number (n,) or NaN.

    `before` counts those of the file's earlier blocks.
    """

    rows: np.ndarray
    times_s: np.ndarray
    values: np.ndarray
    number: np.ndarray
    before: int


class _Rows(NamedTuple):
    """A block's samples of one part, the words of all its rows, and the samples' activities."""

    part: Part
    samples: _Samples
    client: Categorical | str
    session: Categorical | str
    activity: Categorical | str


def file_recordings(
    description: Description, file: DescribedFile, report: Callable[[str], None] = log.warning
) -> Iterator[Recording]:
    """Read one file as `file_parts` does, where each file has whole sensors.

    Raises SettingsError where what is added stands in files of its own: only whole sessions can be added up.
    """
    if description.acc.add_sensor is not None:
        raise SettingsError(
            f"acc.add_sensor = {description.acc.add_sensor!r} is added over all files of a session, and {file.name} is "
            "read alone; use the data set `described`, or the device's source csv"
        )
    for _, recording in file_parts(description, file, report):
        yield recording


def file_parts(
    description: Description, file: DescribedFile, report: Callable[[str], None] = log.warning
) -> Iterator[tuple[Part, Recording]]:
    """Read one file: a chunk of the accelerometer, then the same of the gyroscope, in the order of the rows.

    With `acc.add_sensor` they are parts: `linear` acceleration, and what is `added` to it at its times.

    Where these are in no order of their times at all, the whole file is read and sorted, up to MAX_SORTED_ROWS. That,
    and words that are other spellings of a label, is reported.

    Without a client, the file's stem is it; without a session, the file's path, less what names the sensor. Without a
    gyroscope in the description it is zero at the accelerometer's times.

    A damaged row (too long, or with a word, a number that no sensor measures or no time of this age) is a lost sample,
    as a row is that lacks a number; a strict description refuses it.

    Raises:
        LabelError: for an activity that the description does not know.
        SourceError: for what is no such table, with the line: half of the rows are damaged, or one of a strict set.
    """
    counted: Counter[Part] = Counter()
    shuffled: list[_Rows] | None = None
    rows_read = rows_damaged = headers = 0
    why = ""
    usable: set[Part] = set()
    stem = PurePosixPath(file.name).name.partition(".")[0]
    for block in _blocks(description, file):
        client = _carried(_words(description, "client", block, file, stem))
        session = _carried(_words(description, "session", block, file, file.matched.visit))
        activity = _labelled(description, _words(description, "activity", block, file, ""), block, report)
        samples = _samples(description, block, file, counted)
        activities = {part: _activity(file, own, client, session, activity, report) for part, own in samples.items()}
        rows_before = rows_read
        rows_read, rows_damaged = rows_read + len(block), rows_damaged + int(block.damaged.sum())
        why = why or next(iter(block.why), "")
        headers += block.headers
        if not rows_before and (clock := other_clock(description, block)):
            report(clock)
        _judge_rows(description, rows_damaged, rows_read, why)
        usable |= {part for part, own in samples.items() if np.isfinite(own.values).all(axis=1).any()}
        if not rows_before and description.time and _is_shuffled(samples, client, session):
            shuffled = []
        if shuffled is not None:
            _refuse_too_long(rows_read, file)
            shuffled += [_Rows(part, own, client, session, activities[part]) for part, own in samples.items()]
            continue
        yield from _chunks(block, samples, client, session, activities)
    refuse_damaged(rows_damaged, rows_read, why)
    if description.strict and not rows_read and not description.only:
        raise SourceError(f"{file.name} has no rows below its header")
    if headers:
        report(f"{file.name}: its header stands {headers} more times among the rows; these lines are left out")
    if shuffled:
        report(f"{file.name}: its rows are not in the order of their times; they are sorted")
        yield from _sorted(shuffled, file)
    empty = [part for part in counted if part not in usable]
    if empty:
        columns = _columns(description, empty[0])
        raise SourceError(f"{file.name}: no row has a number in each of the columns {list(columns)} of {empty[0]}")


def _chunks(
    block: RowBlock, samples: Mapping[Part, _Samples], client: Words, session: Words, activities: Mapping[Part, Words]
) -> Iterator[tuple[Part, Recording]]:
    """Yield a block's samples, those of all parts in turn, cut where a word changes or a clock is set back."""
    for low, high in pairwise(_edges(len(block), client, session)):
        who = _at(client, low), _at(session, low)
        for part, (rows, times_s, values, number, _) in samples.items():
            for chunk in _of_one_clock(times_s, *np.searchsorted(rows, [low, high]).tolist()):
                line = int(block.lines[rows[chunk.start]])
                labels, known = _of_rows(activities[part], chunk), known_numbers(number[chunk])
                sensor, times = _sensor(part), times_s[chunk]
                yield part, Recording(*who, labels, sensor, times, values[chunk], block.name, line, known)


def _blocks(description: Description, file: DescribedFile) -> Iterator[RowBlock]:
    """Yield the rows of a file that the description wants."""
    for block in read_blocks(file, description):
        wanted = np.ones(len(block), dtype=bool)
        for column, kept in description.only.items():
            words = block.words(description.named_column(column))
            wanted &= np.isin(words.names, kept)[words.codes]
        if wanted.any():
            yield block if wanted.all() else block.only(np.flatnonzero(wanted))


def _of_one_clock(times_s: np.ndarray, first: int, last: int) -> Iterator[slice]:
    """Yield stretches of samples first to last in which the clock runs on: each knows the line where it begins."""
    if first < last:
        back = first + restarts(times_s[first:last], -np.inf)
        for low, high in pairwise([first, *back.tolist(), last]):
            yield slice(low, high)


def _refuse_too_long(rows: int, file: DescribedFile) -> None:
    if rows > MAX_SORTED_ROWS:
        raise SourceError(
            f"{file.name}: its rows are not in the order of their times, and it has more than the "
            f"{MAX_SORTED_ROWS} rows that are sorted here; sort the file by its time"
        )


def _is_shuffled(samples: Mapping[Part, _Samples], client: Categorical | str, session: Categorical | str) -> bool:
    """Whether the times of a client's session jump back all the time, and not as if several devices took turns."""
    for rows, times_s, *_ in samples.values():
        who = _codes(client, rows) * (1 + len(rows)) + _codes(session, rows)
        groups, at = np.unique(who, return_inverse=True)
        largest = times_s[at == np.bincount(at, minlength=len(groups)).argmax()] if len(groups) else times_s
        largest = largest[np.isfinite(largest)]
        if len(largest) < MIN_ROWS_TO_JUDGE or len(restarts(largest, -np.inf)) < SHUFFLED * len(largest):
            continue
        if all((largest[devices:] - largest[:-devices] < -RESTART_S).mean() > SHUFFLED for devices in (2, 3, 4)):
            return True
    return False


def _codes(words: Categorical | str, rows: np.ndarray) -> np.ndarray:
    return np.zeros(len(rows), dtype=np.int64) if isinstance(words, str) else words.codes[rows].astype(np.int64)


def _sensor(part: Part) -> Sensor:
    return "gyro" if part == "gyro" else "acc"


def _sorted(stored: list[_Rows], file: DescribedFile) -> Iterator[tuple[Part, Recording]]:
    """Yield the rows of a file in the order of their times, client by client and session by session."""
    by_part: dict[Part, list[_Rows]] = {}
    for block in stored:
        by_part.setdefault(block.part, []).append(block)
    found: dict[tuple[str, str], list[tuple[Part, Recording]]] = {}
    for part, kept in by_part.items():
        times_s, values, number = (
            np.concatenate([getattr(block.samples, name) for block in kept]) for name in ("times_s", "values", "number")
        )
        client, session = (
            Categorical.of(np.concatenate([_texts(getattr(block, name), block.samples.rows) for block in kept]))
            for name in ("client", "session")
        )
        activity = Categorical.of(
            np.concatenate([_texts(block.activity, np.arange(len(block.samples.rows))) for block in kept])
        )
        order = np.lexsort((times_s, session.codes, client.codes))
        edges = np.flatnonzero(np.diff(client.codes[order]) | np.diff(session.codes[order])) + 1
        for low, high in pairwise([0, *edges.tolist(), len(order)]):
            for at in range(low, high, ROWS):
                rows = order[at : min(at + ROWS, high)]
                who = _at(client, int(rows[0])), _at(session, int(rows[0]))
                labels = Categorical(activity.names, activity.codes[rows])
                recording = Recording(
                    *who,
                    labels,
                    _sensor(part),
                    times_s[rows],
                    values[rows],
                    file.name,
                    number=known_numbers(number[rows]),
                )
                found.setdefault(who, []).append((part, recording))
    for every in found.values():
        yield from sorted(every, key=lambda pair: float(pair[1].times_s[0]))


def _texts(words: Categorical | str, rows: np.ndarray) -> np.ndarray:
    return np.full(len(rows), words) if isinstance(words, str) else words.names[words.codes[rows]]


def _judge_rows(description: Description, damaged: int, read: int, why: str) -> None:
    """Refuse a file where too many of the rows that were read so far are damaged: half, or any of a strict set."""
    if description.strict and damaged:
        raise SourceError(why)
    if read >= MIN_ROWS_TO_JUDGE:
        refuse_damaged(damaged, read, why)


def refuse_damaged(damaged: int, read: int, why: str) -> None:
    """Raise SourceError, with what was wrong first, where half of the rows that were read are damaged."""
    if damaged and 2 * damaged >= read:
        more = f" (and {damaged - 1} of {read} rows more)" if damaged > 1 else ""
        raise SourceError(f"{why}{more}")


def sensor_of(description: Description, word: str) -> Sensor | None:
    """Return the sensor that a word means: the description's own, else what begins with acc or gyr; None for others."""
    own: dict[str, Sensor] = {sensor.sensor: name for name, sensor in description.sensors.items() if sensor.sensor}
    if word in own or len(own) == len(description.sensors):
        return own.get(word)
    known: dict[str, Sensor] = {"acc": "acc", "gyr": "gyro"}
    found = known.get(word.lower()[:3])
    return found if found in description.sensors and found not in own.values() else None


def _part_of(description: Description, word: str) -> Part | None:
    """Return what rows of a sensor by this name are; None for one that is not described."""
    if description.acc.add_sensor is None:
        return sensor_of(description, word)
    if word == description.acc.add_sensor:
        return "added"
    sensor = sensor_of(description, word)
    return "linear" if sensor == "acc" else sensor


def _columns(description: Description, part: Part) -> tuple[str | int, ...]:
    """Return the three columns of a part."""
    if part == "added":
        return description.acc.added_columns
    return description.sensors["gyro" if part == "gyro" else "acc"].columns


def _samples(
    description: Description, block: RowBlock, file: DescribedFile, counted: Counter[Part]
) -> dict[Part, _Samples]:
    """Return each sensor's samples of a block; `counted` are those before, for times that rows do not have."""
    found: dict[Part, _Samples] = {}
    for part, rows in _rows_by_part(description, block, file).items():
        if len(rows):
            times_s = _times(description, part, block, rows, counted[part])
            counted[part] += len(rows)
            values, number = _values(description, part, block, rows), _numbers(description, block, rows)
            found[part] = _Samples(rows, times_s, values, number, counted[part] - len(rows))
    whole = found.get("acc") or found.get("linear")
    if description.gyro is None and whole is not None:
        found["gyro"] = whole._replace(values=np.zeros_like(whole.values))
    return found


def _rows_by_part(description: Description, block: RowBlock, file: DescribedFile) -> dict[Part, np.ndarray]:
    everything = np.arange(len(block))
    if not description.sensor_by_row:
        return dict.fromkeys(description.sensors, everything)
    words = _words(description, "sensor", block, file, "")
    if isinstance(words, str):
        part = _part_of(description, words)
        return {} if part is None else {part: everything}
    parts = [_part_of(description, name) for name in words.names.tolist()]
    by_row = np.array([part or "" for part in parts])[words.codes]
    return {part: np.flatnonzero(by_row == part) for part in PARTS if part in parts}


def _times(description: Description, part: Part, block: RowBlock, rows: np.ndarray, before: int) -> np.ndarray:
    """Return the times (n,) in seconds of some rows; where rows have none, `before` samples came before."""
    time, column = description.time, description.time_of(_sensor(part))
    if time is None or column is None:
        times: np.ndarray = (before + np.arange(len(rows))) / (description.rate_hz or 1.0)
        return times
    if time.unit == DATE:
        dates: np.ndarray = block.dates(column, time.format)[rows]
        return dates
    times = in_seconds(block.numbers((column,), rows)[:, 0], time.unit)
    late = np.abs(times) >= MAX_TIME_S
    if late.any():
        at = int(np.argmax(late))
        block.damage(
            rows[late],
            f"{block.place(int(rows[at]))}: time {times[at]:.6g} s lies thousands of years away; is time.unit "
            f"{time.unit!r} right?",
        )
        times[late] = np.nan
    unset = unset_times(times)
    if unset.any():
        block.damage(
            rows[unset], f"{block.place(int(rows[int(np.argmax(unset))]))}: time is 0, far from those around it"
        )
        times[unset] = np.nan
    return times


def _numbers(description: Description, block: RowBlock, rows: np.ndarray) -> np.ndarray:
    """Return what a regression learns (n,), NaN where a row does not say it."""
    described = description.number
    if described is None:
        return np.full(len(rows), np.nan)
    return described.values(block.numbers((described.column,), rows)[:, 0])


def _values(description: Description, part: Part, block: RowBlock, rows: np.ndarray) -> np.ndarray:
    sensor: Sensor = "gyro" if part == "gyro" else "acc"
    described = description.sensors[sensor]
    raw = block.numbers(_columns(description, part), rows)
    with np.errstate(over="ignore", invalid="ignore"):  # of 1e308
        if part == "added":  # the offset is taken off once, of the accelerometer
            values = description.values(sensor, raw + np.array(described.offset))
        elif part == "linear" or described.add is None:
            values = description.values(sensor, raw)
        else:
            values = description.values(sensor, raw + block.numbers(described.add, rows))
    wild = np.isfinite(raw).all(axis=1) & ~(np.abs(values) <= MAX_VALUE).all(axis=1)
    if wild.any():
        at = int(np.argmax(wild))
        block.damage(
            rows[wild],
            f"{block.place(int(rows[at]))}: {', '.join(f'{cell:.6g}' for cell in raw[at])} in the columns of {sensor} "
            f"is beyond {MAX_VALUE:,.0f} in m/s² or rad/s; are unit and scale right?",
        )
        values[wild] = np.nan
    return values


def _words(
    description: Description, name: str, block: RowBlock, file: DescribedFile, default: str
) -> Categorical | str:
    """Return the client, session, activity or sensor of a block: one for all rows, or a column's."""
    captured = file.matched.captured.get(name, "")
    source = getattr(description, name)
    if source is None:
        return captured or default
    words = source.fixed if source.column is None else block.words(source.column)
    if not captured or isinstance(words, str):
        return words
    return Categorical(np.array([f"{captured}_{word}" if word else "" for word in words.names]), words.codes)


def _carried(words: Categorical | str) -> Categorical | str:
    """Put the word of the row before for an empty one: a row that was cut off is of the same recording."""
    if isinstance(words, str) or "" not in words.names:
        return words
    rows = np.arange(len(words))
    written = words.names[words.codes] != ""
    before = np.maximum.accumulate(np.where(written, rows, 0 if not written.any() else int(np.argmax(written))))
    return Categorical(words.names, words.codes[before])


def _labelled(
    description: Description, words: Categorical | str, block: RowBlock, report: Callable[[str], None]
) -> Categorical | str:
    """Return the labels of words, "" where they are ignored; other spellings of a label are reported."""
    labels = description.labels
    known = {name: labels.label_of(name) for name in ([words] if isinstance(words, str) else words.names.tolist())}
    for name, label in known.items():
        if labels.names and label and labels.map.get(name, name) != label:
            report(f"activity {name[:100]!r} counts as {label!r}: case and blanks make no other label")
    if isinstance(words, str):
        return required_label(description, words, block.name)
    unknown = next((name for name, label in known.items() if label is None), None)
    if unknown is not None:
        row = int(np.argmax(words.codes == words.names.tolist().index(unknown)))
        required_label(description, unknown, block.place(row))
    return Categorical(np.array([label or "" for label in known.values()]), words.codes)


def _activity(
    file: DescribedFile,
    samples: _Samples,
    client: Words,
    session: Words,
    activity: Words,
    report: Callable[[str], None],
) -> Words:
    """Return the activity of samples: their rows' or, where another file says them as ranges, that of their range."""
    own, ranges = _of_rows(activity, samples.rows), file.ranges
    if ranges is None:
        return own
    counts = samples.before + 1.0 + np.arange(len(samples.rows))
    places = counts if ranges.in_rows else samples.times_s
    labels = np.full(len(places), "", dtype=object)
    who = _codes(client, samples.rows), _codes(session, samples.rows)
    for pair in np.unique(np.stack(who, axis=1), axis=0):
        rows = np.flatnonzero((who[0] == pair[0]) & (who[1] == pair[1]))
        first = int(samples.rows[rows[0]])
        words = {**file.matched.captured, "client": _at(client, first), "session": _at(session, first)}
        known = ranges.of(words)
        if known is None:
            report(f"{file.name}: no range says what client {_at(client, first)} did; its rows have no label")
            continue
        found = known.at(places[rows], _of_rows(own, rows))
        labels[rows] = found.names[found.codes]
    return Categorical.of(labels.astype(str))


def required_label(description: Description, word: str, place: str) -> str:
    """Return the label of a word that stands at a place; raises LabelError for an unknown one."""
    label = description.labels.label_of(word)
    if label is None:
        raise LabelError(
            f"{place}: activity {word[:100]!r} isn't a label; {unknown_class(word, description.labels.names)}. Add it "
            f"to labels.ignore to leave it unlabelled, to labels.map to count it as another, or to labels.names"
        )
    return label


def _edges(count: int, *words: Categorical | str) -> list[int]:
    """Return where a chunk of `count` rows begins: where a word changes, and after ROWS rows; and `count`."""
    edges = set(range(0, count, ROWS)) | {count}
    for text in words:
        if isinstance(text, Categorical):
            edges.update((np.flatnonzero(text.codes[1:] != text.codes[:-1]) + 1).tolist())
    return sorted(edges)


def _of_rows(words: Words, rows: np.ndarray | slice) -> Categorical | str:
    return words if isinstance(words, str) else Categorical(words.names, words.codes[rows])


def _at(words: Categorical | str, row: int) -> str:
    return words if isinstance(words, str) else str(words.names[words.codes[row]])
