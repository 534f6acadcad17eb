"""What the columns of a table mean: by their names where they have any, else by their numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from har_pipeline.description.guess.layout import TextLayout
from har_pipeline.recording import Sensor

Column = str | int
MOST_JUDGED = 16
"""Files whose numbers are looked at for columns without names."""
HUGE = 1e20
"""Nanoseconds since 1970 are 2e18; the squares of far larger numbers are infinite."""
LEAST_ROWS = 50
"""Fewer say nothing of columns without names."""
STANDARD = {"acc": ("acc", "accel", "beschl"), "gyro": ("gyr", "rotation", "angular", "omega")}
GRAVITY, WITHOUT_GRAVITY = ("grav",), ("user", "linear", "lin")
TIME_NAMES = re.compile(
    r"(.*_)?(time|timestamp|ts|t|epoch|date|datetime|clock|ms|sec|seconds|millis|datum|zeit|zeitstempel|uhrzeit|fecha|"
    r"tiempo)([ _(\[].*)?$"
)
WORD_NAMES = {
    "activity": re.compile(
        r"(.*_)?(a[ck]tivit\w+|t(ä|ae)tigkeit|actividad|label|klasse|class|gt|ground_truth|action|annotation)(_?name)?$"
    ),
    "client": re.compile(r"(.*_)?(subject|user|person|participant|volunteer|client|patient)(_?(id|name|nr|no|code))?$"),
    "session": re.compile(r"(.*_)?(session|trial|run|experiment|recording|exp|rep)(_?(id|nr|no))?$"),
    "sensor": re.compile(r"sensor(_?(type|name))?$"),
}
# (a unit as the header writes it, its name here)
UNIT_WORDS = (
    (re.compile(r"m/s\^?2|m/s²|ms-2|mps2"), "m/s2"),
    (re.compile(r"[\[(]mg[\])]"), "mg"),
    (re.compile(r"[\[(]g[\])]|_g$"), "g"),
    (re.compile(r"deg/s|°/s|dps|degree"), "deg/s"),
    (re.compile(r"rad/s|rads"), "rad/s"),
)


class Guess(NamedTuple):
    """A value for the description, and whether it is sure; `why` is its comment."""

    value: Any
    sure: bool
    why: str

    @property
    def comment(self) -> str:
        """What is written behind it."""
        return f"{'sure' if self.sure else 'guess: check'}: {self.why}"


class Columns(NamedTuple):
    """The columns that were found: of acc and gyro with what is added to them, the time, and words by their meaning."""

    sensors: dict[Sensor, Guess]
    add: Guess | None
    time: Guess | None
    words: dict[str, Guess]
    spare: tuple[tuple[Column, ...], ...] = ()


def guess_columns(layouts: Sequence[TextLayout]) -> Columns:
    """Guess from the header, or without one from the numbers of the file that tells most: in some nobody moves."""
    longest = max(layouts, key=lambda layout: len(layout.rows))
    if longest.header:
        return _by_name(longest)
    few = (layouts[at * len(layouts) // MOST_JUDGED] for at in range(MOST_JUDGED))
    guesses = (_by_numbers(layout) for layout in [longest, *dict.fromkeys(few)])
    return max(guesses, key=lambda columns: len(columns.sensors))


def numbers_of(layout: TextLayout, columns: Sequence[Column]) -> np.ndarray:
    """Return columns of the rows that were looked at, float64 (n, columns); NaN where a cell is no number, or huge."""
    at = [column - 1 if isinstance(column, int) else layout.header.index(column) for column in columns]
    return np.array([[_number(row[each], layout.decimal) for each in at] for row in layout.rows], dtype=np.float64)


def unit_in_name(name: Column) -> str | None:
    """Return the unit that a column's name states."""
    return next((unit for pattern, unit in UNIT_WORDS if pattern.search(str(name).lower())), None)


def _number(cell: str, decimal: str) -> float:
    try:
        number = float(cell.strip().replace(decimal, "."))
    except ValueError:
        return np.nan
    return number if abs(number) <= HUGE else np.nan


def _by_name(layout: TextLayout) -> Columns:
    triples = _triples(layout.header)
    kinds: dict[str, tuple[str, ...]] = {}
    for stem, columns in triples.items():
        kinds.setdefault(_kind(stem), columns)
    sensors: dict[Sensor, Guess] = {}
    add = None
    if "acc" in kinds:
        sensors["acc"] = Guess(kinds["acc"], True, "by their names")
    elif "user" in kinds and "gravity" in kinds:
        sensors["acc"] = Guess(kinds["user"], True, "without gravity, by their names")
        add = Guess(kinds["gravity"], True, "gravity, which is added")
    elif "user" in kinds:
        sensors["acc"] = Guess(kinds["user"], False, "gravity may be missing in them, which the pipeline expects")
    if "gyro" in kinds:
        sensors["gyro"] = Guess(kinds["gyro"], True, "by their names")
    unknown = [columns for kind, columns in kinds.items() if kind.startswith("other ")]
    if "acc" not in sensors and len(unknown) == 1:
        sensors = {"acc": Guess(unknown[0], False, "the only three columns of axes without another name"), **sensors}
    used = {column for guess in (*sensors.values(), *([add] if add else [])) for column in guess.value}
    lower = {name: name.strip().lower().replace(" ", "_") for name in layout.header if name and name not in used}
    words = {
        meaning: Guess(name, True, "by its name")
        for meaning, pattern in WORD_NAMES.items()
        if (name := next((name for name, low in lower.items() if pattern.match(low)), None))
    }
    times = [name for name, low in lower.items() if TIME_NAMES.match(low)]
    taken = {guess.value for guess in words.values()}
    time = next((name for name in times if name not in taken and _runs_on(layout, name)), None)
    if not sensors:
        found = _by_numbers(layout)
        rest = {} if any(guess.value in taken for guess in found.words.values()) else found.words
        return found._replace(words={**rest, **words})
    return Columns(sensors, add, Guess(time, True, "by its name") if time else None, words)


def _triples(header: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Find columns that differ in x, y and z only; their names without it are the keys."""
    found: dict[str, dict[str, str]] = {}
    for name in header:
        low = re.sub(r"\s*[\[(].*$", "", name.lower())
        match = re.fullmatch(r"(.*?)[ _.\-]?([xyz])(?:[ _.\-]?axis)?", low) or re.fullmatch(r"([xyz])[ _.\-](.*)", low)
        if match:
            axis_first = match[1] in ("x", "y", "z") and match[2] not in ("x", "y", "z")
            stem, axis = (match[2], match[1]) if axis_first else (match[1], match[2])
            found.setdefault(stem, {}).setdefault(axis, name)
    return {stem: (axes["x"], axes["y"], axes["z"]) for stem, axes in found.items() if len(axes) == 3}


def _kind(stem: str) -> str:
    """Say what columns of such names hold: acc, gyro, gravity, user (acceleration without gravity) or other."""
    if any(word in stem for word in STANDARD["gyro"]) or stem in ("g", "w", "gy"):
        return "gyro"
    if any(word in stem for word in GRAVITY):
        return "gravity"
    if any(word in stem for word in STANDARD["acc"]) or stem == "a":
        return "user" if any(word in stem for word in WITHOUT_GRAVITY) else "acc"
    return f"other {stem}"


def _runs_on(layout: TextLayout, column: Column) -> bool:
    """Whether a column rises, as times do, and not by one a row, as a count does; or holds dates."""
    numbers = numbers_of(layout, (column,))[:, 0]
    if np.isnan(numbers).all():
        return True
    steps = np.diff(numbers[np.isfinite(numbers)])
    return bool(len(steps) and (steps >= 0).mean() > 0.95 and (steps > 0).mean() > 0.3 and not (steps == 1).all())


def _by_numbers(layout: TextLayout) -> Columns:
    if len(layout.rows) < LEAST_ROWS:
        return Columns({}, None, None, {})
    width = len(layout.rows[0])
    all_numbers = numbers_of(layout, range(1, width + 1))
    usable = [at for at in range(width) if np.isfinite(all_numbers[:, at]).mean() > 0.5]

    def name(at: int) -> Column:
        return layout.header[at] if layout.header and layout.header.count(layout.header[at]) == 1 else at + 1

    time = next((at for at in usable if _runs_on(layout, at + 1) and _rises(all_numbers[:, at])), None)
    counts = {at for at in usable if (np.diff(all_numbers[:, at]) == 1).all() and len(all_numbers) > 2}
    few = {at for at in usable if len(np.unique(all_numbers[:, at])) <= 3}
    left = [at for at in usable if at != time and at not in counts and at not in few]
    runs = _runs_of_three(left)
    levels = {run: _level(all_numbers[:, run]) for run in runs}
    still = sorted(runs, key=lambda run: levels[run][0])
    sensors: dict[Sensor, Guess] = {}
    acc = next((run for run in runs if levels[run][0] < 0.5), still[0] if still else None)
    if acc is not None:
        why = f"their size stays near {levels[acc][1]:.4g}, as gravity does"
        sensors["acc"] = Guess(tuple(map(name, acc)), False, why)
        runs = [run for run in runs if run != acc]
        gyro = max(runs, key=lambda run: levels[run][0], default=None)
        if gyro is not None and (levels[gyro][0] > 0.3 or _about_zero(all_numbers[:, gyro])):
            sensors["gyro"] = Guess(tuple(map(name, gyro)), False, "they turn about zero")
            runs.remove(gyro)
    words = {}
    unread = [at for at in range(width) if np.isnan(all_numbers[:, at]).all()]
    texts = [at for at in unread if any(row[at].strip() for row in layout.rows)]
    if texts:
        words["activity"] = Guess(name(texts[-1]), False, "the last column of words")
    found_time = None if time is None else Guess(name(time), False, "it rises from row to row")
    return Columns(sensors, None, found_time, words, tuple(tuple(map(name, run)) for run in runs))


def _rises(numbers: np.ndarray) -> bool:
    steps = np.diff(numbers[np.isfinite(numbers)])
    return bool(len(steps) > 2 and (steps >= 0).all())


def _runs_of_three(columns: Sequence[int]) -> list[tuple[int, int, int]]:
    runs, at = [], 0
    while at + 2 < len(columns):
        first, second, third = columns[at : at + 3]
        if third == first + 2:
            runs.append((first, second, third))
            at += 3
        else:
            at += 1
    return runs


def _about_zero(values: np.ndarray) -> bool:
    """Whether vectors (n, 3) point everywhere and vary in size, as turns do; gravity and the earth's field do not."""
    size, median = _level(values)
    return size > 0.15 and float(np.linalg.norm(np.nanmean(values, axis=0))) < 0.3 * median


def _level(values: np.ndarray) -> tuple[float, float]:
    """Return how much the size of vectors (n, 3) varies, as a share of it, and its median."""
    sizes = np.linalg.norm(values, axis=1)
    median = float(np.nanmedian(sizes))
    return (float(np.nanstd(sizes)) / median if median > 0 else np.inf), median
