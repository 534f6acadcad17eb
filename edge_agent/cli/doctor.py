"""`python -m edge_agent doctor`: what could keep this device from taking part, and what to do about it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edge_agent.cli.command import ConfigOption
from edge_agent.doctor import Level, examine
from gaitway.errors import ExitCode
from gaitway.terminal import Console

STYLE = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}


def doctor(
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check config, clock, disk, memory, server, broker, sensors and the training process; say what to do.

    Exit code 1 if anything fails, 0 if there are warnings only. A running agent is not disturbed.

    Example: python -m edge_agent doctor --config agent.toml
    """
    console, found = Console(), []
    for finding in examine(config):
        found.append(finding)
        if not as_json:
            console.print(f"{finding.level.value:>7}", style=STYLE[finding.level], end="  ", highlight=False)
            todo = f" – {finding.advice}" if finding.advice else ""
            console.print(f"{finding.check}: {finding.message}{todo}", markup=False, highlight=False, soft_wrap=True)
    failed = any(finding.level is Level.FAILURE for finding in found)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "findings": [finding._asdict() for finding in found]}, indent=2))
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.DONE)
