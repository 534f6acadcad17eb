"""FedAvg: every parameter travels and is averaged, by examples or uniformly.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, arXiv 1602.05629, algorithm 1. `weighting="uniform"` is the 'fairness' row of
Michieli and Ozay 2021, table 3. All of it is the base class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.method import Method


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """w ← Σ n_k/Σn_j · w_k."""

    name: ClassVar[str] = "fedavg"
