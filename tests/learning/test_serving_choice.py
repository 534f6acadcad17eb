"""A device that has never seen an activity trains a model that loses it, and serves one that hasn't."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from federation.aggregation.averaging import midway
from federation.records import Client, Examples
from federation.rounds.serving import MIDWAY, PERSONAL, SHARED, Evidence, Rival, expected_gains, likeliest
from federation.training.prediction import predict
from gaitway.tasks.classification import confusion, scores_of
from sim.data.federated_data import FederatedData
from sim.engines import ClientJob
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, resolve
from tests.learning.federations import loaded, settings_of

OPTIONS = {"data": "motionsense", "method": "fedavg", "model": "har_cnn", "rounds": 4, "batch": 32}
ORDER = (MIDWAY, PERSONAL, SHARED)
DEVICES, CLIENTS = ("s01", "s02", "s03"), 8
OWN_ROUNDS = 3

pytestmark = [pytest.mark.data, pytest.mark.ci, pytest.mark.timeout(900), pytest.mark.xdist_group("learning")]


class Device(NamedTuple):
    """A device's held-out and later windows, and what its candidates answer to both."""

    held: Examples
    later: Examples
    answers: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    trained: npt.NDArray[np.bool_]

    def macro_f1(self, name: str) -> float:
        """Score a candidate on the later windows, which have every activity."""
        y, classes = self.later.y.numpy(), len(self.trained)
        return float(scores_of(confusion(y, self.answers[name][1], classes)).macro_f1)

    def recall(self, name: str, label: int) -> float:
        """Return how often a candidate recognizes an activity on the later windows."""
        return float((self.answers[name][1] == label)[self.later.y.numpy() == label].mean())


def without(examples: Examples, label: int) -> Examples:
    """Leave an activity out."""
    kept = examples.y != label
    return Examples(examples.x[kept], examples.y[kept])


def device_without(name: str, label: int, data: FederatedData, simulation: Simulation) -> Device:
    """Train a device on all its activities but one, of which it has no held-out windows either."""
    client, network = data.clients[name], simulation.network_of[name]
    broadcast = simulation.setup.method.broadcast(simulation.state, name)
    train = without(client.train, label)
    job = ClientJob(name, network.setup, network.initial, broadcast, train)
    own = network.initial
    for number in range(simulation.round_number + 1, simulation.round_number + 1 + OWN_ROUNDS):
        ((_, result),) = simulation.engine.run([job._replace(client=own)], number)
        own = result.client
    shared = simulation.server_model()
    models: dict[str, Client] = {SHARED: shared, PERSONAL: own, MIDWAY: midway(shared, own)}
    held, later = without(client.test, label), client.test
    answers = {
        key: (predict(simulation.setup, model, held.x, 256), predict(simulation.setup, model, later.x, 256))
        for key, model in models.items()
    }
    return Device(held, later, answers, np.bincount(train.y, minlength=len(data.labels)) > 0)


@pytest.fixture(scope="module")
def devices(gaitway_data: Path) -> dict[tuple[str, int], Device]:
    """Return a device for each activity that it can lack."""
    settings = settings_of(**OPTIONS)
    data = loaded(settings, gaitway_data, CLIENTS)
    simulation = build_simulation(resolve(settings), data)
    for _ in simulation.run_rounds():
        pass
    labels = range(len(data.labels))
    return {(name, label): device_without(name, label, data, simulation) for name in DEVICES for label in labels}


def served(device: Device, *, forgets: bool) -> str:
    """Return which candidate the device's held-out windows choose."""
    y = device.held.y.numpy()
    right = {name: (answers[0] == y).astype(float) for name, answers in device.answers.items()}
    sessions, classes = np.zeros(len(y), np.int64), len(device.trained)
    rivals = {
        name: Rival(Evidence.of(y, right[name], right[SHARED], sessions, classes), forgets=forgets)
        for name in (PERSONAL, MIDWAY)
    }
    recall = min(float(right[SHARED][y == label].mean()) for label in np.unique(y))
    return likeliest(expected_gains(rivals, device.trained, recall), ORDER)


def test_an_own_model_that_lost_an_activity_does_not_serve(devices: dict[tuple[str, int], Device]) -> None:
    lost = [
        (case, device)
        for case, device in devices.items()
        if device.recall(PERSONAL, case[1]) < 0.5 <= device.recall(SHARED, case[1])
    ]
    assert len(lost) >= len(DEVICES), "training without an activity must cost the model that activity"
    for case, device in lost:
        assert served(device, forgets=True) == SHARED, case


def test_counting_the_activity_as_lost_makes_devices_better(devices: dict[tuple[str, int], Device]) -> None:
    def mean(*, forgets: bool) -> float:
        return float(np.mean([device.macro_f1(served(device, forgets=forgets)) for device in devices.values()]))

    own = np.mean([device.macro_f1(PERSONAL) for device in devices.values()])
    assert mean(forgets=True) > mean(forgets=False) + 0.02 > own
