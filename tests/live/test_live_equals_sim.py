"""Two rounds through real processes and a broker give, bit for bit, the global tensors of the simulation."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from federation import wire
from federation.tree import flatten
from har_pipeline import dataset_labels
from sim.options import run_settings
from sim.presets import with_defaults
from sim.run import build_simulation, load_data
from sim.settings import RunSettings

OPTIONS = {"subjects": 1, "phones": ["phone100", "phone200"], "places": ["waist"], "minutes": 2.0}
DEVICES = ("s00_phone100-waist", "s00_phone200-waist")
ROUNDS = 2


def settings_for(method: str) -> RunSettings:
    sets = [f"data.{key}={json.dumps(value)}" for key, value in OPTIONS.items()]
    given = {
        "method": method,
        "model": "cnn_alp",
        "rounds": ROUNDS,
        "epochs": 2,
        "batch": 16,
        "lr": 1e-3,
        "seed": 5,
        "normalization": "client",  # what a device can do alone
        "set": [*sets, "model.channels=[16,16]", "model.prototypes=[16]", "rounds.minimum_clients=2"],
    }
    return run_settings(with_defaults(None, given), dataset_labels("synthetic", OPTIONS), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


@contextmanager
def programs(folder: Path) -> Iterator[Any]:
    """Start programs with their output in log files; end those that still run."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", *words], stdout=log, stderr=log)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ready(url: str) -> None:
    """Wait for the server's readiness."""
    deadline = time.monotonic() + 60
    while True:
        try:
            get(f"{url}/readyz")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def agent_config(folder: Path, device: str, url: str, mqtt: int) -> Path:
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in OPTIONS.items())
    path = folder / f"{device}.toml"
    path.write_text(
        f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\n'
        f'[server]\nurl = "{url}"\n[broker]\nport = {mqtt}\n'
        f'[sensors]\ndataset = "synthetic"\noptions = {{ {options} }}\n'
    )
    return path


def plan_of(settings: RunSettings) -> dict[str, Any]:
    return {
        "labels": dataset_labels("synthetic", OPTIONS),
        "model": settings.model.model_dump(),
        "method": settings.method,
        "task": settings.task.model_dump(),
        "rounds": settings.rounds.model_dump(),
        "data": {"normalization": "client"},
    }


@pytest.mark.service
@pytest.mark.parametrize("method", ["fedavg", "fedali"])
def test_the_live_federation_is_the_simulation(method: str, tmp_path: Path) -> None:
    settings = settings_for(method)
    torch.set_num_threads(1)
    simulation = build_simulation(settings, load_data(settings, None, None, None))
    assert tuple(simulation.data.clients) == DEVICES
    for _record in simulation.play():
        pass

    http, mqtt = free_port(), free_port()
    url = f"http://127.0.0.1:{http}"
    with programs(tmp_path) as start:
        start("broker", "aggregator_api", "broker", "--port", str(mqtt))
        server = ("aggregator_api", "serve", "--port", str(http), "--broker-port", str(mqtt))
        start("server", *server, "--data-dir", str(tmp_path / "server"))
        ready(url)
        get(f"{url}/v1/federations", {"name": "live", "plan": plan_of(settings)})
        agents = [
            start(
                device,
                "edge_agent",
                "run",
                "--until-finished",
                "--config",
                str(agent_config(tmp_path, device, url, mqtt)),
            )
            for device in DEVICES
        ]
        codes = [agent.wait(200) for agent in agents]
        assert codes == [0, 0], (tmp_path / f"{DEVICES[0]}.log").read_text()[-3000:]
        versions = get(f"{url}/v1/federations/live/models")["items"]
        latest = max(versions, key=lambda version: version["version"])
        assert latest["round_number"] == ROUNDS
        with urllib.request.urlopen(f"{url}/v1/blobs/{latest['sha256']}", timeout=20) as answer:
            live = flatten(wire.decode(answer.read(), limit_bytes=1 << 24))

    simulated = flatten(simulation.setup.method.broadcast(simulation.state, ""))
    initial = flatten(simulation.initial._asdict())
    assert sorted(live) == sorted(simulated)
    for name, value in simulated.items():
        assert torch.equal(live[name], value), f"{name} differs by {float((live[name] - value).abs().max())}"
    assert any(not torch.equal(initial[name], value) for name, value in simulated.items() if name in initial)
    for device in DEVICES:
        summary = json.loads((tmp_path / device / "summary.json").read_text())
        assert [entry["round"] for entry in summary["rounds"]] == [1, 2]
        assert Path(summary["model"]["path"]).is_file()
