"""`gaitway server|agent|sim|export|pipeline …`: runs the named program with its arguments, and loads no other.

`gaitway --help` and `--version` therefore answer at once, and a device doesn't need the server's dependencies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from gaitway.errors import ExitCode, closest
from gaitway.interrupts import begin_loading, end_loading, run_program


class Program(NamedTuple):
    """A program's command line, the extra that installs its dependencies, its purpose, and the systems it runs on."""

    module: str
    extra: str
    purpose: str
    systems: str = "Linux"


ANY = "Linux, macOS, Windows"
UNIX_MODULES = {"fcntl", "resource", "pwd"}
"""Modules of Python that Windows lacks."""
PROGRAMS = {
    "server": Program("aggregator_api.cli.app", "aggregator", "Run and operate the server of a federation."),
    "agent": Program("edge_agent.__main__", "edge", "Enrol a device, run it, and inspect it."),
    "sim": Program("sim.cli.app", "sim", "Simulate federations on recorded data, and compare methods.", ANY),
    "export": Program("export.__main__", "export", "Export a trained model to ONNX, and check it.", ANY),
    "pipeline": Program("har_pipeline.cli", "runtime", "Turn recordings of motion sensors into windows.", ANY),
}

HELP = """\
Usage: gaitway PROGRAM [COMMAND] [OPTIONS]

Federated learning for motion sensors: devices learn from their own movements and send weights, never recordings.

Programs (each of them and of their commands has --help), and the systems they run on: {programs}

Also:
  --version  Print the version.
  plugins    {plugins}
  cache      {cache}
  completion {completion}
  --help     Show this help.

A server and its first device, on one machine:
  gaitway server serve --embedded-broker --data-dir runs/server
  gaitway server login-link    opens the operator's page; create a federation there, such as "walk"
  gaitway server tokens create --federation walk --device phone1
  gaitway agent enrol --help
  gaitway agent run --config agent.toml

Each program also starts as a Python module: `gaitway server …` is `python -m aggregator_api …`.
"""


OTHERS = {
    "plugins": "List what installed packages add: methods, models, readers …",
    "cache": "Show, or empty, the folder where prepared windows are kept.",
    "completion": "Print the script that lets bash, zsh or fish complete these commands.",
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the program named by the first word with the other words; `words` defaults to the process's arguments."""
    if "_GAITWAY_COMPLETE" in os.environ and words is None:
        _complete()
    first, *rest = list(sys.argv[1:] if words is None else words) or ["--help"]
    if first in ("--help", "-h", "help"):
        print(help_text(), end="")
    elif first in ("--version", "-V", "version"):
        print(f"gaitway {version()}")
    elif first == "plugins":
        from gaitway.plugins import main as list_plugins  # takes some milliseconds, and only this path needs it

        raise SystemExit(list_plugins(rest))
    elif first == "cache":
        from gaitway.window_cache import main as show_cache

        raise SystemExit(show_cache(rest))
    elif first == "completion":
        from gaitway.completion import main as print_completion

        raise SystemExit(print_completion(rest))
    elif first in PROGRAMS:
        _run(first, rest)
    else:
        near = closest(first, PROGRAMS)
        hint = f"did you mean `gaitway {near}`?" if near else f"the programs are {', '.join(PROGRAMS)}"
        _fail(f"there is no program {first[:40]!r}; {hint} `gaitway --help` describes them")


def help_text() -> str:
    """Return what `--help` shows."""
    programs = "\n".join(f"  {name:<10} {program.purpose} ({program.systems})" for name, program in PROGRAMS.items())
    return HELP.format(programs=programs, **OTHERS)


def version() -> str:
    """Return the installed distribution's version; pyproject.toml is the only place that defines it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed  # takes some milliseconds, and only --version needs it

    try:
        return installed("gaitway")
    except PackageNotFoundError:
        return "(not installed: run from its source)"


def _run(name: str, words: list[str]) -> None:
    begin_loading()
    try:
        module = import_module(PROGRAMS[name].module)
    except ImportError as error:
        _fail_if_missing(name, error)
    from typer.main import get_command  # installed with every program

    from gaitway.command_line import CommandGroup, CommandImportError

    command = get_command(module.app)
    _name_programs(command)
    CommandGroup.rename = staticmethod(_name_programs)
    try:
        run_program(command, words, prog_name=f"gaitway {name}")
    except CommandImportError as error:
        _fail_if_missing(name, error.__cause__ or error)


def _fail_if_missing(name: str, error: BaseException) -> NoReturn:
    """Say which package or system a program lacks; an import that failed otherwise is raised again."""
    program = PROGRAMS[name]
    _fail_if_hidden()
    if not isinstance(error, ModuleNotFoundError):
        raise error
    if error.name in UNIX_MODULES:
        _fail(f"`gaitway {name}` runs on {program.systems}, and this system has no Python module {error.name}")
    from gaitway.own_packages import install_command

    _fail(f"`gaitway {name}` needs {error.name}, which is not installed: {install_command(program.extra)}")


def _fail_if_hidden() -> None:
    from gaitway.own_packages import hidden_packages, hidden_words

    for package, path in hidden_packages().items():
        _fail(hidden_words(package, path))


def _name_programs(command: Any) -> None:
    """Replace `python -m sim` with `gaitway sim` in a command's help."""
    for described in (command, *command.params):
        if text := getattr(described, "help", None):
            for name, program in PROGRAMS.items():
                text = text.replace(f"python -m {program.module.partition('.')[0]}", f"gaitway {name}")
            described.help = text


def _complete() -> None:
    """Answer a shell's completion request, and exit."""
    from gaitway.completion import complete

    complete({name: (program.module, program.purpose) for name, program in PROGRAMS.items()}, OTHERS)


def _fail(words: str) -> NoReturn:
    end_loading()
    print(f"error: {words}", file=sys.stderr)
    raise SystemExit(ExitCode.REFUSED)


if __name__ == "__main__":
    main()
