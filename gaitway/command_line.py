"""What the command lines of all programs share: `-h`, `--quiet`, and errors behind one prefix on standard error."""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperOption

from gaitway.terminal import Console

QUIET = "quiet"
SILENT_HELP = "Print nothing but errors, or with --json nothing but the JSON."


class QuietCommand(TyperCommand):
    """A command that `--quiet` silences."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        flags = ["--quiet", "-q"]
        self.params.append(
            TyperOption(param_decls=[QUIET, *flags], is_flag=True, default=False, help=SILENT_HELP, expose_value=True)
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it prints goes nowhere if it is to be quiet."""
        if not ctx.params.pop(QUIET):
            return super().invoke(ctx)
        if ctx.params.get("yes") is False and not ctx.params.get("dry_run"):
            raise click.UsageError("--quiet can't ask; add --yes", ctx)
        Console.is_silenced = True
        try:
            if ctx.params.get("as_json"):
                return super().invoke(ctx)
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                return super().invoke(ctx)
        finally:
            Console.is_silenced = False


class CommandLine(typer.Typer):
    """A program, or a group of its commands."""

    def __init__(self, **settings: Any) -> None:
        context = {"help_option_names": ["-h", "--help"]}
        super().__init__(no_args_is_help=True, add_completion=False, context_settings=context, **settings)

    def command(self, *args: Any, cls: type[TyperCommand] = QuietCommand, **settings: Any) -> Any:
        """Add a command; `TyperCommand` as `cls` leaves `--quiet` out, for programs that run until they are stopped."""
        return super().command(*args, cls=cls, **settings)
