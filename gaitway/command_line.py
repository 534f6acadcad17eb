"""What the command lines of all programs share: `-h`, `--quiet`, and values that a shell completes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import wraps
from typing import Annotated, Any, TypeVar

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
            add(_with_quiet(function) if can_be_quiet else function)
            return function

        return added


def _with_quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--quiet`."""

    @wraps(function)
    def called(quiet: bool, **given: Any) -> Any:
        if not quiet:
            return function(**given)
        if given.get("yes") is False and not given.get("dry_run"):
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
    signature = inspect.signature(function, eval_str=True)
    vars(called)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), option])
    called.__annotations__ = {
        name: parameter.annotation for name, parameter in vars(called)["__signature__"].parameters.items()
    }
    return called


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what completes a word from a table's names; the last of several that a plus sign joins."""

    def matching(incomplete: str) -> list[str]:
        before, plus, last = incomplete.rpartition("+")
        return [f"{before}{plus}{name}" for name in names() if name.startswith(last)]

    return matching
