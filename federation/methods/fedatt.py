"""FedAtt: layer by layer, a client weighs by how far it went from the server's model.

S. Ji, S. Pan, G. Long, X. Li, J. Jiang, Z. Huang: Learning Private Neural Language Modeling with Attentive Aggregation,
IJCNN 2019, arXiv 1812.07108, equations 5 to 7 and algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from federation.method import Method
from federation.records import Tree, Update


@dataclass(frozen=True, kw_only=True)
class FedAtt(Method):
    """s_k = ‖w_t − w_k‖₂, a = softmax over k of s, w ← w_t − ε Σ_k a_k (w_t − w_k), per parameter tensor."""

    name: ClassVar[str] = "fedatt"
    averages_parameters: ClassVar[bool] = False

    epsilon: float = 1.2

    def fold(self, state: Tree, accumulator: Any, update: Update) -> Any:
        """Add one client to each layer's softmax, as a running sum around the largest exponent so far."""
        layers = (accumulator or {}).get("layers", {})
        steps = {name: (value - update.tensors["params"][name]).double() for name, value in state["params"].items()}
        folded = {name: _attend(layers.get(name), step, update.discount) for name, step in steps.items()}
        return {"weight": self.weight(update) + (accumulator or {}).get("weight", 0.0), "layers": folded}

    def finish(self, state: Tree, accumulator: Any) -> Tree:
        """Take the attentive step (eq. 7)."""
        layers, params = accumulator["layers"], state["params"]
        moved = {name: value.double() - self.epsilon * _mean(layers[name]) for name, value in params.items()}
        return {**state, "params": {name: moved[name].to(value.dtype) for name, value in params.items()}}


def _attend(before: Mapping[str, Tensor] | None, step: Tensor, discount: float) -> dict[str, Tensor]:
    score = step.norm() + math.log(discount)
    if before is None:
        return {"largest": score, "weight": torch.ones_like(score), "sum": step}
    largest = torch.maximum(before["largest"], score)
    old, new = torch.exp(before["largest"] - largest), torch.exp(score - largest)
    return {"largest": largest, "weight": old * before["weight"] + new, "sum": old * before["sum"] + new * step}


def _mean(layer: Mapping[str, Tensor]) -> Tensor:
    return layer["sum"] / layer["weight"]
