"""A server that comes back from a backup while its devices have gone on: they train again, and all rounds are finished.

The last model is the one from before, bit for bit: the same rounds are trained from the same models.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from aggregator_api.core.settings import load
from aggregator_api.maintenance.backup import back_up
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.status import describe_device
from tests.live.fleet import PATIENCE_S, Program, mosquitto_of
from tests.live.real_parts import Postgres, bearer, mosquitto, postgres, wait_for_port
from tests.live.walks import DEVICES, agent_toml, experiment_for, plan_of
from tests.ports import free_port

pytestmark = [pytest.mark.service, pytest.mark.timeout(1800)]

KEPT_ROUNDS = 2
MINUTES = 1.0
DEVICE = DEVICES[0]
HERE = "/v1/federations/live"
SOON = "[training]\nnice = 0\nretry_s = 0.2\n[uploads]\nack_timeout_s = 1.0\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


class Installation:
    """A broker, a server and one device, whose server can be killed and brought back."""

    def __init__(self, folder: Path, parts: ExitStack, *, enrolled: bool) -> None:
        self.folder, self.enrolled, self.port = folder, enrolled, free_port()
        self.data = folder / "data"
        self.programs: list[Program] = []
        self.ca: Path | None = None
        parts.callback(self.stop)
        if enrolled:
            broker = parts.enter_context(mosquitto(folder))
            self.mqtt, self.ca, self.config = broker.port, broker.ca, ["--config", str(broker.server_toml)]
        else:
            self.mqtt = free_port()
            self.config = ["--broker-port", str(self.mqtt)]
            started = self.run(mosquitto_of(folder, self.mqtt), "broker")
            wait_for_port(self.mqtt, started.process, started.log)
        self.http = parts.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{self.port}",
                timeout=PATIENCE_S,
                trust_env=False,
                auth=bearer(self.data / "operator.key"),
            )
        )

    def run(self, command: list[str], name: str) -> Program:
        program = Program(command, self.folder / f"{name}.log")
        program.start()
        self.programs.append(program)
        return program

    def serve(self) -> Program:
        words = ["serve", *self.config, "--port", str(self.port), "--data-dir", str(self.data)]
        program = self.run([sys.executable, "-m", "aggregator_api", *words], "server")
        self.wait_for(self.answers, "the server is not ready")
        return program

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        config = self.config if self.enrolled else []
        line = [sys.executable, "-m", "aggregator_api", *words, *config, "--data-dir", str(self.data)]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def back_up(self, out: Path) -> None:
        config = Path(self.config[1]) if self.enrolled else None
        back_up(load(config, data_dir=self.data), out)

    def add_device(self) -> Program:
        url = str(self.http.base_url).rstrip("/")
        config = agent_toml(self.folder, DEVICE, url, self.mqtt, MINUTES, ca=self.ca)
        config.write_text(SOON + config.read_text())
        agent = [sys.executable, "-m", "edge_agent"]
        if self.enrolled:
            made = self.http.post(f"{HERE}/enrolment-tokens", json={"auto_approve": True}).json()
            (self.folder / "token").write_text(made["token"])
            enrol = [*agent, "enrol", "--config", str(config), "--token-file", str(self.folder / "token")]
            subprocess.run(enrol, check=True, capture_output=True, timeout=PATIENCE_S)
        key = f"GAITWAY_EDGE_SERVER_KEY_FILE={self.data / 'operator.key'}"
        return self.run(["env", key, *agent, "run", "--config", str(config)], "device")

    def answers(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def now(self) -> Any:
        return self.http.get(HERE).json()

    def wait_for(self, true: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                pytest.fail("\n".join([failure, *(program.said() for program in self.programs)]))
            time.sleep(0.1)

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.stop()


@pytest.mark.parametrize(
    ("database", "enrolled", "rounds"),
    [
        pytest.param("sqlite", False, 4, id="sqlite-open", marks=pytest.mark.slow),
        pytest.param("sqlite", True, 4, id="sqlite-enrolled", marks=pytest.mark.slow),
        pytest.param("postgresql", False, 4, id="postgresql-open", marks=pytest.mark.slow),
        pytest.param("postgresql", True, 4, id="postgresql-enrolled", marks=pytest.mark.slow),
        pytest.param("postgresql", True, 3, id="postgresql-enrolled-short", marks=pytest.mark.slow),
    ],
)
def test_a_restored_server_finishes_all_rounds(
    database: str,
    enrolled: bool,
    rounds: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def new_database() -> None:
        if database == "postgresql":
            running: Postgres = request.getfixturevalue("cluster")
            monkeypatch.setenv("GAITWAY_DATABASE_URL", running.new_database(empty=True))

    monkeypatch.setenv("GAITWAY_AGGREGATION_PROCESS", "false")
    new_database()
    with ExitStack() as parts:
        here = Installation(tmp_path, parts, enrolled=enrolled)
        server = here.serve()
        settings = experiment_for("fedavg", minutes=MINUTES)
        changed = settings.rounds.model_copy(update={"rounds": rounds, "minimum_clients": 1})
        plan = plan_of(settings.model_copy(update={"rounds": changed}))
        assert here.http.post("/v1/federations", json={"name": "live", "plan": plan.model_dump(mode="json")}).is_success
        here.add_device()
        here.wait_for(lambda: here.now()["round"] > KEPT_ROUNDS, f"round {KEPT_ROUNDS} does not end")
        here.back_up(tmp_path / "backup")
        here.wait_for(lambda: here.now()["status"] == "finished", "the rounds are not finished")
        before = here.now()["model"]["sha256"]
        server.kill()
        here.data.rename(tmp_path / "lost")
        new_database()
        restored = here.command("restore", "--from", str(tmp_path / "backup"))
        assert (restored.returncode, "problem" in restored.stdout) == (0, False), restored
        shutil.copy(tmp_path / "lost" / "operator.key", here.data)
        here.serve()
        assert here.now()["round"] == KEPT_ROUNDS + 1
        assert here.now()["epoch"] > 1_000_000_000
        assert "the server was restored on" in here.now()["summary"]
        here.wait_for(lambda: here.now()["status"] == "finished", "the restored rounds are not finished")
        assert here.now()["model"]["sha256"] == before
        here.wait_for(lambda: device_words(tmp_path)[1][-1] == "accepted", "the device has not heard of its update")
    words, states = device_words(tmp_path)
    assert states == ["accepted"] * (rounds + rounds - KEPT_ROUNDS)
    assert f"while this device had trained up to round {rounds}. The device trains again" in words


def device_words(folder: Path) -> tuple[str, list[str]]:
    """Return what `status` says of the device, and what became of the updates that it trained."""
    with closing(StateStore(folder / DEVICE)) as store:
        return " ".join(describe_device(store, DEVICE, running=False)), [row.status for row in store.rounds()]
