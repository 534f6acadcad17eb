"""What the command lines of all programs share: `-h`, `--quiet`, and values that a shell completes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from gaitway.terminal import Console

Function = TypeVar("Function", bound=Callable[..., Any])
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors, or with --json nothing but the JSON.")
]


class CommandLine(typer.Typer):
    """A program, or a group of its commands."""

    def __init__(self, **settings: Any) -> None:
        context = {"help_option_names": ["-h", "--help"]}
        super().__init__(no_args_is_help=True, add_completion=False, context_settings=context, **settings)

    def command(self, *args: Any, can_be_quiet: bool = True, **settings: Any) -> Callable[[Function], Function]:
        """Add a command; programs that run until they are stopped can't be quiet."""
        add = super().command(*args, **settings)

        def added(function: Function) -> Function:
            spread = _with_spread_options(function)
            add(_with_quiet(spread) if can_be_quiet else spread)
            return function

        return added


def _with_spread_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an option of each field of a parameter that is a NamedTuple of options, which several commands share."""
    shown: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and issubclass(group, tuple):
            groups[parameter.name] = group
            hints, defaults = get_type_hints(group, include_extras=True), vars(group)["_field_defaults"]
            shown += [
                parameter.replace(name=name, annotation=hints[name], default=defaults.get(name, parameter.empty))
                for name in hints
            ]
        else:
            shown.append(parameter)

    @wraps(function)
    def called(**given: Any) -> Any:
        filled = {name: group(*map(given.pop, vars(group)["_fields"])) for name, group in groups.items()}
        return function(**given, **filled)

    return _shown_as(called, shown) if groups else function


def _shown_as(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Let typer see these parameters."""
    vars(function)["__signature__"] = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def _with_quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--quiet`."""

    @wraps(function)
    def called(quiet: bool, **given: Any) -> Any:
        if not quiet:
            return function(**given)
        deletes = given.get("delete_them", True) and not given.get("dry_run")
        if deletes and given.get("yes") is False:
            raise typer.BadParameter("--quiet can't ask; add --yes")
        Console.is_silenced = True
        try:
            if given.get("as_json"):
                return function(**given)
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                return function(**given)
        finally:
            Console.is_silenced = False

    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=QuietOption)
    return _shown_as(called, [*inspect.signature(function, eval_str=True).parameters.values(), option])


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what completes a word from a table's names; the last of several that a plus sign joins."""

    def matching(incomplete: str) -> list[str]:
        before, plus, last = incomplete.rpartition("+")
        return [f"{before}{plus}{name}" for name in names() if name.startswith(last)]

    return matching
