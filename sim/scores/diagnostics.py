"""What a round did to the server's state, as one small JSON object in the round's line of `rounds.jsonl`.

The simulation calls `diagnose` once a round with the state before and after it and the updates that it took. Nothing is
computed here that a method computes: it says itself how much each client weighed (`Method.client_weights`). Where no
server sets the prototypes of ALP layers, as in `local`, `local_movement` says how far each client's own ones went (Ek
et al. 2024, figure 5 and appendix G).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from federation.aggregation.prototypes import min_max_normalized
from federation.method import Method, Weights
from federation.methods.fedali import LOCAL
from federation.records import Tensors, Tree, Update
from sim.scores.records import Record

CLASSES = "classes"
"""Name of the set of class prototypes, beside the blocks of the ALP layers."""


MAX_WEIGHTS = 4096
"""Of weights by parameter tensor so many are written a round; 600 rounds of them are 70 MB."""


class Movement(Record):
    """How far a set of prototypes went in one round: ‖p(t+1) − p(t)‖ over prototypes, and the mean of ‖p(t+1)‖."""

    mean: float
    largest: float
    length: float


class Diagnostics(Record):
    """One round's; what a method has nothing of stays empty."""

    movement: dict[str, Movement] = Field(default_factory=dict)
    aggregate_margin: float | None = None
    prototype_distance: float | None = None
    attention: Weights = Field(default_factory=dict)
    """Weights by kind and client, each kind's sum 1, as the method names the kinds.

    "layers" is the mean over parameter tensors of a method that weighs clients in each of them.
    """
    effective_clients: dict[str, float] = Field(default_factory=dict)
    """1/Σa² by parameter tensor, of a method that weighs clients in each."""
    layer_attention: Weights = Field(default_factory=dict)
    """Weights by parameter tensor and client, where they are few enough to be written in every round."""


class Prototypes(NamedTuple):
    """A set of prototypes (M, d), of which those with `known` (M,) exist."""

    vectors: Tensor
    known: Tensor


def diagnose(method: Method, before: Tree, after: Tree, updates: Sequence[Update]) -> dict[str, Any]:
    """Return the round's diagnostics as JSON; {} for a method that has none."""
    sets = prototype_sets(after)
    found = Diagnostics(
        movement=_movements(prototype_sets(before), sets),
        **(_of_classes([update.tensors for update in updates]) if CLASSES in sets else {}),
        **_attention(method, before, updates),
    )
    record: dict[str, Any] = rounded(found.model_dump(mode="json", exclude_defaults=True))
    return record


def _of_classes(uploads: Sequence[Tree]) -> dict[str, Any]:
    return {"aggregate_margin": aggregate_margin(uploads), "prototype_distance": prototype_distance(uploads)}


def _attention(method: Method, before: Tree, updates: Sequence[Update]) -> dict[str, Any]:
    found: dict[str, Any] = {"attention": method.client_weights(before, updates)}
    if layers := method.layer_weights(before, updates):
        few = len(layers) * len(updates) <= MAX_WEIGHTS
        found["attention"] = {**found["attention"], "layers": _mean_over(layers)}
        found["effective_clients"] = {layer: effective_clients(weights) for layer, weights in layers.items()}
        found["layer_attention"] = layers if few else {}
    return found


def prototype_sets(state: Tree) -> dict[str, Prototypes]:
    """Return the server's prototypes: one set per ALP layer, or the class prototypes; {} for a method without."""
    found = state.get("prototypes", {})
    if isinstance(found, Tensor):
        return {CLASSES: Prototypes(found, state["known"] > 0)}
    blocks = {block.rstrip(".") or "alp": value for block, value in found.items()}
    return {block: Prototypes(value, torch.ones(len(value), dtype=torch.bool)) for block, value in blocks.items()}


def local_movement(before: Tensors, after: Tensors) -> dict[str, Movement]:
    """Return how far one client's local prototypes went, by ALP layer, from its buffers; {} for a model without any."""
    return {
        name.removesuffix(LOCAL).rstrip(".") or "alp": _movement(before[name], value)
        for name, value in after.items()
        if name.endswith(LOCAL)
    }


def with_local_movement(found: dict[str, Any], clients: Sequence[Mapping[str, Movement]]) -> dict[str, Any]:
    """Add to a round's diagnostics the movement of local prototypes, the mean over clients."""
    blocks: dict[str, list[Movement]] = {}
    for by_block in clients:
        for name, moved in by_block.items():
            blocks.setdefault(name, []).append(moved)
    means = {name: _mean_movement(moves).model_dump(mode="json") for name, moves in blocks.items()}
    return {**found, "movement": {**rounded(means), **found.get("movement", {})}} if means else found


def _mean_movement(moves: Sequence[Movement]) -> Movement:
    mean, length = (sum(getattr(move, name) for move in moves) / len(moves) for name in ("mean", "length"))
    return Movement(mean=mean, largest=max(move.largest for move in moves), length=length)


def _movement(before: Tensor, after: Tensor) -> Movement:
    distance = (after.double() - before.to(after.device).double()).norm(dim=-1)
    length = after.double().norm(dim=-1).mean()
    return Movement(mean=float(distance.mean()), largest=float(distance.max()), length=float(length))


def _movements(before: dict[str, Prototypes], after: dict[str, Prototypes]) -> dict[str, Movement]:
    """Leave out prototypes that the round brought into being: they came from nowhere."""
    moved = {}
    for name, (vectors, known) in after.items():
        both = known.cpu() & before[name].known.cpu()
        if both.any():
            moved[name] = _movement(before[name].vectors[both], vectors[both])
    return moved


def aggregate_margin(uploads: Iterable[Tree]) -> float | None:
    """Return mean distance d⁻ between aggregate prototypes Σ n_k[c] p̂_k[c] / Σ n_k[c] of different classes.

    Takes what clients upload, `prototypes` (C, D) and `counts` (C,), whichever mean of them the method itself keeps.
    None where clients have fewer than two classes.

    Michieli and Ozay 2021, eq. 15, repaired. Differs from the paper: as printed it takes the margin of a set against
    itself, whose d⁺ is 0, so that it is 1 for every model.
    """
    received = list(uploads)
    counts = torch.stack([upload["counts"].double() for upload in received])
    scaled = torch.stack([min_max_normalized(upload["prototypes"].double()) for upload in received])  # p̂_k, (K, C, D)
    examples = counts.sum(0)
    aggregate = (counts[..., None] * scaled).sum(0) / examples.clamp(min=1)[:, None]
    vectors = aggregate[examples > 0]
    return float(torch.pdist(vectors).mean()) if len(vectors) > 1 else None


def prototype_distance(uploads: Sequence[Tree]) -> float:
    """Return Σ_c Σ_k n_k[c]/N[c] · ‖p_k[c] − P[c]‖²/D, where P[c] = Σ_k n_k[c] p_k[c] / N[c] and N[c] = Σ_k n_k[c].

    Tan et al. 2022: the second sum of eq. 5, which λ multiplies there and figure 4 draws, with the squared error's mean
    over features as the distance, as their code has it. Takes what clients upload, as `aggregate_margin` does.
    """
    counts = torch.stack([upload["counts"].double() for upload in uploads])  # (K, C)
    vectors = torch.stack([upload["prototypes"].double() for upload in uploads])  # (K, C, D)
    shares = counts / counts.sum(0).clamp(min=1)
    apart = vectors - (shares[..., None] * vectors).sum(0)
    return float((shares * (apart**2).mean(-1)).sum())


def effective_clients(weights: Mapping[str, float]) -> float:
    """Return 1/Σa²: how many equal weights would be as uneven as these, whose sum is 1."""
    return 1 / sum(weight**2 for weight in weights.values())


def _mean_over(layers: Weights) -> dict[str, float]:
    names = next(iter(layers.values()), {})
    return {name: sum(layer[name] for layer in layers.values()) / len(layers) for name in names}


def rounded(value: Any) -> Any:
    """Keep five figures: a run of 600 rounds and 141 clients writes many of these numbers."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value
