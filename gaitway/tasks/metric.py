"""How a figure that a task is measured by is read and written."""

from __future__ import annotations

import math
from typing import NamedTuple

TRIVIAL = "trivial"
"""Suffix of the name under which a device reports the trivial answer's score."""


class Metric(NamedTuple):
    """How a metric is read and shown; a share lies between 0 and 1 and is shown in percent."""

    label: str
    short: str
    higher_is_better: bool = True
    is_share: bool = True

    @property
    def unit(self) -> str:
        """What stands behind the name."""
        return " (%)" if self.is_share else ""

    @property
    def factor(self) -> float:
        """What a number is multiplied by."""
        return 100.0 if self.is_share else 1.0

    @property
    def largest(self) -> float:
        """What no honest measurement exceeds; of what is no share, far more than of any normalized input."""
        return 1.0 if self.is_share else 1e6

    def text(self, value: float | None) -> str:
        """Write a number: shares in percent with two decimals, others with four; `–` for none."""
        if value is None or math.isnan(value):
            return "–"
        return f"{100 * value:.2f}" if self.is_share else f"{value:.4f}"

    def difference_text(self, difference: float) -> str:
        """Write a difference with its sign, of shares in percentage points."""
        text = f"{100 * difference:+.2f}" if self.is_share else f"{difference:+.4f}"
        return text.replace("-", "−")

    def gain(self, score: float, other: float) -> float:
        """Return by how much a score is better than another; below 0 where it is worse."""
        return score - other if self.higher_is_better else other - score
