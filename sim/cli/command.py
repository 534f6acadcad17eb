"""Commands that take one object: typer reads options from a signature, so the object's fields become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def taking(
    kind: type[Any], more: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show typer the fields of a dataclass, and `more` options by their annotations, as a command's parameters.

    The command is called with an object of the dataclass, and with a dictionary of the other options if there are any.
    """
    hints = get_type_hints(kind, include_extras=True)
    own = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name])
        for field in fields(kind)
    ]
    others = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (more or {}).items()
    ]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            args = kind(**{option.name: given.pop(option.name) for option in own})
            command(args, given) if others else command(args)

        vars(called)["__signature__"] = Signature([*own, *others])
        called.__annotations__ = {option.name: option.annotation for option in (*own, *others)}
        return called

    return decorated


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
