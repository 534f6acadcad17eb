"""Synthetic(φ1, φ2): every client its own logistic regression of 60 numbers to 10 classes.

Shamir, Srebro, Zhang, "Communication-efficient distributed optimization using an approximate Newton-type method", ICML
2014; as Li et al., "Federated optimization in heterogeneous networks", MLSys 2020 (arXiv 1812.06127), and Michieli and
Ozay 2021 (section S1.1) draw it. N(m, s) has the variance s:

    u_k ~ N(0, φ1),  W_k ∈ R^(10 × 60) and b_k ∈ R^10 ~ N(u_k, 1) in each element
    B_k ~ N(0, φ2),  v_k ∈ R^60 ~ N(B_k, 1) in each element,  x ~ N(v_k, Σ), Σ diagonal, Σ_jj = j^−1.2
    y = argmax softmax(W_k x + b_k)

φ1 sets how much the clients' models differ, φ2 how much their inputs. Sizes are 50 + ⌊exp N(4, 2²)⌋, the 'power law' of
Li et al.'s code, which takes φ as a standard deviation: the same for 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from federation.records import Examples
from federation.seeds import generator
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData
from sim.data.partitions.partition import tail
from sim.errors import SettingsError

DIMENSION = 60
LABELS = tuple("0123456789")
SCALE = np.arange(1, DIMENSION + 1) ** -0.6  # standard deviations: the root of Σ


class Drawn(NamedTuple):
    """One client's examples: x (n, 60) float32, y (n,) int64."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SyntheticTasks:
    """What to draw; `smallest` examples a client and a log-normal number more, `test_share` of them held out."""

    phi1: float = 1.0
    phi2: float = 1.0
    clients: int = 30
    smallest: int = 50
    log_mean: float = 4.0
    log_std: float = 2.0
    test_share: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn; raises SettingsError."""
        for name in ("phi1", "phi2", "log_std"):
            if not 0 <= getattr(self, name) <= 100:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must lie between 0 and 100")
        for name, least in (("clients", 1), ("smallest", 2)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}; at least {least} are needed")
        if not 0 < self.test_share < 1:
            raise SettingsError(f"test_share is {self.test_share}; it must lie between 0 and 1")

    def draw(self, client: int, seed: int) -> Drawn:
        """Draw one client from its own stream, so that another client more changes nothing here."""
        random = generator(seed, "synthetic_tasks", client)
        examples = self.smallest + int(random.lognormal(self.log_mean, self.log_std))
        u, B = random.normal(0, np.sqrt([self.phi1, self.phi2]))
        W, b = random.normal(u, 1, (len(LABELS), DIMENSION)), random.normal(u, 1, len(LABELS))
        v = random.normal(B, 1, DIMENSION)
        x = random.normal(v, SCALE, (examples, DIMENSION))
        # softmax keeps the order, so its argmax is that of the scores
        return Drawn(x.astype(np.float32), np.argmax(x @ W.T + b, axis=1))


def synthetic_federation(
    tasks: SyntheticTasks, *, seed: int, device: str = "cpu", validation_share: float = 0.0
) -> FederatedData:
    """Draw every client, `client-007`; its last `test_share` (the draws are independent) is its test set.

    Of what is left the last `validation_share` of each class is for validation.
    """
    width = max(3, len(str(tasks.clients - 1)))
    clients = {
        f"client-{k:0{width}d}": _client(tasks.draw(k, seed), tasks, device, validation_share)
        for k in range(tasks.clients)
    }
    # inputs are used as they are drawn
    untouched = ChannelStatistics(1, np.zeros(DIMENSION), np.ones(DIMENSION))
    return FederatedData(LABELS, clients, dict.fromkeys(clients, untouched), split_leaks=False)


def _client(drawn: Drawn, tasks: SyntheticTasks, device: str, validation_share: float) -> ClientData:
    x, y = torch.from_numpy(drawn.x).to(device), torch.from_numpy(drawn.y).to(device)
    tested = min(max(1, round(tasks.test_share * len(y))), len(y) - 1)
    held = torch.from_numpy(tail(drawn.y[:-tested], validation_share)).to(device)
    train = Examples(x[:-tested], y[:-tested])
    test = Examples(x[-tested:], y[-tested:])
    return ClientData(Examples(train.x[~held], train.y[~held]), test, Examples(train.x[held], train.y[held]))
