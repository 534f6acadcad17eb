"""Two rounds through real processes give, bit for bit, the tensors of the simulation, of classes and of numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from federation import wire
from federation.plan import TrainingConfig
from sim.experiment.settings import Experiment
from sim.run import build_simulation, load_data, resolve
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.walks import (
    DEVICES,
    FEATURES,
    HART,
    ROUNDS,
    agent_toml,
    assert_same,
    experiment_for,
    plan_of,
    simulated,
)

MINUTES = 2.0
EXPORTS = ("fedali", "frozen")
"""Whose devices adopt a model in the end."""


@pytest.mark.service
@pytest.mark.parametrize(
    ("method", "models", "transports"),
    [
        # what the devices adopt they export first
        pytest.param("fedali", ("", ""), ("mqtt", "http"), marks=pytest.mark.ci, id="fedali-mixed"),
        pytest.param("fedproto", ("", "hart"), ("mqtt", "mqtt"), marks=pytest.mark.slow, id="fedproto-mqtt"),
        # nobody trains; the devices export what they adopt
        pytest.param("frozen", ("", ""), ("mqtt", "http"), marks=pytest.mark.slow, id="frozen-mixed"),
    ],
)
def test_the_live_federation_is_the_simulation(
    method: str, models: tuple[str, str], transports: tuple[str, str], tmp_path: Path
) -> None:
    if method == "frozen":
        settings = experiment_for("fedproto", minutes=MINUTES, backbone="frozen")
    else:
        settings = experiment_for(method, minutes=MINUTES, alternatives=(HART,) if "hart" in models else ())
    simulation = simulated(settings)
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(settings).model_dump(mode="json")})
        for device, model, transport in zip(DEVICES, models, transports, strict=True):
            config = agent_toml(tmp_path, device, here.url, here.mqtt, MINUTES, model, transport)
            here.add_device(config, "--until-finished")
        if method in EXPORTS:  # what the devices adopt they export first, which costs more than the rounds
            here.wait_for(lambda: all(one.has_left for one in here.devices.values()), "the devices do not leave")
            assert [one.process.returncode for one in here.devices.values()] == [0, 0]
        here.wait_for(lambda: is_over(here, tmp_path), "the federation does not finish")
        broadcast = here.last_broadcast()

    setup = simulation.setup
    assert_same(broadcast, setup.method.broadcast(simulation.state, ""), "the last broadcast")
    assert wire.encode(broadcast) != wire.encode(
        setup.method.server_init(simulation.initial.params, simulation.initial.buffers, setup.training)
    )
    for device in DEVICES:
        assert accepted_of(tmp_path, device) == [1, 2]
        if method in EXPORTS:
            summary = json.loads((tmp_path / device / "summary.json").read_text())
            assert Path(summary["model"]["path"]).is_file()
        (kept,) = (tmp_path / device / "clients").iterdir()
        client = wire.decode(kept.read_bytes(), limit_bytes=1 << 24)
        assert_same(client, simulation.clients[device]._asdict(), device)


def is_over(here: Fleet, folder: Path) -> bool:
    """Whether the server has published the last round, and the devices know that their updates were accepted."""
    finished = here.get("/v1/federations/live")["status"] == "finished"
    return finished and all(len(accepted_of(folder, device)) == ROUNDS for device in DEVICES)


def accepted_of(folder: Path, device: str) -> list[int]:
    """Return the rounds whose update the server has accepted, as the device says."""
    path = folder / device / "summary.json"
    if not path.exists():
        return []
    return [entry["round"] for entry in json.loads(path.read_text())["rounds"] if entry["status"] == "accepted"]


NAME = "cadence (steps/min)"
TASK = {"name": "regression", "center": 80.0, "spread": 60.0}


def learning_numbers(minutes: float) -> Experiment:
    """The small federation of these tests, whose devices learn a cadence."""
    settings = experiment_for("fedavg", minutes=minutes)
    training: TrainingConfig = settings.training.model_copy(update={"classes": 1, "feature_dim": FEATURES})
    return settings.model_copy(update={"task": TASK, "labels": (NAME,), "training": training})


@pytest.mark.ci
@pytest.mark.service
def test_the_live_federation_of_numbers_is_the_simulation(tmp_path: Path) -> None:
    settings = learning_numbers(2.0)
    torch.set_num_threads(1)
    simulation = build_simulation(resolve(settings), load_data(resolve(settings), None, None, None))
    for _record in simulation.run_rounds():
        pass
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(settings).model_dump(mode="json")})
        for device in DEVICES:
            here.add_device(agent_toml(tmp_path, device, here.url, here.mqtt, 2.0), "--until-finished")
        here.wait_for(lambda: is_over(here, tmp_path), "the federation does not finish")
        broadcast = here.last_broadcast()
    assert_same(broadcast, simulation.setup.method.broadcast(simulation.state, ""), "the last broadcast")
