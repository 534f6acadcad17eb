"""Interprets names of columns, files and folders: sensors, axes, units, time, people and activities.

`choose` decides between interpretations: evidence for each adds up to one score, and what rivals share is sure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

WORD_NAMES = {
    "activity": re.compile(
        r"(.*_)?(a[ck]tivit\w+|t(ä|ae)tigkeit|actividad|labels?|klasse|class|gt|ground_truth|action|annotation)"
        r"(_?(id|name))?$"
    ),
    "client": re.compile(r"(.*_)?(subject|user|person|participant|volunteer|client|patient)(_?(id|name|nr|no|code))?$"),
    "session": re.compile(r"(.*_)?(session|trial|run|experiment|recording|exp|rep)(_?(id|nr|no))?$"),
    "sensor": re.compile(r"sensor(_?(type|name))?$"),
}
"""What a column holds, by its name in small letters with `_` for blanks."""
CLIENT_WORD = re.compile(
    r"(subject|subj|sub|user|person|participant|proband|volunteer|client|patient|s|sa|se|p|u|id)\d+|"
    r"(subject|subj|user|person|participant|proband|volunteer|client|patient)\d+[a-z]+",
    re.IGNORECASE,
)
SESSION_WORD = re.compile(r"(trial|run|session|exp|experiment|rec|recording|rep|take|part|r|t)\d+", re.IGNORECASE)
SENSOR_WORD = re.compile(r"(?:^|(?<=[_\-. ]))(?:acc|gyr)[a-z]*\d*(?=$|[_\-. ])", re.IGNORECASE)
ACTIVITY_WORD = re.compile(
    r"(?:^|[^a-z]|up|down)(walk|wlk|run|jog|sit|std|stand|ly|lay|lie|stair|ups|dws|climb|cycl|bik|jump|fall|idle|rest|"
    r"still|driv|turn|danc|step|hop|swim|row|squat|sleep|geh|lauf|sitz|steh|lieg|trepp|renn|fahr|spring|schlaf|"
    r"camin|corr|sent|acost|escal|salt|dorm|march|cour|assis|debout)",
    re.IGNORECASE,
)
TIME_WORDS = {"time", "timestamp", "timestamps", "ts", "t", "epoch", "date", "datetime", "clock", "elapsed", "unix"}
TIME_WORDS |= {"datum", "fecha", "tiempo", "hora", "temps", "tempo"}
UNIT_OF_TIME: Mapping[str, str | float] = {
    word: unit
    for unit, words in (
        ("s", "s sec secs second seconds sekunden segundos secondes"),
        ("ms", "ms msec msecs millis millisecond milliseconds millisekunden milisegundos millisecondes"),
        ("us", "us µs μs usec micros microsecond microseconds mikrosekunden microsegundos"),
        ("ns", "ns nsec nanos nanosecond nanoseconds nanosekunden nanosegundos"),
        (60.0, "min minute minutes minuten minutos"),
        (3600.0, "h hour hours stunden horas heures"),
    )
    for word in words.split()
}
# (a unit as headers write it, its name here)
SENSOR_UNITS = {
    "acc": (
        (re.compile(r"m ?/ ?s ?(2|/ ?s)|\bms-?2|mps2|m_s2"), "m/s2"),
        (re.compile(r"(?<![a-z])mg(?![a-z])|milli-?g"), "mg"),
        (re.compile(r"[\[(] ?g'?s? ?[\])]|(?<=[_ ])g$"), "g"),
    ),
    "gyro": (
        (re.compile(r"deg\w*[ _]*(?:/|per|p)[ _]*s\w*|° ?/ ?s|dps|grad/s|(?<![a-z])deg(?:rees?)?(?![a-z])"), "deg/s"),
        (re.compile(r"(?<![a-z])rad\w*[ _]*(?:/|per|p)?[ _]*s\w*|(?<![a-z])rad(?![a-z])"), "rad/s"),
    ),
}
KINDS = {
    "other": ["mag", "quat", "orient", "attitude", "euler", "vector", "baro", "compass"],
    "gyro": ["gyr", "giro", "rotation", "angular", "omega", "dreh", "winkel"],
    "gravity": ["grav", "schwer"],
    "user": ["user", "linear", "lin"],
    "acc": ["acc", "accel", "beschl", "acel", "aceler"],
}
SHORT_KINDS = {"a": "acc", "g": "gyro", "w": "gyro", "gy": "gyro", "r": "gyro"}


def tokens(name: str) -> list[str]:
    """Cut a column's name into words in small letters."""
    return re.findall(r"[^\W\d_]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())


def role_of(name: str) -> str | None:
    """Return what a column's name says that it holds: activity, client, session or sensor."""
    low = "_".join(tokens(name))
    return next((role for role, pattern in WORD_NAMES.items() if pattern.match(low)), None)


def is_time(name: str) -> bool:
    """Whether a column's name is that of times."""
    words = tokens(name)
    return any(word in TIME_WORDS or word.endswith(("time", "zeit", "stamp", "stempel")) for word in words) or (
        len(words) == 1 and len(words[0]) > 1 and words[0] in UNIT_OF_TIME
    )


def time_unit(name: str) -> str | float | None:
    """Return the unit of time that a column's name states, or the seconds of one."""
    return next((UNIT_OF_TIME[word] for word in reversed(tokens(name)) if word in UNIT_OF_TIME), None)


def sensor_unit(sensor: str, name: object) -> str | None:
    """Return the unit of "acc" or "gyro" that a column's name states."""
    low = _plain(str(name))
    return next((unit for pattern, unit in SENSOR_UNITS[sensor] if pattern.search(low)), None)


def triples(header: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Find the columns, counted from 0, that differ in x, y and z only; what their names have in common is the key."""
    found: dict[str, dict[str, int]] = {}
    for at, name in enumerate(header):
        if (axis := _axis(name)) is not None:
            found.setdefault(axis[0], {}).setdefault(axis[1], at)
    return {stem: (axes["x"], axes["y"], axes["z"]) for stem, axes in found.items() if len(axes) == 3}


def kind_of(stem: str) -> str:
    """Say what columns of such names hold: acc, gyro, gravity, user (acceleration without it), other, or "" unknown."""
    words = stem.split()
    named = (kind for kind, starts in KINDS.items() if any(word.startswith(tuple(starts)) for word in words))
    return next(named, SHORT_KINDS.get(stem, ""))


def _axis(name: str) -> tuple[str, str] | None:
    low = _plain(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    for pattern, _ in (*SENSOR_UNITS["acc"], *SENSOR_UNITS["gyro"]):
        low = pattern.sub(" ", low)
    words = [word for word in tokens(re.sub(r"[\[(].*?[\])]", " ", low)) if word not in ("in", "axis", "achse")]
    alone = [at for at, word in enumerate(words) if word in ("x", "y", "z")]
    if len(alone) == 1:
        return " ".join(words[: alone[0]] + words[alone[0] + 1 :]), words[alone[0]]
    ending = words[-1] if words and not alone else ""
    return (" ".join([*words[:-1], ending[:-1]]), ending[-1]) if ending.endswith(("x", "y", "z")) else None


def _plain(name: str) -> str:
    for mark, written in (("²", "2"), ("^", ""), ("**", ""), ("⁻", "-"), ("·", ""), (" per ", "/")):
        name = name.replace(mark, written)
    return name.lower()


MARGIN = 2.5
"""An interpretation whose score is lower by less than this is a rival."""


def choose(scored: Sequence[tuple[float, Mapping[str, Any]]]) -> tuple[Mapping[str, Any], set[str]]:
    """Return the best of some interpretations, and those of its keys to which no rival gives another value."""
    total, best = max(scored, key=lambda pair: pair[0])
    rivals = [parts for score, parts in scored if score > total - MARGIN]
    return best, {key for key, value in best.items() if all(parts[key] == value for parts in rivals)}
