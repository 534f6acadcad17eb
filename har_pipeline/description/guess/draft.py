"""A first description of unknown files, as TOML with a comment on each guess, tried on the files themselves."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from har_pipeline.description.files import find_files
from har_pipeline.description.guess import headers, roles, sensors
from har_pipeline.description.guess.stretches import FileKind, RowStretch, look
from har_pipeline.description.inspection import UNLABELLED_NAME, FileReport, differences, inspect, odd_words
from har_pipeline.description.keys import DATE
from har_pipeline.description.model import description_of, same_word
from har_pipeline.errors import SourceError
from har_pipeline.recording import Sensor
from har_pipeline.signals.directions import Difference

TRIAL_TIMEOUT_S = 20.0
MAX_LABELS = 100
MAX_SEGMENTS = 4000
DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d")
CLOCKS = ("%H:%M:%S.%f", "%H:%M:%S,%f", "%H:%M:%S", "%I:%M:%S.%f %p", "%I:%M:%S %p")


class Guess(NamedTuple):
    """A value for the description, and whether it is sure; `why` is its comment."""

    value: Any
    sure: bool
    why: str

    @property
    def comment(self) -> str:
        """What is written behind it."""
        return f"{'sure' if self.sure else 'guess: check'}: {self.why}"


@dataclass
class Draft:
    """The lines of a first description; `problems` and `differences` are what trying it found."""

    guesses: dict[str, Guess] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the keys and values alone."""
        return {key: guess.value for key, guess in self.guesses.items()}

    def toml(self) -> str:
        """Write the keys in their order, each with its comment."""
        lines = [f"# {remark}" for remark in self.remarks]
        lines += [f"{key} = {_toml(guess.value)}  # {guess.comment}" for key, guess in self.guesses.items()]
        return "\n".join(lines) + "\n"


KNOWN_FORMATS: list[Callable[[Path], Draft | None]] = []
"""What phones' apps write is described by who knows it by name: each returns None where a root is not of its app."""


def draft(root: Path | str, progress: Callable[[int, str], None] | None = None) -> Draft:
    """Look at a folder, an archive or a file, and guess.

    Raises:
        SourceError: if there is nothing, or no table of numbers in which an accelerometer could be.
    """
    root = Path(root)
    if not root.exists():
        raise SourceError(f"{root} does not exist; expected a folder, an archive or a file of recordings")
    if known := next((found for recognize in KNOWN_FORMATS if (found := recognize(root)) is not None), None):
        return known
    looked = look(root)
    if not looked.kinds:
        wrong = (
            f"{looked.utf_16[0]} is UTF-16; save it as UTF-8" if looked.utf_16 else next(iter(looked.unreadable), "")
        )
        raise SourceError(
            wrong or f"no file under {root} is a text table of numbers; expected recordings such as *.csv"
        )
    kind, *others = looked.kinds
    seen = f"{len(kind.names)} files of this layout, {sum(len(other.names) for other in others)} of others"
    found = Draft(remarks=[f"written by looking at {root.name}: {seen}"])
    if looked.utf_16:
        found.remarks.append(f"{len(looked.utf_16)} files are UTF-16 and cannot be read, such as {looked.utf_16[0]!r}")
    found.remarks += [f"left out: {why}" for why in looked.unreadable]
    table = _Table(kind)
    reading = sensors.read_jointly(table.of_sensors)
    if reading is None:
        raise SourceError(
            f"{kind.names[0]}: no three columns look like an accelerometer; its columns are "
            f"{list(kind.layout.header[:20]) or len(kind.layout.rows[0])}"
        )
    table.describe_words(reading, found)
    _describe_text(kind, found)
    found.guesses |= table.words
    _describe_time(table, reading, found)
    _describe_sensors(table, reading, found)
    _try(root, found, progress)
    return found


class _Table:
    """The columns of one kind of files: which hold words, which numbers of which sensor."""

    def __init__(self, kind: FileKind) -> None:
        self.kind, self.header = kind, kind.layout.header
        self.words: dict[str, Guess] = {}
        low = ["_".join(headers.tokens(name)) for name in self.header]
        stated = {at: said for at, each in enumerate(low) for said, p in headers.WORD_NAMES.items() if p.match(each)}
        self.columns = [at for at in range(len(kind.layout.rows[0])) if self._has_words(at, at in stated)]
        sensor = next((at for at, said in stated.items() if said == "sensor" and at in self.columns), None)
        self.by_file = _sensor_by_file(kind.names)
        apart = self._apart(sensor)
        self.of_sensors = sensors.Table(self.header, apart or self._numbers(), bool(apart), frozenset(self.columns))
        if sensor is not None:
            self.columns.remove(sensor)
            self.words["sensor"] = Guess(self.name(sensor), True, "by its name")

    def name(self, at: int) -> str | int:
        """What a description calls a column."""
        unique = bool(self.header) and bool(self.header[at]) and self.header.count(self.header[at]) == 1
        return self.header[at] if unique else at + 1

    def _has_words(self, at: int, stated: bool) -> bool:
        """Whether a column holds words, or few numbers that seldom change, as codes of persons and activities do."""
        if self.header and headers.is_time(self.header[at]):
            return False
        texts = [[row[at].strip() for row in each.rows] for each in self.kind.stretches]
        changes = sum(a != b for each in texts for a, b in pairwise(each))
        rows, distinct = sum(map(len, texts)), len({text for each in texts for text in each if text})
        number = np.mean([np.isfinite(each.numbers[:, at]).mean() for each in self.kind.stretches if each.rows]) > 0.5
        if number and not stated:
            whole = all(text.isdecimal() for each in texts for text in each)
            return not self.header and whole and 1 < distinct <= MAX_LABELS and changes <= rows / 50
        return 0 < distinct <= max(MAX_LABELS, rows / 50) and (stated or changes <= rows / 4)

    def _numbers(self) -> dict[Sensor, Sequence[np.ndarray]]:
        stretches = self.kind.stretches
        few = [stretches[at * len(stretches) // sensors.MAX_JUDGED] for at in range(sensors.MAX_JUDGED)]
        longest = max(stretches, key=lambda each: len(each.rows))
        numbers = [each.numbers for each in dict.fromkeys([longest, *few])]
        return {"acc": numbers, "gyro": numbers}

    def _apart(self, column: int | None) -> dict[Sensor, Sequence[np.ndarray]]:
        """Return the numbers of each sensor where its files' names or a column tell them apart; else nothing."""
        parts: dict[Sensor, list[np.ndarray]] = {"acc": [], "gyro": []}
        for each in self.kind.stretches:
            for sensor, mine in parts.items():
                if self.by_file and _sensor_word(each.name) == sensor[:3]:
                    mine.append(each.numbers)
                elif column is not None and not self.by_file:
                    own = [row[column].strip().lower().startswith(sensor[:3]) for row in each.rows]
                    mine.append(each.numbers[own])
        kept: dict[Sensor, Sequence[np.ndarray]] = {
            key: [each for each in mine if len(each)] for key, mine in parts.items()
        }
        return kept if all(kept.values()) else {}

    def describe_words(self, reading: sensors.TableReading, found: Draft) -> None:
        """Guess who did what, and write `files` and the columns that say it."""
        used = {reading.time.column, *reading.acc.columns, *(reading.acc.add or ()), *(reading.gyro.columns or ())}
        columns = [at for at in self.columns if at not in used]
        depth = roles.commonest_depth(self.kind.names)
        segments = [
            segment
            for each in self.kind.stretches
            if each.name.count("/") == depth
            for segment in _segments(each, columns, reading.acc.columns)
        ][:MAX_SEGMENTS]
        if self.by_file:
            acc = [_sensor_word(segment.name) == "acc" for segment in segments]
            segments = [
                each if own else replace(each, movement=np.nan) for each, own in zip(segments, acc, strict=True)
            ]
        chosen = roles.assign(segments, self.header, columns)
        levels = {"client": chosen.client, "session": chosen.sessions, "activity": chosen.activity}
        for role, level in levels.items():
            if level is not None and level.column is not None:
                named = bool(level.name) and roles.is_named(level, role)
                why = "by its name" if named else "its words " + ("recur" if role == "client" else "vary") + " so"
                self.words[role] = Guess(self.name(level.column), named and chosen.sure, why)
        paths = {role: level for role, level in levels.items() if level is not None and level.column is None}
        pattern = roles.write_pattern([segment.name for segment in segments], paths, by_sensor=self.by_file)
        groups = re.findall(r"\(\?P<(\w+)>", pattern)
        missing = [role for role in ("client", "activity") if levels[role] is None]
        why = f"{', '.join(groups)} by their names" if groups else "names say nothing of the rows"
        found.guesses["files"] = Guess(
            pattern, False, why + (f"; who says the {' and the '.join(missing)}?" * bool(missing))
        )
        if chosen.client is None and "activity" in paths:
            one = "nothing says who: all files count as one person's"
            self.words["client"] = Guess({"fixed": "one person"}, False, one)


def _segments(stretch: RowStretch, columns: Sequence[int], acc: Sequence[int]) -> list[roles.Segment]:
    """Cut a stretch where one of its words changes."""
    words = [tuple(row[at].strip() for at in columns) for row in stretch.rows]
    edges = [0, *(at for at in range(1, len(words)) if words[at] != words[at - 1]), len(words)]
    sizes = np.linalg.norm(stretch.numbers[:, list(acc)], axis=1)
    found = []
    for low, high in pairwise(edges):
        own = sizes[low:high][np.isfinite(sizes[low:high])]
        movement = float(np.log(own.std() + 1e-3 * own.mean() + 1e-9)) if len(own) >= 10 else np.nan
        found.append(roles.Segment(stretch.name, movement, dict(zip(columns, words[low], strict=True))))
    return found


def _sensor_word(name: str) -> str | None:
    word = re.search(r"(?:^|[/_\-. ])(acc|gyr)", name, re.IGNORECASE)
    return word and word[1].lower()


def _sensor_by_file(names: Sequence[str]) -> bool:
    return {_sensor_word(name) for name in names} == {"acc", "gyr"}


def _describe_text(kind: FileKind, found: Draft) -> None:
    decimal, skip_lines, comment = kind.marks.most_common(1)[0][0]
    layout = kind.layout
    if not layout.header:
        found.guesses["header"] = Guess(False, True, "the first line holds numbers")
    for key, value, default in (
        ("separator", "tab" if layout.separator == "\t" else layout.separator, ","), ("trailing", layout.trailing, ""),
        ("comment", comment, ""), ("decimal", decimal, "."), ("skip_lines", skip_lines, 0),
    ):  # fmt: skip
        if value != default:
            found.guesses[key] = Guess(value, True, "in every line that was looked at")


def _describe_time(table: _Table, reading: sensors.TableReading, found: Draft) -> None:
    column, unit, rate_hz, _, why = reading.time
    if column is not None:
        found.guesses["time"] = Guess({"column": table.name(column), "unit": unit}, "time" in reading.sure, why)
        return
    texts = table.kind.layout.rows[:20]
    for at, name in enumerate(table.header):
        if headers.is_time(name) and not any(np.isfinite(each.numbers[:, at]).any() for each in table.kind.stretches):
            form = _date_format([row[at].strip() for row in texts])
            date = {"column": table.name(at), "unit": DATE, **({"format": form} if form else {})}
            why = "texts; is it the day that stands before the month?" if form else "texts; set format if not ISO 8601"
            found.guesses["time"] = Guess(date, False, why)
            return
    found.guesses["rate_hz"] = Guess(rate_hz, False, why)


def _date_format(texts: Sequence[str]) -> str | None:
    """Return the form in which the first dates are written; None if they are ISO 8601, or of no known form."""

    def fits(form: str) -> bool:
        try:
            return all(datetime.strptime(text, form) for text in texts)
        except ValueError:
            return False

    days = [day for day in DAYS if any(fits(f"{day} {clock}") for clock in CLOCKS)]
    return next((form for day in days for clock in CLOCKS if fits(form := f"{day} {clock}")), None)


def _describe_sensors(table: _Table, reading: sensors.TableReading, found: Draft) -> None:
    acc, gyro = reading.acc, reading.gyro
    names = table.of_sensors
    found.guesses["acceleration"] = _convention(names.name(acc.columns[0]), reading)
    named = "by their names; " if sensors.kind_of_columns(names, acc.columns) not in ("", "xyz") else ""
    sure = "acc" in reading.sure and acc.gravity
    found.guesses["acc"] = Guess(sensors.to_keys(acc, table.name), sure, named + acc.why)
    if gyro.columns:
        where = f"in {'files' if table.by_file else 'rows'} of its own; " if names.apart else ""
        found.guesses["gyro"] = Guess(sensors.to_keys(gyro, table.name), "gyro" in reading.sure, where + gyro.why)
    else:
        found.remarks.append("no gyroscope was found: its channels will be zero")
    used = {*acc.columns, *(acc.add or ()), *(gyro.columns or ())}
    spare = [columns for columns, _ in names.candidates if not used & set(columns)][:: 1 if table.header else 3]
    if spare:
        listed = "; ".join(" ".join(str(table.name(at)) for at in columns) for columns in spare)
        found.remarks.append(f"columns that are not used, perhaps further sensors: {listed}")


def _convention(name: str, reading: sensors.TableReading) -> Guess:
    """Guess which way accelerations point: names and whether there is gravity tell it, its sign no number does."""
    if reading.acc.add and "user" in name.lower():  # CoreMotion's word
        return Guess("gravity points down", True, "Apple's names of the columns")
    if not reading.acc.gravity:
        return Guess(
            "without gravity", "gravity" in reading.sure, "|acceleration| keeps near no value, and is near 0 at rest"
        )
    return Guess("specific force", False, 'face up, at rest, z is +9.8; of an iPhone it may be "gravity points down"')


def _try(root: Path, found: Draft, progress: Callable[[int, str], None] | None) -> None:
    """Apply the description without labels, and write those that the files have; at most for TRIAL_TIMEOUT_S."""
    described = description_of(found.to_json())
    files, until = find_files(described, root), time.monotonic() + TRIAL_TIMEOUT_S
    reports: list[FileReport] = []
    for report in inspect(described, files, progress):
        reports.append(report)
        if time.monotonic() > until:
            found.remarks.append(f"labels are those of the first {len(reports)} of {files.count} files")
            break
    _write_labels(reports, found)
    found.differences = differences(reports)
    found.problems = [report.problem for report in reports if report.problem]
    found.remarks += dict.fromkeys(odd_words(reports))
    rates = sorted(report.rate_hz for report in reports if report.rate_hz)
    if rates and described.time is not None:
        found.remarks.append(f"{rates[len(rates) // 2]:.4g} Hz; {len(reports) - len(found.problems)} files were read")


def _write_labels(reports: Sequence[FileReport], found: Draft) -> None:
    counted: Counter[str] = sum((report.labels for report in reports), Counter())
    del counted[UNLABELLED_NAME]
    spellings: dict[str, list[str]] = defaultdict(list)
    for word in sorted(counted, key=lambda word: (-counted[word], not word.islower(), word)):
        spellings[same_word(word)].append(word)
    labels = sorted(each[0] for each in spellings.values())
    for first, *others in spellings.values():
        if others:
            found.remarks.append(
                f"{', '.join(map(repr, others))} count as {first!r}: case and blanks make no other label"
            )
    if labels and len(labels) <= MAX_LABELS:
        why = "as the files spell them; labels.map merges some, labels.ignore leaves some out"
        found.guesses["labels"] = Guess(labels, False, why)
    elif labels:
        found.remarks.append(f"{len(labels)} words stand as activities, such as {labels[0]!r}: is it the right place?")
    else:
        found.remarks.append(
            'nothing says the activities: add labels = ["…"] and activity = { fixed = "…" } or a group'
        )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = "'" not in value and value.isprintable() and "\\" in value
        return f"'{value}'" if plain else json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return repr(value)
