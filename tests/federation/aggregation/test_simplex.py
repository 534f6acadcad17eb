"""Quadratic programs over the simplex against a primal-dual interior-point solver in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from federation.methods.fedpac import combination_weights, minimize_on_simplex

Array = npt.NDArray[np.float64]


def interior_point(form: Array, accuracy: float = 1e-13) -> Array:
    """Minimize αᵀQα on the simplex: Newton steps on 2Qα − λ1 − s = 0, 1ᵀα = 1, α_i s_i = τ with τ → 0."""
    size = len(form)
    scale = np.abs(form).max() or 1.0
    quadratic, weights, slack, multiplier = 2 * form / scale, np.full(size, 1 / size), np.ones(size), 0.0
    for _ in range(200):
        gap = weights @ slack / size
        dual = quadratic @ weights - multiplier - slack
        primal = weights.sum() - 1
        if gap < accuracy and np.abs(dual).max() < 1e-10:
            break
        target = 0.1 * gap
        newton = quadratic + np.diag(slack / weights)
        matrix = np.block([[newton, -np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
        step = np.linalg.solve(matrix, np.append(-dual - slack + target / weights, -primal))
        change, turn = step[:-1], step[-1]
        relaxed = (target - slack * change) / weights - slack
        length = min(1.0, *(0.99 * _reach(v, d) for v, d in ((weights, change), (slack, relaxed))))
        weights, slack, multiplier = weights + length * change, slack + length * relaxed, multiplier + length * turn
    return weights


def _reach(values: Array, change: Array) -> float:
    falling = change < 0
    return float((-values[falling] / change[falling]).min()) if falling.any() else np.inf


def forms() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    made: dict[str, Array] = {}
    for size in (2, 5, 30, 141):
        root = rng.normal(size=(size, size + 3))
        made[f"full rank, {size}"] = root @ root.T
        root = rng.normal(size=(size, 6))
        made[f"low rank and a diagonal, {size}"] = root @ root.T + np.diag(rng.uniform(1e-3, 1, size))
        made[f"tiny scale, {size}"] = 1e-9 * made[f"full rank, {size}"]
    return made


@pytest.mark.parametrize("name", forms())
def test_the_objective_is_an_interior_point_solvers(name: str) -> None:
    form = forms()[name]
    ours, reference = minimize_on_simplex(form), interior_point(form)
    assert ours.min() >= 0
    assert ours.sum() == pytest.approx(1, abs=1e-12)
    assert ours @ form @ ours == pytest.approx(reference @ form @ reference, rel=1e-6)


def test_a_negative_eigenvalue_of_rounding_does_no_harm() -> None:
    form = np.diag([1.0, 2.0, -1e-14])
    assert minimize_on_simplex(form) == pytest.approx([0, 0, 1], abs=1e-6)
    assert minimize_on_simplex(np.zeros((3, 3))).sum() == pytest.approx(1)


def fedpacs_programs(clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    """h (K, 6, 192) and v (K,) as label-skewed clients have them."""
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.full(6, 0.3), clients)
    means = rng.normal(size=(6, 192)) + 0.3 * rng.normal(size=(clients, 6, 192))
    return torch.tensor(shares[..., None] * means), torch.tensor(rng.uniform(0.1, 2, clients))


def test_fedpacs_programs_reach_the_references_objective() -> None:
    h, v = fedpacs_programs(24)
    flat = h.flatten(1).numpy()
    for i, weights in enumerate(combination_weights(h, v).numpy()):
        away = flat[i] - flat
        form = np.diag(v.numpy()) + away @ away.T
        best, exact = interior_point(form), minimize_on_simplex(form)
        assert exact @ form @ exact == pytest.approx(best @ form @ best, rel=1e-6)
        assert ((weights == 0) | (weights >= 1e-3)).all()
        assert weights @ form @ weights <= (best @ form @ best) * 1.01, "dropping negligible weights costs little"
