"""What the command lines of all programs share: `-h`, `--quiet`, `--json`, and values that a shell completes."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from gaitway.errors import ExitCode
from gaitway.terminal import Console, print_error

UsageError: Any = typer.BadParameter.__bases__[0]
"""Typer's own, or that of the click that older versions of typer take."""
Function = TypeVar("Function", bound=Callable[..., Any])
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors, or with --json nothing but the JSON.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


class Group(TyperGroup):
    """Commands whose wrong options are errors like all others: one line on standard error."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the words that stand before the command."""
        with _usage_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's own words, and run it."""
        with _usage_errors():
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":  # that one has printed the help
            raise
        words = error.format_message()
        print_error(f"{words}{'' if words[-1:] in '.?' else '.'} See `{error.ctx.command_path} -h`")
        raise typer.Exit(ExitCode.REFUSED) from error


class CommandLine(typer.Typer):
    """A program, or a group of its commands; one that returns something has the option `--json`, which prints that."""

    def __init__(self, **settings: Any) -> None:
        context = {"help_option_names": ["-h", "--help"]}
        settings = {"cls": Group, "no_args_is_help": True, "add_completion": False, **settings}
        super().__init__(context_settings=context, **settings)

    def command(self, *args: Any, can_be_quiet: bool = True, **settings: Any) -> Callable[[Function], Function]:
        """Add a command; programs that run until they are stopped can't be quiet."""
        add = super().command(*args, **settings)

        def added(function: Function) -> Function:
            spread = _with_spread_options(function)
            if function.__annotations__.get("return") not in (None, "None"):
                spread = _with_json(spread)
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


def _with_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that returns its result the option `--json`."""

    @wraps(function)
    def called(as_json: bool, **given: Any) -> None:
        if not as_json:
            function(**given)
            return
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            result = function(**given)
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))

    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    return _shown_as(called, [*inspect.signature(function, eval_str=True).parameters.values(), option])


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
