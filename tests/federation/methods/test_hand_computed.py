"""One round of each method that shares parameters only, small enough to be computed by hand; the numbers stand here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from federation.errors import RoundError, SettingsError
from federation.methods import METHODS, method_from_json
from federation.plan import TrainingConfig
from federation.records import Batch, Client, Output, Tensors, Tree, Update
from federation.seeds import seed_for
from federation.tasks.classification import Classification
from federation.training.forward import Network
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


@pytest.mark.parametrize(
    ("options", "factor", "bases"),
    [({}, 1.0, (1.27845462, 1.27263929)), ({"head_lr_factor": 10.0}, 10.0, (1.08993878, 1.00000000))],
)
def test_fedrep(options: dict[str, float], factor: float, bases: tuple[float, float]) -> None:
    clients, state = one_round(METHODS["fedrep"](**options), TwoWeights())
    head_ada, head_bob = 1 - factor * (sigmoid(1) - 1), 1 - factor * sigmoid(2) * 2
    ada = 1 - (sigmoid(head_ada) - 1) * head_ada  # the head has moved so far when the base begins, at its own rate
    bob = 1 - sigmoid(2 * head_bob) * 2 * head_bob
    assert weight(clients["ada"].params, "head.w") == pytest.approx(head_ada)
    assert weight(clients["bob"].params, "head.w") == pytest.approx(head_bob)
    assert weight(clients["ada"].params, "base") == pytest.approx(ada) == pytest.approx(bases[0])
    assert weight(clients["bob"].params, "base") == pytest.approx(bob) == pytest.approx(bases[1])
    assert weight(state["params"], "base") == pytest.approx((ada + 2 * bob) / 3)


@pytest.mark.parametrize("name", ["fedrep", "fedpac"])
@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_head_that_would_not_train_is_refused(name: str, factor: float) -> None:
    with pytest.raises(SettingsError, match=f"{name}: head_lr_factor=.*: expected a factor above 0"):
        method_from_json({"name": name, "head_lr_factor": factor})


@pytest.mark.parametrize(
    ("trained", "contrast"),
    # alike 1, unlike 0, τ = ½: −log(e² / (e² + 1)) = log(1 + e⁻²); who has not trained has nothing to be unlike
    [(1.0, math.log1p(math.exp(-2))), (0.0, math.log(2))],
)
def test_moon(trained: float, contrast: float) -> None:
    """The cross-entropy of equal logits is log 2; the client had (0, 1) and receives (1, 0)."""

    def train(params: Tensors, buffers: Tensors, x: torch.Tensor, mask: torch.Tensor | None = None) -> Output:
        return Output(params["z"][None], torch.zeros(1, 2), {"seen": buffers["seen"] + 1})

    def evaluate(params: Tensors, buffers: Tensors, x: torch.Tensor, mask: torch.Tensor | None = None) -> Output:
        return Output(params["z"][None], torch.zeros(1, 2), buffers)

    method, seen = METHODS["moon"](), {"seen": torch.tensor(0)}
    toward, across = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    memory = {"trained": torch.tensor(trained)}
    client, state = method.receive(Client({"z": across}, seen, memory), {"params": {"z": toward}})
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.ones(1))
    loss, moved = method.loss(Classification(), Network(train, evaluate), client.params, seen, batch, state)
    assert float(loss) == pytest.approx(math.log(2) + contrast)
    assert moved == {"seen": torch.tensor(1)}, "the network in training moves its buffers, the targets none"


class Dropping(nn.Module):
    """Feature (w·x, x) and logits (w·x, 0); in training the feature's first half is dropped, in evaluation none."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        kept = 0.5 if self.training else 1.0
        return torch.cat([kept * self.w * x, x], 1), torch.cat([self.w * x, torch.zeros_like(x)], 1)


def test_moon_of_a_late_joiner_and_of_an_old_hand() -> None:
    """The server is at w = 1 in round 2; ada trained in round 1 and ended at 3, bob joins at the initial 2.

    z = (½·w, 1)·x at w = 1 in training; the targets are whole: (1, 1)·x received, (3, 1)·x ada's own. With
    ∂z/∂w = (½, 0) and n = ‖(½, 1)‖, ∂cos(z, t)/∂w = ½ (t₁/(‖z‖‖t‖) − cos·z₁/‖z‖²).
    """
    played = Play(METHODS["moon"](), Dropping())
    played.state = {"params": scalars(w=1.0)}
    ada = played.clients["ada"]
    played.clients["ada"] = ada._replace(params=scalars(w=3.0), memory={"trained": torch.ones_like(ada.params["w"])})
    played.round()

    def cosine(target: float) -> tuple[float, float]:
        z, t = math.hypot(0.5, 1), math.hypot(target, 1)
        value = (0.5 * target + 1) / (z * t)
        return value, 0.5 * (target / (z * t) - value * 0.5 / z**2)

    (alike, toward), (unlike, away) = cosine(1.0), cosine(3.0)
    pull = sigmoid((unlike - alike) / 0.5) * (away - toward) / 0.5  # ∂ softplus((unlike − alike)/τ)
    assert (
        weight(played.clients["ada"].params) == pytest.approx(1 - (sigmoid(1) - 1) - pull) == pytest.approx(1.14964269)
    )
    assert weight(played.clients["bob"].params) == pytest.approx(1 - sigmoid(2) * 2), "nothing but the cross-entropy"
    assert [float(one.memory["trained"]) for one in played.clients.values()] == [1.0, 1.0]


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


def test_scaffold_with_momentum() -> None:
    """ada's two steps with m = ½: y = 0 − g₁ − (½·g₁ + g₂), and a constant gradient would count 1 + 1½ times."""
    played = Play(METHODS["scaffold"](), epochs=2, momentum=0.5).round()
    first, second = -0.5, sigmoid(0.5) - 1
    ada = played.clients["ada"]
    assert weight(ada.params) == pytest.approx(-(1.5 * first + second)) == pytest.approx(1.12754067)
    assert weight(ada.memory["variate"]) == pytest.approx((1.5 * first + second) / 2.5) == pytest.approx(-0.45101627)


@pytest.mark.ci
@pytest.mark.parametrize(("momentum", "lr"), [(0.0, 0.5), (0.5, 0.25), (0.9, 0.05)])
def test_scaffold_finds_the_optimum(momentum: float, lr: float) -> None:
    """Of (f_ada + f_bob)/2: (σ(w) − 1) + 2 σ(2w) = 0. Client drift ends elsewhere: fedavg is off by a tenth."""
    low, high = -5.0, 5.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(middle) - 1 + 2 * sigmoid(2 * middle) < 0 else (low, middle)
    ends = {}
    for name in ("scaffold", "fedavg"):
        played = Play(METHODS[name](weighting="uniform"), epochs=10, momentum=momentum, lr=lr)
        for _ in range(60):
            played.round()
        ends[name] = weight(played.state["params"])
    assert ends["scaffold"] == pytest.approx(low, abs=1e-6)
    assert abs(ends["fedavg"] - low) > 0.1


def test_scaffold_counts_everybody_who_has_reported() -> None:
    """ada's c_i becomes 1, then only bob reports 4: c = (1 + 4) / 2."""
    method = METHODS["scaffold"]()
    state: Tree = {"params": scalars(w=0.0), "variate": scalars(w=0.0)}
    state = method.aggregate(state, [update("ada", 1, 0.0, variate=scalars(w=1.0))])
    state = method.aggregate(state, [update("bob", 1, 0.0, variate=scalars(w=4.0))])
    assert weight(state["variate"]) == pytest.approx(2.5)


def test_ditto() -> None:
    clients, state = one_round(method_from_json({"name": "ditto", "lam": 1.0}), epochs=2)
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


def test_fesem_by_a_step_of_lloyds_a_round() -> None:
    """The server has sums by centre alone; while both centres are 0, clients are dealt to them by their names."""
    method = method_from_json({"name": "fesem", "clustering": "one_step"})
    start = method.server_init(scalars(w=0.0), {}, TrainingConfig(classes=2))
    dealt = {name: seed_for(0, "centre", name) % 2 for name in "abcdef"}
    assert sorted(dealt.values()).count(0) in (2, 3, 4)
    updates = [update(name, 1, 10.0 + number) for number, name in enumerate("abcdef")]
    state = method.aggregate(start, updates)
    for centre in (0, 1):
        mine = [10.0 + number for number, name in enumerate("abcdef") if dealt[name] == centre]
        assert weight(state["centres"][str(centre)]) == pytest.approx(sum(mine) / len(mine))
    apart = {"centres": {"0": scalars(w=1.0), "1": scalars(w=5.0)}}
    state = method.aggregate(apart, [update("a", 1, 2.0), update("b", 3, 2.8)])
    assert weight(state["centres"]["0"]) == pytest.approx((2.0 + 3 * 2.8) / 4)
    assert weight(state["centres"]["1"]) == 5.0, "an empty centre keeps its value"
    client = Client(scalars(w=4.0), {}, {})
    taken, round_state = method.receive(client, method.broadcast(apart, "a"))
    assert weight(taken.params) == weight(round_state["anchor"]) == 5.0, "the one nearest to what it had"


def test_fedatt() -> None:
    _, state = one_round(METHODS["fedatt"]())  # the clients went ½ and 1 away
    ada = math.exp(0.5) / (math.exp(0.5) + math.exp(1.0))
    expected = -1.2 * (ada * (0 - 0.5) + (1 - ada) * (0 + 1.0))
    assert weight(state["params"]) == pytest.approx(expected) == pytest.approx(-0.52042650)


def test_fedavgm() -> None:
    method, start = METHODS["fedavgm"](), scalars(w=0.0)
    state = method.aggregate(method.server_init(start, {}, TrainingConfig(classes=2)), [update("ada", 1, 1.0)])
    assert weight(state["params"]) == pytest.approx(1.0)
    state = method.aggregate(state, [update("ada", 1, 1.0)])  # Δ = 0, and the velocity 0.9 goes on
    assert weight(state["params"]) == pytest.approx(1.9)


@pytest.mark.parametrize(("name", "v", "expected"), [("fedadam", 0.0199, 0.041482182), ("fedyogi", 0.02, 0.041421356)])
def test_adaptive_servers(name: str, v: float, expected: float) -> None:
    """Δ = 1: m = 0.1, and v from τ² = 0.01 by 0.99·0.01 + 0.01 or by 0.01 + 0.01; w = 0.1·0.1/(√v + 0.1)."""
    method = method_from_json({"name": name, "server_lr": 0.1, "tau": 0.1})
    state = method.aggregate(method.server_init(scalars(w=0.0), {}, TrainingConfig(classes=2)), [update("ada", 1, 1.0)])
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
    with pytest.raises(RoundError, match="needs at least 5 updates, got 3"):
        method.aggregate({"params": scalars(w=0.0)}, [update(f"c{i}", 1, 1.0) for i in range(3)])


def test_scaffold_refuses_adam() -> None:
    with pytest.raises(SettingsError, match="choose sgd"):
        METHODS["scaffold"]().server_init(scalars(w=0.0), {}, TrainingConfig(classes=2, optimizer="adam"))


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name]().has_global_model])
def test_a_round_without_updates_is_refused(name: str) -> None:
    with pytest.raises(RoundError, match="at least one update"):
        METHODS[name]().aggregate({"params": {}}, [])
