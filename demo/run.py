"""A live federation on one machine: a broker, a server and several devices as separate processes, shown while it runs.

The paper's method on a small network: FedAli with an ALP layer on the CNN (Ek et al. 2024), sized for two cores. It
fails if a device ends without a model that has learned.
"""

from __future__ import annotations

from gaitway.interrupts import begin_loading, end_loading, end_process

if __name__ == "__main__":
    begin_loading()

import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

import addresses
import phones
import scenario
import secure
import show
import verdict
from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.auth.server_identity import write_secret
from exchange import FEDERATION as SUMS
from exchange import Outcome, outcome, plan_of_sums, run_exchange
from federation.plan import Plan
from gaitway.exit_codes import ExitCode
from gaitway.progress import working
from gaitway.terminal import Console
from processes import Child, Children, DemoError, free_port, require_port, wait_for_port
from rest import Operator, Snapshot, connect
from scenario import FEDERATION, METHODS, MODELS, Scenario

POLL_S = 0.5
ROUNDS = 5
MODEL, METHOD = "har_cnn_alp", "fedali"
EPOCHS = ", ".join(f"{suited.epochs} on {dataset}" for dataset, suited in scenario.DATASET_DEFAULTS.items())
BOUNDS = ", ".join(f"{suited.min_f1:g} on {dataset}" for dataset, suited in scenario.DATASET_DEFAULTS.items())


def main(
    data: Annotated[
        Path | None, typer.Option(help="Folder with real recordings; without it they are generated.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, max=16, help="Devices, a process each.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the federation.")] = ROUNDS,
    epochs: Annotated[
        int | None, typer.Option(min=1, help=f"A device's passes over its own data in a round; default: {EPOCHS}.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = MODEL,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = METHOD,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 1e-3,
    minutes: Annotated[float, typer.Option(min=0.5, help="Length of a generated recording.")] = 6.0,
    min_f1: Annotated[
        float | None,
        typer.Option(min=0, max=100, help=f"Fail if a device's model has less macro-F1; default: {BOUNDS}."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    exchange: Annotated[
        bool, typer.Option("--exchange/--no-exchange", help="First run the analytic federation, for comparison.")
    ] = True,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="The server's port; 0: any free one.")] = 18080,
    mqtt_port: Annotated[int, typer.Option(min=0, max=65535, help="The broker's port; 0: any free one.")] = 18883,
    out: Annotated[Path | None, typer.Option(help="Folder for the outcome; default: a new one below runs/.")] = None,
    timeout_s: Annotated[float, typer.Option(min=1, help="Give up after so many seconds.")] = 900.0,
    keep_running: Annotated[
        bool,
        typer.Option(
            "--keep-running", help="Keep the server, and a page of each device, for looking at them until Ctrl-C."
        ),
    ] = False,
    phone: Annotated[
        bool,
        typer.Option(
            "--phone",
            help="As --keep-running; the server also speaks HTTPS in this machine's network, and a link and a QR code "
            "let a phone look and take part. Without it nothing listens but on this machine alone.",
        ),
    ] = False,
    phone_rounds: Annotated[
        bool,
        typer.Option(
            "--phone-rounds",
            help="As --phone, but the phones' federation trains the network in rounds, each with a phone in it, "
            "instead of adding up exact sums.",
        ),
    ] = False,
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Add updates up by secure sums: the server learns the sum of all devices alone. At its end the demo "
            "says what the server saw, and compares the models with a simulation in the open.",
        ),
    ] = False,
    phone_port: Annotated[int, typer.Option(min=0, max=65535, help="HTTPS for phones; 0: any free port.")] = 18443,
    address: Annotated[
        str | None, typer.Option(help="This machine's address, as phones reach it; without it, it is looked for.")
    ] = None,
) -> None:
    """Run a federation of several devices on this machine and show how it goes.

    It first says where to look: the operator's page in a browser.

    Example: python demo/run.py --data ../shared/data --devices 4

    Example: make demo DEMO_ARGS=--keep-running, to look at everything afterwards; DEMO_ARGS=--phone, to join by phone
    """
    phone, keep_running = phone or phone_rounds, keep_running or phone or phone_rounds
    console, failed = _console(), ExitCode.REFUSED
    try:
        _refuse_options(model, phone, private)
        folder = _new_folder(out)
        http_port, mqtt_port = _ports(http_port, mqtt_port)
        with working(console, "looking for recordings"):
            chosen = scenario.choose(data, devices, minutes)
        console.print(f"{method} with {model}: {chosen.about}", soft_wrap=True, highlight=False)
        epochs, min_f1 = epochs or chosen.suited.epochs, chosen.suited.min_f1 if min_f1 is None else min_f1
        plan = scenario.make_plan(chosen, model=model, method=method, rounds=rounds, epochs=epochs, lr=lr, seed=seed)
        plan, sums = secure.plans(plan, plan_of_sums(chosen.labels), devices, private)
        began = time.monotonic()
        https = _https(console, folder / "https", address or phones.network_address(), phone_port) if phone else None
        pages = addresses.page_addresses(chosen.clients) if keep_running else {}
        failed = ExitCode.FAILED
        with Children(folder / "logs") as children:
            operator = _start_server(children, folder, http_port, mqtt_port, https, console)
            addresses.opening(console, folder / "server", http_port, pages, stays=keep_running)
            operator.create(plan)
            write_secret(folder / "devices" / "server.key", operator.device_key().encode())
            run = (children, operator, folder / "analytic", chosen, (http_port, mqtt_port), timeout_s, sums)
            first = _exchange(console, run) if exchange else []
            started = time.monotonic()
            configs = _start_agents(children, operator, folder, chosen, http_port, mqtt_port, pages, private)
            folders = {device: config.parent for device, config in configs.items()}
            finished = _watch(children, operator, folders, console, timeout_s)
            if finished.status != "finished":
                raise DemoError(f"the federation is {finished.status}; see {folder / 'logs'}")
            summaries = show.load_summaries(folders)
            took_s = time.monotonic() - started
            show.results(console, operator.rounds(), summaries)
            outcomes = [outcome(f"{method}, {rounds} rounds", operator, FEDERATION, summaries, took_s), *first]
            show.beside(console, outcomes)
            ending = f"{time.monotonic() - began:.0f} s in all. Everything is in {folder}"
            console.print(ending, soft_wrap=True, highlight=False)
            works = _judge(console, summaries, min_f1, folder / "logs", _more_training(chosen, rounds, epochs), first)
            works &= not private or _is_private(console, operator, folder, chosen, plan, sums if first else None)
            if https is not None:
                phones.invite(console, operator, phones.plan_for(plan, phone_rounds), https, folder / "server")
                configs = _beside_phones(operator, folder, chosen, http_port, mqtt_port, pages)
            operator.close()
            if keep_running:
                addresses.stay(console, children, configs, folder / "server", http_port, pages)
        if not works:
            raise typer.Exit(ExitCode.FAILED)
    except DemoError as error:
        Console(stderr=True).print(f"The demo cannot go on. {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(failed) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; every process of the demo has been ended.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _console() -> Console:
    """Return where the demo writes; from here on Ctrl-C is an exception."""
    end_loading()
    return Console()


def _new_folder(out: Path | None) -> Path:
    folder = (out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise DemoError(f"{folder} is not empty; choose a new folder with --out")
    return folder


def _refuse_options(model: str, phone: bool, private: bool) -> None:
    if model not in MODELS:
        raise DemoError(f"--model {model}: expected one of {', '.join(MODELS)}")
    if phone and private:
        raise DemoError("--phone and --private: private models are compared with a simulation of boards; choose one")


def _more_training(chosen: Scenario, rounds: int, epochs: int) -> str:
    """Name the options of more training, where it is less than suits the data."""
    short = rounds * epochs < ROUNDS * chosen.suited.epochs
    return f"--rounds {ROUNDS} of --epochs {chosen.suited.epochs}" if short else ""


def _exchange(console: Console, run: tuple[Any, ...]) -> list[Outcome]:
    """Run the analytic federation before the rounds: what it came to; `run` is what `run_exchange` takes."""
    with working(console, "one exchange of exact sums: the analytic federation"):
        found = run_exchange(*run)
    words = f"{found.title}: every device has a model after {found.seconds:.1f} s; now the rounds"
    console.print(words, soft_wrap=True, highlight=False)
    return [found]


def _is_private(
    console: Console, operator: Operator, folder: Path, chosen: Scenario, plan: Plan, sums: Plan | None
) -> bool:
    """Say what the server saw, and whether the models are those without masks; whether both is as it should be."""
    plans = {FEDERATION: plan} | ({SUMS: sums} if sums else {})
    works = secure.say_what_was_seen(console, folder / "server" / "gaitway.sqlite3", list(plans))
    for name, one in plans.items():
        works &= secure.is_that_in_the_open(console, operator, one, chosen, name)
    return works


def _judge(
    console: Console,
    summaries: dict[str, dict[str, Any]],
    min_f1: float,
    logs: Path,
    more: str,
    first: list[Outcome],
) -> bool:
    """Say and return whether every device has a model that has learned, of each federation."""
    failures = [
        *verdict.shortfalls(summaries, min_f1, logs),
        *verdict.worse_choices(summaries),
        *verdict.outcome_shortfalls(first, min_f1, logs),
    ]
    if not failures:
        console.print(verdict.reached(summaries, min_f1), soft_wrap=True, highlight=False)
        return True
    broken = "With settings that learn, this means that training or the exchange of updates is broken."
    advice = f"More training is needed: by default it is {more}." if more else broken
    words = "\n  ".join(["The demo has failed:", *failures, advice])
    Console(stderr=True).print(words, style="red", markup=False, highlight=False, soft_wrap=True)
    return False


def _https(console: Console, folder: Path, address: str, port: int) -> phones.Https:
    phones.require_own(address)
    port = port or free_port(address)
    require_port(port, "HTTPS for phones", "--phone-port", address)
    found = phones.write_https(folder, address, port)
    phones.say_what_is_missing(console)
    return found


def _ports(http_port: int, mqtt_port: int) -> tuple[int, int]:
    if http_port and http_port == mqtt_port:
        raise DemoError(f"--http-port and --mqtt-port are both {http_port}; choose two")
    http_port, mqtt_port = http_port or free_port(), mqtt_port or free_port()
    require_port(http_port, "the server", "--http-port")
    require_port(mqtt_port, "the MQTT broker", "--mqtt-port")
    return http_port, mqtt_port


def _start_server(
    children: Children, folder: Path, http_port: int, mqtt_port: int, https: phones.Https | None, console: Console
) -> Operator:
    with working(console, "starting the broker and the server"):
        broker = children.start("broker", "aggregator_api", "broker", "--port", str(mqtt_port))
        wait_for_port(mqtt_port, broker, 30)
        server = children.start(
            "server", "aggregator_api", "serve",
            "--port", str(http_port), "--broker-port", str(mqtt_port), "--data-dir", str(folder / "server"),
            *(["--config", str(https.settings)] if https else []),
        )  # fmt: skip
        wait_for_port(http_port, server, 60)
    return Operator(connect(f"http://127.0.0.1:{http_port}", folder / "server" / OPERATOR_FILE), FEDERATION)


def _start_agents(
    children: Children,
    operator: Operator,
    folder: Path,
    chosen: Scenario,
    http_port: int,
    mqtt_port: int,
    pages: dict[str, str],
    enrols: bool,
) -> dict[str, Path]:
    """Start an agent for each client, which enrols if it has to sign; return each device's settings, in its folder."""
    configs = {}
    for device in chosen.clients:
        home, page = folder / "devices" / device, pages.get(device)
        configs[device] = scenario.write_agent_config(home, chosen, device, http_port, mqtt_port, page)
        if enrols:
            secure.enrol(children, operator, configs[device], device, FEDERATION)
        children.start(f"agent-{device}", "edge_agent", "run", "--config", str(configs[device]), "--until-finished")
    return configs


def _beside_phones(
    operator: Operator, folder: Path, chosen: Scenario, http_port: int, mqtt_port: int, pages: dict[str, str]
) -> dict[str, Path]:
    """Return settings with which each device goes on in the phones' federation, at the same address."""
    home = folder / "beside-phones"
    write_secret(home / "server.key", operator.device_key(phones.FEDERATION).encode())
    return {
        device: scenario.write_agent_config(
            home / device, chosen, device, http_port, mqtt_port, pages.get(device), phones.FEDERATION
        )
        for device in chosen.clients
    }


def _watch(
    children: Children, operator: Operator, folders: dict[str, Path], console: Console, timeout_s: float
) -> Snapshot:
    """Show the federation until every agent has ended by itself.

    Raises:
        DemoError: if a program fails, the server stops answering, or the time is up.
    """
    agents = [child for child in children.started if child.name.removeprefix("agent-") in folders]
    deadline = time.monotonic() + timeout_s
    with show.live(console) as update:
        while True:
            try:
                snapshot = operator.snapshot()
            except httpx.HTTPError as error:
                children.check(may_end=agents)
                raise DemoError(f"the server does not answer: {error}") from error
            update(snapshot)
            children.check(may_end=agents)
            if snapshot.status == "stopped" or _all_ended(agents):
                return snapshot
            if time.monotonic() > deadline:
                raise DemoError(f"not finished after {timeout_s:.0f} s ({snapshot.headline}); --timeout-s allows more")
            time.sleep(POLL_S)


def _all_ended(agents: list[Child]) -> bool:
    return all(agent.process.poll() is not None for agent in agents)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SystemExit as ended:
        end_process(int(ended.code or 0))
