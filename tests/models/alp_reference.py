"""ALP and where it sits in float64 numpy, from methods.md and models.md, without the package: the tests' oracle."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Reference:
    plan: Array
    assignment: NDArray[np.int64]
    moved: Array
    output: Array


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def plan(x: Array, active: Array, epsilon: float, iterations: int) -> Array:
    exponent = unit(x) @ unit(active).T / epsilon
    c = np.exp(exponent - exponent.max())
    for _ in range(iterations):
        c = c / c.sum(axis=1, keepdims=True)
        c = c / c.sum(axis=0, keepdims=True)
    return c


def entries(x: Array, active: Array, match: str, epsilon: float, iterations: int) -> Array:
    if match == "plan":
        return plan(x, active, epsilon, iterations)
    if match == "cosine":
        return np.exp(unit(x) @ unit(active).T / epsilon)
    distance = np.linalg.norm(x[:, None, :] - active[None], axis=-1)
    return np.exp(-(distance - distance.min()) / epsilon)


def move(local: Array, x: Array, local_entries: Array, gamma: float) -> Array:
    moved = local.copy()
    take = max(1, int(np.ceil(len(x) / len(local))))
    for g in range(len(local)):
        order = sorted(range(len(x)), key=lambda i: (-local_entries[i, g], i))[:take]
        weight = np.array([local_entries[i, g] for i in order])
        if weight.sum() > 0:
            mean = sum(w / weight.sum() * x[i] for w, i in zip(weight, order, strict=True))
            moved[g] = gamma * local[g] + (1 - gamma) * mean
    return moved


def move_single(local: Array, x: Array, local_entries: Array, gamma: float) -> Array:
    """Move by hard single updates: token by token from the first, each writing the one prototype that it matches."""
    moved = local.copy()
    for i in range(len(x)):
        g = int(local_entries[i].argmax())
        moved[g] = gamma * local[g] + (1 - gamma) * x[i]  # from where it was before the batch: the last one stays
    return moved


def move_appendix(local: Array, x: Array, local_entries: Array, gamma: float) -> Array:
    """Move as appendix A of the paper prints it, line by line."""
    top_k_indices = np.argsort(-local_entries.T, axis=1, kind="stable")[:, : int(np.ceil(len(x) / len(local)))]
    o_local = np.take_along_axis(local_entries.T, top_k_indices, axis=1)
    weighted_embeddings = unit(x)[top_k_indices] * o_local[:, :, None]
    moved: Array = gamma * local + (1 - gamma) * weighted_embeddings.sum(axis=1)
    return moved


MOVES = {"soft": move, "single": move_single, "appendix": move_appendix}


def alp(
    tokens: Array,
    local: Array,
    shared: Array,
    glu: tuple[Array, Array] | None,
    *,
    training: bool,
    prototypes: str = "both",
    match: str = "plan",
    update: str = "soft",
    row: bool = False,
    beta: float = 0.2,
    gamma: float = 0.999,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Reference:
    """Run the layer on tokens (B, Z, d); `glu` holds the Linear's weight (2d, d) and bias (2d,)."""
    x = tokens.reshape(-1, tokens.shape[-1])
    moved = local
    if training:
        active = local if prototypes == "local" else np.concatenate([local, shared])
        values = entries(x, active, match, epsilon, iterations)
        moved = MOVES[update](local, x, values[:, : len(local)], gamma)
        aligned_to = local if prototypes == "local" else shared
        assignment = values[:, -len(aligned_to) :].argmax(axis=1)
    else:
        aligned_to = shared if prototypes == "global" else local
        values = entries(x, aligned_to, "cosine" if row and match == "plan" else match, epsilon, iterations)
        assignment = values.argmax(axis=1)
    pulled = aligned_to[assignment]
    if glu is not None:
        value, gate = np.split(pulled @ glu[0].T + glu[1], 2, axis=1)
        pulled = value / (1 + np.exp(-gate))
    output = unit(beta * pulled + (1 - beta) * x).reshape(tokens.shape)
    return Reference(values, assignment, moved, output)


def layer_norm(x: Array) -> Array:
    """Normalise tokens (..., d) as LayerNorm does before it has learned a weight or a bias; ε is 1e-6."""
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)


def block(x: Array, align: Callable[[Array], Array], mix: Callable[[Array], Array], mlp: Callable[[Array], Array],
          placement: str) -> Array:  # fmt: skip
    """Run a pre-norm block on tokens (B, Z, d): ALP before the branches, or the ablation's on the residual."""
    if placement == "branch":
        x = x + mix(align(layer_norm(x)))
    else:
        aligned = align(x)
        x = aligned + mix(layer_norm(aligned))
    return x + mlp(layer_norm(x))
