"""What a connected device that only waits costs the broker: memory and processor time of Mosquitto, by connections.

`python -m benchmarks.broker_memory --connections 500 2000 --watch 60`

Each connection is as a device's: a session that is kept, subscriptions to the announcement, its invitation and its
answers, and says its status. It then pings once a minute, as devices do.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.bench_load import free_port, mosquitto
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, write

KEEPALIVE_S = 60
SPARE_FILES = 100


def connect(port: int, name: str, said: Callable[[], None]) -> paho.Client:
    """Connect one device; `said` is called once the broker has its status."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)

    def begin(*_: object) -> None:
        own = [topics.invitation("idle", name), topics.ack("idle", name)]
        client.subscribe([(topic, 1) for topic in [topics.announce("idle"), *own]])
        client.publish(topics.status("idle", name), write(DeviceStatus(state="ready", examples=100)), 1)

    client.on_connect = begin
    client.on_publish = lambda *_: said()
    client.connect("127.0.0.1", port, keepalive=KEEPALIVE_S)
    return client


class Waiting:
    """Connections that wait, on one selector."""

    def __init__(self, port: int) -> None:
        self.port, self.selector, self.clients, self.here = port, selectors.DefaultSelector(), list[paho.Client](), 0

    def grow(self, count: int) -> None:
        """Have so many connections, each with its status at the broker."""
        while len(self.clients) < count:
            client = connect(self.port, f"d{len(self.clients):06d}", self._came)
            self.clients.append(client)
            self.selector.register(client.socket(), selectors.EVENT_READ, client)
            self.serve(0)
        while self.here < count:
            self.serve(0.05)

    def serve(self, seconds: float) -> None:
        """Read and write for so long."""
        end = time.monotonic() + seconds
        while True:
            for key, _ in self.selector.select(0.01):
                key.data.loop_read()
            for client in self.clients:
                if client.want_write():
                    client.loop_write()
            if time.monotonic() >= end:
                return

    def rest(self, seconds: float) -> None:
        """Only keep the connections alive."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for client in self.clients:
                client.loop_misc()
            self.serve(1.0)

    def _came(self) -> None:
        self.here += 1


def main() -> None:
    """Print one line per number of connections."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--connections", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--watch", type=float, default=60.0, help="seconds of waiting, to measure processor time")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the broker inherits it
    if most < max(given.connections) + SPARE_FILES:
        sys.exit(f"{most} open files are allowed; raise `ulimit -n`")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with subprocess.Popen(mosquitto(Path(folder), port), stderr=subprocess.DEVNULL) as broker:
            try:
                time.sleep(1)
                measure(psutil.Process(broker.pid), Waiting(port), sorted(given.connections), given.watch)
            finally:
                broker.terminate()


def measure(broker: psutil.Process, waiting: Waiting, counts: list[int], watch_s: float) -> None:
    """Grow, rest, and print."""
    empty = broker.memory_info().rss
    print(f"no connection: {empty / 1e6:.1f} MB")
    for count in counts:
        waiting.grow(count)
        before = broker.cpu_times()
        waiting.rest(watch_s)
        after, rss = broker.cpu_times(), broker.memory_info().rss
        spent = after.user + after.system - before.user - before.system
        print(
            f"{count} connections: {rss / 1e6:.1f} MB, {(rss - empty) / count / 1e3:.2f} kB each;"
            f" {1e6 * spent / watch_s / count:.1f} µs of processor time a second each"
        )


if __name__ == "__main__":
    main()
