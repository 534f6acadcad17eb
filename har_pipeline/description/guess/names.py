"""What the names of files and folders say: the regular expression with its named groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from har_pipeline.description.guess.columns import Guess

HINTS = {
    "client": re.compile(r"(subject|subj|sub|user|person|participant|proband|volunteer|client|patient|s|sa|se|p|u|id)"),
    "session": re.compile(r"(trial|run|session|exp|experiment|rec|recording|rep|take|r|t)"),
}
ACTIVITIES = re.compile(
    r"walk|wlk|run|jog|sit|std|stand|lying|lay|stair|ups|dws|climb|cycl|bik|jump|fall|idle|rest|still|driv|turn|climb|"
    r"danc|step|hop|swim|row|squat|sleep",
    re.IGNORECASE,
)
MANNERS = re.compile(r"up|down|slow|fast|quick|normal|left|right", re.IGNORECASE)
"""Words that say how something is done, not who does it."""
SENSORS = re.compile(r"(?:acc|gyr)[a-z]*\d*", re.IGNORECASE)
PART = re.compile(r"([_\-. ]+)")
WORD = re.compile(r"([A-Za-z]*)(\d*)$")


def guess_files(names: Sequence[str], wanted: Collection[str]) -> Guess:
    """Write a regular expression that matches the names; `wanted` are the groups that no column gives."""
    depth = Counter(name.count("/") for name in names).most_common(1)[0][0]
    paths = [name.split("/") for name in names if name.count("/") == depth]
    left, parts = set(wanted), []
    levels = list(zip(*paths, strict=True))
    # where activities are known by their words, or by a column, `anna` is none of them, but who did it
    acting = any(all(ACTIVITIES.search(value) for value in values) for values in levels)
    word = "activity" if "activity" in left and not acting else "client"
    for level, values in enumerate(levels):
        parts.append(_component(values, left, word, last=level == depth))
    if "client" in left and depth > 0 and len({path[0] for path in paths}) > 1 and "(?P" not in parts[0]:
        parts[0] = "(?P<client>[^/]+)"
        left.discard("client")
    pattern = "/".join(parts)
    missing = ", ".join(name for name in ("client", "activity") if name in left)
    found = re.findall(r"\(\?P<(\w+)>", pattern)
    why = f"{', '.join(found)} by their names" if found else "names say nothing of the rows"
    return Guess(pattern, False, why + (f"; {missing} not found in them" if missing else ""))


def _component(values: Sequence[str], left: set[str], word: str, *, last: bool) -> str:
    """Write one folder's or file's part of the pattern, and take from `left` what it gives; `word`: see `_word`."""
    ending = ""
    if last:
        suffixes = {_suffix(value) for value in values}
        ending = re.escape(suffixes.pop()) if len(suffixes) == 1 else r"\.[^/]+"
        values = [value.removesuffix(".gz").rpartition(".")[0] or value for value in values]
    pieces = [PART.split(value) for value in values]
    plain = not any(SENSORS.fullmatch(word) or re.search(r"\d", word) for piece in pieces for word in piece)
    # walking_slow and up_stairs are what was done, and of anna_walking the second word
    plain = plain and any(ACTIVITIES.search(piece[0]) or MANNERS.match(piece[0]) for piece in pieces)
    if last and "activity" in left and plain and all(ACTIVITIES.search(value) for value in values):
        return _whole(values, left) + ending
    if len({tuple(piece[1::2]) for piece in pieces}) > 1 or len({_shape(piece) for piece in pieces}) > 1:
        return _whole(values, left) + ending
    return (
        "".join(
            re.escape(column[0]) if at % 2 else _word(column, left, word)
            for at, column in enumerate(zip(*pieces, strict=True))
        )
        + ending
    )


def _suffix(name: str) -> str:
    gz = ".gz" if name.endswith(".gz") else ""
    return PurePosixPath(name.removesuffix(".gz")).suffix + gz


def _shape(pieces: Sequence[str]) -> tuple[bool, ...]:
    return tuple(bool(WORD.match(piece)) for piece in pieces[::2])


def _whole(values: Sequence[str], left: set[str]) -> str:
    """A name that is cut differently from file to file is one word."""
    acting = sum(bool(ACTIVITIES.search(value)) for value in values)
    if "activity" in left and acting >= len(values) / 2:
        left.discard("activity")
        return "(?P<activity>[^/]+)"
    return "[^/]+"


def _word(values: Sequence[str], left: set[str], word: str) -> str:
    """Write what stands between two marks: a letter or word, a number, or both; varying words are the group `word`."""
    matches = [WORD.match(value) for value in values]
    if not all(matches):
        return _whole(values, left)
    prefixes = {match[1] for match in matches if match}
    numbered = all(match[2] for match in matches if match)
    varying = len(set(values)) > 1
    if "sensor" in left and all(SENSORS.fullmatch(value) for value in values) and varying:
        left.discard("sensor")
        return r"(?P<sensor>[A-Za-z]+\d*)"
    for group in ("client", "session"):
        if group in left and numbered and all(HINTS[group].fullmatch(prefix.lower()) for prefix in prefixes):
            left.discard(group)
            if len(prefixes) == 1 and len(next(iter(prefixes))) > 2:
                return rf"{re.escape(prefixes.pop())}(?P<{group}>\d+)"
            return rf"(?P<{group}>[A-Za-z]+\d+)"
    acting = all(ACTIVITIES.search(value) for value in values)
    group = "activity" if acting else word
    if group in left and (acting or (varying and all(prefixes))):
        left.discard(group)
        return rf"(?P<{group}>{'[A-Za-z]+' if not any(m[2] for m in matches if m) else r'[A-Za-z]+[0-9]*'})"
    if not varying:
        return re.escape(values[0])
    free = next((name for name in ("session", "client") if name in left and numbered and not any(prefixes)), None)
    if free:
        left.discard(free)
        return rf"(?P<{free}>\d+)"
    return r"\d+" if not any(prefixes) else "[A-Za-z0-9]+"
