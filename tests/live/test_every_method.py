"""Every method, two rounds through the real server and the real training of the device, against the simulation.

In one process and without a broker; `test_live_equals_sim` does the same with all programs for two of the methods.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.storage.db.models import RoundRow
from federation import wire
from federation.aggregation.screening import NormHistory
from federation.method import SumMethod
from federation.methods import METHODS
from federation.plan import Augmentation
from federation.protocol.messages import Precision, UpdateManifest
from tests.aggregator_api.bench import Bench, wait_for
from tests.live.in_memory import Device
from tests.live.walks import DEVICES, HART, ROUNDS, assert_same, data_options, experiment_for, plan_of, simulated

MINUTES = 1.0
LIVE = sorted(
    name for name, method in METHODS.items() if not (method.traits.pools_data or issubclass(method, SumMethod))
)
"""No version of a `SumMethod` is a round: `test_continuous`."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folders of two devices that have collected and have not trained."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in DEVICES:
        Device.named(name, folder, data_options(MINUTES)).collect(plan_of(experiment_for("fedavg", minutes=MINUTES)))
    return folder


def devices_of(recorded: Path, folder: Path, *models: str | None, precision: Precision = "lossless") -> list[Device]:
    """Copy the devices, with a network each."""
    shutil.copytree(recorded, folder)
    return [
        Device.named(name, folder, data_options(MINUTES), model, precision)
        for name, model in zip(DEVICES, models, strict=True)
    ]


def invited(server: Bench, name: str) -> int:
    """Return the round that the device was invited to last; the announcement may come before it."""
    return max((invitation.round for invitation in server.wires.invitations(name)), default=0)


def played(server: Bench, devices: list[Device]) -> list[UpdateManifest]:
    """Let the devices take part in every round; return what they uploaded."""
    for device in devices:
        server.say(device.name, "ready", examples=device.collect(server.now().plan))
    uploads = []
    for number in range(1, ROUNDS + 1):
        wait_for(lambda number=number: (server.now().round, server.now().state) == (number, "collecting"))
        wait_for(lambda number=number: all(invited(server, name) == number for name in DEVICES))
        # not in the order of their names: the order of arrival must make no difference
        uploads += [device.take_part(server) for device in reversed(devices)]
    wait_for(lambda: server.now().state == "finished")
    return uploads


def screened(server: Bench) -> list[tuple[int, dict[str, Any]]]:
    """Return how many weights each round has capped, and the norms that it has noted."""
    with server.runtime.database.read() as session:
        rows = session.scalars(select(RoundRow).order_by(RoundRow.number))
        return [(row.capped, row.norms or {}) for row in rows]


def in_rows(history: NormHistory) -> list[dict[str, Any]]:
    """Write the simulation's history as the server does."""
    return [{group: typical._asdict() for group, typical in norms.items()} for norms in history.rounds]


CASES = [(name, None) for name in LIVE] + [(name, "hart") for name in LIVE if METHODS[name]().mixes_architectures]
ALWAYS = [("fedali", None)]
"""Prototypes beside weights; CI has the others."""


@pytest.mark.parametrize(
    ("method", "other"), [pytest.param(*case, marks=[] if case in ALWAYS else pytest.mark.ci) for case in CASES]
)
def test_the_live_federation_is_the_simulation(method: str, other: str | None, recorded: Path, tmp_path: Path) -> None:
    settings = experiment_for(method, minutes=MINUTES, alternatives=(HART,) if other else ())
    simulation = simulated(settings)
    server = Bench(tmp_path / "server", plan_of(settings))
    devices = devices_of(recorded, tmp_path / "devices", None, other)
    uploads = played(server, devices)
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    assert screened(server) == [(len(simulation.screening.capped), one) for one in in_rows(simulation.norms)]
    server.runtime.stop()
    assert [upload.round for upload in uploads] == [1, 1, 2, 2]
    assert_same(state, simulation.state, "the server's state")
    kept = {device.name: device.kept() for device in devices}
    for name, client in kept.items():
        assert_same(client, simulation.clients[name]._asdict(), name)
    first, second = (client["params"] for client in kept.values())
    assert (first.keys() == second.keys()) is (other is None)


@pytest.mark.ci
def test_a_federation_in_which_nobody_trains_is_its_simulation(recorded: Path, tmp_path: Path) -> None:
    settings = experiment_for("fedproto", minutes=MINUTES, backbone="frozen")
    simulation = simulated(settings)
    server = Bench(tmp_path / "server", plan_of(settings))
    devices = devices_of(recorded, tmp_path / "devices", None, None)
    uploads = played(server, devices)
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    assert screened(server) == [(len(simulation.screening.capped), one) for one in in_rows(simulation.norms)]
    model = devices[0].final_model(server)
    server.runtime.stop()
    assert [(upload.steps, upload.metrics.get("train_loss")) for upload in uploads] == [(0, None)] * 4
    assert_same(state, simulation.state, "the server's state")
    for device in devices:
        assert_same(device.kept(), simulation.clients[device.name]._asdict(), device.name)
    served = simulation.setup.method.serving_model(simulation.server_model()).params
    assert_same({name: model[name] for name in served}, served, "the model for all")
    assert not all(torch.equal(model[name], value) for name, value in simulation.initial.params.items())


@pytest.mark.ci
def test_windows_are_changed_in_training_as_in_the_simulation(recorded: Path, tmp_path: Path) -> None:
    given = experiment_for("fedavg", minutes=MINUTES)
    change = Augmentation(rotation=0.5, sensor_loss=0.5)
    raw = given.data.model_copy(update={"normalization": "none"})
    settings = given.model_copy(
        update={"data": raw, "training": given.training.model_copy(update={"augmentation": change})}
    )
    unchanged = simulated(given.model_copy(update={"data": raw}))
    simulation = simulated(settings)
    server = Bench(tmp_path / "server", plan_of(settings))
    devices = devices_of(recorded, tmp_path / "devices", None, None)
    played(server, devices)
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    server.runtime.stop()
    assert_same(state, simulation.state, "the server's state")
    assert not all(torch.equal(value, unchanged.state["params"][name]) for name, value in state["params"].items())


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("method", ["fedavg", "fedali", "scaffold", "fedpac", "fesem"])
def test_what_a_lossy_wire_loses_is_the_same_live(
    method: str, precision: Precision, recorded: Path, tmp_path: Path
) -> None:
    settings = experiment_for(method, minutes=MINUTES, precision=precision)
    simulation = simulated(settings)
    server = Bench(tmp_path / "server", plan_of(settings))
    devices = devices_of(recorded, tmp_path / "devices", None, None, precision=precision)
    uploads = played(server, devices)
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    server.runtime.stop()
    assert {upload.precision for upload in uploads} == {precision}
    assert_same(state, simulation.state, "the server's state")
    for device in devices:
        client = simulation.clients[device.name]
        assert ("residual" in client.memory) is (precision == "int8")
        assert_same(device.kept(), client._asdict(), device.name)
