"""The gate before a new model replaces the present one: it loads, it runs, and the device's holdout does not suffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_agent.local_data import LocalData
from export.runtime import ExportError, Session
from federation.scores import confusion, scores_of
from har_pipeline import ClientWindows

SMOKE_WINDOWS = 7


@dataclass(frozen=True)
class Verdict:
    """Whether a candidate is to be adopted, why, and its macro-F1 on the holdout (NaN: there is none)."""

    adopted: bool
    reason: str
    macro_f1: float = math.nan


def judge(
    candidate: Path, present: Path | None, data: LocalData, *, labels: tuple[str, ...], margin: float, windows: int
) -> Verdict:
    """Compare a candidate file with the present one on at most `windows` holdout windows of this device."""
    try:
        session = Session.load(candidate)
        smoke = session.predict(data.train.x[:SMOKE_WINDOWS]).logits
    except ExportError as error:
        return Verdict(False, f"it does not run: {error}")
    if session.metadata.labels != labels:
        return Verdict(False, f"its labels are {session.metadata.labels}, expected {labels}")
    if not np.isfinite(smoke).all():
        return Verdict(False, "it predicts values that are not finite")
    holdout = _evenly(data.holdout, windows)
    score = _macro_f1(session, holdout)
    if math.isnan(score):
        return Verdict(True, "it runs; this device has no holdout to compare on")
    try:
        before = _macro_f1(Session.load(present), holdout) if present else math.nan
    except ExportError as error:
        return Verdict(True, f"holdout macro-F1 {score:.3f}; the present model does not load: {error}", score)
    if math.isnan(before):
        return Verdict(True, f"holdout macro-F1 {score:.3f}; it is the first", score)
    words = f"holdout macro-F1 {score:.3f} against {before:.3f} of the present model"
    if score < before - margin:
        return Verdict(False, f"{words}, more than {margin:g} lost", score)
    return Verdict(True, words, score)


def _evenly(windows: ClientWindows, count: int) -> ClientWindows:
    """Thin windows out to at most `count`, from all of the time that they cover."""
    if len(windows) <= count:
        return windows
    return windows.select(np.linspace(0, len(windows) - 1, count).astype(np.int64))


def _macro_f1(session: Session, windows: ClientWindows) -> float:
    predicted = session.predict(windows.x).logits.argmax(axis=1)
    return scores_of(confusion(windows.y, predicted.astype(np.int64), len(session.metadata.labels))).macro_f1


def source_of(kind: str) -> str:
    """Name what a job's candidate is: the device's own model, or the federation's."""
    return {"train": "personalized", "adopt": "global"}[kind]


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN, which JSON does not have, by null."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
