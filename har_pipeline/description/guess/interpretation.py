"""Choosing between interpretations: evidence for each adds up to one score, and what rivals share is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MARGIN = 2.5
"""An interpretation whose score is lower by less than this is a rival."""


def choose(scored: Sequence[tuple[float, Mapping[str, Any]]]) -> tuple[Mapping[str, Any], set[str]]:
    """Return the best of some interpretations, and those of its keys to which no rival gives another value."""
    total, best = max(scored, key=lambda pair: pair[0])
    rivals = [parts for score, parts in scored if score > total - MARGIN]
    return best, {key for key, value in best.items() if all(parts[key] == value for parts in rivals)}
