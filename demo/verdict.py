"""Whether each device of the demo ended with a model that has learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exchange import Outcome
from gaitway.tasks.classification import f1_per_class

MAX_LOSS = 5.0
"""Points of macro-F1: what the choice may cost on the very windows that it was made by."""


class ClassScore(NamedTuple):
    """A class and its F1, between 0 and 1."""

    label: str
    f1: float

    def __str__(self) -> str:
        return "all 100" if self.f1 == 1 else f"{self.label} {100 * self.f1:.1f}"


def weakest(model: dict[str, Any]) -> ClassScore | None:
    """Return the adopted model's class of least F1; None where its summary has no confusion matrix."""
    if not model.get("confusion"):
        return None
    f1 = f1_per_class(np.array(model["confusion"], dtype=np.int64))
    least = int(np.nanargmin(f1))
    return ClassScore(model["labels"][least], float(f1[least]))


def shortfalls(summaries: dict[str, dict[str, Any]], min_f1: float, logs: Path) -> list[str]:
    """Say what is wrong, and where to look, of each device without a model, or under `min_f1` macro-F1 in percent."""
    return [
        f"{device}: {words}; see {logs / f'agent-{device}.log'}"
        for device, summary in summaries.items()
        if (words := _shortfall(summary, min_f1))
    ]


def worse_choices(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """Say which devices serve a model that scores over `MAX_LOSS` points less than one that they hold."""
    found = []
    for device, summary in summaries.items():
        rows = (summary["compared"] or {}).get("models", [])
        used = next((row["score"] for row in rows if row["in_use"]), None)
        best = max((row for row in rows if row["score"] is not None), key=lambda row: row["score"], default=None)
        if best is not None and used is not None and 100 * (best["score"] - used) > MAX_LOSS:
            scores = f"macro-F1 {100 * used:.1f}, and its {best['name']} has {100 * best['score']:.1f}"
            found.append(f"{device} serves a worse model than it holds: {scores} on the same windows")
    return found


def outcome_shortfalls(outcomes: Sequence[Outcome], min_f1: float, logs: Path) -> list[str]:
    """Say what is wrong of each device of the analytic federation, as `shortfalls` does of the rounds'."""
    return [
        f"{device}, {found.title}: macro-F1 {100 * (score or 0):.1f}, at least {min_f1:g} needed; "
        f"see {logs / f'analytic-{device}.log'}"
        for found in outcomes
        for device, score in found.scores.items()
        if 100 * (score or 0) < min_f1
    ]


def reached(summaries: dict[str, dict[str, Any]], min_f1: float) -> str:
    """Say in one line that every device has reached it, and which came last."""
    scores = {device: summary["model"]["score"] for device, summary in summaries.items()}
    scored = {device: score for device, score in scores.items() if score is not None}
    if not scored:
        return "Every device has a model; none had windows to score it on."
    last = min(scored, key=scored.__getitem__)
    score = f"the lowest macro-F1 is {100 * scored[last]:.1f}, on {last}"
    return f"Every device has a model that works: {score}; the demo fails under {min_f1:g}."


def _shortfall(summary: dict[str, Any], min_f1: float) -> str:
    model = summary["model"]
    if model is None:
        return f"no model was adopted ({_why_none(summary)})"
    score = model["score"]
    if score is None:
        return f"its model has no score, where {min_f1:g} macro-F1 are needed" if min_f1 else ""
    if 100 * score >= min_f1:
        return ""
    poorest = weakest(model)
    return f"macro-F1 {100 * score:.1f}, at least {min_f1:g} needed" + (
        f" (weakest class: {poorest})" if poorest else ""
    )


def _why_none(summary: dict[str, Any]) -> str:
    reasons = [summary.get("not_adopted"), *reversed(summary.get("adoption", []))]
    return next((reason for reason in reasons if reason), "it never had a candidate")
