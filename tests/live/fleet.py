"""A whole federation as processes that can be killed and started again: a broker, the server, devices."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from federation import wire
from federation.records import Tree
from tests.live.real_parts import SYSTEM, wait_for_port
from tests.ports import free_port

PATIENCE_S = float(os.environ.get("GAITWAY_PATIENCE_S", "900"))
"""For what should come: it ends a hang; a machine that is very busy may need more."""


class Program:
    """A command that may be killed and started again; its output is appended to one log."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it with SIGKILL, and what it started as a power cut would."""
        if self._process is not None:
            below = self._below()
            self._process.kill()
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()

    def kill_child(self) -> bool:
        """Kill -9 a process that it started; returns whether there was one."""
        for process in self._below():
            with suppress(psutil.NoSuchProcess):
                process.kill()
                return True
        return False

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and wait for nothing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it in order."""
        if self._process is None:
            return
        self.ask_to_stop()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None
        return self._process

    @property
    def has_child(self) -> bool:
        """Whether a process runs that it started."""
        return bool(self._below())

    @property
    def has_left(self) -> bool:
        """Whether it has ended by itself."""
        return self.process.poll() is not None

    def said(self) -> str:
        """Return the end of its log."""
        return f"--- {self.log.name}\n{self.log.read_text()[-3000:]}"

    def _below(self) -> list[psutil.Process]:
        try:
            return list(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []


def mosquitto_of(folder: Path, port: int) -> list[str]:
    """Return the command of a broker that keeps what it holds, but writes it seldom, as in production."""
    binary = shutil.which("mosquitto", path=SYSTEM)
    if binary is None:
        pytest.skip("there is no mosquitto on this machine")
    state = folder / "mosquitto"
    state.mkdir()
    user = "user root\n" if os.geteuid() == 0 else ""
    path = folder / "mosquitto.conf"
    path.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\n{user}"
        f"persistence true\npersistence_location {state}/\nautosave_interval 1\n"
    )
    return [binary, "-c", str(path)]


def embedded(_folder: Path, port: int) -> list[str]:
    """Return the command of Gaitway's own broker."""
    return [sys.executable, "-m", "aggregator_api", "broker", "--port", str(port)]


class Fleet:
    """The programs of one federation, whose files lie in `folder`.

    `under` is what a program of ours is run under, `broker` the broker's command from its folder and port.
    """

    def __init__(
        self,
        folder: Path,
        under: Callable[[str], list[str]] = lambda name: [],
        broker: Callable[[Path, int], list[str]] = mosquitto_of,
    ) -> None:
        self._under = under
        self.folder, self.http, self.mqtt = folder, free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        serve = ["serve", "--port", str(self.http), "--broker-port", str(self.mqtt)]
        serve += ["--data-dir", str(folder / "data")]
        self.key_file = folder / "data" / "operator.key"
        self.broker = Program(broker(folder, self.mqtt), folder / "broker.log")
        self.server = Program([*under("server"), sys.executable, "-m", "aggregator_api", *serve], folder / "server.log")
        self.devices: dict[str, Program] = {}
        self.start_s = 0.0
        """How long it took until broker and server were ready: the pace of this machine."""

    def start(self) -> None:
        """Run broker and server, and wait until they are ready."""
        began = time.monotonic()
        self.broker.start()
        wait_for_port(self.mqtt, self.broker.process, self.broker.log)
        self.server.start()
        self.wait_for(lambda: self.is_ready() or self.server.has_left, "the server is not ready")
        assert not self.server.has_left, self.server.said()
        self.start_s = time.monotonic() - began

    def command(self, *words: str) -> str:
        """Run one of the server's commands beside it, and return what it prints."""
        run = [sys.executable, "-m", "aggregator_api", *words, "--data-dir", str(self.folder / "data")]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout

    def add_device(
        self,
        config: Path,
        *words: str,
        enrols: bool = False,
        python: str = sys.executable,
        agent: Sequence[str] = ("-m", "edge_agent"),
    ) -> None:
        """Start a device, `words` are further ones of its command; one that speaks HTTP enrols before, others can."""
        speaks_http = 'transport = "mqtt"' not in config.read_text() and "transport" in config.read_text()
        if enrols or speaks_http:
            self._enrol(config)
        run = [python, *agent, "run", "--config", str(config), *words]
        command = ["env", f"GAITWAY_EDGE_SERVER_KEY_FILE={self.key_file}", *self._under(config.stem), *run]
        self.devices[config.stem] = Program(command, self.folder / f"{config.stem}.log")
        self.devices[config.stem].start()

    def _enrol(self, config: Path) -> None:
        wanted = {"device": config.stem, "auto_approve": True}
        token = self.get("/v1/federations/live/enrolment-tokens", wanted)["token"]
        enrol = [sys.executable, "-m", "edge_agent", "enrol", "--config", str(config), "--token-file", "-"]
        subprocess.run(enrol, input=token, text=True, check=True, capture_output=True)

    def stop(self) -> None:
        """End everything."""
        for device in self.devices.values():  # together: each may take seconds
            device.ask_to_stop()
        for program in (*self.devices.values(), self.server, self.broker):
            program.stop()

    def is_ready(self) -> bool:
        """Whether the server can work."""
        try:
            self.get("/readyz")
        except OSError:
            return False
        return True

    @property
    def bearer(self) -> dict[str, str]:
        """The header with the operator's key; none before the server's first start."""
        return {"Authorization": f"Bearer {self.key_file.read_text().strip()}"} if self.key_file.is_file() else {}

    def get(self, path: str, body: Any = None) -> Any:
        """Ask the REST interface; with a body, post it."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self.bearer}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read())

    def listing(self, path: str) -> list[dict[str, Any]]:
        """Return a whole listing, page by page."""
        items: list[dict[str, Any]] = []
        cursor: int | None = 0
        while cursor is not None:
            page = self.get(f"{path}?cursor={cursor}")
            items += page["items"]
            cursor = page["next_cursor"]
        return items

    def blob(self, sha256: str) -> bytes:
        """Download a blob."""
        request = urllib.request.Request(f"{self.url}/v1/blobs/{sha256}", headers=self.bearer)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def last_broadcast(self) -> Tree:
        """Download the newest model."""
        latest = max(self.listing("/v1/federations/live/models"), key=lambda model: int(model["version"]))
        return wire.decode(self.blob(latest["sha256"]), limit_bytes=1 << 24)

    def wait_for(
        self, condition: Callable[[], bool], failure: str, *, within_s: float = PATIENCE_S, every_s: float = 0.1
    ) -> None:
        """Ask until a condition holds; on failure show what every program said last."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(one.said() for one in (self.broker, self.server, *self.devices.values()))
                pytest.fail(f"{failure}\n{logs}")
            time.sleep(every_s)


@contextmanager
def fleet(
    folder: Path,
    under: Callable[[str], list[str]] = lambda name: [],
    broker: Callable[[Path, int], list[str]] = mosquitto_of,
) -> Iterator[Fleet]:
    """Run a federation's programs; end whatever still runs."""
    found = Fleet(folder, under, broker)
    try:
        found.start()
        yield found
    finally:
        found.stop()
