"""A transformer whose every block has an ALP layer before its attention (Ek et al., FedAli, 2024, section 3)."""

from collections.abc import Sequence
from typing import Any

from models.alp import ALP, prototype_counts
from models.model import Model


class Transformer(Model):
    """A model of blocks, each of which takes an ALP layer or none."""

    def alp_layers(self, blocks: int) -> list[ALP | None]:
        """Return each block's ALP layer; here none."""
        return [None] * blocks


class AlpBlocks(Transformer):
    """Mixed in before a transformer: `prototypes` holds one count per block, `alp` the layers' options."""

    def __init__(
        self,
        classes: int,
        *,
        prototypes: Sequence[int] | None = None,
        alp: dict[str, Any] | None = None,
        feature_dim: int = 192,
        blocks: int = 6,
        **sizes: Any,
    ) -> None:
        self._prototypes, self._alp, self._width = prototypes, dict(alp or {}), feature_dim
        super().__init__(classes, feature_dim=feature_dim, blocks=blocks, **sizes)
        self.options |= {"prototypes": prototype_counts(blocks, prototypes), "alp": self._alp}

    def alp_layers(self, blocks: int) -> list[ALP | None]:
        """Return an ALP layer for each block."""
        return [ALP(self._width, count, **self._alp) for count in prototype_counts(blocks, self._prototypes)]
