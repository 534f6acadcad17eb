"""`python -m edge_agent privacy`, `withdraw` and `take-part`: the privacy that the device's user requires."""

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
        bool, typer.Option("--accept", help="Accept the refused plan: from now on require only what it promises.")
    ] = False,
) -> dict[str, Any]:
    """Show the privacy that this device requires, and accept a plan that promises less.

    The server's promise at this device's enrolment is pinned: a plan that promises less is refused. [privacy] require
    in the config file can demand more, or less.

    Example: python -m edge_agent privacy --config agent.toml
    """
    with cli_errors(), open_state(config) as (settings, store):
        requires = settings.privacy.require
        if accept:
            accepted = describe_promises(accept_refused_plan(store, requires))
            typer.echo(f"Accepted: {accepted}")
            if not is_locked(store):
                typer.echo("The agent isn't running; it takes part again when it runs.")
            return {"accepted": accepted}
        key = public_key_text(store.folder) if has_key(store.folder) else None
        if key:
            typer.echo(f"This device's key: {key}")
        required = describe_privacy(store, requires)
        for line in required or ["Nothing is required yet, because this device hasn't received a plan."]:
            typer.echo(line)
    return {"key": key, "required": required}


def withdraw_device(config: ConfigOption) -> None:
    """Remove what this device has sent from its federation, and send nothing until `take-part`.

    The server's next version is bit for bit the one of a federation without this device. The request is repeated until
    the server confirms it; `status` shows this. Models, windows and labels on the device stay.

    Example: python -m edge_agent withdraw --config agent.toml
    """
    _wish(config, withdraw)


def take_part_again(config: ConfigOption) -> None:
    """Let a withdrawn device take part again.

    Example: python -m edge_agent take-part --config agent.toml
    """
    _wish(config, take_part)


def _wish(config: Path, change: Callable[[StateStore], Participation]) -> None:
    with cli_errors(), open_state(config) as (_, store):
        typer.echo(change(store).words)
        if not is_locked(store):
            typer.echo("The agent isn't running; the server is told when it runs again.")
