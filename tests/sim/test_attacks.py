"""Hostile clients of a run: who they are, what is refused, and that a server's rules stand against them."""

from __future__ import annotations

import pytest
import torch

from sim.attacks import Attack
from sim.data.federated_data import FederatedData
from sim.errors import SettingsError
from sim.presets.preset import UNSCREENED
from sim.run import build_simulation, load_data, resolve
from tests.sim.small_runs import first, settings_for


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    """Five clients with the same windows."""
    read = load_data(resolve(settings_for()), None, tmp_path_factory.mktemp("cache"), None)
    cut = first(read, dict.fromkeys(read.clients, 20))
    one, statistics = next(iter(cut.clients.values())), next(iter(cut.statistics.values()))
    clients = dict.fromkeys("abcde", one)
    return FederatedData(cut.labels, clients, dict.fromkeys(clients, statistics), cut.split_leaks)


def test_the_same_clients_are_hostile_whatever_is_learnt_and_whoever_joins() -> None:
    names = [f"client {k}" for k in range(40)]
    few = Attack.drawn("noise", 0.25, names, 7)
    assert len(few.attackers) == 10
    assert Attack.drawn("sign_flip", 0.25, reversed(names), 7).attackers == few.attackers
    assert Attack.drawn("noise", 0.25, names, 8).attackers != few.attackers
    assert few.attackers < Attack.drawn("noise", 0.5, names, 7).attackers
    more = Attack.drawn("noise", 0.25, [*names, "another"], 7).attackers
    assert len(few.attackers - more) <= 1  # whose place the one that joined may have taken


def test_a_runs_attack_moves_a_mean_without_rules_and_no_median(data: FederatedData) -> None:
    def moved(*rules: str, **options: object) -> float:
        settings = settings_for("fedavg", model="har_cnn", rounds=1, set=[*UNSCREENED, *rules], **options)
        simulation = build_simulation(resolve(settings), data)
        start = {name: value.clone() for name, value in simulation.state["params"].items()}
        list(simulation.run_rounds())
        return max(float((value - start[name]).abs().max()) for name, value in simulation.state["params"].items())

    hostile = {"attack": "noise", "attackers": 0.4}
    honest = moved()
    assert moved(**hostile) > 20 * honest
    assert moved("aggregation=median", **hostile) < 3 * honest


def test_flipped_labels_are_those_of_the_hostile_clients_alone(data: FederatedData) -> None:
    simulation = build_simulation(resolve(settings_for("local", attack="label_flip", attackers=0.5)), data)
    assert simulation.attack is not None
    assert simulation.attack.attackers
    for name, client in simulation.data.clients.items():
        is_same = torch.equal(client.train.y, data.clients[name].train.y)
        assert is_same == (name not in simulation.attack.attackers)
        assert torch.equal(client.test.y, data.clients[name].test.y)


def test_labels_of_sums_are_flipped_once() -> None:
    """In the data and again in the update would be honest."""
    read = load_data(resolve(settings_for("analytic", model="har_features", normalization="none")), None, None, None)

    def sums(**attack: object) -> dict[str, torch.Tensor]:
        given = settings_for("analytic", model="har_features", normalization="none", rounds=1, set=UNSCREENED, **attack)
        simulation = build_simulation(resolve(given), read)
        list(simulation.run_rounds())
        return simulation.state["sums"]

    honest, flipped = sums(), sums(attack="label_flip", attackers=0.9)  # both of the two clients
    assert torch.equal(honest["gram"], flipped["gram"])
    assert torch.equal(honest["moment"].flip(-1), flipped["moment"])
    assert not torch.equal(honest["moment"], flipped["moment"])


def test_a_share_that_is_nobody_is_refused(data: FederatedData) -> None:
    with pytest.raises(SettingsError, match=r"--attackers 0.05 of 5 clients selects no clients; use 0.1 or more"):
        build_simulation(resolve(settings_for("fedavg", model="har_cnn", attack="noise", attackers=0.05)), data)
    assert build_simulation(resolve(settings_for("fedavg", model="har_cnn", attackers=0.0)), data).attack is None
    with pytest.raises(SettingsError, match=r"--attackers 0.3: say with --attack what they do"):
        build_simulation(resolve(settings_for("fedavg", model="har_cnn", attackers=0.3)), data)


@pytest.mark.parametrize(
    ("method", "attack", "why"),
    [
        ("centralized", "noise", "centralized sends nothing; use fedavg"),
        ("fedproto", "sign_flip", "fedproto sends no model that all clients start a round from"),
        (
            "fedavg",
            "class_swap",
            "doesn't apply to what fedavg sends; use noise, sign_flip, scaling, label_flip, lit",
        ),
        ("analytic", "examples", "doesn't apply to what analytic sends; use noise, .*, class_swap, collusion"),
    ],
)
def test_what_cannot_be_attacked_is_said(method: str, attack: str, why: str, data: FederatedData) -> None:
    model = "har_features" if method == "analytic" else "har_cnn"
    with pytest.raises(SettingsError, match=why):
        build_simulation(resolve(settings_for(method, model=model, attack=attack)), data)
