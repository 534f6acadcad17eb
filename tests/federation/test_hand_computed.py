"""One round of each method, small enough to be computed by hand; the numbers stand here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from federation.client_round import Setup, train_one
from federation.errors import RoundError, SettingsError
from federation.forward import initial_client, network
from federation.method import Method
from federation.methods import METHODS
from federation.plan import Task
from federation.records import Client, Examples, Tree, Update


class OneWeight(nn.Module):
    """Logits (w·x, 0) for a scalar x: the gradient of the cross-entropy is (σ(w·x) − [y = 0])·x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return x, torch.cat([self.w * x, torch.zeros_like(x)], 1)


# ada has one example (x = 1, class 0), bob has two equal ones (x = 2, class 1)
EXAMPLES = {
    "ada": Examples(torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([0])),
    "bob": Examples(torch.tensor([[2.0], [2.0]], dtype=torch.float64), torch.tensor([1, 1])),
}


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def one_round(method: Method, epochs: int = 1) -> tuple[dict[str, Client], Tree]:
    """Both clients train with SGD 1.0 from w = 0; the server aggregates."""
    module = OneWeight()
    initial = initial_client(module)
    task = Task(classes=2, feature_dim=1, epochs=epochs, batch_size=8, optimizer="sgd", lr=1.0)
    setup = Setup(method, task, network(module))
    state = method.server_init(initial.params, initial.buffers, task)
    results = {
        name: train_one(setup, initial, method.broadcast(state, name), mine, client_id=name, round_number=1)
        for name, mine in EXAMPLES.items()
    }
    updates = [Update(name, len(EXAMPLES[name].y), 1, result.upload) for name, result in results.items()]
    return {name: result.client for name, result in results.items()}, method.aggregate(state, updates)


def weight(params: dict[str, Tensor]) -> float:
    return float(params["w"])


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
    clients, state = one_round(METHODS["fedprox"](mu=1.0), epochs=2)
    ada = 0.5 - (sigmoid(0.5) - 1) - 1.0 * 0.5  # second step from 0.5: −σ' gradient, minus μ(w − 0)
    bob = -1.0 - sigmoid(-2.0) * 2 + 1.0
    assert weight(clients["ada"].params) == pytest.approx(ada) == pytest.approx(0.37754066879)
    assert weight(clients["bob"].params) == pytest.approx(bob) == pytest.approx(-0.23840584404)
    assert weight(state["params"]) == pytest.approx((ada + 2 * bob) / 3)


def test_local() -> None:
    clients, state = one_round(METHODS["local"]())
    assert weight(clients["ada"].params) == pytest.approx(0.5)
    assert state == {}


def prototypes(*values: float) -> Tree:
    return {"alp.": torch.tensor(values, dtype=torch.float64)[:, None]}


def test_fedali() -> None:
    """Start (1·0 + 3·2)/4 = 1.5 and (1·10 + 3·14)/4 = 13; then {0, 2} and {10, 14} are the clusters."""
    method = METHODS["fedali"]()
    params = {"w": torch.tensor(0.0)}
    state = {"params": params, "prototypes": prototypes(0.0, 0.0)}
    updates = [
        Update("ada", 1, 1, {"params": {"w": torch.tensor(1.0)}, "prototypes": prototypes(0.0, 10.0)}),
        Update("bob", 3, 1, {"params": {"w": torch.tensor(5.0)}, "prototypes": prototypes(2.0, 14.0)}),
    ]
    new = method.aggregate(state, updates)
    assert weight(new["params"]) == pytest.approx(4.0)
    assert new["prototypes"]["alp."].flatten().tolist() == pytest.approx([1.0, 12.0])
    buffers = {"alp.local_prototypes": torch.zeros(2, 1), "alp.global_prototypes": torch.ones(2, 1)}
    client, _ = method.receive(Client(params, buffers, {}), new)
    for kind in ("local", "global"):
        assert client.buffers[f"alp.{kind}_prototypes"].flatten().tolist() == pytest.approx([1.0, 12.0])


def test_fedali_says_that_it_needs_prototypes() -> None:
    with pytest.raises(SettingsError, match="fedali needs a model with ALP layers"):
        METHODS["fedali"]().server_init({"w": torch.zeros(1)}, {}, Task(classes=2))


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].has_global_model])
def test_a_round_without_updates_is_refused(name: str) -> None:
    with pytest.raises(RoundError, match="at least one update"):
        METHODS[name]().aggregate({"params": {}}, [])
