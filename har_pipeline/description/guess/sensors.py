"""Finds columns, units and rate by one joint score: every possible reading of a table is compared with all others.

A reading is a column and unit of time, three columns and a unit of the accelerometer with or without gravity, and the
same of the gyroscope. Evidence adds up: what headers say (names, units), and what bodies do. Gravity: the mean vector
of a second keeps its length, at rest and in motion; without gravity it does not. Time: from MIN_HZ to MAX_HZ, sooner
usual rates, sooner after 1970. Turning: as much of it as a body that shakes so has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from har_pipeline.description.clocks import unset_times
from har_pipeline.description.guess.headers import choose, is_time, kind_of, sensor_unit, time_unit, triples
from har_pipeline.recording import STANDARD_GRAVITY, Sensor
from har_pipeline.signals.tally import PAUSE
from har_pipeline.units import ACC_UNITS, GYRO_UNITS, TIME_UNITS

MIN_HZ, MAX_HZ = 5.0, 1000.0
"""No rate outside is proposed while a column may be read in another way: nothing else measures how people move."""
MIN_SLOW_HZ, TOO_SLOW = 0.5, 0.75
"""The slowest rate of a column whose name states the unit of time, and what speaks for it against none."""
USUAL_HZ = (12.0, 260.0)
USUAL_RATE_HZ = 50.0
COUNTER = 0.5
"""What speaks for a column that counts rows, against none: a number that is missing is a sample that is."""
BLOCK_S, BLOCK_ROWS = 1.28, 64
MIN_ROWS = 50
"""Fewer say nothing of columns without names."""
SINCE_2000, SINCE_2100 = 9.4e8, 4.1e9
MAX_TURN = 36.0
"""rad/s: sensors of phones and boards end at 2000 degrees a second."""
MAX_DRIFT = 0.3
"""rad/s that a gyroscope may measure while the accelerometer is at rest."""
MAX_JUDGED = 24
"""Stretches whose numbers are looked at."""
ANDROID_GYROSCOPE = "4"
"""As Android numbers its sensors."""
UNREADABLE = "the unit, since no number could be read"

Columns = tuple[int, ...]


@dataclass(frozen=True)
class Time:
    """A column of times, counted from 0, and its unit (seconds of 1); without a column, `rate_hz` is what is usual."""

    column: int | None = None
    unit: str | float = ""
    rate_hz: float = field(default=USUAL_RATE_HZ, compare=False)
    score: float = field(default=0.0, compare=False)
    why: str = field(default="no column is a time; check the rows per second", compare=False)


@dataclass(frozen=True)
class Axes:
    """A sensor's three columns, or none; `add` are those of gravity, `shaking` is how much |v| varies, in m/s²."""

    columns: Columns = ()
    unit: str = ""
    scale: float | None = None
    add: Columns = ()
    has_gravity: bool = field(default=True, compare=False)
    shaking: float = field(default=0.0, compare=False)
    score: float = field(default=0.0, compare=False)
    why: str = field(default="none was found", compare=False)

    @property
    def used(self) -> Columns:
        """All columns that it reads."""
        return self.columns + self.add

    def keys(self, name: Callable[[int], str | int]) -> dict[str, Any]:
        """Return the keys of a description; `name` turns a column's index into what the description calls it."""
        lists = {"columns": self.columns, "add": self.add}
        keys: dict[str, Any] = {key: [name(at) for at in columns] for key, columns in lists.items() if columns}
        return {**keys, "unit": self.unit, **({} if self.scale is None else {"scale": self.scale})}


class TableReading(NamedTuple):
    """The best reading; `sure` are the keys (time, acc, gyro, gravity) of which no other value comes near."""

    time: Time
    acc: Axes
    gyro: Axes
    sure: frozenset[str]

    @property
    def used(self) -> set[int | None]:
        """All columns that it reads."""
        return {self.time.column, *self.acc.used, *self.gyro.used}


class Motion(NamedTuple):
    """What the vectors of three columns do, from block to block of some rows."""

    level: float  # the usual length of a block's mean vector
    spread: float  # how far apart the quartiles of these lengths are, relative to the level
    shaking: float  # the deviation of the lengths within the blocks that move most
    loud: float  # the root mean square of the lengths in the loudest blocks
    varies: bool  # whether the loudest and the quietest blocks differ: turns do, gravity and earth's field do not
    largest: float
    whole: bool  # whether all numbers are whole
    signed: bool  # whether any is negative: sizes, which some files have beside, are none

    @property
    def is_pulled(self) -> bool:
        """Whether the mean vectors keep a length that explains most of it, as under gravity: nobody turns like that."""
        return self.spread < 0.3 and self.level > 0.6 * self.loud


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of all stretches: names, and numbers by sensor, which may have rows or files of its own (`apart`).

    The gyroscope's files may have a header of their own.
    """

    header: tuple[str, ...]
    numbers: Mapping[Sensor, Sequence[np.ndarray]]
    apart: bool = False
    taken: frozenset[int] = frozenset()  # columns of words
    gyro_header: tuple[str, ...] = ()
    _known: dict[object, Motion | None] = field(default_factory=dict)

    def motion(self, sensor: Sensor, columns: Columns, add: Columns, size: int) -> Motion | None:
        """Return what columns measure in blocks of `size` rows, computed once."""
        key = sensor, columns, add, size
        if key not in self._known:
            values = [stretch[:, columns] + (stretch[:, add] if add else 0.0) for stretch in self.numbers[sensor]]
            self._known[key] = _motion(values, size)
        return self._known[key]

    @cached_property
    def named(self) -> dict[Columns, str]:
        """Return the columns that differ in x, y and z, and what their names say that they hold, or "xyz"."""
        return {columns: kind_of(stem) or "xyz" for stem, columns in triples(self.header).items()}

    @cached_property
    def candidates(self) -> list[tuple[Columns, str]]:
        """Return columns that could be a sensor's, and their kind; without names every three that stand together."""
        named, numbers = list(self.named.items()), self.numbers["acc"]
        if {"acc", "user", "xyz"} & set(self.named.values()) or sum(map(len, numbers)) < MIN_ROWS:
            return named
        used = self.taken.union(*self.named)
        usable = [
            at for at in range(numbers[0].shape[1]) if at not in used and _varies([rows[:, at] for rows in numbers])
        ]
        for _, run in itertools.groupby(usable, key=lambda at: at - usable.index(at)):
            columns = list(run)
            for at in range(0, len(columns) - 2, 1 if len(columns) % 3 else 3):
                named.append((tuple(columns[at : at + 3]), ""))
        return named

    def of_gyro(self, acc: Axes) -> list[tuple[Columns, str]]:
        """Return the columns that could be a gyroscope's, and their kind: of its own rows the accelerometer's names."""
        if not self.apart:
            return self.candidates
        own = triples(self.gyro_header)
        kinds = {columns: kind_of(stem) for stem, columns in own.items()}
        named = [columns for columns, kind in kinds.items() if kind == "gyro"]
        return [(columns, "apart") for columns in (named or kinds if self.gyro_header else [acc.columns])]

    def name(self, at: int, sensor: Sensor = "acc") -> str:
        """Return the name of a column of a sensor's rows, or ""."""
        header = self.gyro_header if sensor == "gyro" and self.gyro_header else self.header
        return header[at] if header else ""


def read_jointly(table: Table) -> TableReading | None:
    """Return the best reading; None where no three columns could be an accelerometer."""
    scored: list[tuple[float, dict[str, Any]]] = []
    for time in _times(table):
        usual = time.column is not None and time.rate_hz >= MIN_HZ
        size = int(np.clip(BLOCK_S * time.rate_hz, 16, 512)) if usual else BLOCK_ROWS
        for acc in _accs(table, size):
            for gyro in _gyros(table, size, acc):
                used = (time.column, *acc.used, *(() if table.apart else gyro.used))
                if len(set(used)) == len(used):
                    parts = {"time": time, "acc": acc, "gyro": gyro, "gravity": acc.has_gravity}
                    scored.append((time.score + acc.score + gyro.score, parts))
    if not scored:
        return None
    best, sure = choose(scored)
    time, acc, gyro = best["time"], best["acc"], best["gyro"]
    guessed = {
        "time": time.column is None or time.score in (COUNTER, TOO_SLOW),
        "acc": acc.columns not in table.named or acc.scale,
        "gyro": gyro.columns and (gyro.scale or (table.apart or gyro.columns not in table.named)),
    }
    return TableReading(time, acc, gyro, frozenset(key for key in sure if not guessed.get(key)))


def _times(table: Table) -> Iterator[Time]:
    yield Time()
    stretches = table.numbers["acc"]
    for column in range(stretches[0].shape[1]) if stretches else ():
        values = [stretch[np.isfinite(stretch[:, column]), column] for stretch in stretches]
        values = [series[~unset_times(series)] for series in values if len(series) > 2]
        if column in table.taken or len(values) < 0.5 * len(stretches):
            continue
        steps = np.concatenate([np.diff(series) for series in values])
        in_order, moves = (steps >= 0).mean() > 0.98, (steps > 0).mean() > 0.3
        counts_rows = np.ptp(steps) == 0 == steps[0] - 1
        if not (steps > 0).any() or not ((in_order and moves) or is_time(table.name(column))):
            continue
        if counts_rows:
            if table.header:
                yield Time(
                    column,
                    1 / USUAL_RATE_HZ,
                    score=COUNTER,
                    why=f"it counts rows; check that there are {USUAL_RATE_HZ:g} per second",
                )
            continue
        yield from _units_of_time(table.name(column), column, values, in_order=bool(in_order))


def _units_of_time(name: str, column: int, values: list[np.ndarray], *, in_order: bool) -> Iterator[Time]:
    stated, named = time_unit(name), is_time(name)
    first = float(np.median([series[0] for series in values]))
    step = float(np.median([_usual_step(series) if in_order else _smallest_step(series) for series in values]))
    for unit in (*TIME_UNITS, *((stated,) if isinstance(stated, float) else ())):
        factor = TIME_UNITS[unit] if isinstance(unit, str) else unit
        rate_hz = 1 / (step * factor) if step > 0 else np.inf
        if MIN_SLOW_HZ <= rate_hz < MIN_HZ and named and in_order and stated == unit:
            yield Time(column, unit, rate_hz, TOO_SLOW, f"only {rate_hz:.3g} rows per second: too slow for movements")
        if not MIN_HZ <= rate_hz <= MAX_HZ:
            continue
        since_1970 = SINCE_2000 < first * factor < SINCE_2100
        score = 3.0 * named + 2.0 * in_order + 3.0 * since_1970 - (2.0 if name and not named else 0.0)
        score += 1.0 if USUAL_HZ[0] <= rate_hz <= USUAL_HZ[1] else -2.0
        score += _agreement(stated, unit, 3.0, -4.0)
        words = [f"{rate_hz:.4g} rows per second", *(["counted from 1970"] if since_1970 else [])]
        words += [] if in_order else ["the rows are not in the order of their times, and are sorted"]
        words += [f"the header says {stated}, the numbers do not"] if stated not in (None, unit) else []
        yield Time(column, unit, rate_hz, score, ", ".join(words))


def _usual_step(times: np.ndarray) -> float:
    """Return the mean time from row to row, pauses left out."""
    steps = np.diff(times)
    kept = steps[steps <= PAUSE * abs(np.mean(steps))]
    return float(np.mean(kept)) if len(kept) else 0.0


def _smallest_step(times: np.ndarray) -> float:
    """Return the shortest time between any two rows; 0 where all have one."""
    return float(np.diff(np.unique(times)).min(initial=np.inf)) if np.ptp(times) else 0.0


def _varies(columns: Sequence[np.ndarray]) -> bool:
    """Whether a column could be an axis: neither few numbers, nor a time or count."""
    steps = np.concatenate([np.diff(column) for column in columns])
    return len(np.unique(np.concatenate(columns))) > 3 and not (steps[np.isfinite(steps)] >= 0).all()


def _motion(values: Sequence[np.ndarray], size: int) -> Motion | None:
    """Measure vectors (n, 3) in blocks of `size` rows, or of as many as there are; None of fewer than three rows."""
    usable = [vectors[np.isfinite(vectors).all(axis=1)] for vectors in values]
    size = min(size, max((len(vectors) for vectors in usable), default=0))
    if size < 3:
        return None
    blocks = np.concatenate([vectors[: len(vectors) // size * size].reshape(-1, size, 3) for vectors in usable])
    lengths, rows = np.linalg.norm(blocks, axis=2), np.concatenate(usable)
    means = np.linalg.norm(blocks.mean(1), axis=1)
    low, level, high = np.percentile(means[means > 0] if means.any() else means, [25, 50, 75])  # 0: it was off
    quiet, middle, loud = np.percentile(np.sqrt((lengths**2).mean(1)), [5, 50, 95])
    return Motion(
        level=float(level),
        spread=float(high - low) / max(float(level), 1e-12),
        shaking=float(np.percentile(lengths.std(1), 95)),
        loud=float(loud),
        varies=bool(loud - quiet > 0.5 * middle),
        largest=float(np.abs(rows).max()),
        whole=bool((rows == rows.round()).all()),
        signed=bool((rows < 0).any(axis=0).all()),
    )


def _accs(table: Table, size: int) -> Iterator[Axes]:
    gravity = next((columns for columns, kind in table.candidates if kind == "gravity"), ())
    for at, (columns, kind) in enumerate(table.candidates):
        if kind in ("gyro", "gravity", "other"):
            continue
        for add in (gravity,) if kind == "user" else dict.fromkeys(((), gravity)):
            yield from _accs_of(table, size, columns, kind, add, -0.1 * at)


def _accs_of(table: Table, size: int, columns: Columns, kind: str, add: Columns, place: float) -> Iterator[Axes]:
    """Yield the readings of three columns, to which those of gravity may be added."""
    motion, pull = table.motion("acc", columns, add, size), None
    if add and motion:
        alone, pull = (table.motion("acc", triple, (), size) for triple in (columns, add))
        if not alone or not pull or not pull.loud or (kind != "user" and alone.level > 0.5 * pull.loud):
            return  # gravity is in them
    stated = sensor_unit("acc", table.name(columns[0]))
    named = {"acc": 3.0, "user": 3.0 if add else 0.0, "xyz": 1.0, "": place}[kind]
    for unit, factor in ACC_UNITS.items():
        score = named + _agreement(stated, unit, 4.0, -5.0)
        make = partial(Axes, columns, unit, add=add)
        if motion is None:
            yield make(score=score, why=UNREADABLE)
            continue
        make = partial(make, shaking=motion.shaking * factor)
        level, spread = (pull.loud, pull.shaking / pull.loud) if pull else (motion.level, motion.spread)
        off = abs(level * factor / STANDARD_GRAVITY - 1)
        present = _steps(spread, (0.15, 3.0), (0.3, 1.5), (0.5, -1.0), otherwise=-4.0)
        present += _steps(off, (0.1, 3.0), (0.25, 1.0), otherwise=-4.0) - 3.0 * (kind == "user" and not add)
        present -= 1.5 * (unit == "mg" and stated is None)  # it may be counts
        why = f"|{'gravity' if pull else 'acceleration'}| stays near {level:.4g}, which is gravity in {unit}"
        yield make(score=score + present, why=why)
        if not add:
            loud = motion.loud * factor
            missing = _steps(motion.spread, (0.3, -3.0), (0.5, 0.5), otherwise=3.0) + 3.0 * (kind == "user")
            missing += (0.5 if 1.5 < loud < 40 else -2.0) - 6.0 * (not motion.signed)
            why = f"they lack gravity: |acceleration| stays near no value, and reaches {loud:.3g} m/s²"
            yield make(has_gravity=False, score=score + missing, why=why)
    if motion and stated is None and not add and motion.spread < 0.5 and motion.level > 0:
        yield _counts(columns, motion, named - 3.0 * (kind == "user"))


def _counts(columns: Columns, motion: Motion, score: float) -> Axes:
    """Read numbers without a unit by what gravity measures in them, which boards often make a power of two."""
    power = 2.0 ** round(np.log2(motion.level))
    scale = float(f"{1 / (power if 0.85 < motion.level / power < 1.15 else motion.level):.9g}")
    score += 2.0 + 3.0 * (abs(motion.level / power - 1) < 0.015 and motion.whole)
    shaking = motion.shaking * STANDARD_GRAVITY / motion.level
    why = f"counts: gravity measures {motion.level:.4g}; see the sensor's data sheet for the scale"
    return Axes(columns, "g", scale, shaking=shaking, score=score, why=why)


def _gyros(table: Table, size: int, acc: Axes) -> Iterator[Axes]:
    yield Axes()
    for columns, kind in table.of_gyro(acc):
        if kind not in ("gyro", "apart", "") or (columns == acc.columns and not table.apart):
            continue
        motion = table.motion("gyro", columns, (), size)
        stated = sensor_unit("gyro", table.name(columns[0], "gyro"))
        turning = -4.0 if motion is None or not motion.loud else 1.0 if motion.varies else -3.0
        unnamed = turning + 0.5 * (columns[0] == acc.columns[2] + 1)
        unnamed -= 6.0 * bool(motion and (motion.is_pulled or not motion.signed))
        named = {"gyro": 4.0, "apart": 3.0, "": unnamed}[kind]
        for unit, factor in GYRO_UNITS.items():
            score = named + _agreement(stated, unit, 4.0, -5.0)
            if motion is None:
                yield Axes(columns, unit, score=score, why=UNREADABLE)
                continue
            score -= 6.0 * (motion.largest * factor > MAX_TURN * 1.15)
            if acc.shaking > 0.5:
                score += 1.5 if 0.03 < motion.loud * factor / acc.shaking < 8 else -2.5
                score += 0.5 if motion.loud * factor > 0.2 else -0.5
            elif motion.loud * factor > MAX_DRIFT:
                score -= 1.5
            why = f"the fastest turns measure {motion.largest:.4g}, as they do in {unit}"
            yield Axes(columns, unit, score=score, why=why)
        if motion and stated is None and motion.largest > MAX_TURN and motion.whole:
            up_to = f"counts of up to {motion.largest:.4g}"
            why = f"{up_to}; the scale assumes ±2000 deg/s in 16 bits; check the data sheet"
            yield Axes(columns, "deg/s", 2000 / 2**15, score=named + 2.5, why=why)


def _agreement(stated: object, unit: object, agrees: float, differs: float) -> float:
    """Score a unit by the one that the header states, if it states one."""
    return 0.0 if stated is None else agrees if stated == unit else differs


def _steps(value: float, *below: tuple[float, float], otherwise: float) -> float:
    """Return the score of the first limit that a value is below."""
    return next((score for limit, score in below if value < limit), otherwise)


def sensors_of_codes(
    header: tuple[str, ...], rows: Mapping[str, Sequence[np.ndarray]], taken: frozenset[int]
) -> dict[Sensor, str]:
    """Tell the codes of accelerometer and gyroscope by what their rows measure; without an accelerometer none.

    Of several that measure gravity the one that shakes is chosen; of several that turn Android's 4, or the first.
    """
    motions = {
        code: _of_axes(Table(header, {"acc": numbers, "gyro": numbers}, taken=taken)) for code, numbers in rows.items()
    }
    pulled = {
        code: motion.shaking / motion.level
        for code, motion in motions.items()
        if motion and motion.is_pulled
        and any(abs(motion.level * factor / STANDARD_GRAVITY - 1) < 0.15 for factor in ACC_UNITS.values())
    }  # fmt: skip
    if not pulled:
        return {}
    acc = max(pulled, key=lambda code: pulled[code])
    turning = [code for code, motion in motions.items() if motion and motion.varies and not motion.is_pulled]
    gyro = next((code for code in (ANDROID_GYROSCOPE, *sorted(turning)) if code in turning), None)
    return {"acc": acc} if gyro is None else {"acc": acc, "gyro": gyro}


def _of_axes(table: Table) -> Motion | None:
    """Return what the first three columns that could be axes measure."""
    columns = next((columns for columns, kind in table.candidates if kind != "other"), ())
    return table.motion("acc", columns, (), BLOCK_ROWS) if columns else None
