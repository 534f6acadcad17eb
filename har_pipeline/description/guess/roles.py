"""Who did what, by one joint score over columns, folders and parts of file names.

The activity is the level whose words vary within a person and explain how much a body moves; a person's words recur
over several activities, and do not. Words that are known (walking, subject3) count beside that.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from har_pipeline.description.guess.headers import (
    ACTIVITY_WORD,
    CLIENT_WORD,
    SENSOR_WORD,
    SESSION_WORD,
    WORD_NAMES,
    tokens,
)

PART = re.compile(r"([_\-. ]+)")
PIECE = r"[^/_\-. ]+"
MANNER = re.compile(r"(up|down|slow|fast|quick|slowly|normal|left|right|stairs)$", re.IGNORECASE)
MAX_WORDS = 100
"""Activities of more words are none."""
MARGIN = 2.5
NONE = "none"


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


@dataclass(frozen=True)
class Segment:
    """Rows of one file in which no word changes: how strongly they move (the logarithm), and each column's word."""

    name: str
    movement: float
    words: dict[int, str]


@dataclass(frozen=True)
class Roles:
    """The levels of activity, client and session; `sure` says whether no others come near."""

    activity: WordLevel | None
    client: WordLevel | None
    sessions: WordLevel | None
    sure: bool


def assign(segments: Sequence[Segment], header: Sequence[str], columns: Sequence[int]) -> Roles:
    """Choose the best pair of levels for activity and client, and what is left over for the session."""
    levels = [*_of_columns(segments, header, columns), *_of_paths([segment.name for segment in segments])]
    movement = np.array([segment.movement for segment in segments])
    activities = [(None, 0.0), *((level, score) for level in levels if (score := _activity(level, movement)) > -3)]
    clients = [(None, 0.0), *((level, score) for level in levels if (score := _client(level, movement)) > -3)]
    scored = [
        (activity_score + client_score + _pair(activity, client), activity, client)
        for (activity, activity_score), (client, client_score) in itertools.product(activities, clients)
        if activity is None or client is None or not activity.overlaps(client)
    ]
    total, activity, client = max(scored, key=lambda each: each[0])
    near = [each for each in scored if each[0] > total - MARGIN and each[1:] != (activity, client)]
    chosen = [level for level in (activity, client) if level]
    left = (level for level in levels if _is_session(level) and not any(map(level.overlaps, chosen)))
    return Roles(activity, client, next(left, None), not near)


def _of_columns(segments: Sequence[Segment], header: Sequence[str], columns: Sequence[int]) -> list[WordLevel]:
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
    return [[PART.split(part) for part in level] for level in levels]


def _stem(name: str) -> str:
    return name.removesuffix(".gz").rpartition(".")[0] or name


def _share(pattern: re.Pattern[str], words: set[str], *, whole: bool = False) -> float:
    return sum(bool(pattern.fullmatch(word) if whole else pattern.search(word)) for word in words) / len(words)


def _activity(level: WordLevel, movement: np.ndarray) -> float:
    words = set(level.words)
    if len(words) > MAX_WORDS or words == {""}:
        return -9.0
    known = _share(ACTIVITY_WORD, words)
    score = _named(level, "activity") + (4.0 * known if known >= 0.5 else 0.0)
    score -= 3.0 * _share(CLIENT_WORD, words, whole=True) + 3.0 * _share(SESSION_WORD, words, whole=True)
    score -= 5.0 * _share(SENSOR_WORD, words) + 1.5 * _share(re.compile(r"\d+"), words, whole=True)
    if level.column is None:
        count = 1 + sum(bool(PART.fullmatch(part)) for part in PART.split(level.words[0]))
        odd = any(re.search(r"\d", piece) for word in words for piece in PART.split(word)[::2]) and count > 1
        score += -1.0 if odd else 0.1 * count
    if len(words) == 1:
        return score if known or level.name else -9.0
    return score + 3.0 * _explained(level.words, movement)


def _client(level: WordLevel, movement: np.ndarray) -> float:
    words = set(level.words)
    if words == {""} or any(len(word) > 50 for word in words):
        return -9.0
    like_a_person, numbers = _share(CLIENT_WORD, words, whole=True), _share(re.compile(r"\d+"), words, whole=True)
    letters = _share(re.compile(r"[^\W\d_]+"), words, whole=True)
    score = _named(level, "client") + 3.0 * like_a_person + 0.5 * numbers + 1.0 * letters
    score -= 4.0 * _share(ACTIVITY_WORD, words) + 2.0 * _share(SESSION_WORD, words, whole=True)
    score -= 5.0 * _share(SENSOR_WORD, words) + 2.0 * _share(MANNER, words, whole=True)
    if level.column is None:
        score -= 0.1 * level.spans[0][0] + 0.5 * sum(bool(PART.fullmatch(part)) for part in PART.split(level.words[0]))
    elif not level.name or not _named(level, "client"):
        score -= 1.0
    if len(words) == 1:
        return score if like_a_person == 1 or _named(level, "client") > 0 else -9.0
    return score - 3.0 * _explained(level.words, movement)


def _named(level: WordLevel, role: str) -> float:
    if not level.name:
        return 0.0
    low = "_".join(tokens(level.name))
    said = next((name for name, pattern in WORD_NAMES.items() if pattern.match(low)), None)
    return 5.0 if said == role else -6.0 if said else -0.5


def is_named(level: WordLevel, role: str) -> bool:
    """Whether a column's name is that of a role."""
    return _named(level, role) > 0


def _pair(activity: WordLevel | None, client: WordLevel | None) -> float:
    """Score whether the activity varies within persons, and persons within the activity."""
    if activity is None or client is None:
        return 0.0
    within, across = defaultdict(set), defaultdict(set)
    for what, who in zip(activity.words, client.words, strict=True):
        within[who].add(what)
        across[what].add(who)
    varying = float(np.mean([len(each) > 1 for each in within.values()]))
    shared = float(np.mean([len(each) > 1 for each in across.values()])) if len(within) > 1 else 0.0
    if not varying and len(within) > 1:
        return -4.0
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


def _is_session(level: WordLevel) -> bool:
    if level.column is not None:
        return bool(level.name) and WORD_NAMES["session"].match("_".join(tokens(level.name))) is not None
    return all(SESSION_WORD.fullmatch(word) for word in level.words)


def write_pattern(names: Sequence[str], chosen: dict[str, WordLevel], *, by_sensor: bool) -> str:
    """Write a regular expression that matches the names, all of one depth, with the chosen levels as its groups."""
    parts = []
    for depth, level in enumerate(pieces(names)):
        own = {role: each for role, each in chosen.items() if each.column is None and each.depth == depth}
        parts.append(_component(level, own, by_sensor=by_sensor))
    endings = {name[len(_stem(name)) :] for name in (PurePosixPath(name).name for name in names)}
    ending = re.escape(endings.pop()) if len(endings) == 1 else r"\.[^/]+"
    return "/".join(parts) + ending


def _component(level: list[list[str]], own: dict[str, WordLevel], *, by_sensor: bool) -> str:
    """Write one folder or the file's name: groups, and between them what no group takes."""
    text, done = "", [0] * len(level)
    for role, each in sorted(own.items(), key=lambda item: item[1].spans[0]):
        begins, ends = zip(*each.spans, strict=True)
        text += _gap(
            [part[max(0, 2 * at - 1) : 2 * to] for part, at, to in zip(level, done, begins, strict=True)], by_sensor
        )
        single = all(end - begin == 1 for begin, end in each.spans)
        text += _group(role, each.words if single else ())
        done = list(ends)
    return text + _gap([part[max(0, 2 * at - 1) :] for part, at in zip(level, done, strict=True)], by_sensor)


def _gap(parts: list[list[str]], by_sensor: bool) -> str:
    """Write pieces and the marks between them."""
    if len({len(part) for part in parts}) > 1:
        return "[^/]+" if all(parts) else "[^/]*"
    text = ""
    for column in zip(*parts, strict=True):
        if len(set(column)) == 1:
            text += re.escape(column[0])
        elif by_sensor and all(SENSOR_WORD.fullmatch(word) for word in column):
            text += r"(?P<sensor>[A-Za-z]+\d*)"
        elif all(PART.fullmatch(word) for word in column):
            text += r"[_\-. ]+"
        else:
            text += r"\d+" if all(word.isdecimal() for word in column) else PIECE
    return text


def _group(role: str, words: Sequence[str]) -> str:
    if not words:
        return f"(?P<{role}>[^/]+)"
    matches = [re.fullmatch(r"([A-Za-z]*)(\d+)", word) for word in words]
    prefixes = {match[1] for match in matches if match}
    if role == "client" and all(matches) and len(prefixes) == 1 and len(prefix := prefixes.pop()) > 2:
        return rf"{re.escape(prefix)}(?P<client>\d+)"
    return f"(?P<{role}>{PIECE})"


def commonest_depth(names: Sequence[str]) -> int:
    """Return how many folders most of the names lie in."""
    return Counter(name.count("/") for name in names).most_common(1)[0][0]
