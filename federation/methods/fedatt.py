"""FedAtt: in each layer, a client's weight depends on its distance from the server's model.

S. Ji, S. Pan, G. Long, X. Li, J. Jiang, Z. Huang: Learning Private Neural Language Modeling with Attentive Aggregation,
IJCNN 2019, arXiv 1812.07108, equations 5 to 7 and algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from federation.aggregation.averaging import Accumulator
from federation.method import Method, Weights
from federation.records import Tensors, Tree, Update


class RunningSoftmax(NamedTuple):
    """Σ exp(s_k − largest) and Σ exp(s_k − largest) · step_k of one parameter tensor, around the largest s_k so far."""

    largest: Tensor  # ()
    weight: Tensor  # ()
    total: Tensor  # of the parameter's shape


@dataclass(frozen=True, kw_only=True)
class LayerSums(Accumulator):
    """A softmax over the clients for each parameter tensor."""

    layers: Mapping[str, RunningSoftmax] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FedAtt(Method):
    """s_k = ‖w_t − w_k‖₂, a = softmax over k of s, w ← w_t − ε Σ_k a_k (w_t − w_k), per parameter tensor."""

    name: ClassVar[str] = "fedatt"
    averages_parameters: ClassVar[bool] = False
    needs_single_updates: ClassVar[str] = "weighs each client by how far its own parameters went"

    epsilon: float = 1.2

    def fold(self, state: Tree, accumulator: Accumulator | None, update: Update) -> LayerSums:
        """Add one client to each layer's softmax, as a running sum around the largest exponent so far."""
        before = LayerSums.of(accumulator)
        folded = {
            name: _attend(before.layers.get(name), step, _score(step, update))
            for name, step in _steps(state, update).items()
        }
        return LayerSums(weight=before.weight + self.weight(update), layers=folded)

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Take the attentive step (eq. 7)."""
        means = {name: sums.total / sums.weight for name, sums in LayerSums.of(accumulator).layers.items()}
        params = state["params"]
        moved = {name: value.double() - self.epsilon * means[name] for name, value in params.items()}
        return {**state, "params": {name: moved[name].to(value.dtype) for name, value in params.items()}}

    def layer_weights(self, state: Tree, updates: Sequence[Update]) -> Weights:
        """Return a by parameter tensor and client (eq. 6)."""
        scores: dict[str, dict[str, Tensor]] = {}
        for update in updates:
            for name, step in _steps(state, update).items():
                scores.setdefault(name, {})[update.client_id] = _score(step, update)
        return {
            name: dict(zip(by_client, torch.softmax(torch.stack(list(by_client.values())), 0).tolist(), strict=True))
            for name, by_client in scores.items()
        }


def _steps(state: Tree, update: Update) -> Tensors:
    """w_t − w_k by parameter tensor."""
    return {name: (value - update.tensors["params"][name]).double() for name, value in state["params"].items()}


def _score(step: Tensor, update: Update) -> Tensor:
    length: Tensor = step.norm()
    return length + math.log(update.discount)


def _attend(before: RunningSoftmax | None, step: Tensor, score: Tensor) -> RunningSoftmax:
    if before is None:
        return RunningSoftmax(score, torch.ones_like(score), step)
    largest = torch.maximum(before.largest, score)
    old, new = torch.exp(before.largest - largest), torch.exp(score - largest)
    return RunningSoftmax(largest, old * before.weight + new, old * before.total + new * step)
