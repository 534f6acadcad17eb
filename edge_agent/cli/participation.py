"""`python -m edge_agent withdraw` and `take-part`: whether the device takes part in its federation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from edge_agent.cli.command import ConfigOption, cli_errors, open_state
from edge_agent.storage.data_folder import is_locked
from edge_agent.storage.participation import Participation, take_part, withdraw
from edge_agent.storage.state_store import StateStore


def withdraw_device(config: ConfigOption) -> None:
    """Take what this device has sent out of its federation, and send nothing until `take-part`.

    The server's next version is bit for bit that of a federation which never had this device. The request is kept and
    repeated until the server confirms it; `status` says so. Models, windows and labels on the device stay.

    Example: python -m edge_agent withdraw --config agent.toml
    """
    _wish(config, withdraw)


def take_part_again(config: ConfigOption) -> None:
    """Let a device that was withdrawn take part again.

    Example: python -m edge_agent take-part --config agent.toml
    """
    _wish(config, take_part)


def _wish(config: Path, change: Callable[[StateStore], Participation]) -> None:
    with cli_errors(), open_state(config) as (_, store):
        typer.echo(change(store).words)
        if not is_locked(store):
            typer.echo("The agent does not run now: the server learns of it when it runs again.")
