"""Columns, units and rate by one joint score: every reading of a table that could be is compared with all others.

A reading is a column and unit of time, three columns and a unit of the accelerometer with or without gravity, and the
same of the gyroscope. Evidence adds up: what headers say (names, units), and what bodies do. Gravity: the mean vector
of a second keeps its length, at rest and in motion; without gravity it does not. Time: from MIN_HZ to MAX_HZ, sooner
usual rates, sooner after 1970. Turning: as much of it as a body that shakes so has. Of a value that no other comes near
the guess is sure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from har_pipeline.description.guess.headers import is_time, kind_of, sensor_unit, time_unit, triples
from har_pipeline.recording import STANDARD_GRAVITY, Sensor
from har_pipeline.signals.tally import PAUSE
from har_pipeline.units import ACC_UNITS, GYRO_UNITS, TIME_UNITS

MIN_HZ, MAX_HZ = 5.0, 1000.0
"""No rate outside is ever proposed: nothing slower or faster measures how people move."""
USUAL_HZ = (12.0, 260.0)
MARGIN = 2.5
"""So much better than any other value is sure."""
BLOCK_S, BLOCK_ROWS = 1.28, 64
MIN_ROWS = 50
"""Fewer say nothing of columns without names."""
SINCE_2000, SINCE_2100 = 9.4e8, 4.1e9
MAX_TURN = 36.0
"""rad/s: sensors of phones and boards end at 2000 degrees a second."""
MAX_JUDGED = 24
"""Stretches whose numbers are looked at."""

Triple = tuple[int, int, int]


class Time(NamedTuple):
    """A column of times, counted from 0, and its unit (seconds of 1); without a column, `rate_hz` is what is usual."""

    column: int | None
    unit: str | float
    rate_hz: float
    score: float
    why: str


class Acc(NamedTuple):
    """The accelerometer's columns; `add` are those of gravity, `shaking` how much |v| varies when it does, in m/s²."""

    columns: Triple
    add: Triple | None
    unit: str
    scale: float | None
    gravity: bool
    shaking: float
    score: float
    why: str


class Gyro(NamedTuple):
    """The gyroscope's columns, or none."""

    columns: Triple | None
    unit: str = "rad/s"
    scale: float | None = None
    score: float = 0.0
    why: str = "none was found"


class TableReading(NamedTuple):
    """The best reading; `sure` are the keys (time, acc, gyro, gravity) of which no other value comes near."""

    time: Time
    acc: Acc
    gyro: Gyro
    sure: frozenset[str]


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of all stretches: names, and numbers by sensor, which may have rows or files of its own (`apart`)."""

    header: tuple[str, ...]
    numbers: Mapping[Sensor, Sequence[np.ndarray]]
    apart: bool = False
    taken: frozenset[int] = frozenset()  # columns of words
    _known: dict[object, np.ndarray] = field(default_factory=dict)

    def blocks(self, sensor: Sensor, columns: Triple, add: Triple | None, size: int) -> np.ndarray:
        """Return `_blocks` of columns, computed once."""
        key = sensor, columns, add, size
        if key not in self._known:
            values = [each[:, columns] + (each[:, add] if add else 0.0) for each in self.numbers[sensor]]
            self._known[key] = _blocks(values, size)
        return self._known[key]

    @cached_property
    def candidates(self) -> list[tuple[Triple, str]]:
        """Return columns that could be a sensor's, and their kind."""
        return list(_candidates(self))

    def name(self, at: int) -> str:
        """Return the column's name, or ""."""
        return self.header[at] if self.header else ""


def read_jointly(table: Table) -> TableReading | None:
    """Return the best reading; None where no three columns could be an accelerometer."""
    scored: list[tuple[float, Time, Acc, Gyro]] = []
    for time in _times(table):
        size = int(np.clip(BLOCK_S * time.rate_hz, 16, 512)) if time.column is not None else BLOCK_ROWS
        for acc in _accs(table, size):
            for gyro in _gyros(table, size, acc):
                used = [time.column, *acc.columns, *(acc.add or ()), *((gyro.columns or ()) if not table.apart else ())]
                if len(set(used)) == len(used):
                    scored.append((time.score + acc.score + gyro.score, time, acc, gyro))
    if not scored:
        return None
    total, time, acc, gyro = max(scored, key=lambda each: each[0])
    best = {"time": time[:2], "acc": acc[:4], "gyro": gyro[:3], "gravity": acc.gravity}
    near = [
        {"time": other[1][:2], "acc": other[2][:4], "gyro": other[3][:3], "gravity": other[2].gravity}
        for other in scored
        if other[0] > total - MARGIN
    ]
    sure = {key for key, value in best.items() if all(other[key] == value for other in near)}
    if not kind_of_columns(table, acc.columns) or acc.scale:
        sure -= {"acc"}
    if gyro.columns and (gyro.scale or table.apart or not kind_of_columns(table, gyro.columns)):
        sure -= {"gyro"}
    return TableReading(time, acc, gyro, frozenset(sure if time.column is not None else sure - {"time"}))


def kind_of_columns(table: Table, columns: Triple) -> str:
    """Say what the names of three columns say that they hold; "xyz" for these letters alone, "" for nothing."""
    stem = next((stem for stem, each in triples(table.header).items() if each == columns), None)
    return "" if stem is None else kind_of(stem) or "xyz"


def _times(table: Table) -> Iterator[Time]:
    yield Time(None, "", 50.0, 0.0, "no column is a time; how many rows a second?")
    stretches = table.numbers["acc"]
    for column in range(stretches[0].shape[1]) if stretches else ():
        values = [each[np.isfinite(each[:, column]), column] for each in stretches]
        values = [each for each in values if len(each) > 2]
        if column in table.taken or len(values) < 0.5 * len(stretches):
            continue
        steps = np.concatenate([np.diff(each) for each in values])
        named = is_time(table.name(column))
        in_order, moves = (steps >= 0).mean() > 0.98, (steps > 0).mean() > 0.3
        if (
            not (steps > 0).any()
            or not (moves or named)
            or not (in_order or named)
            or np.ptp(steps) == 0 == steps[0] - 1
        ):
            continue
        step = float(np.median([_usual_step(each) for each in values]))
        if not in_order:
            smallest = [each[each > 0].min() for each in (np.diff(np.unique(every)) for every in values) if each.size]
            step = float(np.median(smallest)) if smallest else 0.0
        yield from _units_of_time(table.name(column), column, step, values, in_order=bool(in_order))


def _units_of_time(name: str, column: int, step: float, values: list[np.ndarray], *, in_order: bool) -> Iterator[Time]:
    stated, named = time_unit(name), is_time(name)
    first = float(np.median([each[0] for each in values]))
    for unit in (*TIME_UNITS, *((stated,) if isinstance(stated, float) else ())):
        factor = TIME_UNITS[unit] if isinstance(unit, str) else unit
        rate_hz = 1 / (step * factor) if step > 0 else np.inf
        if not MIN_HZ <= rate_hz <= MAX_HZ:
            continue
        since_1970 = SINCE_2000 < first * factor < SINCE_2100
        score = 3.0 * named + 2.0 * in_order + 3.0 * since_1970 - (2.0 if name and not named else 0.0)
        score += 1.0 if USUAL_HZ[0] <= rate_hz <= USUAL_HZ[1] else -2.0
        score += 0.0 if stated is None else 3.0 if stated == unit else -4.0
        words = [f"{rate_hz:.4g} rows a second", *(["counted from 1970"] if since_1970 else [])]
        words += [] if in_order else ["the rows are not in the order of their times, and are sorted"]
        words += [f"the header says {stated}, the numbers do not"] if stated not in (None, unit) else []
        yield Time(column, unit, rate_hz, score, ", ".join(words))


def _usual_step(times: np.ndarray) -> float:
    """Return the mean time from row to row, pauses left out."""
    steps = np.diff(times)
    kept = steps[steps <= PAUSE * abs(np.mean(steps))]
    return float(np.mean(kept)) if len(kept) else 0.0


def _candidates(table: Table) -> Iterator[tuple[Triple, str]]:
    """Yield columns that could be a sensor's, and their kind; without names every three that stand together."""
    named = {columns: kind_of_columns(table, columns) for columns in triples(table.header).values()}
    yield from named.items()
    if {"acc", "user", "xyz"} & set(named.values()):
        return
    numbers = table.numbers["acc"]
    used = {at for columns in named for at in columns} | table.taken
    if sum(map(len, numbers)) < MIN_ROWS:
        return
    usable = [at for at in range(numbers[0].shape[1]) if at not in used and _varies([each[:, at] for each in numbers])]
    for _, run in itertools.groupby(usable, key=lambda at: at - usable.index(at)):
        columns = list(run)
        for at in range(0, len(columns) - 2, 1 if len(columns) % 3 else 3):
            yield (columns[at], columns[at + 1], columns[at + 2]), ""


def _varies(columns: Sequence[np.ndarray]) -> bool:
    """Whether a column could be an axis: neither few numbers, nor a time or count."""
    steps = np.concatenate([np.diff(each) for each in columns])
    return len(np.unique(np.concatenate(columns))) > 3 and not (steps[np.isfinite(steps)] >= 0).all()


def _blocks(values: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Return of each `size` rows the length of the mean vector, the spread of the lengths, and their mean square root.

    (3, blocks); shorter blocks where there are no such stretches.
    """
    usable = [each[np.isfinite(each).all(axis=1)] for each in values]
    size = min(size, max((len(each) for each in usable), default=0))
    if size < 3:
        return np.empty((3, 0))
    whole = [each[: len(each) // size * size].reshape(-1, size, 3) for each in usable]
    blocks = np.concatenate(whole)
    sizes = np.linalg.norm(blocks, axis=2)
    return np.stack([np.linalg.norm(blocks.mean(1), axis=1), sizes.std(1), np.sqrt((sizes**2).mean(1))])


def _accs(table: Table, size: int) -> Iterator[Acc]:
    options = table.candidates
    gravity = next((columns for columns, kind in options if kind == "gravity"), None)
    for at, (columns, kind) in enumerate(options):
        if kind not in ("acc", "user", "xyz", ""):
            continue
        add = gravity if kind == "user" else None
        blocks = table.blocks("acc", columns, add, size)
        if not blocks.size:
            named = {"acc": 3.0, "user": 2.0}.get(kind, 0.0)
            unit = sensor_unit("acc", table.name(columns[0])) or "m/s2"
            yield Acc(columns, add, unit, None, True, 0.0, named, "the unit, since no number could be read")
            continue
        level = float(np.median(blocks[0]))
        spread = float(np.subtract(*np.percentile(blocks[0], [75, 25]))) / max(level, 1e-12)
        name = {"acc": 3.0, "user": 3.0 if add else 0.0, "xyz": 1.0, "": -0.1 * at}[kind]
        stated = sensor_unit("acc", table.name(columns[0]))
        for unit, factor in ACC_UNITS.items():
            score = name + (0.0 if stated is None else 4.0 if stated == unit else -5.0)
            shaking = float(np.percentile(blocks[1], 95)) * factor
            off = abs(level * factor / STANDARD_GRAVITY - 1)
            with_gravity = _steps(spread, (0.15, 3.0), (0.3, 1.5), (0.5, -1.0), otherwise=-4.0)
            with_gravity += _steps(off, (0.1, 3.0), (0.25, 1.0), otherwise=-4.0) - 3.0 * (kind == "user" and not add)
            with_gravity -= 1.5 * (unit == "mg" and stated is None)  # it may be counts
            why = f"|acceleration| keeps near {level:.4g}, which gravity is in {unit}"
            yield Acc(columns, add, unit, None, True, shaking, score + with_gravity, why)
            if add is None:
                loud = float(np.percentile(blocks[2], 95)) * factor
                without = _steps(spread, (0.3, -3.0), (0.5, 0.5), otherwise=3.0) + 3.0 * (kind == "user")
                without += 0.5 if 1.5 < loud < 40 else -2.0
                why = f"gravity is missing in them: |acceleration| keeps near nothing, and at times is {loud:.3g} m/s²"
                yield Acc(columns, None, unit, None, False, shaking, score + without, why)
        if stated is None and add is None and spread < 0.5 and level > 0:
            nearest = 2.0 ** round(np.log2(level))
            scale = float(f"{1 / (nearest if 0.85 < level / nearest < 1.15 else level):.9g}")
            whole = abs(level / nearest - 1) < 0.015 and _is_whole(np.concatenate(table.numbers["acc"])[:, columns])
            shaking = float(np.percentile(blocks[1], 95)) * STANDARD_GRAVITY / level
            why = f"counts: gravity measures {level:.4g}; the scale is in the sensor's data sheet"
            yield Acc(columns, None, "g", scale, True, shaking, name + 2.0 + 3.0 * whole - 3.0 * (kind == "user"), why)


def _gyros(table: Table, size: int, acc: Acc) -> Iterator[Gyro]:
    yield Gyro(None)
    options = [(acc.columns, "")] if table.apart else table.candidates
    for columns, kind in options:
        if kind not in ("gyro", "") or (columns == acc.columns and not table.apart):
            continue
        blocks = table.blocks("gyro", columns, None, size)
        name = (
            4.0
            if kind == "gyro"
            else 3.0
            if table.apart
            else _turning(blocks) + 0.5 * (columns[0] == acc.columns[2] + 1)
        )
        stated = sensor_unit("gyro", table.name(columns[0]))
        if not blocks.size:
            yield Gyro(columns, stated or "rad/s", None, name, "the unit, since no number could be read")
            continue
        rows = np.concatenate([each[:, columns] for each in table.numbers["gyro"]])
        largest, turning = float(np.nanmax(np.abs(rows))), float(np.percentile(blocks[2], 95))
        for unit, factor in GYRO_UNITS.items():
            score = name + (0.0 if stated is None else 4.0 if stated == unit else -5.0)
            score -= 6.0 * (largest * factor > MAX_TURN * 1.15)
            if acc.shaking > 0.5:
                score += 1.5 if 0.03 < turning * factor / acc.shaking < 8 else -2.5
                score += 0.5 if turning * factor > 0.2 else -0.5
            yield Gyro(columns, unit, None, score, f"the fastest turns measure {largest:.4g}, as they do in {unit}")
        if stated is None and largest > MAX_TURN and _is_whole(rows):
            why = f"counts of up to {largest:.4g}; the scale is that of ±2000 deg/s in 16 bits, the data sheet knows"
            yield Gyro(columns, "deg/s", 2000 / 2**15, name + 2.5, why)


def _turning(blocks: np.ndarray) -> float:
    """Score three columns without a name: turns point everywhere and vary in size, gravity and earth's field do not."""
    if not blocks.size or not blocks[2].any():
        return -4.0
    return 1.0 if np.ptp(np.percentile(blocks[2], [5, 95])) > 0.5 * np.median(blocks[2]) else -3.0


def _is_whole(numbers: np.ndarray) -> bool:
    return bool((np.nan_to_num(numbers) == np.nan_to_num(numbers).round()).all())


def _steps(value: float, *below: tuple[float, float], otherwise: float) -> float:
    """Return the score of the first limit that a value is below."""
    return next((score for limit, score in below if value < limit), otherwise)


def to_keys(sensor: Acc | Gyro, name: Any) -> dict[str, Any]:
    """Return a sensor's keys of a description; `name` turns a column's index into what the description calls it."""
    keys: dict[str, Any] = {"columns": [name(at) for at in sensor.columns or ()]}
    if isinstance(sensor, Acc) and sensor.add:
        keys["add"] = [name(at) for at in sensor.add]
    keys["unit"] = sensor.unit
    return keys if sensor.scale is None else {**keys, "scale": sensor.scale}
