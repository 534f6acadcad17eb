"""`gaitway server|agent|sim|export|pipeline …`: hands its words to the program that they name, and loads no other.

So `gaitway --help` and `--version` answer at once, and a device needs nothing of what the server needs.
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
    """Where a program's command line is, the extra that installs what it needs, what it is for, and where it runs."""

    module: str
    extra: str
    purpose: str
    systems: str = "Linux"


ANY = "Linux, macOS, Windows"
UNIX_MODULES = {"fcntl", "resource", "pwd"}
"""Modules of Python that Windows lacks."""
PROGRAMS = {
    "server": Program("aggregator_api.cli.app", "aggregator", "Run and operate the server of a federation."),
    "agent": Program("edge_agent.__main__", "edge", "Enrol a device, run it, and look into it."),
    "sim": Program("sim.cli.app", "sim", "Simulate federations on recorded data, and compare methods.", ANY),
    "export": Program("export.__main__", "export", "Turn a trained model into ONNX, and check it.", ANY),
    "pipeline": Program("har_pipeline.cli", "runtime", "Turn recordings of motion sensors into windows.", ANY),
}

HELP = """\
Usage: gaitway PROGRAM [COMMAND] [OPTIONS]

Federated learning for motion sensors: devices learn from their own movements and send weights, never recordings.

Programs (each has --help, and so has each of its commands), and the systems on which they run:
{programs}

Also:
  --version  Print the version.
  plugins    {plugins}
  cache      {cache}
  completion {completion}
  --help     Show this.

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
    "completion": "Print what makes bash, zsh or fish complete all of this.",
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the program that the first word names with the others; `words` are those of the command line if None."""
    if "_GAITWAY_COMPLETE" in os.environ and words is None:
        _complete()
    first, *rest = list(sys.argv[1:] if words is None else words) or ["--help"]
    if first in ("--help", "-h", "help"):
        print(help_text(), end="")
    elif first in ("--version", "-V", "version"):
        print(f"gaitway {version()}")
    elif first == "plugins":
        from gaitway.plugins import main as list_plugins  # some milliseconds, which only it needs

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
        hint = f"did you mean `gaitway {near}`?" if near else f"there are {', '.join(PROGRAMS)}"
        _fail(f"there is no program {first[:40]!r}; {hint} `gaitway --help` describes them")


def help_text() -> str:
    """Return what `--help` shows."""
    programs = "\n".join(f"  {name:<10} {program.purpose} ({program.systems})" for name, program in PROGRAMS.items())
    return HELP.format(programs=programs, **OTHERS)


def version() -> str:
    """Return the installed distribution's version; pyproject.toml is the one place where it is written."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed  # some milliseconds, which only --version needs

    try:
        return installed("gaitway")
    except PackageNotFoundError:
        return "(not installed: run from its source)"


def _run(name: str, words: list[str]) -> None:
    program = PROGRAMS[name]
    begin_loading()
    try:
        module = import_module(program.module)
    except ImportError as error:
        _fail_if_hidden()
        if not isinstance(error, ModuleNotFoundError):
            raise
        if error.name in UNIX_MODULES:
            _fail(f"`gaitway {name}` runs on {program.systems}, and this system has no Python module {error.name}")
        from gaitway.own_packages import install_command

        _fail(f"`gaitway {name}` needs {error.name}, which is not installed: {install_command(program.extra)}")
    from typer.main import get_command  # there with every program

    from gaitway.command_line import CommandGroup

    command = get_command(module.app)
    _name_programs(command)
    CommandGroup.rename = staticmethod(_name_programs)
    run_program(command, words, prog_name=f"gaitway {name}")


def _fail_if_hidden() -> None:
    from gaitway.own_packages import hidden_packages, hidden_words

    for package, path in hidden_packages().items():
        _fail(hidden_words(package, path))


def _name_programs(command: Any) -> None:
    """Let the help of a command say `gaitway sim` where it says `python -m sim`."""
    for described in (command, *command.params):
        if text := getattr(described, "help", None):
            for name, program in PROGRAMS.items():
                text = text.replace(f"python -m {program.module.partition('.')[0]}", f"gaitway {name}")
            described.help = text


def _complete() -> None:
    """Answer a shell that asks what may come next, and end."""
    from gaitway.completion import complete

    complete({name: (program.module, program.purpose) for name, program in PROGRAMS.items()}, OTHERS)


def _fail(words: str) -> NoReturn:
    end_loading()
    print(f"error: {words}", file=sys.stderr)
    raise SystemExit(ExitCode.REFUSED)


if __name__ == "__main__":
    main()
