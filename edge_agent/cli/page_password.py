"""`python -m edge_agent page-password`: what a config file holds in place of the page's password."""

from __future__ import annotations

import typer

from edge_agent.cli.command import refused
from edge_agent.errors import ConfigError
from edge_agent.page.access import password_hash


def page_password() -> None:
    """Ask for a password and print the line for [agent] that lets the device's page be opened with it.

    Example: python -m edge_agent page-password >> line.toml
    """
    password = typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    try:
        hashed = password_hash(password)
    except ValueError as error:
        raise refused(ConfigError(str(error))) from None
    typer.echo(f'page_password_hash = "{hashed}"')
