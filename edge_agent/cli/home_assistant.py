"""`python -m edge_agent home-assistant on` and `off`: whether recognized activities are reported to Home Assistant."""

from __future__ import annotations

import time

import typer

from edge_agent.cli.command import ConfigOption, cli_errors, open_state
from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, ConfigError
from edge_agent.storage.consent import note_topics, noted_topics, switch_home_assistant
from edge_agent.storage.data_folder import is_locked
from edge_agent.storage.state_store import StateStore
from edge_agent.transport.home_assistant import HomeAssistant
from gaitway.command_line import CommandLine

REMOVE_S = 10.0
POLL_S = 0.1

app = CommandLine(
    help="Turn reports of recognized activities to Home Assistant on or off.",
    rich_markup_mode="markdown",
)


@app.command()
def off(config: ConfigOption) -> None:
    """Remove the device and its retained messages from Home Assistant, and report nothing until `on`.

    Example: python -m edge_agent home-assistant off --config agent.toml
    """
    with cli_errors(), open_state(config) as (settings, store):
        switch_home_assistant(store, on=False)
        count = len(noted_topics(store))
        if count:
            _remove(settings, store)
    typer.echo(f"Reports to Home Assistant are off; {count} retained messages were removed from its broker.")


@app.command()
def on(config: ConfigOption) -> None:
    """Report to Home Assistant again, as [home_assistant] specifies.

    Example: python -m edge_agent home-assistant on --config agent.toml
    """
    with cli_errors(), open_state(config) as (settings, store):
        if settings.home_assistant.host is None:
            raise ConfigError("[home_assistant] host is not set; name the broker that Home Assistant uses")
        switch_home_assistant(store, on=True)
        running = is_locked(store)
    place = settings.home_assistant.place
    when = "within a second" if running else "when the agent runs"
    typer.echo(f"Reports to Home Assistant at {place.host}:{place.port} start {when}." if place else "")


def _remove(settings: Config, store: StateStore) -> None:
    """Have the running agent remove retained messages, or remove them here if none runs.

    Raises:
        AgentError: if they aren't removed within `REMOVE_S`.
    """
    me = settings.agent
    home = None
    if not is_locked(store):
        home = HomeAssistant(settings.home_assistant, me.device, me.federation)
    until = time.monotonic() + REMOVE_S
    try:
        while noted_topics(store):
            if home is not None and home.remove(noted_topics(store)):
                note_topics(store, ())
            if time.monotonic() > until:
                why = f": {home.problem}" if home is not None and home.problem else ""
                raise AgentError(
                    f"Home Assistant's broker has not removed this device within {REMOVE_S:.0f} s{why}. Nothing is "
                    f"reported any more; run this again when its broker is reachable"
                )
            time.sleep(POLL_S)
    finally:
        if home is not None:
            home.stop(1.0)
