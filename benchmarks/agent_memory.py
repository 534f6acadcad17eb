"""Resident memory of an idle device: a real supervisor, connected to a broker, that waits for a round.

    .venv/bin/python benchmarks/agent_memory.py --broker mosquitto --source sensor_logger_http --minutes 1

Prints what /proc says of the supervisor's process: after its start, when idle, and after a phone has recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from federation.plan import ModelSpec, Plan, TrainingConfig
from federation.protocol import topics
from federation.protocol.messages import Announcement, DeviceStatus, read, write
from har_pipeline import dataset_labels

DEVICE, FEDERATION, TOKEN = "s00_phone100-waist", "memory", "benchmark-of-memory"
TARGET_MB = 120.0
TIMEOUT_S = 180.0
MOTION = {"accelerometer": (0.3, 0.2, 0.1), "gravity": (0.0, 0.0, 9.81), "gyroscope": (0.01, 0.02, 0.03)}


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def broker(kind: str, port: int) -> Iterator[None]:
    """Run Mosquitto, or the embedded broker, until the end."""
    if kind == "mosquitto":
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            sys.exit("mosquitto is not installed; use --broker embedded")
        command = [program, "-p", str(port)]
    else:
        command = [sys.executable, "-m", "aggregator_api", "broker", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


class Operator:
    """Announces a federation that waits, and hears the device's status."""

    def __init__(self, port: int) -> None:
        self.status: DeviceStatus | None = None
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="operator")
        self._client.on_message = self._heard
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._client.connect("127.0.0.1", port)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._client.loop_start()
        self._client.subscribe(topics.all_statuses(FEDERATION), 1)
        labels = dataset_labels("synthetic")
        training = TrainingConfig(classes=len(labels))
        plan = Plan(labels=labels, model=ModelSpec(name="har_cnn"), method={"name": "fedavg"}, training=training)
        said = Announcement(
            state="waiting", round=0, model=None, plan=plan, created=0.0, federation=FEDERATION, instance="0" * 32
        )
        self._client.publish(topics.announce(FEDERATION), write(said), 1, retain=True).wait_for_publish(10)

    def wait(self, seconds: float, *, replayed: bool) -> DeviceStatus:
        """Wait until the device reports, and has replayed its recordings if it is to."""
        deadline = time.monotonic() + seconds
        while self.status is None or self.status.state == "offline" or (replayed and not self.status.examples):
            if time.monotonic() > deadline:
                sys.exit("the device did not report within the time")
            time.sleep(0.1)
        return self.status

    def _heard(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.status = read(DeviceStatus, message.payload)

    def stop(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()


def memory(pid: int) -> dict[str, float]:
    """Read a process's memory in MB: resident, its peak, and what is not shared with others."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rollup = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
    )
    own = sum(int(rollup[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    kb = {"rss": status["VmRSS"], "peak": status["VmHWM"]}
    return {**{name: int(text.split()[0]) * 1024 / 1e6 for name, text in kb.items()}, "own": own * 1024 / 1e6}


def forbidden(pid: int) -> list[str]:
    """Name the libraries that an idle supervisor must not have loaded."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [name for name in ("torch", "pandas", "scipy") if f"/site-packages/{name}/" in maps]


def record(port: int, seconds: float) -> None:
    """Push what a phone at rest records at 100 Hz, as fast as the device takes it."""
    url, began_s = f"http://127.0.0.1:{port}/v1/sensor-logger/{TOKEN}", time.time() - seconds
    for number in range(math.ceil(seconds)):
        times = [round((began_s + number + n / 100) * 1e9) for n in range(100)]
        payload = [
            {"name": name, "time": t, "values": dict(zip("xyz", values, strict=True))}
            for t in times
            for name, values in MOTION.items()
        ]
        message = {"messageId": number, "sessionId": "s", "deviceId": "phone", "payload": payload}
        request = urllib.request.Request(url, json.dumps(message).encode(), method="POST")
        for _ in range(100):
            try:
                urllib.request.urlopen(request, timeout=10).close()
                break
            except OSError:
                time.sleep(0.1)


def config(folder: Path, source: str, broker_port: int, phone_port: int) -> Path:
    """Write the device's config."""
    path = folder / "agent.toml"
    path.write_text(
        f'[agent]\ndevice = "{DEVICE}"\nfederation = "{FEDERATION}"\ndata_dir = "data"\n'
        f'[server]\nurl = "http://127.0.0.1:9"\n[broker]\nport = {broker_port}\n'
        f'[sensors]\nsource = "{source}"\noptions = {{ minutes = 3 }}\n'
        f'[phone]\nport = {phone_port}\ntoken = "{TOKEN}"\n'
    )
    return path


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Start everything, and return the figures."""
    port, phone_port = free_port(), free_port()
    path, figures = config(folder, arguments.source, port, phone_port), dict[str, object]()
    with broker(arguments.broker, port):
        operator = Operator(port)
        command = [sys.executable, "-m", "edge_agent", "run", "--config", str(path)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as agent:
            try:
                status = operator.wait(TIMEOUT_S, replayed=arguments.source == "recording")
                figures["state"] = f"{status.state}, {status.examples} examples"
                figures["connected"] = memory(agent.pid)
                time.sleep(arguments.idle)
                figures["idle"] = memory(agent.pid)
                if arguments.minutes and arguments.source == "sensor_logger_http":
                    record(phone_port, 60 * arguments.minutes)
                    time.sleep(6)
                    figures["after a recording"] = memory(agent.pid)
                figures["loaded that should not be"] = forbidden(agent.pid)
            finally:
                agent.terminate()
        operator.stop()
    return figures


def main() -> None:
    """Measure once, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("mosquitto", "embedded"), default="mosquitto")
    parser.add_argument(
        "--source", choices=("sensor_logger_http", "recording"), default="sensor_logger_http", help="sensor source"
    )
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of waiting before idle is measured")
    parser.add_argument("--minutes", type=float, default=0.0, help="then record so long with a phone at 100 Hz")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(arguments, Path(folder))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        words = ", ".join(f"{key} {mb:.1f} MB" for key, mb in value.items()) if isinstance(value, dict) else value
        print(f"{name}: {words}")
    print(f"target for idle: rss below {TARGET_MB:.0f} MB")


if __name__ == "__main__":
    main()
