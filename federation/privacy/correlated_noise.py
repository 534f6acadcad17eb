"""Noise that is correlated over rounds: what one round's adds to the model, the next ones take away again in part.

C. Choquette-Choo, A. Ganesh, R. McKenna, H. B. McMahan, K. Rush, A. Thakurta, Z. Xu: (Amplified) Banded Matrix
Factorization: A unified approach to private training, NeurIPS 2023, arXiv 2306.08153. Models are prefix sums of the
rounds' changes, A x; released is A C⁻¹ (C x + z) with independent z, which is a Gaussian mechanism on C x. C is lower
triangular Toeplitz with `bands` bands: the first coefficients of (1 − x)^-½, whose square is A (H. Fichtenberger, M.
Henzinger, J. Upadhyay: Constant matters, ICML 2023, arXiv 2202.11205; cut off as in N. Kalinin, C. Lampert: Banded
Square Root Matrix Factorization, NeurIPS 2024, arXiv 2405.13763).

A client whose rounds are at least `bands` published rounds apart moves disjoint entries of C x: each of its rounds
counts as one Gaussian mechanism whose sensitivity is the norm of a column of C, whenever it comes and however often. So
the account is that of independent noise (`accounting.epsilon`), and `noise_multiplier` means the same.

Differs from the papers: the sum is divided by how many clients came, which differs from round to round, so that noise
of such rounds cancels a little less; privacy is not touched by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from federation.records import Tensors, Tree

GROUP = "noise"
"""Of a state as a server keeps it: by parameter the units of noise (bands − 1, ...) of its rounds, newest first.

Nobody else may see them: whoever knows the noise has the sums without it. So methods never see them either, whose
broadcast may be the whole state.
"""


def coefficients(bands: int) -> list[float]:
    """Return c_0 … c_(bands−1) of C: c_k = (2k choose k) / 4^k."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return found


def sensitivity(bands: int) -> float:
    """Return √Σ c², what one participation of a client with a change of norm 1 moves C x by at most."""
    return math.sqrt(sum(c * c for c in coefficients(bands)))


def taken_apart(kept: Tree) -> tuple[Tree, Tensors]:
    """Return a state as methods know it, and the noise that is kept with it."""
    return {group: tree for group, tree in kept.items() if group != GROUP}, kept.get(GROUP, {})


def put_together(state: Tree, noise: Tensors) -> Tree:
    """Return a state as a server keeps it."""
    return {**state, GROUP: noise} if noise else state


def next_noise(
    past: Mapping[str, Tensor], like: Mapping[str, Tensor], bands: int, draw: np.random.Generator
) -> tuple[Tensors, Tensors]:
    """Return this round's units of noise by parameter, row t of C⁻¹ z, and what the next round needs as its past.

    past: as the round before has returned it; of another number of bands it is none. Units are float32 where later
    rounds lean on them, as they are kept.
    """
    back = torch.tensor(coefficients(bands)[1:], dtype=torch.float64)
    units, kept = {}, {}
    for name, value in like.items():
        unit = torch.from_numpy(draw.standard_normal(tuple(value.shape)))
        if bands > 1:
            before = past.get(name, torch.zeros(0))
            if len(before) != bands - 1:
                before = torch.zeros((bands - 1, *unit.shape))
            unit = (unit - torch.tensordot(back, before.double(), dims=1)).float()
            kept[name] = torch.cat((unit[None], before))[: bands - 1]
        units[name] = unit
    return units, kept
