"""A transformer whose every block has an ALP layer before its attention (Ek et al., FedAli, 2024, section 3).

In the authors' networks the layer feeds the block's branches alone, and the residual goes round it
(`placement="branch"`): x ← x + branches(ALP(LayerNorm(x))). `placement="residual"` is our ablation: x ← ALP(x),
then x ← x + branches(LayerNorm(x)), which sets every token that the residual carries to length 1 in every block.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from models.errors import OptionError
from models.layers.alp import ALP, UPDATES, AlpOptions, check_update, prototype_counts
from models.model import Model

PLACEMENTS = ("branch", "residual")


def entering(x: Tensor, norm: nn.Module, alp: ALP | None, placement: str, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what the residual carries past a block's branches, and what the branches take, each (B, Z, d)."""
    if alp is None:
        return x, norm(x)
    if placement == "branch":
        return x, alp(norm(x), mask)
    x = alp(x, mask)
    return x, norm(x)


class Transformer(Model):
    """A model of blocks, each of which takes an ALP layer or none."""

    placement: str = PLACEMENTS[0]

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
