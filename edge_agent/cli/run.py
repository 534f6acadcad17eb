"""`python -m edge_agent run`: take part until told to stop."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Annotated, Literal

import typer

from edge_agent.cli.command import ConfigOption, refused
from edge_agent.config.settings import AgentSection, load
from edge_agent.errors import AgentError
from edge_agent.page.server import served_page
from edge_agent.storage.broker_address import require_place
from edge_agent.storage.credentials import login
from edge_agent.storage.data_folder import require_folder
from edge_agent.supervisor.metrics import exporter
from edge_agent.supervisor.supervisor import Supervisor
from edge_agent.transport.enrolment import (
    credentials_for,
)
from gaitway.logs import JsonLines


def run(
    config: ConfigOption,
    until_finished: Annotated[
        bool, typer.Option("--until-finished", help="Exit when the federation has ended and its model was evaluated.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Exit after one round.")] = False,
) -> None:
    """Connect and take part until stopped (Ctrl-C or SIGTERM); a restart resumes where the last run ended.

    Example: python -m edge_agent run --config agent.toml --until-finished
    """
    until: Literal["never", "round", "finished"] = "finished" if until_finished else "round" if once else "never"
    try:
        settings = load(config)
        _log(settings.agent)
        require_folder(settings.agent.data_dir)
        known = credentials_for(settings)  # claimed here if the operator approved the device in the meantime
        login(settings.broker, known, settings.agent.device)  # report a missing password file now, not later
        if settings.server.transport == "mqtt":
            require_place(settings)
        supervisor = Supervisor.open(settings, until)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.stop())
        with (
            exporter(settings.agent.metrics_port, lambda: supervisor.agent, settings.agent.data_dir),
            served_page(settings, config, supervisor.classifier),
        ):
            code = supervisor.run()
    except AgentError as error:
        raise refused(error) from None
    raise typer.Exit(code)


def _log(agent: AgentSection) -> None:
    handler = logging.StreamHandler(sys.stdout)
    text = logging.Formatter(f"%(asctime)s {agent.device} %(message)s", datefmt="%H:%M:%S")
    constant = {"federation": agent.federation, "device": agent.device}
    handler.setFormatter(JsonLines(**constant) if agent.log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
