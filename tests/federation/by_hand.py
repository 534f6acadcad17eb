"""What the hand-computed rounds share: networks of one and two weights, and two clients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Client, Examples, Tensors, Tree, Update
from federation.training.client_round import train_one
from federation.training.forward import initial_client, network
from federation.training.local_round import Setup


class OneWeight(nn.Module):
    """Logits (w·x, 0) for a scalar x: the gradient of the cross-entropy is (σ(w·x) − [y = 0])·x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return x, torch.cat([self.w * x, torch.zeros_like(x)], 1)


class TwoWeights(nn.Module):
    """Feature e = b·x, logits (h·e, 0), from b = h = 1: with g = σ(h·b·x) − [y = 0], ∂h = g·b·x and ∂b = g·h·x."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.head = nn.ParameterDict({"w": nn.Parameter(torch.ones((), dtype=torch.float64))})

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        feature = self.base * x
        return feature, torch.cat([self.head["w"] * feature, torch.zeros_like(x)], 1)


# ada has one example (x = 1, class 0), bob has two equal ones (x = 2, class 1)
EXAMPLES = {
    "ada": Examples(torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([0])),
    "bob": Examples(torch.tensor([[2.0], [2.0]], dtype=torch.float64), torch.tensor([1, 1])),
}


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


class Play:
    """Both clients train with SGD 1.0, unless told otherwise; the server aggregates."""

    def __init__(self, method: Method, module: nn.Module | None = None, epochs: int = 1, **changes: Any) -> None:
        self.method, module = method, module or OneWeight()
        training = TrainingConfig(
            classes=2, feature_dim=1, batch_size=8, **{"epochs": epochs, "optimizer": "sgd", "lr": 1.0, **changes}
        )
        self.setup = Setup(method, training, network(module))
        initial = initial_client(module)
        self.state: Tree = method.server_init(initial.params, initial.buffers, training)
        self.clients: dict[str, Client] = dict.fromkeys(EXAMPLES, method.init_client_state(initial, training))
        self.uploads: dict[str, Tree] = {}
        self.number = 0

    def round(self) -> Play:
        """Run one round."""
        self.number += 1
        for name, mine in EXAMPLES.items():
            broadcast = self.method.broadcast(self.state, name)
            result = train_one(
                self.setup, self.clients[name], broadcast, mine, client_id=name, round_number=self.number
            )
            self.clients[name], self.uploads[name] = result.client, result.upload
        updates = [Update(name, len(EXAMPLES[name].y), 1, upload) for name, upload in self.uploads.items()]
        self.state = self.method.aggregate(self.state, updates)
        return self


def one_round(method: Method, module: nn.Module | None = None, epochs: int = 1) -> tuple[dict[str, Client], Tree]:
    """Return the clients and the state after one round."""
    played = Play(method, module, epochs).round()
    return played.clients, played.state


def weight(params: Tensors, name: str = "w") -> float:
    """Return a scalar parameter."""
    return float(params[name])


def scalars(**values: float) -> Tensors:
    """Return scalar tensors in float64."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def update(name: str, examples: int, w: float, **others: Any) -> Update:
    """Return what a client with one parameter uploads."""
    return Update(name, examples, 1, {"params": scalars(w=w), **others})
