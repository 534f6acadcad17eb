"""`python -m edge_agent`: run a device, look at one, or write a config file for one."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from edge_agent.cli.command import refused
from edge_agent.cli.doctor import doctor
from edge_agent.cli.label import label
from edge_agent.cli.models import models
from edge_agent.cli.windows import windows
from edge_agent.collected import kept_windows
from edge_agent.config.settings import AgentSection, Config, example, load
from edge_agent.errors import AgentError
from edge_agent.machine.memory import is_claimed
from edge_agent.metrics import exporter
from edge_agent.status import in_words, summary
from edge_agent.storage.files import require_folder
from edge_agent.storage.state_store import FILE_NAME, Store
from edge_agent.supervisor import Supervisor
from edge_agent.transport.credentials import login
from edge_agent.transport.enrolment import (
    Applicant,
    check_code,
    claim,
    credentials_for,
    found_config,
    given_token,
    read_code,
    wait_for_approval,
    warning_about,
)
from edge_agent.transport.enrolment import enrol as enrol_with
from federation.logs import JsonLines
from federation.private_files import keep_private

app = typer.Typer(add_completion=False, no_args_is_help=True)
ConfigOption = Annotated[Path, typer.Option(help="The device's TOML file; write one with example-config.")]


@app.callback()
def program() -> None:
    """A device of a federation: it collects windows, trains when a round invites it, and keeps the best model.

    Any setting can come from the environment instead, as GAITWAY_EDGE_<SECTION>_<FIELD>.
    """
    keep_private()


@app.command()
def run(
    config: ConfigOption,
    until_finished: Annotated[
        bool, typer.Option("--until-finished", help="Leave once the federation is over and its model was judged.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Leave after one round.")] = False,
) -> None:
    """Connect and take part until told to stop (Ctrl-C or SIGTERM); a restart goes on where the last run was.

    Example: python -m edge_agent run --config agent.toml --until-finished
    """
    until: Literal["never", "round", "finished"] = "finished" if until_finished else "round" if once else "never"
    try:
        settings = load(config)
        _log(settings.agent)
        require_folder(settings.agent.data_dir)
        known = credentials_for(settings)  # claimed here, where the operator has approved the device meanwhile
        login(settings.broker, known, settings.agent.device)  # a password's file that is missing is said now, not later
        supervisor = Supervisor(settings, until)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.stop())
        with exporter(settings.agent.metrics_port, lambda: supervisor.agent, settings.agent.data_dir):
            code = supervisor.run()
    except AgentError as error:
        raise refused(error) from None
    raise typer.Exit(code)


@app.command()
def enrol(
    config: ConfigOption,
    server: Annotated[str | None, typer.Option(help="The server's base URL, if not that of the config.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with what the operator gave, a token or all of a QR code; - for standard input; or set "
            "GAITWAY_ENROL_TOKEN."
        ),
    ] = None,
    federation: Annotated[str | None, typer.Option(help="With --device and --server: writes the config first.")] = None,
    device: Annotated[str | None, typer.Option(help="This device's id.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the operator's approval.")] = 0,
) -> None:
    """Make this device's key, show the operator's token to the server, and keep the credentials that it gives.

    The token is never an argument: every user of a machine can read those. Where the operator approves devices by
    hand, run it again without a token afterwards, or just start the agent. Exit code 3: not approved yet.

    Example: python -m edge_agent enrol --config agent.toml --server https://gaitway.example --token-file token
    --federation demo --device s01
    """
    try:
        token = given_token(token_file)
        code = read_code(token)
        if code is not None:
            server, federation, device, token = code
        if not config.exists() and server and federation and device:
            found_config(config, server, federation, device)
        who = Applicant.of(load(config), server)
        if code is not None:
            check_code(code, who, config)
        require_folder(who.folder)
        for warning in filter(None, [warning_about(who.server)]):
            Console(stderr=True).print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
        answer = enrol_with(who, token) if token else claim(who)
        if answer.credentials is None and wait:
            typer.echo(f"{who.device} waits for the operator's approval")
            answer = wait_for_approval(who, wait)
    except (AgentError, OSError) as error:
        raise refused(error) from None
    if answer.credentials is None:
        typer.echo(f"{who.device} is known to the server, and waits for the operator's approval")
        raise typer.Exit(3)
    typer.echo(f"{who.device} is enrolled in {who.federation}; its credentials are in {who.folder}")


@app.command()
def status(
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as in summary.json.")] = False,
) -> None:
    """Say what a device is doing, and show its rounds and model, from its data folder; also while it runs."""
    try:
        settings = load(config)
        found = _look(settings)
    except AgentError as error:
        raise refused(error) from None
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    for line in found["doing"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(_table(found))
    model = found["model"]
    console.print("no model yet" if model is None else f"model: {model['path']}", soft_wrap=True, highlight=False)
    for line in found["adoption"]:
        console.print(line, markup=False, highlight=False)


for command in (label, windows, models, doctor):
    app.command()(command)


@app.command("example-config")
def example_config() -> None:
    """Print a commented config file with every setting and its default."""
    typer.echo(example())


def _look(config: Config) -> dict[str, Any]:
    folder = config.agent.data_dir
    if not (folder / FILE_NAME).is_file():
        raise AgentError(f"{folder} holds no device yet; start it with `python -m edge_agent run`")
    store = Store(folder)
    try:
        kept, device = kept_windows(folder, config.windows), config.agent.device
        counts = {"windows": kept.labelled, "unlabelled": kept.unlabelled, "outbox": len(store.outbox())}
        doing = [*in_words(store, device, running=is_claimed(store)), *kept.words]
        return {"doing": doing, **summary(store, device), **counts}
    finally:
        store.close()


def _table(found: dict[str, Any]) -> Table:
    table = Table(title=f"device {found['device']}", title_justify="left")
    for heading in ("round", "status", "macro-F1 before", "after", "train loss", "seconds"):
        table.add_column(heading, justify="right")
    for one in found["rounds"]:
        scores = (one[name] for name in ("macro_f1_before", "macro_f1_after", "train_loss", "seconds"))
        table.add_row(str(one["round"]), one["status"], *("–" if s is None else f"{s:.3f}" for s in scores))
    return table


def _log(agent: AgentSection) -> None:
    handler = logging.StreamHandler(sys.stdout)
    text = logging.Formatter(f"%(asctime)s {agent.device} %(message)s", datefmt="%H:%M:%S")
    constant = {"federation": agent.federation, "device": agent.device}
    handler.setFormatter(JsonLines(**constant) if agent.log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    app(prog_name="python -m edge_agent")
