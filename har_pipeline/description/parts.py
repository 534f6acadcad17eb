"""What every section of a description has in common: it is frozen, and names unknown and missing keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from gaitway.errors import did_you_mean
from gaitway.strict_numbers import TypedNumbers
from har_pipeline.description.keys import Column, Word, column_alone

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
