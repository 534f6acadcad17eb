"""The ALP layer: tokens are matched to prototypes by an optimal-transport plan and drawn towards them.

Ek, Wang, Portet and Lalanda, 'Federated Learning with Prototype Alignment (FedAli)', 2024, section 3.1:
eq. 3 active prototypes, eq. 4 plan, eq. 5 moving average, eq. 6 GLU, eq. 7 alignment, appendix A pseudo-code.

Section 3.1 and appendix A differ in how a local prototype moves. The default, `update="soft"`, is section 3.1: its top
entries are normalized to sum 1, and average the tokens themselves, as the authors' code does. `update="appendix"` sums
normalized tokens under the plan's own entries. These add up to less than 1, so prototypes shrink as they move.

Differs from the paper: appendix A takes row O_global of [P_l; P_g] as the matched prototype in training, which is a
local one; section 3.1, the authors' code and this layer take that row of P_g.

The authors' code (github.com/getalp/FedAli, February 2025) differs from their paper: `HART_ALP`, which trains from
scratch, hands neither `singleUpdate` nor `useGLU` on to its layers, whose defaults are hard single updates, here
`update="single"`, and a GLU. Only its pretrained networks follow the options, which say soft updates; of these a
prototype takes the top ⌊B/G⌋ tokens for B windows of a batch (that is one, with the paper's G), where the paper says
⌈N/G⌉ of the N tokens. Its Euclidean matching normalises both sides first, and with soft updates takes the farthest.

`AlpBlocks`: a transformer whose every block has an ALP layer before its attention (section 3).
In the authors' networks the layer feeds the block's branches alone, and the residual goes round it
(`placement="branch"`): x ← x + branches(ALP(LayerNorm(x))). `placement="residual"` is our ablation: x ← ALP(x),
then x ← x + branches(LayerNorm(x)), which sets every token that the residual carries to length 1 in every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.errors import OptionError
from models.layers.matching import (
    assign,
    move_to_last,
    move_to_mean,
    move_to_sum,
    real_weight,
    similarity,
    top_entries,
    transport_plan,
)
from models.model import Model

PROTOTYPES = (2048, 1024, 512, 256, 128, 64)
"""The paper's G for each of six blocks."""
UPDATES = ("soft", "single", "appendix")
"""How the local prototypes move: as section 3.1 says, as the authors' code does where it trains from scratch, or as
appendix A says."""


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{option}={value!r}: expected one of {', '.join(choices)}")


@dataclass(frozen=True)
class AlpOptions:
    """What a layer is besides its size: β, γ, ε and Sinkhorn's iterations of the paper, and its ablations.

    `update`: "soft" is section 3.1, "appendix" is appendix A, which needs the plan. With "single" each token moves the
    one local prototype with the largest entry in its row towards itself; of several tokens of one prototype the last of
    the batch does, as in the authors' code on a CPU, and a prototype that no token matches stays.
    `match`: "plan" is the paper; "cosine" and "euclidean" (its ablation) use exp(similarity/ε) without
    Sinkhorn, the similarity being the cosine, or minus the distance of the vectors as they are.
    `prototypes`: the paper's ablation, which its text does not define. "local", without global prototypes:
    aligns with the local ones in training too. "global", without local prototypes: aligns with the global
    ones in evaluation too; the local buffer still moves, since the server's next centres come from it.
    `inference`: "plan" is the paper; its column sums run over the batch, so a window's output depends on
    its neighbours. "row" takes the row's largest similarity: independent of the batch, to export and serve.

    Raises:
        OptionError: for a value that does not fit.
    """

    beta: float = 0.2
    gamma: float = 0.999
    epsilon: float = 0.05
    iterations: int = 3
    match: str = "plan"
    glu: bool = True
    update: str = UPDATES[0]
    prototypes: str = "both"
    inference: str = "plan"

    def __post_init__(self) -> None:
        """Check the choices and the bounds."""
        _check_choice("match", self.match, ("plan", "cosine", "euclidean"))
        _check_choice("update", self.update, UPDATES)
        _check_choice("prototypes", self.prototypes, ("both", "local", "global"))
        _check_choice("inference", self.inference, ("plan", "row"))
        if self.update == "appendix" and self.match != "plan":
            raise OptionError(
                f"update='appendix' sums tokens under the plan's entries; match={self.match!r} has no plan"
            )
        if self.epsilon <= 0 or self.iterations < 1:
            raise OptionError(f"ALP needs epsilon > 0 and iterations >= 1; got {self.epsilon}, {self.iterations}")


class ALP(nn.Module):
    """Align tokens (B, Z, d) with prototypes, the buffers `local_prototypes` and `global_prototypes`, each (G, d).

    In training a token takes the global prototype with the largest entry in its row of the plan, and each
    local prototype moves towards the max(1, ⌈N/G⌉) tokens with the largest entries in its column (N real
    tokens). In evaluation a token takes a local prototype and nothing moves. Ties go to the lowest index.
    `local_prototypes` is rebound to a new tensor, never changed in place, so torch.func may swap it.

    The buffer `beta_scale` () multiplies β: 1, or 0 in FedAli's first rounds, where the output is x / ‖x‖.
    """

    local_prototypes: Tensor
    global_prototypes: Tensor
    beta_scale: Tensor

    def __init__(self, dim: int, num_prototypes: int, options: AlpOptions = AlpOptions()) -> None:
        super().__init__()
        if num_prototypes < 1:
            raise OptionError(f"ALP needs num_prototypes >= 1; got {num_prototypes}")
        self.num_prototypes, self.beta, self.gamma = num_prototypes, options.beta, options.gamma
        self.epsilon, self.iterations, self.match = options.epsilon, options.iterations, options.match
        self.update, self.prototypes, self.inference = options.update, options.prototypes, options.inference
        self.glu = nn.Linear(dim, 2 * dim) if options.glu else None
        self.register_buffer("local_prototypes", torch.randn(num_prototypes, dim))
        self.register_buffer("global_prototypes", torch.randn(num_prototypes, dim))
        self.register_buffer("beta_scale", torch.ones(()))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x (B, Z, d) to aligned tokens of unit length (B, Z, d); mask (B,) is 0 for padding examples."""
        batch, tokens, dim = x.shape
        flat = x.reshape(batch * tokens, dim)
        valid = None if mask is None else (mask > 0)[:, None].expand(batch, tokens).reshape(-1)
        # Detached tokens and buffers without gradient: autograd records nothing of the plan (the paper's sg).
        detached = flat.detach().to(torch.promote_types(x.dtype, torch.float32))
        with _without_autocast(x.device):
            matched = self._train_match(detached, valid) if self.training else self._match(detached, valid)
        pulled = self._gate(matched.to(x.dtype))
        beta = self.beta * self.beta_scale.to(x.dtype)
        aligned = beta * pulled + (1.0 - beta) * flat
        return F.normalize(aligned, dim=-1).reshape(batch, tokens, dim)

    def scores(self, x: Tensor, active: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return what tokens x (N, d) are assigned by, (N, M): the plan, or the ablation's similarity."""
        similar = similarity(x, active, self.match)
        if self.match == "plan":
            return transport_plan(similar, self.epsilon, self.iterations, valid)
        return similar if valid is None else similar.masked_fill(~valid[:, None], -torch.inf)

    def _train_match(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Move the local prototypes and return each token's prototype of before the move (N, d)."""
        local, shared = self.local_prototypes.detach(), self.global_prototypes.detach()
        only_local = self.prototypes == "local"
        active = local if only_local else torch.cat([local, shared])
        scores = self.scores(x, active.to(x.dtype), valid)
        self.local_prototypes = self._moved(scores[:, : self.num_prototypes], x, valid).to(local.dtype)
        if only_local:
            return local[assign(scores)]
        return shared[assign(scores[:, self.num_prototypes :])]

    def _moved(self, scores: Tensor, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return the local prototypes (G, d) after one step of their moving average; scores (N, G)."""
        local = self.local_prototypes.detach().to(x.dtype)
        if self.update == "single":
            return move_to_last(local, x, assign(scores), valid, self.gamma)
        entries, index = top_entries(scores, -(-x.shape[0] // self.num_prototypes))
        if self.update == "appendix":
            return move_to_sum(local, F.normalize(x, dim=-1), real_weight(entries, valid), index, self.gamma)
        if self.match != "plan":
            # exp(similarity/ε) relative to the column's best; a column of padding alone has −inf there.
            best = entries[:, :1]
            entries = ((entries - torch.where(best > -torch.inf, best, 0.0)) / self.epsilon).exp()
        return move_to_mean(local, x, real_weight(entries, valid), index, self.gamma)

    def _match(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return each token's prototype in evaluation (N, d)."""
        active = (self.global_prototypes if self.prototypes == "global" else self.local_prototypes).detach()
        if self.inference == "row":
            return active[assign(similarity(x, active.to(x.dtype), self.match))]
        return active[assign(self.scores(x, active.to(x.dtype), valid))]

    def _gate(self, matched: Tensor) -> Tensor:
        if self.glu is None:
            return matched
        value, gate = self.glu(matched).chunk(2, dim=-1)
        gated: Tensor = value * torch.sigmoid(gate)
        return gated

    def extra_repr(self) -> str:
        shape = tuple(self.local_prototypes.shape)
        return f"prototypes={shape}, match={self.match}, update={self.update}, inference={self.inference}"


def set_inference(module: nn.Module, inference: str) -> int:
    """Set `inference` ("plan" or "row") of every ALP layer in the module; return how many there are."""
    _check_choice("inference", inference, ("plan", "row"))
    layers = [layer for layer in module.modules() if isinstance(layer, ALP)]
    for layer in layers:
        layer.inference = inference
    return len(layers)


def prototype_counts(blocks: int, prototypes: Sequence[int] | None) -> list[int]:
    """Return how many prototypes each block has; None stands for the paper's."""
    counts = list(PROTOTYPES[:blocks] if prototypes is None else prototypes)
    if len(counts) != blocks:
        raise OptionError(f"prototypes={counts}: expected one count for each of the {blocks} blocks")
    return counts


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keep the plan and the prototypes in float32: γ = 0.999 moves a prototype by less than bfloat16 can tell.

    Nothing is entered where autocast is off, so that an exported graph knows of no such region.
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def check_update(alp_update: str) -> str:
    """Return the option `alp_update` of a model with ALP layers; raises OptionError for any but `UPDATES`."""
    _check_choice("alp_update", alp_update, UPDATES)
    return alp_update


PLACEMENTS = ("branch", "residual")


def entering(x: Tensor, norm: nn.Module, alp: ALP | None, placement: str, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what the residual carries past a block's branches, and what the branches take, each (B, Z, d)."""
    if alp is None:
        return x, norm(x)
    if placement == "branch":
        return x, alp(norm(x), mask)
    x = alp(x, mask)
    return x, norm(x)


@dataclass(frozen=True)
class BlockOptions:
    """What a transformer's block drops in training, and its ALP layer with the place where it feeds."""

    dropout: float
    drop_path: float
    alp: ALP | None = None
    placement: str = PLACEMENTS[0]


class Transformer(Model):
    """A model of blocks, each of which takes an ALP layer or none."""

    placement: str = PLACEMENTS[0]

    def block_options(self, blocks: int, dropout: float) -> list[BlockOptions]:
        """Return each block's options; the deeper a block, the more often its paths are dropped."""
        last = max(1, blocks - 1)
        return [
            BlockOptions(dropout, dropout * i / last, layer, self.placement)
            for i, layer in enumerate(self.alp_layers(blocks))
        ]

    def alp_layers(self, blocks: int) -> list[ALP | None]:
        """Return each block's ALP layer; here none."""
        return [None] * blocks


class AlpBlocks(Transformer):
    """Mixed in before a transformer: `prototypes` holds one count per block, `alp` the layers' options.

    `alp_update`: how the layers' local prototypes move, "soft", "single" or "appendix" (`models.layers.alp`).
    `placement`: "branch" is the authors', "residual" an ablation; the module's docstring has both.
    """

    def __init__(
        self,
        classes: int,
        *,
        prototypes: Sequence[int] | None = None,
        alp: dict[str, Any] | None = None,
        alp_update: str = UPDATES[0],
        placement: str = PLACEMENTS[0],
        feature_dim: int = 192,
        blocks: int = 6,
        **sizes: Any,
    ) -> None:
        if placement not in PLACEMENTS:
            raise OptionError(f"placement={placement!r}: expected one of {', '.join(PLACEMENTS)}")
        self._prototypes, self._alp, self._width, self.placement = prototypes, dict(alp or {}), feature_dim, placement
        self._update = check_update(alp_update)
        super().__init__(classes, feature_dim=feature_dim, blocks=blocks, **sizes)
        counts = prototype_counts(blocks, prototypes)
        self.options |= {"prototypes": counts, "alp": self._alp, "alp_update": alp_update, "placement": placement}

    def alp_layers(self, blocks: int) -> list[ALP | None]:
        """Return an ALP layer for each block."""
        counts = prototype_counts(blocks, self._prototypes)
        options = AlpOptions(update=self._update, **self._alp)
        return [ALP(self._width, count, options) for count in counts]
