"""The value types of a description (columns, numbers, units, words, patterns), and the base of all sections.

Each check is a pydantic validator that says what was expected. A section is frozen, and its errors name unknown and
missing keys.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from gaitway.errors import did_you_mean
from gaitway.plain_text import checked
from gaitway.strict_numbers import TypedNumbers
from har_pipeline.units import ACC_UNITS, GYRO_UNITS, TIME_UNITS

DATE = "date"
ROWS = "rows"
"""The unit of ranges that count a file's samples, from 1."""
GROUPS = ("client", "session", "activity", "sensor")
"""What a column, a named group of `files` or a fixed word can say of a row."""
_NUMBERED = re.compile(r"_\d+$")
SEPARATORS = {"tab": "\t", "whitespace": "whitespace"}
MAX_NUMBER = 1e12
"""No factor, offset or time unit is larger."""


def _column(given: object) -> str | int:
    if isinstance(given, str) and 0 < len(given) <= 200:
        return given
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 10_000:
        return given
    raise ValueError("expected a column's name, or its number, counted from 1")


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= MAX_NUMBER:
        raise ValueError(f"expected a number of at most {MAX_NUMBER:g}")
    return float(given)


def _three_numbers(given: object) -> tuple[float, ...]:
    if not isinstance(given, list | tuple):
        return (_number(given),) * 3
    if len(given) != 3:
        raise ValueError("expected a number, or three, one for each axis")
    return tuple(_number(value) for value in given)


def _three(given: object) -> object:
    if not isinstance(given, list | tuple) or len(given) != 3:
        raise ValueError("expected three columns: those of x, y and z")
    return given


def _matrix(given: object) -> object:
    if not isinstance(given, list | tuple) or [_length(row) for row in given] != [3, 3, 3]:
        raise ValueError("expected three rows of three numbers, as in [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]")
    return tuple(tuple(_number(value) for value in row) for row in given)


def _length(row: object) -> int:
    return len(row) if isinstance(row, list | tuple) else 0


def _unit(units: Mapping[str, float], given: object, more: str) -> str | float:
    if isinstance(given, str):
        if given in (*units, *([DATE] if units is TIME_UNITS else [])):
            return given
        raise ValueError(f"unknown unit; {did_you_mean(given, units)}, {more}")
    number = _number(given)
    if not number > 0:
        raise ValueError(f"expected one of {', '.join(units)}, {more}")
    return number


def _separator(given: object) -> str:
    if isinstance(given, str) and given in SEPARATORS:
        return SEPARATORS[given]
    if isinstance(given, str) and re.fullmatch(r"[\t,;:|/!#$%&*=?@^_~]", given):
        return given
    raise ValueError('expected one character, such as "," or ";", or "tab" or "whitespace"')


def _files(given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= 500:
        raise ValueError("expected a regular expression of at most 500 characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            groups = re.compile(given).groupindex
            anchored(given)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    for name in groups:
        if role_of_group(name) not in GROUPS:
            raise ValueError(f"unknown named group {name!r}; {did_you_mean(name, GROUPS)}")
    return given


def role_of_group(name: str) -> str:
    """Return what a named group of `files` says: `client_2` is a second place of `client`."""
    return _NUMBERED.sub("", name)


def anchored(files: str) -> re.Pattern[str]:
    """Compile `files` so that it matches from the root or from any folder on."""
    return re.compile(rf"(?:.*?/)??(?:{files})")


def column_alone(given: object) -> object:
    """Read a bare name or number as a section with that column."""
    return given if isinstance(given, Mapping | BaseModel) else {"column": given}


def words_by_column(given: object) -> object:
    """Read one word of a column as a list of words."""
    if not isinstance(given, Mapping) or not 0 < len(given) <= 10:
        raise ValueError(
            'expected columns and their words, as in { device = "phone" } or { device = ["left", "right"] }'
        )
    return {str(column): words if isinstance(words, list | tuple) else [words] for column, words in given.items()}


def names_alone(given: object) -> object:
    """Read a bare list as a section with these names."""
    if isinstance(given, list | tuple):
        return {"names": given}
    if isinstance(given, Mapping | BaseModel):
        return given
    raise ValueError('expected a list of names, as in labels = ["walking", "sitting"]')


def _words(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > 1000:
        raise ValueError('expected a list of names, as in ["walking", "sitting"]')
    return tuple(_word(word) for word in given)


def _word(given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given.strip()) <= 100:
        raise ValueError(f"expected a word of 1 to 100 characters, not {str(given)[:100]!r}")
    return checked(given.strip())


Column = Annotated[str | int, BeforeValidator(_column)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Number = Annotated[float, BeforeValidator(_number)]
Axes = Annotated[tuple[float, ...], BeforeValidator(_three_numbers)]
Triple = Annotated[tuple[Column, Column, Column], BeforeValidator(_three)]
Row = tuple[Number, Number, Number]
Matrix = Annotated[tuple[Row, Row, Row], BeforeValidator(_matrix)]
Word = Annotated[str, BeforeValidator(_word)]
TimeUnit = Annotated[
    str | float, BeforeValidator(lambda given: _unit(TIME_UNITS, given, 'date, or a number: the seconds of "1"'))
]
RangeUnit = Annotated[
    str | float,
    BeforeValidator(lambda given: ROWS if given == ROWS else _unit(TIME_UNITS, given, 'rows, or the seconds of "1"')),
]
AccUnit = Annotated[str | float, BeforeValidator(lambda given: _unit(ACC_UNITS, given, 'or a number: the m/s² of "1"'))]
GyroUnit = Annotated[
    str | float, BeforeValidator(lambda given: _unit(GYRO_UNITS, given, 'or a number: the rad/s of "1"'))
]
Separator = Annotated[str, BeforeValidator(_separator)]
Pattern = Annotated[str, BeforeValidator(_files)]


EXAMPLES = {
    "acceleration": 'acceleration = "specific force" (at rest, face up, z is +9.8: Android, most boards), '
    '"gravity points down" (−9.8: Apple) or "without gravity"',
    "acc": 'acc = { columns = ["ax", "ay", "az"], unit = "g" }',
    "columns": 'columns = ["ax", "ay", "az"]',
    "column": 'column = "timestamp"',
    "begin": 'begin = "start"',
    "end": 'end = "stop"',
    "files": "files = '(?P<client>[^/]+)/labels\\.csv'",
    "time": 'time = { column = "timestamp", unit = "ms" }',
}
"""How the keys that must be there are written."""


class DescriptionPart(TypedNumbers, BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _section(cls, given: object) -> object:
        if not isinstance(given, Mapping | BaseModel):
            raise ValueError(f"expected keys and values: {', '.join(cls.model_fields)}")
        if isinstance(given, Mapping):
            for key in given:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {str(key)[:100]!r}; {did_you_mean(str(key), cls.model_fields)}")
            missing = next(
                (key for key, field in cls.model_fields.items() if field.is_required() and key not in given), ""
            )
            if missing:
                raise ValueError(f"{missing} is missing; write it as in {EXAMPLES[missing]}")
        return given


class WordSource(DescriptionPart):
    """Where a row's client, session, activity or sensor is read: in a column, or nowhere, since it is always one."""

    column: Column | None = None
    fixed: Word | None = None

    @model_validator(mode="after")
    def _one(self) -> WordSource:
        if (self.column is None) == (self.fixed is None):
            raise ValueError('expected either a column or a fixed word, as in { column = "who" } or { fixed = "me" }')
        return self


Said = Annotated[WordSource, BeforeValidator(column_alone)]
