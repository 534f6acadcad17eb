"""The heads of a network that a device can serve with: the shared one, its own, and both without the phone's axes.

All of them come out of one exchange of sums; a network of the device's own may be among them (`add_network`). Where
at least two activities have five contiguous labelled windows each, the heads are compared on those of these windows
that are the holdout, the last in time of each activity, of which no head was made, and `edge_agent.serving.choice`
chooses. Without such windows it is the shared head, or the one that knows no axes where gravity lies far from the
others' (`training.orientation`), which is a warning sign and no proof.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_agent.errors import AgentError, StoreError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome
from edge_agent.serving.choice import Choice, Rules, choose, compared_models, judge_release
from edge_agent.serving.model_registry import HEADS_IN_WORDS, NETWORK, ModelRegistry, Verdict, name_of
from edge_agent.serving.model_runs import Model, ModelEvaluation, Windows, run_again, run_model
from edge_agent.storage.data_folder import sha256_of, write_file
from edge_agent.storage.state_store import FILE_NAME, StateStore
from edge_agent.training.job import CHECKPOINT, HEADS, MODEL, ORIENTATION, PARITY
from edge_agent.training.local_data import SplitWindows
from export.runtime import ExportError, Session
from federation.rounds.serving import ADAPTED, SHARED_ANY_ORIENTATION, SHARED_HEAD, head_without_labels
from har_pipeline import ClientWindows

MIN_CONTIGUOUS = 5
"""Labelled windows of one activity in one session: of fewer, a holdout says nothing."""
MIN_CLASSES = 2
_REASONS = {
    SHARED_ANY_ORIENTATION: "; this device's orientation seems unusual, and this head doesn't depend on it",
    ADAPTED: "; its unlabelled windows count a little, with the shared head's labels",
}


class Head(NamedTuple):
    """A head that runs, its folder, and what the holdout says about it."""

    folder: Path
    run: ModelEvaluation

    @property
    def name(self) -> str:
        """The name that the method gives it."""
        return str(self.run.model["head"])


def has_heads(folder: Path) -> bool:
    """Whether a job left heads to choose among."""
    return any((folder / HEADS).glob(f"*/{MODEL}"))


def evaluate_heads(
    folder: Path,
    command: Evaluate,
    windows: Windows,
    present: Model | None,
    rules: Rules = Rules(),
    *,
    missing: str = "",
) -> Verdict:
    """Run each head that a job left in `folder` on the holdout, and say which one is used from now on.

    windows: the `comparable` ones; missing: why a candidate that was asked for is not among them.
    """
    against = present["sha256"] if present else ""
    version = max(0, command.round - 1) if command.kind == "train" else command.round
    heads, failures = _run_heads(folder / HEADS, version, windows)
    failures += [missing] if missing else []
    if not heads:
        reason = f"no head of version {version} works: {'; '.join(failures)}"
        return Verdict(command.round, command.kind, "failed", reason, release=command.release, against=against)
    now = run_again(present, windows) if len(windows.holdout.windows) else None
    held = None if command.release else now  # a released version's best head has a gate of its own
    choice = choose_head(heads, held, windows, rules, _is_far(folder / HEADS / ORIENTATION))
    used = choice.run
    chosen = next((head for head in heads if head.run is used), None)
    shown = chosen or heads[0]
    why = "; ".join([choice.words, *failures])
    answer: AdoptionOutcome = "adopted" if chosen else "kept"
    if chosen and (reason := used.soundness.failure_reason):
        answer, why = "failed", f"{why}; it does not work: {reason}"
    elif chosen and command.release and now:
        answer, gate = judge_release(used, now, windows, has_model=True)
        why = "; ".join([gate, *failures])
    in_use = f" (in use: {name_of(present)})" if present and answer != "adopted" else ""
    outcome = "adopted" if answer == "adopted" else f"not adopted{in_use}"
    return Verdict(
        command.round,
        command.kind,
        answer,
        f"{name_of(shown.run.model)}: {outcome}. {why}",
        shown.folder,
        {**shown.run.model, **shown.run.soundness.described()},
        release=command.release,
        against=against,
        compared=compared_models([*(head.run for head in heads), *([now] if now else [])], choice, windows),
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


def choose_head(
    heads: Sequence[Head], present: ModelEvaluation | None, windows: Windows, rules: Rules, is_far: bool
) -> Choice:
    """Choose among the heads that work and the present model; by how the device lies without labelled windows."""
    if not len(windows.holdout.windows):
        return _without_labels(heads, is_far)
    able = [head.run for head in heads if not head.run.soundness.failure_reason] or [heads[0].run]
    held = [present] if present and present.model["sha256"] not in {run.model["sha256"] for run in able} else []
    found = choose(able, held, windows, rules)
    return found or Choice(able[0], {}, able[0].soundness.words)


def _without_labels(heads: Sequence[Head], is_far: bool) -> Choice:
    named = {head.name: head for head in heads}
    few = f"No head was scored: fewer than {MIN_CLASSES} activities have {MIN_CONTIGUOUS} labelled windows in a row"
    name = head_without_labels(named, is_far)
    return Choice(named.get(name, heads[0]).run, {}, few + _REASONS.get(name, ""))


def _run_heads(folder: Path, version: int, windows: Windows) -> tuple[list[Head], list[str]]:
    """Run all heads in a folder, the simplest first; those that do not work are left out, and said."""
    order = list(HEADS_IN_WORDS)
    names = sorted((path.parent.name for path in folder.glob(f"*/{MODEL}")), key=lambda name: _rank(name, order))
    heads, failures = [], []
    for name in names:
        place = folder / name
        source = NETWORK if name == NETWORK else "global" if name.startswith(SHARED_HEAD) else "personalized"
        try:
            parity = json.loads((place / PARITY).read_bytes())
            made_by = parity.pop("round", version)
            noted = {"source": source, "head": name, "round": made_by, "sha256": sha256_of(place / MODEL)}
            noted["parity"] = parity
            heads.append(Head(place, run_model(place / MODEL, noted, windows)))
        except (AgentError, ExportError, OSError, ValueError) as error:
            failures.append(f"the {HEADS_IN_WORDS.get(name, name)} does not work: {error}")
    return heads, failures


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _is_far(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["is_far"])
    except (OSError, ValueError, KeyError):
        return False


def add_network(heads: Path, folder: Path, labels: Sequence[str], threads: int) -> str:
    """Copy the model in use of the agent in `folder` beside the heads of a job; says why not, empty if it was.

    labels: of the heads; a network that answers others, or in another order, is not compared with them.
    """
    try:
        _copy(heads / NETWORK, folder, labels, threads)
    except (AgentError, ExportError, OSError, ValueError, KeyError) as error:
        shutil.rmtree(heads / NETWORK, ignore_errors=True)
        return f"the network in {folder} isn't compared: {error}"
    return ""


def _copy(target: Path, folder: Path, labels: Sequence[str], threads: int) -> None:
    if not (folder / FILE_NAME).is_file():
        raise StoreError("no agent has run there yet")
    with closing(StateStore(folder)) as store:
        model = ModelRegistry(store).present()
    if model is None or "head" in model:
        raise StoreError("it uses no network yet")
    session = Session.load(Path(model["path"]), threads=threads)
    if list(session.metadata.labels) != list(labels):
        raise StoreError(f"it answers {', '.join(session.metadata.labels)}, and not {', '.join(labels)}")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model["path"], target / MODEL)
    shutil.copyfile(model["checkpoint"], target / CHECKPOINT)
    write_file(target / PARITY, json.dumps({**model["parity"], "round": model["round"]}).encode())
