"""Drafts a description of unknown files as TOML, with a comment on each guess, and tries it on the files."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gaitway.plain_text import inline_toml
from har_pipeline.description.files import find_files
from har_pipeline.description.guess import roles, sensors
from har_pipeline.description.guess.headers import is_time, kind_of, role_of, tokens
from har_pipeline.description.guess.stretches import FileKind, Looked, look
from har_pipeline.description.inspection import UNLABELLED_NAME, FileReport, differences, inspect, odd_words
from har_pipeline.description.keys import DATE
from har_pipeline.description.model import description_of, same_word
from har_pipeline.errors import SourceError
from har_pipeline.recording import Sensor
from har_pipeline.signals.directions import Difference

TRIAL_TIMEOUT_S = 20.0
MAX_LABELS, MAX_CODES = 100, 30
"""Words of a column; numbers of one that has a name, and no name that says activity or person."""
WHOLE = re.compile(r"\d+(\.0+)?")
NO_CODE = re.compile(
    r"batt|accura|quali|step|heart|hr|bpm|lux|light|index|frame|count|row|sat|rssi|status", re.IGNORECASE
)
CONVERTIBLE = {".json", ".mat", ".xls", ".xlsx", ".npy", ".npz", ".h5", ".hdf5", ".parquet"}
MAX_SEGMENTS, MAX_SENSORS, MAX_KINDS = 4000, 8, 4
DERIVED = re.compile(r"lin|user|uncal|grav", re.IGNORECASE)
"""How files of a second acceleration are called that an app computes beside the measured one."""
DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d")
CLOCKS = ("%H:%M:%S.%f", "%H:%M:%S,%f", "%H:%M:%S", "%I:%M:%S.%f %p", "%I:%M:%S %p")
GENEACTIV = "%Y-%m-%d %H:%M:%S:%f"


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
    """The lines of a first description; `problems`, `differences` and `clients` are what trying it found."""

    guesses: dict[str, Guess] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the keys and values alone."""
        return {key: guess.value for key, guess in self.guesses.items()}

    def toml(self) -> str:
        """Write the keys in their order, each with its comment."""
        lines = [f"# {remark}" for remark in self.remarks]
        lines += [f"{key} = {inline_toml(guess.value)}  # {guess.comment}" for key, guess in self.guesses.items()]
        return "\n".join(lines) + "\n"


def draft(root: Path | str, progress: Callable[[int, str], None] | None = None) -> Draft:
    """Look at a folder, an archive or a file, and guess.

    Raises:
        SourceError: if there is nothing, or no table of numbers in which an accelerometer could be.
    """
    root = Path(root)
    if not root.exists():
        raise SourceError(f"{root} does not exist; expected a folder, an archive or a file of recordings")
    looked = look(root)
    if not looked.kinds:
        wrong = (
            f"{looked.utf_16[0]} is UTF-16; save it as UTF-8" if looked.utf_16 else next(iter(looked.unreadable), "")
        )
        expected = f"expected recordings such as *.csv{_unread(looked)}"
        raise SourceError(wrong or f"no file under {root} is a text table of numbers; {expected}")
    kind, gyro_kind = _described_kinds([_of_two_sensors(file_kind) for file_kind in looked.kinds])
    count = len(kind.names) + (len(gyro_kind.names) if gyro_kind else 0)
    seen = f"{count} files of this layout, {sum(len(file_kind.names) for file_kind in looked.kinds) - count} of others"
    found = Draft(remarks=[f"guessed from {root.name}: {seen}"])
    if looked.utf_16:
        found.remarks.append(f"{len(looked.utf_16)} files are UTF-16 and cannot be read, such as {looked.utf_16[0]!r}")
    found.remarks += [f"left out: {why}" for why in looked.unreadable]
    table = _Table(kind, gyro_kind)
    reading = sensors.read_jointly(table.of_sensors)
    if reading is None:
        commas = kind.layout.separator == "," and kind.layout.skip_lines and not kind.layout.header
        raise SourceError(
            f"{kind.names[0]}: no three columns look like an accelerometer; its columns are "
            f"{list(kind.layout.header[:20]) or len(kind.layout.rows[0])}"
            f"{'; if its numbers have decimal commas, save it with another separator' if commas else ''}"
        )
    words = _describe_words(table, reading, found)
    _describe_text(kind, found)
    found.guesses |= words
    _describe_time(table, reading, found)
    _describe_sensors(table, reading, found)
    _try(root, found, progress)
    return found


def _unread(looked: Looked) -> str:
    """Say which files might hold recordings that are not text."""
    endings = [f"{count} {ending}" for ending, count in looked.unread.most_common() if ending in CONVERTIBLE]
    return f"; {', '.join(endings)} files are not read: save each of their tables as CSV" if endings else ""


def _described_kinds(kinds: Sequence[FileKind]) -> tuple[FileKind, FileKind | None]:
    """Return the files that are described, and those of the gyroscope where they have another header.

    Described are the commonest, or of several that are about as common those that have both sensors.
    """
    by_word: dict[str, FileKind] = {}
    for kind in reversed(kinds):
        words = {_sensor_word(name) for name in kind.names}
        if kind.layout.header and len(words) == 1 and (word := words.pop()):
            by_word[word] = kind
    acc, gyro = by_word.get("acc"), by_word.get("gyr")
    if acc is not None and gyro is not None and kinds[0] in (acc, gyro) and acc.text == gyro.text:
        return acc, gyro
    many = [kind for kind in kinds if 2 * len(kind.names) >= len(kinds[0].names)][:MAX_KINDS]
    both = (kind for kind in many if len(many) > 1 and _has_gyroscope(kind))
    return next(both, kinds[0]), None


def _of_two_sensors(kind: FileKind) -> FileKind:
    """Leave out the files of further sensors where the accelerometer and the gyroscope have files of their own."""
    words = {name: _sensor_word(name) for name in kind.names}
    named = [name for name in kind.names if words[name]]
    for kept in ([name for name in named if not DERIVED.search(name.rpartition("/")[2])], named):
        if {words[name] for name in kept} == {"acc", "gyr"}:
            return replace(kind, names=kept, stretches=[stretch for stretch in kind.stretches if stretch.name in kept])
    return kind


def _has_gyroscope(kind: FileKind) -> bool:
    reading = sensors.read_jointly(_Table(kind).of_sensors)
    return reading is not None and bool(reading.gyro.columns)


class _Table:
    """The columns of one kind of files: which hold words, which numbers of which sensor.

    Of a gyroscope's files with a header of their own, columns of words count that both have.
    """

    def __init__(self, kind: FileKind, gyro: FileKind | None = None) -> None:
        self.kind, self.header = kind, kind.layout.header
        self.gyro, self.gyro_header = gyro, gyro.layout.header if gyro else ()
        self.names = kind.names + (gyro.names if gyro else [])
        self.roles = dict(enumerate(map(role_of, self.header)))
        self.columns = [at for at in range(len(kind.layout.rows[0])) if self._has_words(at)]
        self.sensor = next((at for at in self.columns if self.roles.get(at) == "sensor"), None)
        self.by_file = {_sensor_word(name) for name in self.names} == {"acc", "gyr"}
        self.codes = {} if self.by_file or self.sensor is None else self._codes()
        apart, taken = self._apart(), frozenset(self.columns)
        self.of_sensors = sensors.Table(self.header, apart or self._together(), bool(apart), taken, self.gyro_header)

    def name(self, at: int, sensor: Sensor = "acc") -> str | int:
        """What a description calls a column of a sensor's rows."""
        header = self.gyro_header if sensor == "gyro" and self.gyro_header else self.header
        unique = bool(header) and bool(header[at]) and header.count(header[at]) == 1
        return header[at] if unique else at + 1

    def segments(self, columns: Sequence[int], acc: Sequence[int]) -> Iterator[roles.RowSegment]:
        """Yield stretches cut where the words of some columns change; only the accelerometer's move."""
        for stretch in self.kind.stretches:
            for segment in roles.segments_of(stretch, columns, acc):
                still = self.by_file and _sensor_word(segment.name) != "acc"
                yield replace(segment, movement=np.nan) if still else segment
        own = [self.gyro_header.index(self.header[at]) for at in columns] if self.gyro else []
        for stretch in self.gyro.stretches if self.gyro else ():
            for segment in roles.segments_of(stretch, own, (0,)):
                words = dict(zip(columns, segment.words.values(), strict=True))
                yield replace(segment, movement=np.nan, words=words)

    def _codes(self) -> dict[Sensor, str]:
        """Return the word of each sensor where none begins with acc or gyr, such as Android's 1 and 4."""
        words = Counter(row[self.sensor or 0].strip() for stretch in self.kind.stretches for row in stretch.rows)
        if any(word.lower().startswith(("acc", "gyr")) for word in words):
            return {}
        usable = [word for word, _ in words.most_common(MAX_SENSORS) if kind_of(" ".join(tokens(word))) != "other"]
        rows = {word: self._rows_of(re.escape(word)) for word in usable}
        return sensors.sensors_of_codes(self.header, rows, frozenset(self.columns))

    def _rows_of(self, pattern: str) -> list[np.ndarray]:
        """Return the numbers of the rows whose sensor's word matches, stretch by stretch."""
        found, wanted = [], re.compile(pattern, re.IGNORECASE)
        for stretch in self.kind.stretches:
            own = [bool(wanted.fullmatch(row[self.sensor or 0].strip())) for row in stretch.rows]
            found += [stretch.numbers[own]] if any(own) else []
        return found

    def _has_words(self, at: int) -> bool:
        """Whether a column holds words, or few numbers that seldom change, as codes of persons and activities do."""
        no_word = bool(self.header) and (not self.header[at] or is_time(self.header[at]))
        if no_word or (self.gyro and self.header[at] not in self.gyro_header):
            return False
        texts = [[row[at].strip() for row in stretch.rows] for stretch in self.kind.stretches]
        changes = sum(a != b for column in texts for a, b in pairwise(column))
        rows, distinct = sum(map(len, texts)), len({text for column in texts for text in column if text})
        finite = [np.isfinite(stretch.numbers[:, at]).mean() for stretch in self.kind.stretches if stretch.rows]
        number = np.mean(finite) > 0.5
        if number and not self.roles.get(at):
            whole = all(WHOLE.fullmatch(text) for column in texts for text in column)
            most = 0 if self.header and NO_CODE.search(self.header[at]) else MAX_CODES if self.header else MAX_LABELS
            return whole and 1 < distinct <= most and changes <= rows / 50
        return 0 < distinct <= max(MAX_LABELS, rows / 50) and bool(self.roles.get(at) or changes <= rows / 4)

    def _together(self) -> dict[Sensor, list[np.ndarray]]:
        """Return the numbers of the longest stretch and of others from everywhere."""
        stretches = self.kind.stretches
        few = [stretches[at * len(stretches) // sensors.MAX_JUDGED] for at in range(sensors.MAX_JUDGED)]
        longest = max(stretches, key=lambda stretch: len(stretch.rows))
        numbers = [stretch.numbers for stretch in dict.fromkeys([longest, *few])]
        return {"acc": numbers, "gyro": numbers}

    def _apart(self) -> dict[Sensor, list[np.ndarray]]:
        """Return the numbers of each sensor where its files' names or a column tell them apart; else nothing."""
        parts: dict[Sensor, list[np.ndarray]] = {"acc": [], "gyro": []}
        for sensor, numbers in parts.items():
            code = self.codes.get(sensor)
            if self.by_file:
                every = [*self.kind.stretches, *(self.gyro.stretches if self.gyro else ())]
                numbers += [stretch.numbers for stretch in every if _sensor_word(stretch.name) == sensor[:3]]
            elif code is not None:
                numbers += self._rows_of(re.escape(code))
            elif self.sensor is not None:
                numbers += self._rows_of(rf"{sensor[:3]}.*")
        return parts if all(parts.values()) else {}


def _describe_words(table: _Table, reading: sensors.TableReading, found: Draft) -> dict[str, Guess]:
    """Guess who did what: write `files`, and return the columns that say it."""
    columns = [at for at in table.columns if at != table.sensor and at not in reading.used]
    depth = roles.commonest_depth(table.names)
    every = table.segments(columns, reading.acc.columns)
    segments = list(itertools.islice((segment for segment in every if segment.name.count("/") == depth), MAX_SEGMENTS))
    chosen = roles.assign(segments, table.header, columns)
    levels = {"client": chosen.client, "session": chosen.session, "activity": chosen.activity}
    words = {} if table.sensor is None else {"sensor": Guess(table.name(table.sensor), True, "by its name")}
    for role, level in levels.items():
        if level is not None and level.column is not None:
            named = level.role == role
            why = "by its name" if named else f"its words {'recur' if role == 'client' else 'vary'} so"
            words[role] = Guess(table.name(level.column), named and role in chosen.sure, why)
    paths = {role: level for role, level in levels.items() if level is not None and level.column is None}
    names = [segment.name for segment in segments]
    if "client" in paths and (unit := roles.units(names, list(paths.values()))):
        paths["client_2"] = unit
        listed = ", ".join(sorted(unit.distinct))
        found.remarks.append(
            f"{listed} contain the same recordings, probably units worn at the same time; each is a client"
        )
    pattern = roles.write_pattern(names, paths, by_sensor=table.by_file)
    groups = re.findall(r"\(\?P<(\w+)>", pattern)
    missing = " and the ".join(role for role in ("client", "activity") if levels[role] is None)
    why = f"{', '.join(groups)} by their names" if groups else "names say nothing about the rows"
    found.guesses["files"] = Guess(pattern, False, f"{why}; nothing names the {missing}" if missing else why)
    if chosen.client is None and "activity" in paths:
        reason = "no client found: all files count as one person's"
        words["client"] = Guess({"fixed": "one person"}, False, reason)
    return words


def _sensor_word(name: str) -> str | None:
    word = re.search(r"(?:^|[/_\-. ])(acc|gyr)", name, re.IGNORECASE)
    return word and word[1].lower()


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
    time = reading.time
    if time.column is not None:
        keys = {"column": table.name(time.column), "unit": time.unit}
        found.guesses["time"] = Guess(keys, "time" in reading.sure, time.why)
        return
    for at in range(len(table.kind.layout.rows[0])):
        if any(np.isfinite(stretch.numbers[:, at]).any() for stretch in table.kind.stretches):
            continue
        texts = [row[at].strip() for stretch in table.kind.stretches for row in (stretch.rows[0], stretch.rows[-1])]
        form = _date_format(texts)
        if is_time(table.header[at]) if table.header else form or _are_dates(texts, None):
            date = {"column": table.name(at), "unit": DATE, **({"format": form} if form else {})}
            why = "texts; check that the day comes before the month" if form else "texts; set format if not ISO 8601"
            found.guesses["time"] = Guess(date, False, why)
            return
    first, rate_hz = _stated_rate(table.kind)
    if rate_hz is not None:
        found.guesses["skip_lines"] = Guess(first, False, "the first lines hold a time and a rate")
        found.guesses["rate_hz"] = Guess(rate_hz, False, "the rate stated above the rows")
        return
    stated = [hz for hz in table.kind.stated_hz if hz and sensors.MIN_HZ <= hz <= sensors.MAX_HZ]
    if stated:
        rates = " and ".join(f"{hz:g}" for hz in stated)
        why = f"the lines above the rows state {rates} Hz{'; describe these files apart' if len(stated) > 1 else ''}"
        found.guesses["rate_hz"] = Guess(stated[0], False, why)
        return
    clock = next(filter(is_time, table.header), None)
    odd = f" {clock!r} gives none from {sensors.MIN_HZ:g} to {sensors.MAX_HZ:g} Hz in any unit" if clock else ""
    found.guesses["rate_hz"] = Guess(time.rate_hz, False, time.why + odd)


def _stated_rate(kind: FileKind) -> tuple[int, float | None]:
    """Return how many lines stand before the rows, and the rate that these state, as Empatica's E4 writes both.

    The first line holds the time since 1970 in each column, the second one the rate.
    """
    starts = {stretch.name: stretch.numbers[:2] for stretch in reversed(kind.stretches) if len(stretch.rows) > 2}
    heads = np.array(list(starts.values()))
    if kind.layout.header or not len(heads) or not (heads == heads[:, :, :1]).all():
        return 0, None
    times, rates = heads[:, 0, 0], heads[:, 1, 0]
    since_1970 = (times > sensors.SINCE_2000) & (times < sensors.SINCE_2100)
    stated = since_1970.all() and len({*rates}) == 1 and sensors.MIN_HZ <= rates[0] <= sensors.MAX_HZ
    return (2, float(rates[0])) if stated else (0, None)


def _date_format(texts: Sequence[str]) -> str | None:
    """Return the form in which dates are written; None if they are ISO 8601, or of no known form.

    Where the month may stand before the day, it is the form by which the recordings last least.
    """
    forms = (*(f"{day} {clock}" for day in DAYS for clock in CLOCKS), GENEACTIV)
    fitting = (form for form in forms if _are_dates(texts, form))
    return min(fitting, key=lambda form: _lasting(texts, form), default=None)


def _lasting(texts: Sequence[str], form: str) -> timedelta:
    """Return how long the recordings last, of which each text in two is the first time and its neighbor the last."""
    times = [datetime.strptime(text, form) for text in texts]
    return sum((abs(last - first) for first, last in zip(times[::2], times[1::2], strict=True)), timedelta())


def _are_dates(texts: Sequence[str], form: str | None) -> bool:
    """Whether all texts are dates of a form, or ISO 8601."""
    try:
        return all(datetime.strptime(text, form) if form else datetime.fromisoformat(text) for text in texts)
    except ValueError:
        return False


def _describe_sensors(table: _Table, reading: sensors.TableReading, found: Draft) -> None:
    acc, gyro, columns = reading.acc, reading.gyro, table.of_sensors
    found.guesses["acceleration"] = _convention(table.header, reading)
    named = "by their names; " if columns.named.get(acc.columns, "xyz") != "xyz" else ""
    sure = "acc" in reading.sure and acc.has_gravity
    of = {sensor: {"sensor": code} for sensor, code in table.codes.items()}
    found.guesses["acc"] = Guess(acc.keys(table.name) | of.get("acc", {}), sure and not of, named + acc.why)
    if gyro.columns:
        where = f"in {'files' if table.by_file else 'rows'} of its own; " if columns.apart else ""
        keys = gyro.keys(lambda at: table.name(at, "gyro")) | of.get("gyro", {}) | _own_time(table, reading)
        found.guesses["gyro"] = Guess(keys, "gyro" in reading.sure, where + gyro.why)
    else:
        found.remarks.append("no gyroscope was found: its channels will be zero")
    spare = [candidate for candidate, _ in columns.candidates if not {*acc.used, *gyro.used} & {*candidate}]
    if spare := spare[:: 1 if table.header else 3]:
        listed = "; ".join(" ".join(str(table.name(at)) for at in candidate) for candidate in spare)
        found.remarks.append(f"columns that are not used, perhaps further sensors: {listed}")


def _own_time(table: _Table, reading: sensors.TableReading) -> dict[str, Any]:
    """Return the column of the gyroscope's times, where its files call it otherwise, or a column has its words."""
    if reading.time.column is None or not table.header:
        return {}
    if table.gyro:
        own = next((at for at, name in enumerate(table.gyro_header) if is_time(name)), None)
        shared = table.header[reading.time.column] in table.gyro_header
        return {} if own is None or shared else {"time": table.name(own, "gyro")}
    shown = {*tokens(table.header[reading.gyro.columns[0]])} - {*tokens(table.header[reading.acc.columns[0]])}
    alike = [at for at, name in enumerate(table.header) if is_time(name) and shown & {*tokens(name)}]
    own = next((at for at in alike if at != reading.time.column and not table.of_sensors.apart), None)
    return {} if own is None else {"time": table.name(own)}


def _convention(names: Sequence[str], reading: sensors.TableReading) -> Guess:
    """Guess which way accelerations point: names and whether there is gravity tell it, its sign no number does."""
    if any("useracceleration" in "".join(tokens(name)) for name in names):  # CoreMotion's word
        return Guess("gravity points down", True, "Apple's names of the columns")
    if reading.acc.add and any("rotationrate" in "".join(tokens(name)) for name in names):
        return Guess("gravity points down", False, "CoreMotion of Apple calls its columns so")
    if not reading.acc.has_gravity:
        why = "|acceleration| stays near no value, and is near 0 at rest"
        return Guess("without gravity", "gravity" in reading.sure, why)
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
    found.clients = sorted({client for report in reports if not report.problem for client in report.clients})
    found.problems = [report.problem for report in reports if report.problem]
    found.remarks += dict.fromkeys(odd_words(reports))
    if len(found.problems) == len(reports):
        found.remarks.append("these lines can't read any file, for the reasons below")
        found.guesses = {key: guess._replace(sure=False) for key, guess in found.guesses.items()}
    rates = sorted(report.rate_hz for report in reports if report.rate_hz)
    if rates and described.time is not None:
        found.remarks.append(f"{rates[len(rates) // 2]:.4g} Hz; {len(reports) - len(found.problems)} files were read")


def _write_labels(reports: Sequence[FileReport], found: Draft) -> None:
    counted: Counter[str] = sum((report.labels for report in reports), Counter())
    del counted[UNLABELLED_NAME]
    spellings: dict[str, list[str]] = defaultdict(list)
    for word in sorted(counted, key=lambda word: (-counted[word], not word.islower(), word)):
        spellings[same_word(word)].append(word)
    labels = sorted(words[0] for words in spellings.values())
    for first, *others in spellings.values():
        if others:
            found.remarks.append(f"{', '.join(map(repr, others))} count as {first!r}: labels ignore case and blanks")
    if labels and len(labels) <= MAX_LABELS:
        why = "as the files spell them; labels.map merges some, labels.ignore leaves some out"
        found.guesses["labels"] = Guess(labels, False, why)
    elif labels:
        found.remarks.append(
            f"{len(labels)} words are taken as activities, such as {labels[0]!r}: check that this is the right place"
        )
    else:
        found.remarks.append('no activities found: add labels = ["…"] and activity = { fixed = "…" } or a group')
