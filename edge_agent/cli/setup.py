"""`python -m edge_agent enrol` and `page-password`: credentials for a token, and a hash for the page's password."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.cli.command import ConfigOption, open_state, refused
from edge_agent.config.settings import example, load, read_config
from edge_agent.errors import AgentError, ConfigError
from edge_agent.page.access import password_hash
from edge_agent.storage.consent import describe_privacy
from edge_agent.storage.data_folder import require_folder, write_file
from edge_agent.transport.enrolment import (
    Applicant,
    check_code,
    claim,
    given_token,
    read_code,
    wait_for_approval,
    warning_about,
)
from edge_agent.transport.enrolment import enrol as enrol_with
from gaitway.errors import ExitCode
from gaitway.python310 import tomllib
from gaitway.terminal import Console


def enrol(
    config: ConfigOption,
    server: Annotated[str | None, typer.Option(help="The server's base URL (default: from the config).")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the operator's token or a QR code's text; - for standard input; or set GAITWAY_ENROL_TOKEN."
        ),
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="The federation; with --device and --server, writes the config.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="This device's id.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the operator's approval.")] = 0,
) -> None:
    """Make this device's key, present the operator's token to the server, and store the credentials that it returns.

    The token is never an argument, because every user of a machine can read those. If the operator approves devices by
    hand, run this again without a token afterwards, or just start the agent. Exit code 3: not approved yet.

    Example: python -m edge_agent enrol --config agent.toml --server https://gaitway.example --token-file token
    --federation demo --device s01
    """
    try:
        token = given_token(token_file)
        code = read_code(token)
        if code is not None:
            server, federation, device, token = code
        text = None
        if not config.exists() and server and federation and device:
            text = example(device, federation, device, server)
            settings = read_config(tomllib.loads(text), config)
        else:
            settings = load(config)
        who = Applicant.of(settings, server)
        if code is not None:
            check_code(code, who, config)
        else:
            _refuse_other(config, {"device": (who.device, device), "federation": (who.federation, federation)})
        require_folder(who.folder)
        for warning in filter(None, [warning_about(who.server)]):
            Console(stderr=True).print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
        answer = enrol_with(who, token) if token else claim(who)
        if text is not None:
            write_file(config.resolve(), text.encode())
        if answer.credentials is None and wait:
            typer.echo(f"{who.device} waits for the operator's approval")
            answer = wait_for_approval(who, wait)
    except (AgentError, OSError) as error:
        raise refused(error) from None
    if answer.credentials is None:
        typer.echo(f"{who.device} is known to the server and waits for the operator's approval")
        raise typer.Exit(ExitCode.PENDING)
    typer.echo(f"{who.device} is enrolled in {who.federation}; its credentials are in {who.folder}")
    with open_state(config) as (settings, store):
        for line in describe_privacy(store, settings.privacy.require):
            typer.echo(line)


def _refuse_other(config: Path, names: Mapping[str, tuple[str, str | None]]) -> None:
    """Refuse options that name another device or federation than the config file, which would win."""
    for option, (known, given) in names.items():
        if given not in (None, known):
            raise ConfigError(f"{config} says {option} {known}; leave out --{option}, or name another --config")


def page_password() -> None:
    """Ask for a password for the device's page, and print the line for [agent] that sets it.

    Example: python -m edge_agent page-password >> line.toml
    """
    password = typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    try:
        hashed = password_hash(password)
    except ValueError as error:
        raise refused(ConfigError(str(error))) from None
    typer.echo(f'page_password_hash = "{hashed}"')
