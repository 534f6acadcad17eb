"""New users: few examples are drawn alike, and scores without and after personalization are what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from federation.methods import METHODS
from federation.records import Examples
from federation.tasks.classification import Classification
from federation.training.client_round import train_one
from sim.data.federated_data import ClientData, FederatedData
from sim.data.few_labels import few_shot
from sim.evaluation import ClientModel
from sim.new_clients import score_new_clients
from sim.run import build_simulation, load_data, run
from tests.sim.small_runs import first, settings_for

HOLDOUT = {"holdout": "leave-clients-out:bob", "set": ["holdout.epochs=2"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    """One client that trains and one new client."""
    both = first(load_data(settings_for(), None, tmp_path_factory.mktemp("cache"), None), {"ada": 20, "bob": 30})
    return replace(both, clients={"ada": both.clients["ada"]}, new_clients={"bob": both.clients["bob"]})


def test_few_are_the_first_of_each_class_in_time() -> None:
    y = torch.tensor([0] * 12 + [2] * 3 + [1] * 20 + [0] * 5)
    bob = ClientData(Examples(torch.arange(len(y)), y), Examples(y[:0], y[:0]))
    found = few_shot(Classification(), bob, 5)
    assert found.x.tolist() == [*range(5), *range(15, 20), *range(12, 15)]
    assert found.y.tolist() == [0] * 5 + [1] * 5 + [2] * 3


def test_what_a_new_client_shows_ends_before_the_windows_that_it_is_scored_on(tmp_path: Path) -> None:
    """Windows overlap by half: a window that touches a tested one would have given half of it away."""
    settings = settings_for(normalization="none", holdout="leave-subjects-out:1", model="har_cnn")
    bob = next(iter(load_data(settings, None, tmp_path, None).new_clients.values()))
    shown = few_shot(Classification(), bob, 10).x
    tested = {tuple(sample) for sample in bob.test.x.flatten(0, 1).tolist()}
    assert len(shown) > 20
    assert not any(tuple(sample) in tested for sample in shown.flatten(0, 1).tolist())


@pytest.mark.ci
@pytest.mark.parametrize("method", METHODS)
def test_every_method_serves_new_clients(method: str, data: FederatedData, tmp_path: Path) -> None:
    summary = run(settings_for(method, rounds=1, **HOLDOUT), data, tmp_path)
    found = summary["new_clients"]
    assert found["clients"] == ["bob"]
    assert list(found["shots"]) == ["0", "1", "2", "5", "10"]
    assert all(0 <= scores["macro_f1"]["mean"] <= 1 for scores in found["shots"].values())
    assert (found["client_models"] is None) == METHODS[method]().has_global_model
    if method in ("analytic", "pfedfda"):  # the others' heads here are too narrow to be made linear
        assert 0 <= found["unlabelled"]["macro_f1"]["mean"] <= 1
    else:
        assert found["unlabelled"] is None


def test_scores_are_those_of_the_broadcast_and_of_a_local_round(data: FederatedData) -> None:
    settings = settings_for("fedprox", rounds=1, **HOLDOUT)
    simulation = build_simulation(settings, data)
    list(simulation.run_rounds())
    assert settings.holdout is not None
    found = score_new_clients(simulation, settings.holdout)["shots"]
    new_client, setup = data.new_clients["bob"], simulation.setup
    served = simulation.evaluator.evaluate_client(ClientModel(setup, simulation.server_model()), new_client.test)
    assert found["0"]["macro_f1"]["mean"] == simulation.task.metrics(served)["macro_f1"]
    longer = replace(setup, training=setup.training.model_copy(update={"epochs": 2}))
    result = train_one(
        longer,
        simulation.initial,
        setup.method.broadcast(simulation.state, "bob"),
        few_shot(setup.task, new_client, 5),
        client_id="bob",
        round_number=2,
    )
    own = simulation.evaluator.evaluate_client(ClientModel(longer, result.client), new_client.test)
    assert found["5"]["macro_f1"]["mean"] == simulation.task.metrics(own)["macro_f1"]
