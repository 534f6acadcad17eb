"""Which of a network's heads a device serves with: the shared one, its own, and both without the phone's axes.

All of them come out of one exchange of sums; a network of the device's own may be among them (`other_network`). Where
at least two activities have five contiguous labelled windows each, the heads are scored on those of these windows that
are the holdout, the last in time of each activity, of which no head was made. The simplest is used unless another is
right more often by more than a standard error of the paired difference over stretches of time (`training.comparison`).
Without such windows it is the shared head, or the one that knows no axes where gravity lies far from the others'
(`training.orientation`), which is a warning sign and no proof. The winner then takes the place of the present model,
unless that one is shown to be better on the same windows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.errors import AgentError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome
from edge_agent.serving.model_registry import HEADS_IN_WORDS, NETWORK, Verdict, name_of
from edge_agent.serving.model_runs import ExampleKind, Model, ModelEvaluation, Windows, run_again, run_model
from edge_agent.storage.files import sha256_of
from edge_agent.training.comparison import PairedComparison, PairedGain
from edge_agent.training.job import HEADS, MODEL, ORIENTATION, PARITY
from edge_agent.training.local_data import SplitWindows
from export.runtime import ExportError
from federation.serving.heads import ADAPTED, SHARED, SHARED_ANY_ORIENTATION, head_without_labels
from har_pipeline import ClientWindows

MIN_CONTIGUOUS = 5
"""Labelled windows of one activity in one session: of fewer, a holdout says nothing."""
MIN_CLASSES = 2
_REASONS = {
    SHARED_ANY_ORIENTATION: "; this device seems to lie otherwise than most, and this head does not know how it lies",
    ADAPTED: "; its windows without labels count a little as what the shared head names them",
}


class Head(NamedTuple):
    """A head that runs, its folder, and what the holdout says about it."""

    folder: Path
    run: ModelEvaluation

    @property
    def name(self) -> str:
        """The name that the method gives it."""
        return str(self.run.model["head"])


class Choice(NamedTuple):
    """The head that is used and why, and the paired gain of each head over the simplest."""

    head: Head
    why: str
    gains: dict[str, PairedGain]


def has_heads(folder: Path) -> bool:
    """Whether a job left heads to choose among."""
    return any((folder / HEADS).glob(f"*/{MODEL}"))


def evaluate_heads(
    folder: Path,
    asked: Evaluate,
    data: SplitWindows,
    judged: ExampleKind,
    present: Model | None,
    *,
    threads: int = 1,
    missing: str = "",
) -> Verdict:
    """Run each head that a job left in `folder` on the holdout, and say which one is used from now on.

    missing: why a candidate that was asked for is not among them.
    """
    against = present["sha256"] if present else ""
    windows = Windows.of(comparable(data), None, judged)
    version = max(0, asked.round - 1) if asked.kind == "train" else asked.round
    heads, failures = _run_heads(folder / HEADS, version, windows, threads)
    failures += [missing] if missing else []
    if not heads:
        reason = f"no head of version {version} works: {'; '.join(failures)}"
        return Verdict(asked.round, asked.kind, "failed", reason, release=asked.release, against=against)
    choice = choose(heads, windows, _is_far(folder / HEADS / ORIENTATION))
    mine, model = choice.head.run, dict(choice.head.run.model)
    now = run_again(present, windows, threads) if len(windows.holdout) else None
    worse = now and PairedComparison.of(windows.groups, mine.quality, now.quality)
    why = "; ".join([choice.why, *failures])
    answer: AdoptionOutcome = "adopted"
    if now and worse and worse.is_worse and now.score >= mine.score and not now.soundness.failure_reason:
        answer, why = "refused", f"{why}; but the {name_of(now.model)} has {now.score:.3f} there: {worse.words}"
    elif reason := mine.soundness.failure_reason:
        answer, why = "failed", f"{why}; it does not work: {reason}"
    in_use = f" (in use: {name_of(present)})" if present and answer != "adopted" else ""
    told = "adopted" if answer == "adopted" else f"not adopted{in_use}"
    return Verdict(
        asked.round,
        asked.kind,
        answer,
        f"{name_of(model)}: {told}, {why}",
        choice.head.folder,
        {**model, **mine.soundness.described()},
        release=asked.release,
        against=against,
        compared=_compared(heads, choice, windows, now),
    )


def comparable(data: SplitWindows) -> ClientWindows:
    """Return those holdout windows whose activity has enough contiguous labelled ones; none where that are too few."""
    labelled, holdout = data.labelled, data.holdout
    able = [
        label
        for label in np.unique(holdout.y)
        if np.unique(labelled.session[labelled.y == label], return_counts=True)[1].max(initial=0) >= MIN_CONTIGUOUS
    ]
    return holdout.select(np.isin(holdout.y, able if len(able) >= MIN_CLASSES else []))


def choose(heads: Sequence[Head], windows: Windows, is_far: bool) -> Choice:
    """Take the simplest head that no other beats by more than a standard error; by how the device lies without labels.

    heads: the simplest first.
    """
    first, gains = heads[0], dict[str, PairedGain]()
    if not len(windows.holdout):
        return _without_labels(heads, is_far)
    best = first
    for head in heads[1:]:
        gains[head.name] = PairedGain.of(windows.groups, head.run.quality, first.run.quality)
        if PairedGain.of(windows.groups, head.run.quality, best.run.quality).is_better:
            best = head
    if best is first:
        others = ", ".join(f"{_words(head)} {head.run.score:.3f}" for head in heads[1:])
        beats = f"; no other is better by more than a standard error ({others})" if others else ""
        return Choice(first, f"{first.run.soundness.words}{beats}", gains)
    gain = gains[best.name]
    error = "" if gain.error is None else f" ± {100 * gain.error:.1f}"
    why = (
        f"{best.run.soundness.words}; on {gain.groups} {windows.groups.unit} it is right {100 * gain.gain:.1f}{error} "
        f"points more often than the {_words(first)}, which has {first.run.score:.3f}"
    )
    return Choice(best, why, gains)


def _without_labels(heads: Sequence[Head], is_far: bool) -> Choice:
    named = {head.name: head for head in heads}
    few = f"no head is scored: fewer than {MIN_CLASSES} activities have {MIN_CONTIGUOUS} labelled windows in a row"
    name = head_without_labels(named, is_far)
    return Choice(named.get(name, heads[0]), few + _REASONS.get(name, ""), {})


def _run_heads(folder: Path, version: int, windows: Windows, threads: int) -> tuple[list[Head], list[str]]:
    """Run all heads in a folder, the simplest first; those that do not work are left out, and said."""
    order = list(HEADS_IN_WORDS)
    names = sorted((path.parent.name for path in folder.glob(f"*/{MODEL}")), key=lambda name: _rank(name, order))
    heads, failures = [], []
    for name in names:
        place = folder / name
        source = NETWORK if name == NETWORK else "global" if name.startswith(SHARED) else "personalized"
        try:
            parity = json.loads((place / PARITY).read_bytes())
            made_by = parity.pop("round", version)
            noted = {"source": source, "head": name, "round": made_by, "sha256": sha256_of(place / MODEL)}
            noted["parity"] = parity
            heads.append(Head(place, run_model(place / MODEL, noted, windows, threads)))
        except (AgentError, ExportError, OSError, ValueError) as error:
            failures.append(f"the {HEADS_IN_WORDS.get(name, name)} does not work: {error}")
    return heads, failures


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _words(head: Head) -> str:
    return HEADS_IN_WORDS.get(head.name, head.name)


def _is_far(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["is_far"])
    except (OSError, ValueError, KeyError):
        return False


def _compared(
    heads: Sequence[Head], choice: Choice, windows: Windows, present: ModelEvaluation | None
) -> dict[str, Any]:
    """Describe every head, and the model that was in use, by the same windows; gain and error against the simplest."""
    rows = []
    for head in heads:
        gain = choice.gains.get(head.name)
        rows.append({**_row(head.run), "gain": gain and gain.gain, "standard_error": gain and gain.error})
    if present and present.model["sha256"] not in {row["sha256"] for row in rows}:
        rows.append(_row(present))
    found = choice.head.run.soundness
    return {
        "at": time.time(),
        "metric": found.metric,
        "windows": found.examples,
        "classes": found.described().get("classes"),
        "stretches": len(windows.groups),
        "unit": windows.groups.unit,
        "models": rows,
    }


def _row(run: ModelEvaluation) -> dict[str, Any]:
    named = {name: run.model[name] for name in ("source", "round", "sha256", "head") if name in run.model}
    return {**named, "name": name_of(run.model), "score": run.soundness.score}
