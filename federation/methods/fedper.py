"""FedPer: the base is shared and averaged, the head stays on the device.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers, 2019,
arXiv 1912.00818, algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.method import Method
from federation.records.head import is_base


@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """Average the feature extractor; keep a personal classifier."""

    name: ClassVar[str] = "fedper"

    @property
    def has_global_model(self) -> bool:
        """Every client has its own."""
        return False

    def shared(self, name: str) -> bool:
        """Share the base."""
        return is_base(name)
