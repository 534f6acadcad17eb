"""Centralized: one model on everybody's pooled training examples; the upper bound of the federated methods.

Nobody's data could be pooled in a real federation, so only a simulation runs it: it sees one client that holds all of
the examples.
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
