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
from sim.data.selection import CARRIED, OTHERWISE, few_shot
from sim.rounds.new_clients import score_new_clients
from sim.run import build_simulation, load_data, resolve, run
from sim.scores.adaptation import adapt_head, confident_centroids
from sim.scores.evaluation import ClientModel, Evaluator, spread
from tests.federation.federated import federation
from tests.sim.small_runs import first, settings_for

PERSONAL = ("personalized", "personalized_any_orientation")
HOLDOUT = {"holdout": "leave-clients-out:bob", "set": ["holdout.epochs=2"]}
WORSE_SENSORS = {**HOLDOUT, "set": ["holdout.epochs=2", "holdout.worse_sensors=true"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    """One client that trains and one new client."""
    both = first(
        load_data(resolve(settings_for()), None, tmp_path_factory.mktemp("cache"), None), {"ada": 20, "bob": 30}
    )
    new = {"new_clients": {"bob": both.clients["bob"]}, "new_statistics": {"bob": [*both.statistics.values()][1]}}
    return replace(both, clients={"ada": both.clients["ada"]}, **new)


def test_few_are_the_first_of_each_class_in_time() -> None:
    y = torch.tensor([0] * 12 + [2] * 3 + [1] * 20 + [0] * 5)
    bob = ClientData(Examples(torch.arange(len(y)), y), Examples(y[:0], y[:0]))
    found = few_shot(Classification(), bob, 5)
    assert found.x.tolist() == [*range(5), *range(15, 20), *range(12, 15)]
    assert found.y.tolist() == [0] * 5 + [1] * 5 + [2] * 3


def test_what_a_new_client_shows_ends_before_the_windows_that_it_is_scored_on(tmp_path: Path) -> None:
    """Windows overlap by half: a window that touches a tested one would have given half of it away."""
    settings = settings_for(normalization="none", holdout="leave-subjects-out:1", model="har_cnn")
    bob = next(iter(load_data(resolve(settings), None, tmp_path, None).new_clients.values()))
    shown = few_shot(Classification(), bob, 10).x
    tested = {tuple(sample) for sample in bob.test.x.flatten(0, 1).tolist()}
    assert len(shown) > 20
    assert not any(tuple(sample) in tested for sample in shown.flatten(0, 1).tolist())


@pytest.mark.ci
@pytest.mark.parametrize("method", METHODS)
def test_every_method_serves_new_clients(method: str, data: FederatedData, tmp_path: Path) -> None:
    summary = run(settings_for(method, rounds=1, **HOLDOUT), tmp_path, data=data)
    found = summary["new_clients"]
    assert found["clients"] == ["bob"]
    assert found["together"]["5"]["macro_f1"] == pytest.approx(found["shots"]["5"]["macro_f1"]["mean"])  # of one client
    assert list(found["shots"]) == ["0", "1", "2", "5", "10"]
    assert all(0 <= scores["macro_f1"]["mean"] <= 1 for scores in found["shots"].values())
    for way in ("upside_down", "rotated"):
        assert all(0 <= found["turned"][way][k]["macro_f1"]["mean"] <= 1 for k in ("0", "5"))
    assert (found["client_models"] is None) == METHODS[method]().has_global_model
    if method in ("analytic", "pfedfda"):  # the others' heads here are too narrow to be made linear
        assert 0 <= found["unlabelled"]["macro_f1"]["mean"] <= 1
    else:
        assert found["unlabelled"] is None


def test_new_clients_can_be_scored_later(data: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("fedavg", rounds=1, **HOLDOUT)
    assert run(settings.model_copy(update={"new_users": False}), tmp_path, data=data).get("new_clients") is None
    assert (
        run(settings, tmp_path, data=data)["new_clients"]
        == run(settings, tmp_path / "at_once", data=data)["new_clients"]
    )


def test_scores_are_those_of_the_broadcast_and_of_a_local_round(data: FederatedData) -> None:
    settings = settings_for("fedprox", rounds=1, **HOLDOUT)
    simulation = build_simulation(resolve(settings), data)
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


def test_with_worse_sensors_a_new_client_is_scored_by_each(data: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("fedavg", model="har_cnn", rounds=1, **WORSE_SENSORS)
    found = run(settings, tmp_path, data=data)["new_clients"]["turned"]
    assert list(found) == [*OTHERWISE]
    assert all(list(by_shots) == ["0", "5"] for by_shots in found.values())


@pytest.mark.ci
def test_without_a_gyroscope_a_new_client_is_served_by_the_features_that_it_has(tmp_path: Path) -> None:
    """What the missing sensor would say has no weight, so another gyroscope's numbers would change nothing."""
    given = {"model": "har_features", "rounds": 1, "holdout": "leave-subjects-out:1"}
    settings = settings_for("analytic", **given, set=["holdout.worse_sensors=true"])
    assert settings.models[0].options == {"features": 600}  # a new plan writes it down
    simulation = build_simulation(resolve(settings), load_data(resolve(settings), None, tmp_path, None))
    list(simulation.run_rounds())
    assert settings.holdout is not None
    found = score_new_clients(simulation, settings.holdout)["heads"]
    lacking, whole = (found[way]["0"]["shared"]["macro_f1"]["mean"] for way in ("no_gyroscope", "as_recorded"))
    assert lacking > whole - 0.2


@pytest.mark.ci
def test_as_it_joins_a_turned_phone_takes_the_head_that_knows_no_axes(tmp_path: Path) -> None:
    """Its score is the same however the phone is turned; that of the other head is not."""
    settings = settings_for("analytic", model="har_features", rounds=1, holdout="leave-subjects-out:1")
    simulation = build_simulation(resolve(settings), load_data(resolve(settings), None, tmp_path, None))
    list(simulation.run_rounds())
    assert settings.holdout is not None
    found = score_new_clients(simulation, settings.holdout)
    assert set(found["heads"]["upside_down"]["0"]) == {"shared", "shared_any_orientation"}
    assert set(found["heads"]["upside_down"]["5"]) == {*found["heads"]["upside_down"]["0"], *PERSONAL}
    free = [found["heads"][way]["0"]["shared_any_orientation"]["macro_f1"]["mean"] for way in ("as_recorded", *CARRIED)]
    assert max(free) - min(free) < 0.02
    for way, share in found["far"].items():
        if share in (0.0, 1.0):
            head = "shared_any_orientation" if share else "shared"
            scores = found["shots"] if way == "as_recorded" else found["turned"][way]
            assert scores["0"] == found["heads"][way]["0"][head]
    served = simulation.evaluator.evaluate_per_client(
        ClientModel(simulation.setup, simulation.server_model()),
        {name: client.test for name, client in simulation.data.new_clients.items()},
    )
    assert found["heads"]["as_recorded"]["0"]["shared"] == spread(simulation.task, served)
    for way, share in found["adapted"].items():  # of one client: where its windows are too few it serves as it joined
        scores = found["shots"] if way == "as_recorded" else found["turned"][way]
        assert (found["own_windows"][way] == scores["0"]) or share


def test_centroids_are_of_the_surest_half_of_each_class() -> None:
    """Rows 0 to 3 are put into class 0, surest first 2 and 0; row 4 into class 2; nothing into class 1."""
    logits = torch.tensor([[3.0, 0, 0], [1.0, 0, 0], [9.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
    features = torch.tensor([[1.0], [10.0], [3.0], [20.0], [7.0]])
    centroids, known = confident_centroids(features, logits)
    assert centroids.flatten().tolist() == [2.0, 0.0, 7.0]
    assert known.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedproto", "fedala"])
def test_the_adapted_network_answers_the_nearest_centroid(method: str) -> None:
    fed = federation(METHODS[method]())
    client, x = fed.train("ada").client, torch.cat([fed.examples["bob"].x, fed.examples["cyd"].x])
    adapted = adapt_head(ClientModel(fed.setup, client), x, batch_size=4)
    assert adapted is not None
    network = fed.setup.network.evaluate
    served = fed.setup.method.predict(network, client, x)
    centroids, known = confident_centroids(served.features, served.logits)
    distances = torch.cdist(served.features, centroids) + torch.where(known > 0, 0.0, torch.inf)
    output = adapted.setup.method.predict(network, adapted.client, x)
    assert output.logits.argmax(1).tolist() == distances.argmin(1).tolist()
    assert Evaluator(4).evaluate_client(adapted, Examples(x, torch.zeros(len(x)).long())) is not None


def test_nothing_is_adapted_where_no_window_or_no_class_is() -> None:
    fed = federation(METHODS["fedavg"]())
    model = ClientModel(fed.setup, fed.initial)
    unchanged = adapt_head(model, fed.examples["ada"].x[:0], 4)
    assert unchanged is not None
    assert unchanged.client is fed.initial
    masks = federation(METHODS["fedavg"](), task="segmentation")
    assert adapt_head(ClientModel(masks.setup, masks.initial), masks.examples["ada"].x, 4) is None
