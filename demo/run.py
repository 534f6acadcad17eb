"""A live federation on one machine: a broker, a server and several devices as separate processes.

The paper's method on a small network: FedAli with an ALP layer on the CNN (Ek et al. 2024), sized for two cores. It
fails if a device ends without a model that has learned.
"""

from __future__ import annotations

from gaitway.interrupts import begin_loading, end_process, run_program

if __name__ == "__main__":
    begin_loading()

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import httpx
import typer

import phones
import scenario
import show
import verdict
from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.core.ports import require_free
from aggregator_api.http.web.phone import RUNTIME, files
from federations import ROUNDS, SUMS, Site, run_federation
from gaitway.errors import ExitCode, GaitwayError
from gaitway.terminal import Console, working
from processes import DemoError, Programs, free_port
from rest import CREATE_S, Operator
from scenario import MODELS, Plan, Scenario
from sim.cli.command import taking

LOCALHOST = "127.0.0.1"
DEFAULT_ROUNDS = 5
MIN_F1 = ", ".join(f"{known.min_f1:g} on {name}" for name, known in scenario.DATASET_DEFAULTS.items())
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")]


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    data: Annotated[Path | None, typer.Option(help="Folder with real recordings; default: generated ones.")] = None
    devices: Annotated[int, typer.Option(min=1, max=16, help="Number of devices; each is a process.")] = 4
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = DEFAULT_ROUNDS
    model: Annotated[str, typer.Option(help=f"A network: {', '.join(MODELS)}.")] = "har_cnn_alp"
    method: Annotated[str, typer.Option(help="A method with rounds, from docs/methods.md.")] = "fedali"
    min_f1: Annotated[
        float | None, typer.Option(min=0, max=100, help=f"Fail below this macro-F1; default: {MIN_F1}.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: a new one below runs/.")] = None
    keep_running: Annotated[bool, typer.Option("--keep-running", help="Keep all pages until Ctrl-C.")] = False
    phone: Annotated[bool, typer.Option("--phone", help="Like --keep-running; phones can join by HTTPS.")] = False
    private: Annotated[bool, typer.Option("--private", help="Use secure sums, and show what the server sees.")] = False
    http_port: Port = 18080
    mqtt_port: Port = 18883
    phone_port: Port = 18443
    address: Annotated[str, typer.Option(help="This machine's address for phones; default: its network address.")] = ""


@taking(Options)
def main(options: Options) -> None:
    """Run a federation of several devices on this machine and show its progress.

    Example: make demo DEMO_ARGS=--keep-running, to look at everything afterwards; DEMO_ARGS=--phone, to join by phone
    """
    console, failed = Console(), ExitCode.REFUSED
    try:
        options = checked(options)
        with working(console, "looking for recordings"):
            chosen = scenario.choose(options.data, options.devices)
        rounds = scenario.plan_of_rounds(chosen, options.model, options.method, options.rounds, options.seed)
        plans = {SUMS: scenario.plan_of_sums(chosen), ROUNDS: rounds}
        if options.private:
            plans = {name: scenario.secured(plan, options.devices) for name, plan in plans.items()}
        show.line(console, f"{options.method} with {options.model}: {chosen}")
        failed = ExitCode.FAILED
        failures = run(options, chosen, plans, console)
    except (GaitwayError, subprocess.CalledProcessError) as error:
        show.line(Console(stderr=True), f"The demo can't continue. {error}")
        raise typer.Exit(failed) from None
    if failures:
        raise typer.Exit(ExitCode.FAILED)


def checked(options: Options) -> Options:
    """Return the options with a new folder, this machine's address, and free ports, or raise a GaitwayError."""
    if options.phone and options.private:
        raise DemoError(
            "--phone and --private: the demo's secure sum only includes its own devices; choose one of the two"
        )
    if options.private and options.devices < 3:
        raise DemoError(f"--private: a sum needs at least three devices; --devices {options.devices} is too few")
    out = (options.out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")).resolve()
    if out.exists() and any(out.iterdir()):
        raise DemoError(f"{out} is not empty; choose a new folder with --out")
    address = options.address or (phones.network_address() if options.phone else LOCALHOST)
    hosts = {"http_port": LOCALHOST, "mqtt_port": LOCALHOST} | ({"phone_port": address} if options.phone else {})
    ports = {name: getattr(options, name) or free_port(host) for name, host in hosts.items()}
    for name, port in ports.items():
        require_free(hosts[name], port, f"--{name.replace('_', '-')}")
    return replace(options, out=out, address=address, keep_running=options.keep_running or options.phone, **ports)


def run(options: Options, chosen: Scenario, plans: dict[str, Plan], console: Console) -> list[str]:
    """Run both federations, print their results, and return what is wrong."""
    began, out = time.monotonic(), options.out
    with Programs(out / "logs") as programs:
        https = phones.write_https(out / "https", options.address, options.phone_port) if options.phone else None
        operator = start_server(options, programs, https, console)
        pages = {device: f"{LOCALHOST}:{free_port()}" for device in chosen.clients if options.keep_running}
        site = Site(console, programs, operator, out, chosen, options.http_port, options.mqtt_port, pages)
        show_addresses(site)
        sums = run_federation(site, SUMS, plans[SUMS])
        show.line(console, f"{sums.title}: every device has a model after {sums.seconds:.1f} s; now the rounds")
        rounds = run_federation(site, ROUNDS, plans[ROUNDS])
        show.models(console, rounds.summaries)
        show.compare(console, [rounds, sums])
        show.line(console, f"{time.monotonic() - began:.0f} s in all. Everything is in {out}")
        failures = judge(options, chosen, [rounds, sums])
        if options.private:
            database = out / "server" / "gaitway.sqlite3"
            failures += [words for name in plans for words in show.stored(console, database, name)]
        result = ["The demo has failed:", *failures] if failures else [verdict.lowest(rounds.summaries)]
        show.line(console, "\n  ".join(result))
        if https is not None:
            phones.invite(console, operator, SUMS, https, out / "server")
        if options.keep_running:
            stay(site, SUMS if options.phone else ROUNDS)
    return failures


def start_server(options: Options, programs: Programs, https: phones.Https | None, console: Console) -> Operator:
    """Start the broker and the server, and return the operator's client once they are ready."""
    if https is not None and RUNTIME not in files():
        show.line(console, "ONNX Runtime for phones is missing, so phones can only record and label. Run `make phone`.")
    server = options.out / "server"
    where = ("--port", str(options.http_port), "--broker-port", str(options.mqtt_port), "--data-dir", str(server))
    config = ("--config", str(https.settings)) if https else ()
    http = httpx.Client(base_url=f"http://{LOCALHOST}:{options.http_port}", timeout=CREATE_S, trust_env=False)
    operator = Operator(http)
    with working(console, "starting the broker and the server"):
        programs.start("broker", "aggregator_api", "broker", "--port", str(options.mqtt_port))
        programs.start("server", "aggregator_api", "serve", *where, *config)
        for _ in programs.ticks("Starting the server"):
            if operator.is_ready():
                break
    http.headers["Authorization"] = f"Bearer {(server / OPERATOR_FILE).read_text().strip()}"
    return operator


def show_addresses(site: Site) -> None:
    """Print a new link to the operator's page, and the devices' pages."""
    where = ("--data-dir", str(site.folder / "server"), "--port", str(site.http_port))
    command = [sys.executable, "-m", "aggregator_api", "login-link", *where, "--minutes", "720"]
    link = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    show.line(site.console, "The operator's page (this link logs in one browser, once):")
    show.line(site.console, f"  {link.strip()}")
    for device, address in site.pages.items():
        show.line(site.console, f"  {device}: http://{address}/")


def judge(options: Options, chosen: Scenario, outcomes: Sequence[verdict.Outcome]) -> list[str]:
    """Return what is wrong with the devices' models."""
    min_f1 = scenario.DATASET_DEFAULTS[chosen.dataset].min_f1 if options.min_f1 is None else options.min_f1
    found = [words for outcome in outcomes for words in verdict.shortfalls(outcome, min_f1, options.out / "logs")]
    found += verdict.worse_choices(outcomes[0].summaries)
    if found and options.rounds < DEFAULT_ROUNDS:
        found.append(f"More training is needed: the default is --rounds {DEFAULT_ROUNDS}.")
    return found


def stay(site: Site, federation: str) -> None:
    """Run the agents again for their pages, and wait until Ctrl-C."""
    site.start_agents(federation)
    site.console.rule("Everything stays until Ctrl-C")
    show_addresses(site)
    with suppress(KeyboardInterrupt):
        for _ in site.programs.ticks("Waiting for Ctrl-C", math.inf):
            pass
    show.line(site.console, "Ending every process of the demo.")


if __name__ == "__main__":
    try:
        run_program(typer.run, main)
    except SystemExit as ended:
        end_process(int(ended.code or 0))
