"""The REST interface beside a round of many devices: 500 who ask, 200 slow downloads, 200 event streams.

    python benchmarks/bench_concurrency.py --devices 1000 --json concurrency.json
    python benchmarks/bench_concurrency.py --database postgresql --rate 0 --no-limits

Every program is a process of its own on this machine and shares its cores: broker, server with its worker, devices
(thin_devices.py), clients (rest_clients.py), PostgreSQL. What counts is measured from the round's opening to its model.
It fails unless nothing was answered with an error, no connection was lost, every stream got every event, and the 99th
percentile is under the limit. `without_work` are answers of /healthz, asked for by the same clients beside the others:
they wait for the server's event loop alone; `clients_own_lag` is how late the clients' program is by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
from bench_load import HERE, PLAN, Programs, ask, free_port, mosquitto, wait
from rich.table import Table

from aggregator_api.auth.api_keys import OPERATOR_FILE
from gaitway.terminal import Console

LIMIT_MS = 250.0
KEYS = 20
OPENING_S = 1.0
"""A round is dated before a thousand rows of its cohort are written: for so long nobody need see it."""
LARGE = {"name": "har_cnn", "options": {"hidden": 16_384}}
"""A model of some 13 MB, more than the server keeps in memory: its pieces come from the disk."""
ASKED = ("", "", "", "", "", "", "/rounds", "/rounds/1", "/models", "/devices")
"""Of ten questions six are about the federation itself."""


def measure(database: str, given: argparse.Namespace) -> dict[str, Any]:
    """Play one round beside all clients, and return the figures."""
    folder = tempfile.TemporaryDirectory(prefix="gaitway-concurrency-")
    with folder as name, _database(database) as url, Programs(Path(name)) as programs:
        return _measure(Path(name), programs, url, given)


def _measure(folder: Path, programs: Programs, database_url: str | None, given: argparse.Namespace) -> dict[str, Any]:
    mqtt, http = free_port(), free_port()
    keys = _serve(folder, programs, database_url, mqtt, http)
    url, key = f"http://127.0.0.1:{http}", keys[0]
    ask(f"{url}/v1/federations", {"name": "large", "plan": {**PLAN, "model": LARGE}}, key=key)
    plan = {**PLAN, "rounds": {"rounds": 1, "minimum_clients": given.devices}}
    ask(f"{url}/v1/federations", {"name": "load", "plan": plan}, key=key)
    large = ask(f"{url}/v1/federations/large", key=key)["model"]["url"]
    here = "/v1/federations/load"
    clients = [sys.executable, str(HERE / "rest_clients.py"), "--server", f"127.0.0.1:{http}", "--out"]
    clients += [str(folder / "got.json"), "--key-file", str(folder / "keys")]
    clients += ["--askers", str(given.askers), "--rate", str(given.rate), *(f"--ask={here}{path}" for path in ASKED)]
    clients += ["--streams", str(given.streams), "--follow", f"{here}/events"]
    clients += ["--downloads", str(given.downloads), "--download", large]
    programs.start("clients", *clients)
    wait(lambda: "ready" in (folder / "clients.log").read_text(), "the clients cannot connect")
    thin = (str(HERE / "thin_devices.py"), "--federation", "load", "--devices", str(given.devices), "--key", key)
    programs.start("devices", sys.executable, *thin, "--broker", f"127.0.0.1:{mqtt}", "--server", url)
    wait(lambda: ask(f"{url}{here}", key=key).get("status") == "finished", "the federation does not finish", every_s=1)
    time.sleep(2)  # the last event reaches the streams
    round_ = ask(f"{url}{here}/rounds/1", key=key)
    spent = {name: _seconds(programs[name].pid) for name in ("server", "clients", "devices", "broker")}
    events = _count(f"{url}{here}/journal", key)
    programs["clients"].terminate()
    programs["clients"].wait(60)
    got = json.loads((folder / "got.json").read_text())
    said = Counter(status for at, took, status in got["answers"] if at - took >= round_["opened_at"])
    return {**_figures(given.devices, round_, events, got), "statuses": dict(said), "processor_s": spent}


def _serve(folder: Path, programs: Programs, database_url: str | None, mqtt: int, http: int) -> list[str]:
    """Start broker and server, and return keys of it."""
    programs.start("broker", *mosquitto(folder, mqtt))
    data = ("--data-dir", str(folder / "data"))
    os.environ["GAITWAY_KEY_REQUESTS_PER_S"] = os.environ["GAITWAY_ADDRESS_REQUESTS_PER_S"] = "1000000"
    if database_url is not None:
        os.environ["GAITWAY_DATABASE_URL"] = database_url
    else:
        os.environ.pop("GAITWAY_DATABASE_URL", None)
    ports = ("--port", str(http), "--broker-port", str(mqtt))
    programs.start("server", sys.executable, "-m", "aggregator_api", "serve", *ports, *data)
    wait(lambda: bool(ask(f"http://127.0.0.1:{http}/readyz")), "the server is not ready")
    made = [(folder / "data" / OPERATOR_FILE).read_text().strip()]
    for n in range(KEYS - 1):
        body = {"name": f"client-{n}", "scopes": ["read"]}
        made.append(ask(f"http://127.0.0.1:{http}/v1/keys", body, key=made[0])["key"])
    (folder / "keys").write_text("\n".join(made[1:]))
    return made


def _seconds(pid: int) -> float:
    """Return the processor time of a program and what it has started."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _count(url: str, key: str) -> int:
    count, cursor = 0, 0
    while cursor is not None:
        page = ask(f"{url}?limit=500&cursor={cursor}", key=key)
        count, cursor = count + len(page["items"]), page["next_cursor"]
    return count


def _figures(devices: int, round_: dict[str, Any], events: int, got: dict[str, Any]) -> dict[str, Any]:
    opened, closed = round_["opened_at"], round_["closed_at"]
    # by when they were asked for: the worst of those that were answered after the round belong to it too
    during = [each for each in got["answers"] if opened <= each[0] - each[1] <= closed]
    seconds = [1e3 * took for _, took, _ in during]
    probes = [1e3 * took for at, took, _ in got["probes"] if opened <= at - took <= closed]
    lags = [1e3 * late for at, late in got["lags"] if opened <= at <= closed]
    lasted = round_["closed_at"] - round_["opened_at"]
    return {
        "round_s": lasted,
        "updates_per_s": devices / lasted,
        "answers": len(during),
        "answers_per_s": len(during) / lasted,
        "p50_ms": statistics.median(seconds),
        "p90_ms": statistics.quantiles(seconds, n=10)[8],
        "p99_ms": statistics.quantiles(seconds, n=100)[98],
        "longest_ms": max(seconds),
        "without_work_p99_ms": statistics.quantiles(probes, n=100)[98],
        "clients_own_lag_p99_ms": statistics.quantiles(lags, n=100)[98],
        "not_200": sum(not _is_right(round_, *each) for each in during),
        "lost_connections": sum(got["lost"].values()),
        "events": events,
        "streams_with_all_events": sum(count == events for count in got["events"]),
        "downloaded_mb": got["downloaded"] / 1e6,
    }


def _is_right(round_: dict[str, Any], at: float, took: float, status: int) -> bool:
    """Whether an answer is what it should be: of a round that is about to be written, also that there is none."""
    return status == 200 or (status == 404 and at - took < round_["opened_at"] + OPENING_S)


def wrong(found: dict[str, Any], streams: int, limit_ms: float) -> list[str]:
    """Say what is not as it must be."""
    said = []
    if found["not_200"] or found["lost_connections"]:
        said.append(f"{found['not_200']} answers were errors, {found['lost_connections']} connections were lost")
    if found["streams_with_all_events"] != streams:
        said.append(f"only {found['streams_with_all_events']} of {streams} streams got all {found['events']} events")
    if found["p99_ms"] > limit_ms:
        said.append(f"the 99th percentile is {found['p99_ms']:.0f} ms, the limit {limit_ms:.0f} ms")
    return said


@contextmanager
def _postgres() -> Iterator[str]:
    sys.path.insert(0, str(HERE.parent))
    from tests.live.real_parts import postgres

    with postgres() as running:
        yield running.new_database(empty=True)


def _database(name: str) -> Any:
    return _postgres() if name == "postgresql" else nullcontext(None)


def main() -> None:
    """Measure, print a table, write JSON, and fail if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--askers", type=int, default=500)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second of all; 0: all are always open")
    parser.add_argument("--downloads", type=int, default=200)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--database", action="append", choices=["sqlite", "postgresql"])
    parser.add_argument("--no-limits", action="store_true", help="only measure the time: errors still count")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    limit_ms = float("inf") if given.no_limits else LIMIT_MS
    names = given.database or ["sqlite", "postgresql"]
    found = {name: measure(name, given) for name in names}
    table = Table("figure", *names, title=f"{given.askers} who ask, beside a round of {given.devices} devices")
    for figure in found[names[0]]:
        values = (found[name][figure] for name in names)
        table.add_row(figure, *(f"{value:,.1f}" if isinstance(value, int | float) else str(value) for value in values))
    Console().print(table)
    if given.json:
        facts = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
        given.json.write_text(json.dumps({"facts": facts, "runs": found}, indent=2) + "\n")
    missed = [f"{name}: {words}" for name in names for words in wrong(found[name], given.streams, limit_ms)]
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
