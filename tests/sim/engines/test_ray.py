"""The engine on Ray, on a local cluster of two workers: the numbers of one process, whatever becomes of a worker."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.methods import METHODS
from federation.records.tree import flatten
from federation.training.forward import Network
from models import MODELS
from sim.data.federated_data import FederatedData
from sim.engines import Processes, RayCluster, Serial
from sim.engines.client_store import DiskStore
from sim.errors import EngineError
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, resolve
from tests.sim.engines.local_rounds import OPTIMIZERS, first_round, gaps, three_steps, too_far
from tests.sim.local_ray import local_cluster
from tests.sim.small_runs import settings_for
from tests.sim.test_tasks import simulation

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'gaitway[ray]'")
pytestmark = [
    pytest.mark.ci,
    pytest.mark.service,
    pytest.mark.xdist_group("ray"),  # one cluster, and not while docs/compare-runs.md stops what it finds
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]


STEPPED_IN_CI = ("har_cnn", "mnist_cnn", "hart_alp")
"""One of each kind: its workers take what the serial engine takes, which steps them all."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_cluster():
        yield


def tensors(simulation: Simulation) -> dict[str, Any]:
    clients = {name: client._asdict() for name, client in sorted(simulation.clients.items())}
    return flatten({"state": simulation.state, "clients": clients})


@pytest.mark.parametrize(
    "method", ["fedali", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedpac", "scaffold"))]
)
def test_ray_gives_the_numbers_of_one_process_bit_for_bit(method: str, few: FederatedData) -> None:
    settings = settings_for(method, batch=8, stragglers=0.5)
    serial, many = (build_simulation(resolve(settings), few) for _ in range(2))
    many.engine = RayCluster(2, "cpu")
    for one, other in zip(serial.run_rounds(), many.run_rounds(), strict=True):
        del one["seconds"], other["seconds"]
        assert one == other
    same(serial, many)


@pytest.mark.parametrize("engine", ["ray", "processes"])
def test_masks_are_learnt_on_workers_bit_for_bit(engine: str) -> None:
    serial = simulation("fedproto", rounds=2)
    many = simulation("fedproto", RayCluster(2, "cpu") if engine == "ray" else Processes(2), rounds=2)
    for one, other in zip(serial.run_rounds(), many.run_rounds(), strict=True):
        del one["seconds"], other["seconds"]
        assert one == other
    same(serial, many)


def same(serial: Simulation, many: Simulation) -> None:
    mine, theirs = tensors(serial), tensors(many)
    assert sorted(mine) == sorted(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_ray_trains_in_bfloat16_as_one_process_does(few: FederatedData) -> None:
    settings = settings_for(batch=8, rounds=1, autocast="bfloat16")
    serial, many = (build_simulation(resolve(settings), few) for _ in range(2))
    many.engine = RayCluster(2, "cpu")
    list(serial.run_rounds()), list(many.run_rounds())
    theirs = tensors(many)
    assert all(torch.equal(value, theirs[name]) for name, value in tensors(serial).items())


def test_a_state_stays_in_the_store_while_the_simulation_has_its_tensors(few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("scaffold", batch=8, rounds=2)
    memory, disk = (build_simulation(resolve(settings), few, store=store) for store in (None, DiskStore(tmp_path)))
    memory.engine, disk.engine = RayCluster(2, "cpu"), RayCluster(2, "cpu")
    for one, other in zip(memory.run_rounds(), disk.run_rounds(), strict=True):
        del one["seconds"], other["seconds"]
        assert one == other
        gc.collect()
        assert sorted(memory.engine.states) == ["ada", "bob"]
        assert all(memory.engine.states[name].is_of(memory.clients[name]) for name in memory.clients)
        assert disk.engine.states == {}  # here they are on the disk, and go to the store when they are asked for


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=() if name in STEPPED_IN_CI else pytest.mark.slow) for name in MODELS]
)
def test_a_step_on_ray_is_torchs(model: str) -> None:
    every = itertools.product(OPTIMIZERS, (torch.float32, torch.float64))
    found = gaps(RayCluster(2, "cpu"), [three_steps(model, optimizer, dtype) for optimizer, dtype in every])
    assert not too_far(found, model, reordered=False)


@pytest.mark.parametrize(
    ("method", "model"),
    [("scaffold", "har_cnn"), ("moon", "hart"), ("fedpac", "mnist_cnn"), ("fedali", "hart_alp"), ("ditto", "vit_tiny"),
     ("fedproto", "resnet18")],
)  # fmt: skip
def test_a_round_on_ray_is_that_of_one_process(method: str, model: str) -> None:
    before = first_round(METHODS[method](), model, torch.float32)
    for _ in range(2):
        serial = before.play(Serial())
        assert before.gap(before.play(RayCluster(2, "cpu")), serial).share == 0.0
        before = before.next(serial)


def with_training(simulation: Simulation, train: Any) -> None:
    """Let every network's training function be another one."""
    for name, architecture in simulation.network_of.items():
        setup = architecture.setup
        network = Network(train(setup.network.train), setup.network.evaluate)
        simulation.network_of[name] = architecture._replace(setup=replace(setup, network=network))


def test_a_worker_that_dies_is_replaced_and_its_task_repeated(few: FederatedData, tmp_path: Path) -> None:
    def mortal(forward: Any) -> Any:
        def once(*args: Any) -> Any:
            if not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(*args)

        return once

    settings = settings_for(batch=8, rounds=1)
    serial, many = (build_simulation(resolve(settings), few) for _ in range(2))
    with_training(many, mortal)
    many.engine = RayCluster(2, "cpu")
    list(serial.run_rounds()), list(many.run_rounds())
    assert (tmp_path / "died").exists()
    theirs = tensors(many)
    assert all(torch.equal(value, theirs[name]) for name, value in tensors(serial).items())


def test_an_error_of_the_work_is_told_with_its_client(few: FederatedData) -> None:
    def broken(_forward: Any) -> Any:
        def fail(*_: Any) -> Any:
            raise ValueError("no")

        return fail

    simulation = build_simulation(resolve(settings_for(batch=8, rounds=1)), few)
    with_training(simulation, broken)
    simulation.engine = RayCluster(2, "cpu")
    with pytest.raises(EngineError, match=r"client .*: ValueError\('no'\)"):
        list(simulation.run_rounds())


def test_without_ray_the_extra_is_named(few: FederatedData, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    simulation = build_simulation(resolve(settings_for(batch=8, rounds=1)), few)
    simulation.engine = RayCluster(2, "cpu")
    with pytest.raises(EngineError, match=r"pip install 'gaitway\[ray\]'"):
        list(simulation.run_rounds())


def test_an_address_where_nobody_listens_is_told_at_once(few: FederatedData, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, not listening: its port is refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(EngineError, match=r"no Ray cluster listens at RAY_ADDRESS=127\.0\.0\.1"):
            next(iter(RayCluster(None, "cpu").run([], 1)))
