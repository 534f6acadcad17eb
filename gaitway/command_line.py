"""What all programs' command lines share: `-h`, `--quiet`, `--json`, and shell completion of values."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from gaitway.errors import ExitCode
from gaitway.interrupts import loading
from gaitway.terminal import Console, print_error

UsageError: Any = typer.BadParameter.__bases__[0]
"""From typer's bundled click, which typer doesn't export."""
Function = TypeVar("Function", bound=Callable[..., Any])
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors, or with --json only the JSON.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]


class CommandImportError(ImportError):
    """A command can't be imported, for the reason that is its cause."""


class LaterCommand(NamedTuple):
    """Where a command's function or group is, as `module:name`, and its purpose."""

    place: str
    purpose: str
    can_be_quiet: bool
    markup: Any

    def load(self, name: str) -> Any:
        """Import the function or group, and make a command of this name.

        Raises:
            CommandImportError: if a package that it needs isn't installed.
        """
        module, _, wanted = self.place.partition(":")
        try:
            found = getattr(import_module(module), wanted)
        except ImportError as error:
            raise CommandImportError(name) from error
        if isinstance(found, CommandLine):
            found.rich_markup_mode = self.markup
            command = get_group(found)  # also a group with a single command
            command.name = name
            return command
        alone = CommandLine(rich_markup_mode=self.markup)
        alone.command(name, can_be_quiet=self.can_be_quiet)(found)
        return get_command(alone)


class LaterCommands(dict[str, Any]):
    """Commands, some of which are imported only on first access because importing them takes seconds."""

    def __init__(self, commands: Mapping[str, Any], later: Mapping[str, LaterCommand]) -> None:
        super().__init__({**commands, **dict.fromkeys(later)})
        self.later = dict(later)

    def __getitem__(self, name: str) -> Any:
        """Return a command."""
        if name in self.later:
            with loading():
                self[name] = self.later[name].load(name)
            del self.later[name]
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command, or the default without one of that name."""
        if name not in self:
            return default
        return self[name]

    def values(self) -> Any:
        """Return all commands."""
        return [self[name] for name in self]

    def items(self) -> Any:
        """Return all commands with their names."""
        return [(name, self[name]) for name in self]


class CommandGroup(TyperGroup):
    """Commands that report wrong options like all other errors: one line on standard error."""

    later: ClassVar[Mapping[str, LaterCommand]] = {}
    rename: ClassVar[Callable[[Any], None]] = staticmethod(lambda _: None)
    """Called with each command before it is used, because `gaitway` names the programs differently from `python -m`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": LaterCommands(settings.get("commands") or {}, self.later)})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in their order."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, imported; the list in the help needs only its known purpose."""
        commands: Any = self.commands
        if cmd_name in commands.later and ctx.meta.get("gaitway.lists"):
            return TyperCommand(cmd_name, help=commands.later[cmd_name].purpose)
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            type(self).rename(command)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        ctx.meta["gaitway.lists"] = True
        super().format_help(ctx, formatter)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the options before the command."""
        with _usage_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's own arguments, and run it."""
        with _usage_errors():
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":  # it has printed the help
            raise
        words = error.format_message()
        print_error(f"{words}{'' if words[-1:] in '.?' else '.'} See `{error.ctx.command_path} -h`")
        raise typer.Exit(ExitCode.REFUSED) from error


class CommandLine(typer.Typer):
    """A program or a group of its commands; a command that returns a result has the option `--json` to print it."""

    def __init__(self, **settings: Any) -> None:
        context = {"help_option_names": ["-h", "--help"]}
        self._later: dict[str, LaterCommand] = {}
        group = type("CommandGroup", (CommandGroup,), {"later": self._later})
        settings = {"cls": group, "no_args_is_help": True, "add_completion": False, **settings}
        super().__init__(context_settings=context, **settings)

    def later(self, package: str, commands: Mapping[str, tuple[str, str]], endless: Container[str] = ()) -> None:
        """Add commands and groups of a package that are imported when they are called.

        Args:
            commands: for each name its place in the package, such as `run:run`, and its text in the list of commands,
                which is the first sentence of its help.
            endless: those that run until stopped, which have no `--quiet`.
        """
        for name, (place, purpose) in commands.items():
            self._later[name] = LaterCommand(f"{package}.{place}", purpose, name not in endless, self.rich_markup_mode)

    def command(self, *args: Any, can_be_quiet: bool = True, **settings: Any) -> Callable[[Function], Function]:
        """Add a command; programs that run until stopped have no `--quiet`."""
        add = super().command(*args, **settings)

        def added(function: Function) -> Function:
            spread = _with_spread_options(function)
            if function.__annotations__.get("return") not in (None, "None"):
                spread = _with_json(spread)
            add(_with_quiet(spread) if can_be_quiet else spread)
            return function

        return added


def _with_spread_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Expand each parameter that is a NamedTuple of shared options into one option per field."""
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
    """Show typer these parameters."""
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
    """Return a completer of names from a table; it completes the last of several names joined by plus signs."""

    def matching(incomplete: str) -> list[str]:
        before, plus, last = incomplete.rpartition("+")
        return [f"{before}{plus}{name}" for name in names() if name.startswith(last)]

    return matching
