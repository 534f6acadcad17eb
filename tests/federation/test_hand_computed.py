"""One round of each method that shares parameters only, small enough to be computed by hand; the numbers stand here."""

from __future__ import annotations

import math

import pytest
import torch

from federation.errors import RoundError, SettingsError
from federation.methods import METHODS, method_from_json
from federation.plan import Task
from federation.records import Batch, Client, Output, Tensors, Tree, Update
from tests.federation.by_hand import Play, TwoWeights, one_round, scalars, sigmoid, update, weight


def test_fedavg() -> None:
    clients, state = one_round(METHODS["fedavg"]())
    assert weight(clients["ada"].params) == pytest.approx(0.5)  # 0 − (1/2 − 1)·1
    assert weight(clients["bob"].params) == pytest.approx(-1.0)  # 0 − (1/2)·2
    assert weight(state["params"]) == pytest.approx(-0.5)  # (1·0.5 + 2·(−1)) / 3


def test_fedavg_uniform() -> None:
    _, state = one_round(METHODS["fedavg"](weighting="uniform"))
    assert weight(state["params"]) == pytest.approx(-0.25)  # (0.5 − 1) / 2


def test_fedavg_counts_a_stale_update_less() -> None:
    method, params = METHODS["fedavg"](), {"w": torch.tensor(4.0)}
    updates = [Update("ada", 1, 1, {"params": params}), Update("bob", 1, 1, {"params": {"w": torch.tensor(1.0)}}, 0.5)]
    state = method.aggregate({"params": params}, updates)
    assert weight(state["params"]) == pytest.approx(3.0)  # (4 + 0.5·1) / 1.5


def test_fedprox() -> None:
    clients, state = one_round(method_from_json({"name": "fedprox", "mu": 1.0}), epochs=2)
    ada = 0.5 - (sigmoid(0.5) - 1) - 1.0 * 0.5  # second step from 0.5: −σ' gradient, minus μ(w − 0)
    bob = -1.0 - sigmoid(-2.0) * 2 + 1.0
    assert weight(clients["ada"].params) == pytest.approx(ada) == pytest.approx(0.37754066879)
    assert weight(clients["bob"].params) == pytest.approx(bob) == pytest.approx(-0.23840584404)
    assert weight(state["params"]) == pytest.approx((ada + 2 * bob) / 3)


def test_local() -> None:
    clients, state = one_round(METHODS["local"]())
    assert weight(clients["ada"].params) == pytest.approx(0.5)
    assert state == {}


def test_centralized_is_fedavg_of_one() -> None:
    _, state = one_round(METHODS["centralized"]())
    assert weight(state["params"]) == pytest.approx(-0.5)


# TwoWeights from b = h = 1: ada's g = σ(1) − 1, bob's g = σ(2), and both weights move alike
ADA, BOB = 1 - (sigmoid(1) - 1), 1 - sigmoid(2) * 2


def test_fedper() -> None:
    played = Play(METHODS["fedper"](), TwoWeights()).round()
    assert (pytest.approx(1.26894142), pytest.approx(-0.76159416)) == (ADA, BOB)
    assert {name: round(weight(one.params, "head.w"), 8) for name, one in played.clients.items()} == {
        "ada": 1.26894142,
        "bob": -0.76159416,
    }
    assert list(played.uploads["ada"]["params"]) == list(played.state["params"]) == ["base"]
    assert weight(played.state["params"], "base") == pytest.approx((ADA + 2 * BOB) / 3) == pytest.approx(-0.0847489654)


def test_fedrep() -> None:
    clients, state = one_round(METHODS["fedrep"](), TwoWeights())
    ada = 1 - (sigmoid(ADA) - 1) * ADA  # the head has moved to ADA when the base begins
    bob = 1 - sigmoid(2 * BOB) * 2 * BOB
    assert weight(clients["ada"].params, "head.w") == pytest.approx(ADA)
    assert weight(clients["ada"].params, "base") == pytest.approx(ada) == pytest.approx(1.27845462)
    assert weight(clients["bob"].params, "base") == pytest.approx(bob) == pytest.approx(1.27263929)
    assert weight(state["params"], "base") == pytest.approx((ada + 2 * bob) / 3)


def test_moon() -> None:
    """Alike 1, unlike 0, τ = ½: −log(e² / (e² + 1)) = log(1 + e⁻²), and the cross-entropy of equal logits is log 2."""

    def forward(params: Tensors, buffers: Tensors, x: torch.Tensor, mask: torch.Tensor | None) -> Output:
        return Output(params["z"][None], torch.zeros(1, 2), buffers)

    method = METHODS["moon"]()
    toward, across = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    client, state = method.receive(Client({"z": across}, {}, {}), {"params": {"z": toward}})
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.ones(1))
    loss, _ = method.loss(forward, client.params, {}, batch, state)
    assert float(loss) == pytest.approx(math.log(2) + math.log1p(math.exp(-2))) == pytest.approx(0.8200751)


def test_scaffold() -> None:
    played = Play(METHODS["scaffold"]()).round()
    # after one step (w_t − y)/(K·η) is the gradient itself: −½ and 1
    assert [weight(one.memory["variate"]) for one in played.clients.values()] == [-0.5, 1.0]
    assert weight(played.state["variate"]) == pytest.approx(0.25)
    assert weight(played.state["params"]) == pytest.approx(-0.5)
    played.round()
    gradient = sigmoid(-0.5) - 1  # ada at w = −½; its correction is c − c_i = 0.25 + 0.5
    assert weight(played.clients["ada"].params) == pytest.approx(-0.5 - (gradient + 0.75)) == pytest.approx(-0.62754067)
    assert weight(played.clients["ada"].memory["variate"]) == pytest.approx(gradient)


def test_scaffold_counts_everybody_who_has_reported() -> None:
    """ada's c_i becomes 1, then only bob reports 4: c = (1 + 4) / 2."""
    method = METHODS["scaffold"]()
    state: Tree = {"params": scalars(w=0.0), "variate": scalars(w=0.0)}
    state = method.aggregate(state, [update("ada", 1, 0.0, variate=scalars(w=1.0))])
    state = method.aggregate(state, [update("bob", 1, 0.0, variate=scalars(w=4.0))])
    assert weight(state["variate"]) == pytest.approx(2.5)


def test_ditto() -> None:
    clients, state = one_round(method_from_json({"name": "ditto", "pull": 1.0}), epochs=2)
    plain = 0.5 - (sigmoid(0.5) - 1)
    held = plain - 1.0 * 0.5  # as fedprox with μ = 1
    assert weight(clients["ada"].params) == pytest.approx(plain) == pytest.approx(0.87754067)
    assert weight(clients["ada"].params, "personal:w") == pytest.approx(held) == pytest.approx(0.37754067)
    assert list(state["params"]) == ["w"]


def test_fesem() -> None:
    played = Play(METHODS["fesem"]()).round()  # ada went to 0.5 and bob to −1: a centre each
    assert [weight(centre) for centre in played.state["centres"].values()] == [0.5, -1.0]
    assert weight(played.method.broadcast(played.state, "bob")["params"]) == -1.0
    updates = [update("ada", 1, 0.4), update("bob", 2, -2.0), update("cyd", 3, 0.6)]
    state = played.method.aggregate(played.state, updates)
    assert weight(state["centres"]["0"]) == pytest.approx((0.4 + 3 * 0.6) / 4)
    assert weight(state["centres"]["1"]) == pytest.approx(-2.0)
    assert {name: int(centre) for name, centre in state["assigned"].items()} == {"ada": 0, "bob": 1, "cyd": 0}
    again = played.method.aggregate(state, [update("ada", 1, 1.0)])
    assert weight(again["centres"]["1"]) == pytest.approx(-2.0), "an empty centre keeps its value"


def test_fedatt() -> None:
    _, state = one_round(METHODS["fedatt"]())  # the clients went ½ and 1 away
    ada = math.exp(0.5) / (math.exp(0.5) + math.exp(1.0))
    expected = -1.2 * (ada * (0 - 0.5) + (1 - ada) * (0 + 1.0))
    assert weight(state["params"]) == pytest.approx(expected) == pytest.approx(-0.52042650)


def test_fedavgm() -> None:
    method, start = METHODS["fedavgm"](), scalars(w=0.0)
    state = method.aggregate(method.server_init(start, {}, Task(classes=2)), [update("ada", 1, 1.0)])
    assert weight(state["params"]) == pytest.approx(1.0)
    state = method.aggregate(state, [update("ada", 1, 1.0)])  # Δ = 0, and the velocity 0.9 goes on
    assert weight(state["params"]) == pytest.approx(1.9)


@pytest.mark.parametrize(("name", "v", "expected"), [("fedadam", 0.0199, 0.041482182), ("fedyogi", 0.02, 0.041421356)])
def test_adaptive_servers(name: str, v: float, expected: float) -> None:
    """Δ = 1: m = 0.1, and v from τ² = 0.01 by 0.99·0.01 + 0.01 or by 0.01 + 0.01; w = 0.1·0.1/(√v + 0.1)."""
    method = method_from_json({"name": name, "server_lr": 0.1, "tau": 0.1})
    state = method.aggregate(method.server_init(scalars(w=0.0), {}, Task(classes=2)), [update("ada", 1, 1.0)])
    assert weight(state["moments"]["v"]) == pytest.approx(v)
    assert weight(state["params"]) == pytest.approx(0.01 / (math.sqrt(v) + 0.1)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "expected"),
    # krum with one liar of five: each counts its 2 nearest others; 2 has 1 and 3 at distance 1
    [("median", 3.0), ("trimmed_mean", 3.0), ("krum", 2.0)],
)
def test_robust_rules(rule: str, expected: float) -> None:
    method = method_from_json({"name": "fedavg", "aggregation": rule, "trim": 0.2, "byzantine": 1})
    updates = [update(f"c{i}", 1, value) for i, value in enumerate([1.0, 2.0, 3.0, 4.0, 1e9])]
    assert weight(method.aggregate({"params": scalars(w=0.0)}, updates)["params"]) == pytest.approx(expected)


def test_krum_says_how_many_it_needs() -> None:
    method = method_from_json({"name": "fedavg", "aggregation": "krum", "byzantine": 2})
    with pytest.raises(RoundError, match="needs at least 5 updates, 3 came"):
        method.aggregate({"params": scalars(w=0.0)}, [update(f"c{i}", 1, 1.0) for i in range(3)])


def test_scaffold_refuses_adam() -> None:
    with pytest.raises(SettingsError, match="choose sgd"):
        METHODS["scaffold"]().server_init(scalars(w=0.0), {}, Task(classes=2, optimizer="adam"))


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].has_global_model])
def test_a_round_without_updates_is_refused(name: str) -> None:
    with pytest.raises(RoundError, match="at least one update"):
        METHODS[name]().aggregate({"params": {}}, [])
