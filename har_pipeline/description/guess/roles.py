"""Finds clients and activities by one joint score over columns, folders and parts of file names.

The activity is the level whose words vary within a person and explain how much a body moves. A person's words recur
over several activities and don't explain it. Known words (walking, subject3) count too.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from har_pipeline.description.guess.headers import (
    ACTIVITY_WORD,
    CLIENT_WORD,
    SENSOR_WORD,
    SESSION_WORD,
    choose,
    role_of,
)
from har_pipeline.description.guess.stretches import RowStretch

PART = re.compile(r"([_\-. ]+)")
PIECE, MARK = r"[^/_\-. ]+", r"[_\-. ]+"
COMPOUND = re.compile(r"([_\-. ]+|(?<=\d)(?=[A-Za-z]))")
NUMBERED = re.compile(r"[A-Za-z]{1,4}\d+")
"""Words of a compound such as S01R02, which no mark parts."""
UNIT_WORD = re.compile(
    r"(u|unit|imu|sensor|device|dev|node|board|watch|phone|mote|tag)?\d+|left|right|l|r|"
    r"(left|right|l|r)?_?(wrist|ankle|hip|waist|chest|belt|pocket|thigh|shin|arm|forearm|upperarm|head|back|foot|hand|"
    r"watch|phone)",
    re.IGNORECASE,
)
"""How those are called that one person wears at a time."""
SMALL = re.compile(r"\d{1,3}")
MAX_UNITS = 12
MAX_WORDS, MAX_CHARS = 100, 50
"""Activities of more words, and persons of longer ones, are none."""


def _is_visit(word: str) -> bool:
    """Whether each of several pieces is a person, a session or a number, as in S01R02."""
    parts = COMPOUND.split(word)[::2]
    return len(parts) > 1 and all(
        CLIENT_WORD.fullmatch(part) or SESSION_WORD.fullmatch(part) or part.isdecimal() for part in parts
    )


WORD_FORMS: Mapping[str, Callable[[str], object]] = {
    "activity": ACTIVITY_WORD.search,
    "client": CLIENT_WORD.fullmatch,
    "session": SESSION_WORD.fullmatch,
    "sensor": SENSOR_WORD.search,
    "visit": _is_visit,
    "number": re.compile(r"\d+").fullmatch,
    "moment": re.compile(r"1\d{9}|1\d{12}|20[0-4]\d[01]\d[0-3]\d([_-]?\d{4,6})?").fullmatch,
    "letters": re.compile(r"[^\W\d_]+").fullmatch,
    "manner": re.compile(r"up|down|slow|fast|quick|slowly|normal|left|right|stairs", re.IGNORECASE).fullmatch,
}
"""What a word can look like."""
EVIDENCE: Mapping[str, Mapping[str, float]] = {
    "activity": {
        "activity": 4.0, "client": -3.0, "session": -3.0, "visit": -4.0, "sensor": -5.0, "number": -1.5,
        "moment": -5.0, "movement": 3.0,
    },
    "client": {
        "client": 3.0, "letters": 1.0, "number": 0.5, "activity": -4.0, "session": -2.0, "sensor": -5.0, "manner": -2.0,
        "moment": -5.0, "movement": -3.0,
    },
}  # fmt: skip
"""How much it says for a role that all words of a level look like that, or explain all of the movement."""
HOPELESS = -3.0


@dataclass(frozen=True)
class WordLevel:
    """Where words stand: in a `column`, counted from 0, or in pieces of a path's part at `depth`.

    `words` are those of every segment, `spans` the pieces from and to which they reach in every segment's path.
    """

    words: tuple[str, ...]
    column: int | None = None
    name: str = ""
    depth: int = 0
    spans: tuple[tuple[int, int], ...] = ()

    def overlaps(self, other: WordLevel) -> bool:
        """Whether two levels share a column or a piece."""
        if self.column is not None or other.column is not None:
            return self.column == other.column
        pairs = zip(self.spans, other.spans, strict=True)
        return self.depth == other.depth and any(begin < to and since < end for (begin, end), (since, to) in pairs)

    @cached_property
    def role(self) -> str | None:
        """The role that its column's name states."""
        return role_of(self.name)

    @cached_property
    def distinct(self) -> set[str]:
        """Each of its words once."""
        return set(self.words)

    @cached_property
    def shares(self) -> dict[str, float]:
        """How many of its words look like what, from 0 to 1."""
        return {
            what: sum(map(bool, map(like, self.distinct))) / len(self.distinct) for what, like in WORD_FORMS.items()
        }

    @property
    def counts_visits(self) -> bool:
        """Whether its words are sessions, or persons and sessions, and none could be an activity."""
        named = self.role == "activity" or self.shares["activity"]
        return not named and 1 in (self.shares["session"], self.shares["visit"])

    @property
    def may_name_people(self) -> bool:
        """Whether its words, of letters alone, can be names: neither activities nor sensors, places or manners."""
        other = any(self.shares[what] for what in ("activity", "sensor", "manner", "session"))
        return len(self.distinct) > 1 and self.shares["letters"] == 1 and not other and not self.has_units

    @property
    def has_units(self) -> bool:
        """Whether each word is that of something that one person wears."""
        return all(map(UNIT_WORD.fullmatch, self.distinct))

    @property
    def is_session(self) -> bool:
        """Whether its name, or each of its words, is that of a session."""
        return self.role == "session" if self.column is not None else self.shares["session"] == 1


@dataclass(frozen=True)
class RowSegment:
    """Rows of one file in which no word changes: how strongly they move (the logarithm), and each column's word."""

    name: str
    movement: float
    words: dict[int, str]


def segments_of(stretch: RowStretch, columns: Sequence[int], acc: Sequence[int]) -> list[RowSegment]:
    """Cut a stretch where one of its words changes, and measure how it moves."""
    words = [tuple(row[at].strip() for at in columns) for row in stretch.rows]
    edges = [0, *(at for at in range(1, len(words)) if words[at] != words[at - 1]), len(words)]
    sizes = np.linalg.norm(stretch.numbers[:, list(acc)], axis=1)
    found = []
    for low, high in pairwise(edges):
        own = sizes[low:high][np.isfinite(sizes[low:high])]
        movement = float(np.log(own.std() + 1e-3 * own.mean() + 1e-9)) if len(own) >= 10 else np.nan
        found.append(RowSegment(stretch.name, movement, dict(zip(columns, words[low], strict=True))))
    return found


class Roles(NamedTuple):
    """The levels of activity, client and session; `sure` are the first two's roles for which no other level is near."""

    activity: WordLevel | None
    client: WordLevel | None
    session: WordLevel | None
    sure: set[str]


def assign(segments: Sequence[RowSegment], header: Sequence[str], columns: Sequence[int]) -> Roles:
    """Choose the best pair of levels for activity and client, and what is left over for the session."""
    levels = [*_of_columns(segments, header, columns), *_of_paths([segment.name for segment in segments])]
    movement = np.array([segment.movement for segment in segments])
    counters = _recording_numbers(levels, depth=segments[0].name.count("/"))
    options: dict[str, list[tuple[WordLevel | None, float]]] = {role: [(None, 0.0)] for role in EVIDENCE}
    for level in levels:
        explained = _explained(level.words, movement)
        counts = any(map(level.overlaps, counters))
        for role, scored in options.items():
            if counts and (role == "client" or level.shares["activity"] == 1):
                continue
            if (score := _score(level, role, explained)) > HOPELESS:
                scored.append((level, score))
    best, sure = choose([
        (activity_score + client_score + _pair(activity, client), {"activity": activity, "client": client})
        for (activity, activity_score), (client, client_score) in itertools.product(*options.values())
        if activity is None or client is None or not activity.overlaps(client)
    ])  # fmt: skip
    taken = [level for level in best.values() if level]
    left = (level for level in levels if level.is_session and not any(map(level.overlaps, taken)))
    return Roles(best["activity"], best["client"], next(left, None), sure)


def _recording_numbers(levels: Sequence[WordLevel], depth: int) -> list[WordLevel]:
    """Return the small integers of the files' names that count recordings, because another level names people."""
    paths = [level for level in levels if level.column is None]
    numbers = (level for level in paths if level.depth == depth and all(map(SMALL.fullmatch, level.distinct)))
    named = [level for level in paths if level.may_name_people]
    return [level for level in numbers if any(not level.overlaps(names) for names in named)]


def _of_columns(segments: Sequence[RowSegment], header: Sequence[str], columns: Sequence[int]) -> list[WordLevel]:
    names = {at: header[at] if header else "" for at in columns}
    return [WordLevel(tuple(segment.words[at] for segment in segments), at, name=names[at]) for at in columns]


def _of_paths(names: Sequence[str]) -> list[WordLevel]:
    """Return every run of pieces that all names have, counted from the front, from the end, or from both."""
    found: dict[tuple[int, tuple[tuple[int, int], ...]], WordLevel] = {}
    for depth, parts in enumerate(pieces(names)):
        counts = [len(part[::2]) for part in parts]
        ends = range(-min(counts), min(counts) + 1)
        for first, last in itertools.product(ends, ends):
            spans = tuple((first if first >= 0 else n + first, last if last > 0 else n + last) for n in counts)
            if all(begin < end for begin, end in spans):
                words = (
                    "".join(part[2 * begin : 2 * end - 1]) for part, (begin, end) in zip(parts, spans, strict=True)
                )
                found.setdefault((depth, spans), WordLevel(tuple(words), depth=depth, spans=spans))
    return list(found.values())


def pieces(names: Sequence[str]) -> list[list[list[str]]]:
    """Cut names of one depth into folders, and these into pieces with the marks between; endings are left out."""
    rows = [name.split("/") for name in names]
    last = [_stem(row[-1]) for row in rows]
    levels = [*zip(*(row[:-1] for row in rows), strict=True), last]
    return [_cut(level) for level in levels]


def _cut(level: Sequence[str]) -> list[list[str]]:
    """Cut one folder's words, or the files' names; compounds are cut where all of them are alike."""
    plain, finer = [PART.split(part) for part in level], [COMPOUND.split(part) for part in level]
    alike = {len(part) for part in plain} | {len(part) for part in finer}
    if len({len(part) for part in finer}) > 1 or len(alike) == 1:
        return plain
    tight = {at for part in finer for at in range(1, len(part), 2) if not part[at]}
    parted = (word for part in finer for at in tight for word in (part[at - 1], part[at + 1]))
    return finer if all(map(NUMBERED.fullmatch, parted)) else plain


def _stem(name: str) -> str:
    return name.removesuffix(".gz").rpartition(".")[0] or name


def _score(level: WordLevel, role: str, explained: float) -> float:
    """Return what says that a level holds a role: its name, what its words look like, its place, and the movement."""
    is_clear = len(level.distinct) > 1 or level.role == role or level.shares[role] == 1
    too_many = len(level.distinct) > MAX_WORDS if role == "activity" else max(map(len, level.distinct)) > MAX_CHARS
    if level.distinct == {""} or not is_clear or too_many or (role == "activity" and level.counts_visits):
        return HOPELESS
    named = 5.0 if level.role == role else -6.0 if level.role else -0.5 if level.name else 0.0
    signs = {**level.shares, "movement": explained}
    return named + _of_place(level, role) + sum(weight * signs[what] for what, weight in EVIDENCE[role].items())


def _of_place(level: WordLevel, role: str) -> float:
    """Prefer long runs of words without numbers for the activity, short ones further in front for the person."""
    if level.column is not None:
        return -1.0 if role == "client" and level.role != role else 0.0
    marks = len(PART.split(level.words[0])) // 2
    if role == "client":
        return -0.1 * level.spans[0][0] - 0.5 * marks
    if marks and any(map(re.compile(r"\d").search, level.distinct)):
        return -1.0
    pieces_of = [PART.split(word)[::2] for word in level.distinct]
    edges = ({word[at] for word in pieces_of} for at in (0, -1) if marks and len(pieces_of) > 1)
    idle = sum(len(edge) == 1 and not any(map(WORD_FORMS["manner"], edge)) for edge in edges)
    return 0.1 * (marks + 1) - 0.3 * idle


def _pair(activity: WordLevel | None, client: WordLevel | None) -> float:
    """Score whether the activity varies within persons, and persons within the activity."""
    if activity is None or client is None:
        return 0.0
    within, across = defaultdict(set), defaultdict(set)
    for what, who in zip(activity.words, client.words, strict=True):
        within[who].add(what)
        across[what].add(who)
    varying = float(np.mean([len(activities) > 1 for activities in within.values()]))
    shared = float(np.mean([len(clients) > 1 for clients in across.values()])) if len(within) > 1 else 0.0
    if not varying and len(within) > 1:
        return -4.0 if len(across) > 1 or client.shares["number"] else 3.0  # of one activity, people move differently
    return 3.0 * varying + 1.0 * shared


def _explained(words: Sequence[str], movement: np.ndarray) -> float:
    """Return the share of the movement's variance that the words explain, less what chance would (adjusted R²)."""
    usable = np.isfinite(movement)
    codes = np.unique(np.array(words)[usable], return_inverse=True)[1]
    values, groups = movement[usable], int(codes.max(initial=-1)) + 1
    if len(values) <= groups or groups < 2 or not values.var():
        return 0.0
    means = np.bincount(codes, values) / np.bincount(codes)
    unexplained = float(((values - means[codes]) ** 2).sum() / ((values - values.mean()) ** 2).sum())
    return max(0.0, 1 - unexplained * (len(values) - 1) / (len(values) - groups))


def write_pattern(names: Sequence[str], chosen: dict[str, WordLevel], *, by_sensor: bool) -> str:
    """Write a regular expression that matches the names, all of one depth, with the chosen levels as its groups."""
    parts = []
    for depth, level in enumerate(pieces(names)):
        own = {role: place for role, place in chosen.items() if place.column is None and place.depth == depth}
        parts.append(_component(level, own, by_sensor=by_sensor))
    endings = {name[len(_stem(name)) :] for name in (PurePosixPath(name).name for name in names)}
    ending = re.escape(endings.pop()) if len(endings) == 1 else r"\.[^/]+"
    return _numbered("/".join(parts)) + ending


def _numbered(pattern: str) -> str:
    """Give the second place of a group its number: Python's expressions name a group once."""
    counted: Counter[str] = Counter()

    def named(group: re.Match[str]) -> str:
        counted[group[1]] += 1
        return f"(?P<{group[1]}_{counted[group[1]]}>" if counted[group[1]] > 1 else group[0]

    return re.sub(r"\(\?P<(\w+)>", named, pattern)


def _component(level: list[list[str]], own: dict[str, WordLevel], *, by_sensor: bool) -> str:
    """Write one folder or the file's name: groups, and between them what no group takes."""
    text, done = "", [0] * len(level)
    for role, word_level in sorted(own.items(), key=lambda item: item[1].spans[0]):
        begins, ends = zip(*word_level.spans, strict=True)
        before = [part[max(0, 2 * at - 1) : 2 * to] for part, at, to in zip(level, done, begins, strict=True)]
        text += _gap(before, by_sensor=by_sensor, ends_with_mark=True)
        edges = zip(level, begins, ends, strict=True)
        tight = any("" in (*part[max(2 * at - 1, 0) : 2 * at], *part[2 * to - 1 : 2 * to]) for part, at, to in edges)
        text += _group(role, word_level, tight=tight)
        done = list(ends)
    rest = [part[max(0, 2 * at - 1) :] for part, at in zip(level, done, strict=True)]
    return text + _gap(rest, by_sensor=by_sensor)


def _gap(parts: list[list[str]], *, by_sensor: bool, ends_with_mark: bool = False) -> str:
    """Write pieces and the marks between them; the mark before a group keeps it whole."""
    if len({len(part) for part in parts}) > 1:
        if ends_with_mark:
            return rf"[^/]*{MARK}" if all(parts) else rf"(?:[^/]*{MARK})?"
        return "[^/]+" if all(parts) else "[^/]*"
    text = ""
    for column in zip(*parts, strict=True):
        if len(set(column)) == 1:
            text += re.escape(column[0])
        elif by_sensor and all(SENSOR_WORD.fullmatch(word) for word in column):
            text += r"(?P<sensor>[A-Za-z]+\d*)"
        elif all(PART.fullmatch(word) for word in column):
            text += MARK
        else:
            text += r"\d+" if all(word.isdecimal() for word in column) else PIECE
    return text


def _group(role: str, level: WordLevel, *, tight: bool) -> str:
    """Write the words of a level: of so many pieces each, or of any number; `tight`: no mark parts it from others."""
    if tight:
        words = {end - begin for begin, end in level.spans}
        return rf"(?P<{role}>[A-Za-z]+\d+)" if words == {1} else rf"(?P<{role}>(?:[A-Za-z]+\d+)+)"
    marks = {len(PART.split(word)) // 2 for word in level.words}
    if marks != {0}:
        more = f"{PIECE}(?:{MARK}{PIECE}){{{max(marks)}}}"
        return f"(?P<{role}>{more if len(marks) == 1 else '[^/]+'})"
    matches = [re.fullmatch(r"([A-Za-z]*)(\d+)", word) for word in level.words]
    prefixes = {match[1] for match in matches if match}
    if role == "client" and all(matches) and len(prefixes) == 1 and len(prefix := prefixes.pop()) > 2:
        return rf"{re.escape(prefix)}(?P<client>\d+)"
    return f"(?P<{role}>{PIECE})"


def units(names: Sequence[str], taken: Sequence[WordLevel]) -> WordLevel | None:
    """Find a folder that tells apart what one person wears at a time: every recording is in each of its folders."""
    rows = [tuple(name.split("/")) for name in names]
    for depth in range(len(rows[0]) - 1):
        words = [row[depth] for row in rows]
        if any(level.column is None and level.depth == depth for level in taken):
            continue
        others = {word: {row[:depth] + row[depth + 1 :] for row in rows if row[depth] == word} for word in {*words}}
        first = next(iter(others.values()))
        alike = all(map(UNIT_WORD.fullmatch, others)) and all(other == first for other in others.values())
        if 1 < len(others) <= MAX_UNITS and alike:
            spans = tuple((0, len(part[::2])) for part in pieces(names)[depth])
            return WordLevel(tuple(words), depth=depth, spans=spans)
    return None


def commonest_depth(names: Sequence[str]) -> int:
    """Return how many folders most of the names lie in."""
    return Counter(name.count("/") for name in names).most_common(1)[0][0]
