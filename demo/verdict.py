"""The outcome of a demo federation, and the test that each device has a model that has learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaitway.tasks.classification import f1_per_class

MAX_LOSS = 5.0  # points of macro-F1 that a device's choice may cost on the same windows that it was made with

Summaries = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What the devices of a federation have in the end, and what it cost."""

    federation: str
    title: str
    summaries: Summaries
    seconds: float  # from the agents' start until each device uses a model of everyone's data
    sent_bytes: int | None  # by all devices; None because the server doesn't store the messages of a secure sum
    version_bytes: int  # of all versions; a device fetches each at most once


def weakest(model: Mapping[str, Any]) -> str:
    """Return the class of least F1, and its F1 in percent; empty where the model's summary has no confusion matrix."""
    if not model.get("confusion"):
        return ""
    f1 = f1_per_class(np.array(model["confusion"], dtype=np.int64))
    least = int(np.nanargmin(f1))
    return "all 100" if f1[least] == 1 else f"{model['labels'][least]} {100 * f1[least]:.1f}"


def shortfalls(outcome: Outcome, min_f1: float, logs: Path) -> list[str]:
    """Describe each device without a model, or with less than `min_f1` macro-F1 in percent, and name its log."""
    return [
        f"{device} ({outcome.title}): {words}; see {logs / f'{outcome.federation}-{device}.log'}"
        for device, summary in outcome.summaries.items()
        if (words := _shortfall(summary, min_f1))
    ]


def lowest(summaries: Summaries) -> str:
    """Say that every device has a model that works, and name the device with the lowest score."""
    scores = {device: summary["model"]["score"] or 0.0 for device, summary in summaries.items()}
    device = min(scores, key=scores.__getitem__)
    return f"Every device has a model that works; the lowest macro-F1 is {100 * scores[device]:.1f}%, on {device}."


def worse_choices(summaries: Summaries) -> list[str]:
    """Describe each device that serves a model with over `MAX_LOSS` points less than another one that it holds."""
    found = []
    for device, summary in summaries.items():
        rows = (summary["compared"] or {}).get("models", [])
        used = next((row["score"] for row in rows if row["in_use"]), None)
        best = max((row for row in rows if row["score"] is not None), key=lambda row: row["score"], default=None)
        if best is not None and used is not None and 100 * (best["score"] - used) > MAX_LOSS:
            scores = f"macro-F1 {100 * used:.1f}, and its {best['name']} has {100 * best['score']:.1f}"
            found.append(f"{device} serves a worse model than it holds: {scores} on the same windows")
    return found


def _shortfall(summary: Mapping[str, Any], min_f1: float) -> str:
    model = summary["model"]
    if model is None:
        reasons = [summary.get("not_adopted"), *reversed(summary.get("adoption", []))]
        return f"no model was adopted ({next(filter(None, reasons), 'it never had a candidate')})"
    if model["score"] is None:
        return f"its model has no score, where {min_f1:g} macro-F1 are needed" if min_f1 else ""
    if 100 * model["score"] >= min_f1:
        return ""
    poorest = weakest(model) and f" (weakest class: {weakest(model)})"
    return f"macro-F1 {100 * model['score']:.1f}, at least {min_f1:g} needed{poorest}"
