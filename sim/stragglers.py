"""Stragglers: clients of a cohort that do only a part of their steps before the round closes.

U. Michieli, M. Ozay: Prototype Guided Federated Learning of Visual Feature Representations, 2021, arXiv 2105.08982,
after T. Li et al.: Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127, section 5.2: of the
clients that are sampled a share δ does F′ ~ U(0, F) epochs.

Differs from the papers: F′ is counted in optimizer steps instead of whole epochs, and is at least one step.
"""

from __future__ import annotations

from collections.abc import Sequence

from federation.seeds import generator


def stragglers(share: float, cohort: Sequence[str], *, seed: int, round_number: int) -> dict[str, float]:
    """Name the round(share · K) stragglers of a cohort, and what part of its steps, within [0, 1), each does.

    Each client draws its own two numbers, so that the same clients straggle alike whatever the method is.
    """
    draws = {name: generator(seed, "straggler", round_number, name).random(2).tolist() for name in cohort}
    slowest = sorted(cohort, key=lambda name: draws[name][0])[: round(share * len(cohort))]
    return {name: draws[name][1] for name in sorted(slowest)}


def steps_done(part: float, steps: int) -> int:
    """Return F′ of F steps."""
    return max(1, int(part * steps))
