"""One round of many devices: broker, server and devices as real processes on this machine.

    python benchmarks/bench_load.py --devices 100,1000 --rounds 2 --json load.json

Devices are thin (thin_devices.py): real connections and uploads of the HAR CNN's size, no training. Meanwhile the REST
interface is asked twenty times a second. All processes share the machine's cores, the devices too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from gaitway.terminal import Console

HERE = Path(__file__).resolve().parent
PLAN: dict[str, Any] = {
    "labels": ["still", "walking", "up", "down", "sitting", "standing"],
    "model": {"name": "har_cnn"},
    "method": {"name": "fedavg"},
    "training": {"classes": 6, "feature_dim": 192},
}
ASK_EVERY_S = 0.05
MEGA = 1e6


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Programs(dict[str, subprocess.Popen[bytes]]):
    """Programs by their names, each with its log in the folder; they end with the block."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def start(self, name: str, *command: str) -> None:
        """Run a program."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Programs:
        """Begin with none."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End them all; after a failure, show what each said last."""
        for name in self if kind else ():
            print(f"--- {name}\n{(self.folder / f'{name}.log').read_text()[-2000:]}", file=sys.stderr)
        for program in reversed(self.values()):
            program.terminate()
        for program in self.values():
            program.wait(20)


class Watch(threading.Thread):
    """Asks the REST interface all the time, and notes how much memory and processor the programs have taken."""

    def __init__(self, url: str, key: str, programs: dict[str, subprocess.Popen[bytes]]) -> None:
        super().__init__(daemon=True)
        self.request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
        self.programs = programs
        self.latencies: list[tuple[float, float]] = []  # when, seconds
        self.memory = dict.fromkeys(programs, 0)
        self.seconds = dict.fromkeys(programs, 0.0)
        self.errors = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Ask and look until it is over."""
        while not self.over.wait(ASK_EVERY_S):
            begun = time.perf_counter()
            try:
                with urllib.request.urlopen(self.request, timeout=10) as answer:
                    answer.read()
                self.latencies.append((time.time(), time.perf_counter() - begun))
            except OSError:
                self.errors += 1
            for name, program in self.programs.items():
                with suppress(psutil.NoSuchProcess):
                    self._look(name, psutil.Process(program.pid))

    def _look(self, name: str, process: psutil.Process) -> None:
        family = [process, *process.children(recursive=True)]
        self.memory[name] = max(self.memory[name], sum(one.memory_info().rss for one in family))
        times = [one.cpu_times() for one in family]
        self.seconds[name] = max(self.seconds[name], sum(one.user + one.system for one in times))


def measure(devices: int, rounds: int) -> dict[str, Any]:
    """Run a federation of that many devices, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="gaitway-load-") as name, Programs(Path(name)) as programs:
        return _measure(devices, rounds, Path(name), programs)


def _measure(devices: int, rounds: int, folder: Path, programs: Programs) -> dict[str, Any]:
    mqtt, http = free_port(), free_port()
    url = f"http://127.0.0.1:{http}"

    programs.start("broker", *mosquitto(folder, mqtt))
    serve = ("serve", "--port", str(http), "--broker-port", str(mqtt))
    programs.start("server", sys.executable, "-m", "aggregator_api", *serve, "--data-dir", str(folder / "data"))
    wait(lambda: bool(ask(f"{url}/readyz")), "the server is not ready")
    key = (folder / "data" / "operator.key").read_text().strip()
    idle = psutil.Process(programs["server"].pid).memory_info().rss
    plan = {**PLAN, "rounds": {"rounds": rounds, "minimum_clients": devices}}
    ask(f"{url}/v1/federations", {"name": "load", "plan": plan}, key=key)
    thin = (str(HERE / "thin_devices.py"), "--federation", "load", "--devices", str(devices))
    programs.start("devices", sys.executable, *thin, "--broker", f"127.0.0.1:{mqtt}", "--server", url, "--key", key)
    watch = Watch(f"{url}/v1/federations/load", key, programs)
    watch.start()
    federation = f"{url}/v1/federations/load"
    wait(
        lambda: programs["devices"].poll() or ask(federation, key=key)["status"] == "finished",
        "the federation does not finish",
    )
    if programs["devices"].poll():
        raise SystemExit("the devices have ended before the federation")
    watch.over.set()
    watch.join()
    played = ask(f"{url}/v1/federations/load/rounds", key=key)["items"]
    bytes_each = ask(f"{url}/v1/federations/load/models", key=key)["items"][0]["size"]
    return _figures(devices, played, bytes_each, idle, watch)


def _figures(devices: int, played: list[dict[str, Any]], size: int, idle: int, watch: Watch) -> dict[str, Any]:
    seconds = [each["closed_at"] - each["opened_at"] for each in played]
    during = [s for at, s in watch.latencies if played[0]["opened_at"] <= at <= played[-1]["closed_at"]]
    per_round = statistics.median(seconds)
    total = sum(watch.seconds.values())
    return {
        "devices": devices,
        "rounds": len(played),
        "update_bytes": size,
        "round_s": seconds,
        "updates_per_s": devices / per_round,
        "upload_mb_per_s": devices * size / per_round / MEGA,
        "api_p50_ms": 1e3 * statistics.median(during),
        "api_p99_ms": 1e3 * statistics.quantiles(during, n=100)[98],
        "api_asked": len(during),
        "api_errors": watch.errors,
        "server_idle_mb": idle / MEGA,
        **{f"{name}_peak_mb": peak / MEGA for name, peak in watch.memory.items()},
        **{f"{name}_cpu_s": spent for name, spent in watch.seconds.items()},
        **{f"{name}_cpu_share": spent / total for name, spent in watch.seconds.items()},
    }


def mosquitto(folder: Path, port: int) -> list[str]:
    """Write a broker's configuration and return its command."""
    binary = shutil.which("mosquitto", path=f"/usr/sbin{os.pathsep}{os.environ.get('PATH', '')}")
    if binary is None:
        raise SystemExit("this benchmark needs mosquitto; on Debian: apt-get install mosquitto")
    path = folder / "mosquitto.conf"
    user = "user root\n" if os.geteuid() == 0 else ""
    path.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\n{user}max_inflight_messages 100\nmax_queued_messages 10000\n"
    )
    return [binary, "-c", str(path)]


def ask(url: str, body: Any = None, *, key: str | None = None) -> Any:
    """GET, or POST a body, with a key if one is given; empty if the server does not answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 429:  # the devices use the same key
            time.sleep(float(error.headers["Retry-After"]))
            return ask(url, body, key=key)
        if error.code < 500:
            raise SystemExit(f"{url}: {error.read().decode()}") from error
        return {}
    except OSError:
        return {}


def wait(condition: Any, failure: str, within_s: float = 1800, every_s: float = 0.2) -> None:
    """Wait until the condition holds, or end with the failure's words."""
    deadline = time.monotonic() + within_s
    while True:
        with suppress(KeyError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise SystemExit(failure)
        time.sleep(every_s)


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="100,1000", help="how many, separated by commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    console, found = Console(), []
    for count in map(int, given.devices.split(",")):
        console.print(f"{count} devices, {given.rounds} rounds …")
        found.append(measure(count, given.rounds))
    table = Table("figure", *(f"{each['devices']} devices" for each in found), title="A round of many devices")
    for name in (key for key in found[0] if key not in ("devices", "round_s")):
        table.add_row(
            name, *(f"{each[name]:,.2f}" if isinstance(each[name], float) else str(each[name]) for each in found)
        )
    console.print(table)
    if given.json:
        facts = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        given.json.write_text(json.dumps({"facts": facts, "runs": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
