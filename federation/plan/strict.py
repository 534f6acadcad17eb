"""The base of a plan's models: safe names, displayable text, and rejection of unknown keys.

Methods, tasks and models are frozen dataclasses in tables; as JSON they are their name and their fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from federation.errors import SettingsError, unknown_name
from gaitway import plugins
from gaitway.errors import first_problem
from gaitway.plain_text import MAX_LABEL, checked, checked_values, cleaned
from gaitway.strict_numbers import StrictNumbers, TypedNumbers

Name = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="letters, digits, '_', '.' and '-'")
]
"""A federation's, device's or model's name: safe in a topic, a path and a URL."""

Text = Annotated[str, AfterValidator(checked)]
"""What a person writes or a file says, in NFC; control characters and invalid Unicode are refused."""

Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), AfterValidator(checked)]
"""A class's name, or a number's."""

Words = Annotated[str, BeforeValidator(lambda given: cleaned(given) if isinstance(given, str) else given)]
"""What a program says, such as why it failed, in NFC; control characters become blanks."""

Options = Annotated[dict[str, Any], AfterValidator(checked_values)]
"""Settings that others validate; every text in them is as in `Text`."""


class Strict(StrictNumbers, BaseModel):
    """Frozen, and refuses unknown keys, truth values for numbers and text for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Described = TypeVar("Described", bound=Dataclass)


def described(name: str, entry: Dataclass) -> dict[str, Any]:
    """Return {"name": …, every field}."""
    return {"name": name, **dataclasses.asdict(entry)}


def from_description(
    kind: str, field_kind: str, table: Mapping[str, type[Described]], description: Mapping[str, Any]
) -> Described:
    """Build an entry of a table from its name and (some of) its fields; numbers may come as text.

    `kind` and `field_kind` are what the entry and its fields are called in errors.

    Raises:
        SettingsError: for an unknown name or field, or a value that does not fit.
    """
    fields = dict(description)
    name = str(fields.pop("name", ""))
    if name not in table:
        group = f"{kind}s"
        raise SettingsError(f"{unknown_name(kind, name, table)}{plugins.hint(group, name)}")
    try:
        entry = table[name]
    except plugins.PluginError as error:
        raise SettingsError(str(error)) from error
    known = {field.name for field in dataclasses.fields(entry)}
    for key in fields:
        if key not in known:
            raise unknown_name(f"{field_kind} of {name}", key, known)
    try:
        made: Described = _adapter(entry).validate_python(fields)
        return made
    except ValidationError as error:
        raise SettingsError(f"{name}: {first_problem(error, input_shown=True, model=entry)}") from error


@cache
def _adapter(entry: type[Described]) -> TypeAdapter[Described]:
    """Build what reads a class once: that takes a hundred times as long as to read with it."""
    kind: Any = Annotated[entry, TypedNumbers]
    return TypeAdapter(kind)
