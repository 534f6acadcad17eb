"""The programs as processes: a broker, a server, agents; and the operator's requests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from federation import wire
from federation.plan import Plan
from federation.records import Tree
from tests.live.real_parts import free_port

AGENT_S = 270
Start = Callable[..., "subprocess.Popen[bytes]"]


class Live:
    """A running server and broker, whose files lie in `folder`."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder, self._start = folder, start
        http, self.mqtt = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http}"
        start("broker", "aggregator_api", "broker", "--port", str(self.mqtt))
        server = ("aggregator_api", "serve", "--port", str(http), "--broker-port", str(self.mqtt))
        start("server", *server, "--data-dir", str(folder / "server"))
        self._ready()

    def found(self, plan: Plan) -> None:
        """Create the federation."""
        self.get("/v1/federations", {"name": "live", "plan": plan.model_dump(mode="json")})

    def run_agents(self, configs: Sequence[Path], *, rounds: int, adopt: bool) -> None:
        """Start the agents, and wait until all have left by themselves, or (without `adopt`) have done their rounds.

        What they adopt they export first, which costs more than the rounds.
        """
        words = ("edge_agent", "run", "--until-finished", "--config")
        agents = [self._start(path.stem, *words, str(path)) for path in configs]
        if adopt:
            codes = [agent.wait(AGENT_S) for agent in agents]
            assert codes == [0] * len(agents), self._log(configs[0])
            return
        deadline = time.monotonic() + AGENT_S
        while not all(self.rounds_of(path.stem) == list(range(1, rounds + 1)) for path in configs):
            assert time.monotonic() < deadline, self._log(configs[0])
            time.sleep(0.2)

    def rounds_of(self, device: str) -> list[int]:
        """Return the rounds whose update the server has accepted, as the device says."""
        path = self.folder / device / "summary.json"
        if not path.exists():
            return []
        return [entry["round"] for entry in json.loads(path.read_text())["rounds"] if entry["status"] == "accepted"]

    def _log(self, config: Path) -> str:
        return (self.folder / f"{config.stem}.log").read_text()[-3000:]

    def wait_until_finished(self) -> None:
        """Wait until the server has published the last round."""
        deadline = time.monotonic() + AGENT_S
        while self.get("/v1/federations/live")["status"] != "finished":
            assert time.monotonic() < deadline, "the federation does not finish"
            time.sleep(0.1)

    def last_broadcast(self, round_number: int) -> Tree:
        """Download the newest model, which must be that of the round."""
        versions = self.get("/v1/federations/live/models")["items"]
        latest = max(versions, key=lambda version: version["version"])
        assert latest["round_number"] == round_number
        with urllib.request.urlopen(f"{self.url}/v1/blobs/{latest['sha256']}", timeout=20) as answer:
            return wire.decode(answer.read(), limit_bytes=1 << 24)

    def get(self, path: str, body: Any = None) -> Any:
        """Ask the REST interface; with a body, post it."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def _ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self.get("/readyz")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return


@contextmanager
def live(folder: Path) -> Iterator[Live]:
    """Start broker and server with their output in log files; end whatever still runs."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", *words], stdout=log, stderr=log)
        started.append(process)
        return process

    try:
        yield Live(folder, start)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
