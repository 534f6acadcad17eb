"""Quadratic programs over the probability simplex, by scipy's active-set solver of non-negative least squares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def minimize_on_simplex(form: Array) -> Array:
    """Return the α (K,) that minimizes αᵀQα with α ≥ 0, Σα = 1, for a positive semidefinite form Q (K, K).

    With Q = LᵀL, minimizing ‖Lβ‖² + (1ᵀβ − 1)² over β ≥ 0 gives α in its direction: for β = tα the best t leaves
    q/(1 + q), q = αᵀQα, which grows with q. So the program is one of non-negative least squares, which the active-set
    method of Lawson and Hanson solves exactly. Negative eigenvalues of Q, which only rounding makes, count as 0.
    """
    from scipy.optimize import (
        nnls,  # half a second of every start of a server, trainer and simulation, for FedPAC alone
    )

    values, vectors = np.linalg.eigh((form + form.T) / 2)
    values = np.clip(values, 0, None)
    # for q near 1 both terms of the sum keep their digits, whatever the scale of the form
    scale = np.trace(form) / len(form) ** 2 or 1.0
    root = np.sqrt(values / scale)[:, None] * vectors.T
    ones = np.ones((1, len(form)))
    target = np.zeros(len(form) + 1)
    target[-1] = 1.0
    direction, _ = nnls(np.vstack([root, ones]), target, maxiter=30 * len(form))
    weights: Array = direction / direction.sum()
    return weights
