"""An hour of ordinary work, after which nothing may have grown: memory, threads, file handles, database, disk.

    make soak                                                      # an hour on SQLite and PostgreSQL side by side
    python benchmarks/soak.py --minutes 10 --database sqlite --json soak.json

Each database has its own broker (Mosquitto), server with worker, 50 thin devices (thin_devices.py), one real agent
that trains on what a phone sends it at 100 Hz, and open pages (page_readers.py). A round begins every 20 s. Versions
and updates are removed by age every two minutes, as a server's daily retention and garbage collection do, with the
ages scaled to the run. The first third is left out as warm-up; the last third is compared with the middle one. It
fails where a figure has grown by more than its limit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from bench_load import HERE, MEGA, Programs, ask, free_port, mosquitto, wait
from rich.table import Table

from aggregator_api.auth.api_keys import OPERATOR_FILE
from gaitway.terminal import Console

SAMPLE_S, RETAIN_S, ROUND_S = 10.0, 120.0, 20
RATE_HZ, BATCH_S, ACTIVITY_S = 100, 0.5, 40.0
FEDERATION, AGENT, TOKEN = "soak", "agent", "token-of-the-soak"
LABELS = ["still", "walking"]
PLAN: dict[str, Any] = {
    "labels": LABELS,
    "model": {"name": "har_cnn", "options": {"channels": [8, 8], "feature_dim": 8, "hidden": 8}},
    "method": {"name": "fedavg"},
    "training": {"classes": 2, "feature_dim": 8},
}


class Limit(NamedTuple):
    """How much a figure may grow from the middle third to the last one: a share of it, and so much more."""

    share: float
    absolute: float


LIMITS = {
    "memory, MB": Limit(0.05, 6),
    "threads": Limit(0, 2),
    "file handles": Limit(0, 4),
    "database, MB": Limit(0.05, 1),
    "disk, MB": Limit(0.05, 4),
}


class Phone(threading.Thread):
    """Sends the agent what a phone records, in real time: walking and standing still in turn, each annotated."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/v1/sensor-logger/{TOKEN}"
        self.sent = self.failed = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Send a message every half second until it is over."""
        began = time.time()
        for number in range(1 << 30):
            due = began + (number + 1) * BATCH_S
            if self.is_over.wait(max(0.0, due - time.time())):
                return
            message = {"messageId": number, "sessionId": "soak", "deviceId": "phone", "payload": self._payload(due)}
            request = urllib.request.Request(self.url, json.dumps(message).encode(), method="POST")
            try:
                urllib.request.urlopen(request, timeout=10).close()
                self.sent += 1
            except OSError:
                self.failed += 1

    def _payload(self, until: float) -> list[dict[str, Any]]:
        payload: list[dict[str, Any]] = []
        count = round(RATE_HZ * BATCH_S)
        for n in range(count):
            at = until - BATCH_S + n / RATE_HZ
            walks = int(at / ACTIVITY_S) % 2
            swing = 3.0 * walks * math.sin(2 * math.pi * 2.0 * at)
            ns = round(at * 1e9)
            if n == 0:
                payload.append({"name": "annotation", "time": ns, "values": {"text": LABELS[walks]}})
            for name, xyz in (
                ("accelerometer", (0.1, 0.2, swing)),
                ("gravity", (0.0, 0.0, 9.81)),
                ("gyroscope", (0.3 * swing, 0.0, 0.01)),
            ):
                payload.append({"name": name, "time": ns, "values": dict(zip("xyz", xyz, strict=True))})
        return payload


class World:
    """One federation on one database: its programs, and what they take."""

    def __init__(self, folder: Path, programs: Programs, database: str | None, pages: int, devices: int) -> None:
        self.folder, self.programs, self.database = folder, programs, database
        self.pages, self.devices = pages, devices
        self.http, self.mqtt, self.phone_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        self.samples: list[dict[str, float]] = []
        self.phone = Phone(self.phone_port)
        self._retained_at = time.monotonic()

    @property
    def key(self) -> str:
        """The operator's key, which the server wrote at its first start."""
        return (self.folder / "data" / OPERATOR_FILE).read_text().strip()

    @property
    def settings(self) -> Path:
        """The server's settings."""
        return self.folder / "server.toml"

    def start(self) -> None:
        """Run everything until the first round is open."""
        # a day of retention is to the defaults what six minutes are to this hour
        lines = [f'data_dir = "{self.folder / "data"}"', f"port = {self.http}", f"broker_port = {self.mqtt}"]
        lines += [
            "keep_versions = 5",
            "update_retention_days = 0.004",
            "event_retention_days = 0.004",
            "gc_grace_s = 60",
        ]
        lines += [f'database_url = "{self.database}"'] if self.database else []
        self.settings.write_text("\n".join(lines) + "\n")
        self.programs.start("broker", *mosquitto(self.folder, self.mqtt))
        self._run("server", "-m", "aggregator_api", "serve", "--config", str(self.settings))
        wait(lambda: bool(ask(f"{self.url}/readyz")), "the server is not ready")
        rounds = {"rounds": 1_000_000, "deadline_s": ROUND_S - 1}
        # a busy machine may miss a deadline again and again; a federation that pauses would show an idle server
        rounds |= {"max_failed_rounds": 1_000_000, "minimum_clients": self.devices // 2, "interval_s": ROUND_S}
        plan = {**PLAN, "rounds": rounds}
        ask(f"{self.url}/v1/federations", {"name": FEDERATION, "plan": plan}, key=self.key)
        self._start_agent()
        thin = (str(HERE / "thin_devices.py"), "--federation", FEDERATION, "--devices", str(self.devices))
        broker = f"127.0.0.1:{self.mqtt}"
        self._run("devices", *thin, "--key", self.key, "--broker", broker, "--server", self.url)
        readers = (str(HERE / "page_readers.py"), "--server", f"127.0.0.1:{self.http}", "--federation", FEDERATION)
        key_file = str(self.folder / "data" / OPERATOR_FILE)
        out = str(self.folder / "pages.json")
        self._run("pages", *readers, "--key-file", key_file, "--pages", str(self.pages), "--out", out)
        self.phone.start()

    def _start_agent(self) -> None:
        config = self.folder / "agent.toml"
        config.write_text(
            f'[agent]\ndevice = "{AGENT}"\nfederation = "{FEDERATION}"\ndata_dir = "agent"\n'
            f'[server]\nurl = "{self.url}"\n[broker]\nhost = "127.0.0.1"\nport = {self.mqtt}\n'
            f'[sensors]\nsource = "sensor_logger_http"\n[phone]\nport = {self.phone_port}\ntoken = "{TOKEN}"\n'
            "[windows]\nmax_labelled = 300\nmax_unlabelled = 100\n[conditions]\nignore = ['all']\n"
        )
        token = self._command("tokens", "create", "--federation", FEDERATION, "--device", AGENT, "--auto-approve")
        (self.folder / "token").write_text(token.split()[0])
        enrol = ("enrol", "--config", str(config), "--token-file", str(self.folder / "token"))
        subprocess.run([sys.executable, "-m", "edge_agent", *enrol], check=True, capture_output=True)
        self._run("agent", "-m", "edge_agent", "run", "--config", str(config))

    def _run(self, name: str, *words: str) -> None:
        self.programs.start(name, sys.executable, *words)

    def _command(self, *words: str) -> str:
        run = [sys.executable, "-m", "aggregator_api", *words, "--config", str(self.settings)]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout

    def look(self, elapsed_s: float) -> None:
        """Note what everything takes now; remove what is old when it is time; fail if a program is gone."""
        self.check()
        if time.monotonic() - self._retained_at > RETAIN_S:
            self._retained_at = time.monotonic()
            self._command("retention", "apply")
        sample = {"elapsed_s": elapsed_s, "database, MB": self._database_mb()}
        sample["server's disk, MB"] = size_mb(self.folder / "data")
        sample["agent's disk, MB"] = size_mb(self.folder / "agent")
        for name in ("server", "agent", "broker"):
            for figure, value in process_figures(self.programs[name].pid, children=name == "server").items():
                sample[f"{name}'s {figure}"] = value
        self.samples.append(sample)

    def _database_mb(self) -> float:
        if self.database is None:
            return sum(path.stat().st_size for path in (self.folder / "data").glob("*.sqlite3*")) / MEGA
        from sqlalchemy import NullPool, create_engine, text

        engine = create_engine(self.database, poolclass=NullPool)
        with engine.connect() as connection:
            return float(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()) / MEGA

    def check(self) -> None:
        """Fail if something has ended by itself."""
        for name, program in self.programs.items():
            if program.poll() is not None:
                raise SystemExit(f"{name} has ended by itself: {program.returncode}")

    def outcome(self) -> dict[str, Any]:
        """Return what was done in the time, and fail if something has ended by itself."""
        self.check()
        now = ask(f"{self.url}/v1/federations/{FEDERATION}", key=self.key)
        if now["status"] != "running":
            raise SystemExit(f"the federation is {now['status']}: an idle server shows nothing")
        return {"rounds": now["round"], "messages of the phone": self.phone.sent, "refused": self.phone.failed}


def process_figures(pid: int, *, children: bool) -> dict[str, float]:
    """Return a process's memory, threads and file handles; the agent's training process comes and goes, so not it."""
    total: dict[str, float] = defaultdict(float)
    process = psutil.Process(pid)
    for one in (process, *(process.children(recursive=True) if children else ())):
        with suppress(psutil.NoSuchProcess):
            total["memory, MB"] += one.memory_info().rss / MEGA
            total["threads"] += one.num_threads()
            total["file handles"] += one.num_fds()
    return total


def size_mb(folder: Path) -> float:
    """Return what the files below a folder take; they come and go meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(root) / name).stat().st_size
    return total / MEGA


def growth(samples: list[dict[str, float]]) -> dict[str, tuple[float, float, float]]:
    """Return for each figure its medians in the middle and the last third, and how much of growth is allowed."""
    end = samples[-1]["elapsed_s"]
    found = {}
    for figure in (name for name in samples[0] if name != "elapsed_s"):
        middle = statistics.median(s[figure] for s in samples if end / 3 <= s["elapsed_s"] < 2 * end / 3)
        last = statistics.median(s[figure] for s in samples if s["elapsed_s"] >= 2 * end / 3)
        limit = next(limit for kind, limit in LIMITS.items() if figure.endswith(kind))
        found[figure] = (middle, last, limit.share * middle + limit.absolute)
    return found


@contextmanager
def databases(names: list[str]) -> Iterator[dict[str, str | None]]:
    """Make the databases; None stands for SQLite."""
    with ExitStack() as stack:
        found: dict[str, str | None] = {}
        for name in names:
            if name == "sqlite":
                found[name] = None
            else:
                from tests.live.real_parts import postgres

                found[name] = stack.enter_context(postgres()).new_database(empty=True)
        yield found


def soak(
    names: list[str], minutes: float, pages: int, devices: int, say: Callable[[str, dict[str, Any]], None]
) -> dict[str, Any]:
    """Run a world for each database, and return samples and outcomes; `say` is told each minute how it is."""
    with ExitStack() as stack:
        worlds: dict[str, World] = {}
        for name, url in stack.enter_context(databases(names)).items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"gaitway-soak-{name}-")))
            worlds[name] = World(folder, stack.enter_context(Programs(folder)), url, pages, devices)
            worlds[name].start()
        began = said = time.monotonic()
        while (elapsed := time.monotonic() - began) < 60 * minutes:
            for world in worlds.values():
                world.look(elapsed)
            if time.monotonic() - said > 60:
                said = time.monotonic()
                samples = {name: {"samples": world.samples} for name, world in worlds.items()}
                say(f"{elapsed / 60:.0f} of {minutes:g} minutes; {_summary(worlds)}", samples)
            time.sleep(SAMPLE_S)
        return {name: {"done": world.outcome(), "samples": world.samples} for name, world in worlds.items()}


def _summary(worlds: dict[str, World]) -> str:
    parts = []
    for name, world in worlds.items():
        memory, disk = (world.samples[-1][f"server's {figure}, MB"] for figure in ("memory", "disk"))
        parts.append(f"{name}: server {memory:.0f} MB, disk {disk:.1f} MB")
    return "; ".join(parts)


def main() -> None:
    """Run, print a table, write JSON, and fail if something has grown."""
    sys.path.insert(0, str(HERE.parent))  # for the tests' PostgreSQL
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--devices", type=int, default=50, help="thin devices")
    parser.add_argument("--pages", type=int, default=5, help="open pages")
    parser.add_argument("--json", type=Path, help="where samples and figures are written")
    given = parser.parse_args()
    names = ["sqlite", "postgresql"] if given.database == "both" else [given.database]
    load = os.getloadavg()
    facts = {"machine": platform.machine(), "cores": os.cpu_count(), "load before": load}

    def keep(words: str, found: dict[str, Any]) -> None:
        print(words, flush=True)
        if given.json:
            given.json.write_text(json.dumps({"facts": facts, **found}, indent=2) + "\n")

    found = soak(names, given.minutes, given.pages, given.devices, keep)
    facts["load after"] = os.getloadavg()
    keep("over", found)
    grown = []
    for name in names:
        table = Table("figure", "middle third", "last third", "may grow by", title=f"{name}: {found[name]['done']}")
        for figure, (middle, last, allowed) in growth(found[name]["samples"]).items():
            table.add_row(figure, f"{middle:,.1f}", f"{last:,.1f}", f"{allowed:.1f}")
            if last - middle > allowed:
                grown.append(f"{name}: {figure} has grown from {middle:.1f} to {last:.1f}, at most by {allowed:.1f}")
        Console().print(table)
    print(facts, time.strftime("%Y-%m-%d"))
    if grown:
        raise SystemExit("\n".join(grown))


if __name__ == "__main__":
    main()
