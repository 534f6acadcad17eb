"""`python -m edge_agent privacy`, `withdraw` and `take-part`: what the person at the device requires, and agrees to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_agent.cli.command import ConfigOption, cli_errors, open_state
from edge_agent.storage.consent import Participation, accept_refused_plan, describe_privacy, take_part, withdraw
from edge_agent.storage.credentials import has_key, public_key_text
from edge_agent.storage.data_folder import is_locked
from edge_agent.storage.state_store import StateStore
from federation.privacy.promises import describe_promises


def privacy(
    config: ConfigOption,
    accept: Annotated[
        bool, typer.Option("--accept", help="Require no more than what the refused plan promises, from now on.")
    ] = False,
) -> dict[str, Any]:
    """Show what this device requires before it takes part, and accept a plan that promises less.

    What the server promised when this device enrolled is pinned: a plan that promises less is refused. [privacy]
    require in the config file asks for more, or for less.

    Example: python -m edge_agent privacy --config agent.toml
    """
    with cli_errors(), open_state(config) as (settings, store):
        requires = settings.privacy.require
        if accept:
            accepted = describe_promises(accept_refused_plan(store, requires))
            typer.echo(f"Accepted: {accepted}")
            if not is_locked(store):
                typer.echo("The agent does not run now: it takes part again when it runs.")
            return {"accepted": accepted}
        key = public_key_text(store.folder) if has_key(store.folder) else None
        if key:
            typer.echo(f"This device's key: {key}")
        required = describe_privacy(store, requires)
        for line in required or ["Nothing is required yet: this device has heard no plan."]:
            typer.echo(line)
    return {"key": key, "required": required}


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
