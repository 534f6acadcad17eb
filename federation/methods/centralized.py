"""Centralized: one model on everyone's pooled training examples; the upper bound of the federated methods.

A real federation can't pool data, so only simulations run it, with one client that has all examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.method import Method, Traits


@dataclass(frozen=True, kw_only=True)
class Centralized(Method):
    """Train one model in one place."""

    name: ClassVar[str] = "centralized"
    traits: ClassVar[Traits] = Traits(pools_data=True)
    needs_single_updates: ClassVar[str] = "has all examples in one place: there is nothing to hide"
