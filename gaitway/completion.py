"""`gaitway completion SHELL`: prints typer's script for completing programs, commands and options."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from gaitway.errors import ExitCode

VARIABLE = "_GAITWAY_COMPLETE"
"""Set by the shell's script when it asks for completions."""
SHELLS = {
    "bash": 'eval "$(gaitway completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(gaitway completion zsh)" in ~/.zshrc, after compinit',
    "fish": "gaitway completion fish > ~/.config/fish/completions/gaitway.fish",
}
USAGE = "Usage: gaitway completion SHELL\n\nPrint the script that lets a shell complete `gaitway`:\n" + "".join(
    f"  {shell:<5} {use}\n" for shell, use in SHELLS.items()
)


def main(words: Sequence[str]) -> int:
    """Print the named shell's script; return the exit status."""
    if len(words) != 1 or words[0] not in SHELLS:
        is_help = list(words) in (["--help"], ["-h"])
        print(USAGE, end="", file=sys.stdout if is_help else sys.stderr)
        return ExitCode.DONE if is_help else ExitCode.REFUSED
    print(get_completion_script(prog_name="gaitway", complete_var=VARIABLE, shell=words[0]))
    return 0


def complete(programs: Mapping[str, tuple[str, str]], others: Mapping[str, str]) -> None:
    """Answer the shell from `programs`, the module and purpose of each; only the program being typed is imported."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    begun = line.split()[1:2]
    root = typer.Typer(add_completion=False)
    for name, (module, purpose) in programs.items():
        if [name] == begun:
            root.add_typer(import_module(module).app, name=name, help=purpose)
        else:
            root.command(name, help=purpose)(_nothing)
    for name, purpose in others.items():
        root.command(name, help=purpose)(_nothing)
    completion_init()
    root(prog_name="gaitway", complete_var=VARIABLE)


def _nothing() -> None:
    """Stand in for a program that isn't imported."""
