"""The training works that engines and peers are compared on: clients with generated examples, a network, an optimizer.

Imported by Gaitway's contestant and by the peers' in their own virtual environments: numpy, torch and `models` only.
Examples are noise, since only their shapes matter to speed; every contestant gets the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models import build
from models.layers.channels_last import Conv1d, Conv2d, GroupNorm, MaxPool2d
from models.layers.dropout import ChannelDropout, Dropout, DropPath


class Data(NamedTuple):
    """One client's examples: x (n, ...) float32, y (n,) int64."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Work:
    """A federation: `sizes` are examples a client, `cohort` how many clients train in a round."""

    title: str
    shape: tuple[int, ...]
    classes: int
    sizes: tuple[int, ...]
    cohort: int
    batch: int
    epochs: int
    optimizer: str
    lr: float
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    method: str = "fedavg"
    centralized_batch: int = 256

    def clients(self) -> list[Data]:
        """Draw every client's examples, the same in every process."""
        draw = np.random.default_rng(7)
        return [
            Data(draw.standard_normal((size, *self.shape), dtype=np.float32), draw.integers(0, self.classes, size))
            for size in self.sizes
        ]

    def network(self, *, plain: bool = True) -> nn.Module:
        """Build the network; `plain` of torch's own layers, as a peer's user would write it."""
        torch.manual_seed(0)
        built = build(self.model, classes=self.classes, **self.options)
        return of_torch(built) if plain else built

    def new_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Make torch's optimizer of the work."""
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        return kinds[self.optimizer](parameters, lr=self.lr)

    @property
    def examples_a_round(self) -> int:
        """Examples that are trained on in a round, of a cohort of mean clients."""
        return round(self.epochs * self.cohort * sum(self.sizes) / len(self.sizes))


def operations(work: Work) -> float:
    """Floating-point operations of a round of the mean cohort: forward and backward of every example, nothing else."""
    network, examples = work.network(), 8
    x, y = torch.zeros(examples, *work.shape), torch.zeros(examples, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(logits(network, x), y).backward()
    return counter.get_total_flops() / examples * work.examples_a_round


def shared_bytes(work: Work) -> int:
    """Bytes of the parameters that a round's cohort gets and sends, both ways; of fedproto its prototypes."""
    network = work.network()
    prototypes = work.classes * (int(network.feature_dim) + 1)
    each = prototypes if work.method == "fedproto" else sum(value.numel() for value in network.parameters())
    return 2 * 4 * each * work.cohort


def of_torch(module: nn.Module) -> nn.Module:
    """Replace Gaitway's seeded dropout by torch's, and its layers that lay images out channels last by torch's own."""
    for name, child in module.named_children():
        if isinstance(child, ChannelDropout):
            setattr(module, name, nn.Dropout2d(child.p))
        elif isinstance(child, Dropout) and not isinstance(child, DropPath):
            setattr(module, name, nn.Dropout(child.p))
        elif isinstance(child, (Conv1d, Conv2d, GroupNorm, MaxPool2d)):
            (child.__class__,) = type(child).__bases__
        else:
            of_torch(child)
    return module


def logits(network: nn.Module, x: Tensor) -> Tensor:
    """Return the class scores of x."""
    scores: Tensor = network(x).logits
    return scores


def _ragged(clients: int, mean: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(3).lognormal(0.0, 0.4, clients)
    return tuple(int(size) for size in np.maximum(drawn / drawn.mean() * mean, 8))


def public(clients: int = 1000, cohort: int = 50) -> Work:
    """The public cross-device work of pfl-research's benchmarks: CIFAR-10's shape."""
    return Work("public cross-device CNN", (3, 32, 32), 10, (50,) * clients, cohort, 10, 1, "sgd", 0.1, "public_cnn")


def har(model: str, clients: int, mean: int, epochs: int) -> Work:
    """HHAR-like: ragged clients of windows, all of them in every round, Adam, batch 64."""
    return Work(f"HAR, {model}", (128, 6), 6, _ragged(clients, mean), clients, 64, epochs, "adam", 1e-3, model)


def tan(clients: int = 20, shots: int = 300) -> Work:
    """Tan et al.'s MNIST work: fedproto, batch 8, SGD."""
    return Work(
        "Tan et al., MNIST, fedproto", (1, 28, 28), 10, (shots,) * clients, clients, 8, 1, "sgd", 0.01, "mnist_cnn",
        method="fedproto",
    )  # fmt: skip


WORKS: dict[str, Callable[..., Work]] = {
    "public": public,
    "har_cnn": lambda clients=36, mean=700, epochs=5: har("har_cnn", clients, mean, epochs),
    "hart": lambda clients=36, mean=700, epochs=5: har("hart", clients, mean, epochs),
    "hart_alp": lambda clients=36, mean=700, epochs=5: har("hart_alp", clients, mean, epochs),
    "tan": tan,
}
"""Works by name; their keywords make them smaller for slow machines, and the table says so."""
