"""A whole federation behind TLS: two enrolled agents, a server, and a Mosquitto that asks everybody who they are."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from federation import wire
from tests.live.fleet import Program
from tests.live.real_parts import bearer, mosquitto
from tests.live.walks import DEVICES, ROUNDS, agent_toml, assert_same, experiment_for, plan_of, simulated
from tests.ports import free_port

pytestmark = [pytest.mark.service, pytest.mark.slow]

MINUTES = 2.0
PATIENCE_S = 900.0


def wait_for(true: Callable[[], bool], programs: list[Program]) -> None:
    """Wait until something is so; else show what every program said last."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "\n".join(program.said() for program in programs)
        time.sleep(0.2)


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_two_enrolled_devices_finish_their_rounds_over_tls(tmp_path: Path) -> None:
    settings = experiment_for("fedavg", minutes=MINUTES)
    simulation = simulated(settings)
    port = free_port()
    programs: list[Program] = []
    with (
        mosquitto(tmp_path) as broker,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            timeout=PATIENCE_S,
            trust_env=False,
            auth=bearer(tmp_path / "data" / "operator.key"),
        ) as http,
    ):
        words = [
            "serve",
            "--config",
            str(broker.server_toml),
            "--port",
            str(port),
            "--data-dir",
            str(tmp_path / "data"),
        ]
        programs.append(Program([sys.executable, "-m", "aggregator_api", *words], tmp_path / "server.log"))
        try:
            programs[0].start()
            wait_for(lambda: answers(http), programs)
            body = {"name": "live", "plan": plan_of(settings).model_dump(mode="json")}
            assert http.post("/v1/federations", json=body).status_code == 201
            for device in DEVICES:
                url = str(http.base_url).rstrip("/")
                config = agent_toml(tmp_path, device, url, broker.port, MINUTES, ca=broker.ca)
                config.write_text("[training]\nnice = 0\n" + config.read_text())
                made = http.post("/v1/federations/live/enrolment-tokens", json={"auto_approve": True}).json()
                enrol = [sys.executable, "-m", "edge_agent", "enrol", "--config", str(config), "--token-file", "-"]
                subprocess.run(
                    enrol, input=made["token"], text=True, check=True, capture_output=True, timeout=PATIENCE_S
                )
                command = [sys.executable, "-m", "edge_agent", "run", "--config", str(config)]
                programs.append(Program(command, tmp_path / f"{device}.log"))
                programs[-1].start()
            wait_for(lambda: http.get("/v1/federations/live").json()["status"] == "finished", programs)
            versions = http.get("/v1/federations/live/models").json()["items"]
            latest = max(versions, key=lambda version: version["version"])
            assert latest["round_number"] == ROUNDS
            broadcast = wire.decode(http.get(f"/v1/blobs/{latest['sha256']}").content, limit_bytes=1 << 24)
        finally:
            for program in reversed(programs):
                program.stop()
    expected = simulation.setup.method.broadcast(simulation.state, "")
    assert_same(broadcast, expected, "the last broadcast")
