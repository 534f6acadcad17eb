"""Which model a device uses: the federation's, unless the device's own windows show that its own model is better.

A candidate is run beside the models that the device has, on the same examples, and must work, as
`gaitway.tasks` has it. By default the newest global model is used. One that was trained here takes its
place only where it scores higher, and `edge_agent.training.comparison` shows that this is no chance; where the holdout
is small, by the answers of cross-validation. Without a global model, as methods without one have it, the device's own
is the only one: it must work, and a newer one must be shown to be better than the present one where the holdout can
tell. Models that were judged before and not adopted are run again with it: there are more windows now. Where the
holdout cannot tell whether a candidate works, what the server knows of the version from other devices stands in. A
released model, which the operator asks for, only has to score no lower than the present one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome
from edge_agent.serving.heads import evaluate_heads, has_heads
from edge_agent.serving.model_registry import SOURCES, ModelRegistry, Verdict, name_of
from edge_agent.serving.model_runs import Evidence, ExampleKind, Model, ModelEvaluation, Windows, run_again, run_model
from edge_agent.serving.other_network import add_network
from edge_agent.storage.files import sha256_of
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.cross_validation import MAX_WINDOWS
from edge_agent.training.job import GLOBAL, HEADS, MODEL, PARITY, RESULT, job_folder
from edge_agent.training.local_data import noun, preparation, read_split
from export.runtime import ExportError
from federation.plan import Plan
from federation.protocol.messages import VersionScore
from har_pipeline import ClientWindows


class ComparisonSet(NamedTuple):
    """What a candidate is compared with: the present model's run (None: it does not run, or there is none)."""

    windows: Windows
    present: ModelEvaluation | None
    has_model: bool
    margin: float
    released: bool  # the operator asks for the candidate

    def compare(self, run: ModelEvaluation) -> Evidence | None:
        """Compare a run with the present model's; None where there is nothing to compare."""
        return None if self.present is None else self.windows.compare(run, self.present)


def evaluate_job(config: Config, plan: Plan, asked: Evaluate) -> Verdict:
    """Judge what a job left, on the device's own labelled windows; for a thread of its own.

    A round leaves the global model that it began from beside its own: that one is judged first.
    """
    settings = preparation(config.sensors, plan)
    with closing(StateStore(config.agent.data_dir)) as store, closing(WindowStore(config.agent.data_dir)) as kept:
        registry = ModelRegistry(store)
        present, others = registry.present(), registry.others()
        data = read_split(kept, config.sensor_client, settings, plan)
    folder = job_folder(config.agent.data_dir.resolve(), asked.round, asked.kind)
    every = data.labelled if len(data.labelled) <= MAX_WINDOWS else None
    holdout, judged = evenly(data.holdout, config.model.holdout_windows), ExampleKind.of(plan, noun(settings))
    if has_heads(folder):
        split, threads = data._replace(holdout=holdout), config.training.threads
        beside, missing = config.model.network_dir, ""
        if beside is not None:
            missing = add_network(folder / HEADS, beside, plan.labels, threads)
        return evaluate_heads(folder, asked, split, judged, present, threads=threads, missing=missing)
    windows = Windows.of(holdout, every, judged)
    margin, threads = config.model.adopt_margin, config.training.threads

    def judge(folder: Path, asked: Evaluate, present: Model | None, others: Sequence[Model]) -> Verdict:
        return evaluate(folder, asked, windows, present, others, margin=margin, threads=threads)

    if not (folder / GLOBAL / MODEL).is_file():
        return judge(folder, asked, present, others)
    first = judge(folder / GLOBAL, Evaluate(asked.round - 1, "adopt", 0, asked.server_score), present, others)
    now, rest = models_after(first, present, others)
    return judge(folder, asked, now, rest)._replace(shared=first)


def models_after(verdict: Verdict, present: Model | None, others: Sequence[Model]) -> tuple[Model | None, list[Model]]:
    """Return the model in use after a verdict that is not committed yet, and the others to be asked again."""
    mine = {**verdict.model, "path": str(verdict.folder / MODEL)} if verdict.model and verdict.folder else None
    used = mine if verdict.good else verdict.instead or present
    now = used["sha256"] if used else ""
    given = [mine] if mine and verdict.answer in ("kept", "refused") else []
    rest = [*given, *([present] if present else []), *(one for one in others if one["source"] != "global")]
    return used, [one for one in rest if one["sha256"] != now]


def evaluate(
    folder: Path,
    asked: Evaluate,
    holdout: ClientWindows | Windows,
    present: Model | None,
    others: Sequence[Model] = (),
    *,
    margin: float = 0.0,
    threads: int = 1,
) -> Verdict:
    """Run the candidate in `folder` and the device's models on the raw holdout windows, and say which is used.

    `others` were judged before; where the candidate is released they are not asked. `Windows` also say what is asked of
    the holdout, and which windows cross-validation may have answered. `asked.server_score` is what the server knows of
    the candidate's version, of a personalized one of the version that it began from. It counts only where the holdout
    cannot tell whether the candidate works.
    """
    model: dict[str, Any] = {"source": SOURCES[asked.kind], "round": asked.round}
    against = present["sha256"] if present else ""
    windows = holdout if isinstance(holdout, Windows) else Windows.of(holdout, None, ExampleKind())
    if not (folder / MODEL).is_file():
        return _no_candidate(folder, asked)
    try:
        model |= {"sha256": sha256_of(folder / MODEL), "parity": json.loads((folder / PARITY).read_bytes())}
        mine = run_model(folder / MODEL, model, windows, threads)
    except (AgentError, ExportError, OSError, ValueError) as error:
        reason = f"{name_of(model)}: not adopted{_in_use(present)}, it does not work: {error}"
        return Verdict(asked.round, asked.kind, "failed", reason, release=asked.release, against=against)
    field = ComparisonSet(windows, run_again(present, windows, threads), present is not None, margin, asked.release > 0)
    rivals = [] if field.released else [run for one in others if (run := run_again(one, windows, threads))]
    answer, why = decide(mine, field, asked)
    used = mine if answer == "adopted" else field.present
    best = _best(rivals, used, field)
    if best:
        answer = "kept" if answer == "adopted" else answer
        why = f"{why}; the {name_of(best.model)}, which was judged before, has {best.score:.3f} there and is used now"
    now = best.model if best else present
    told = "adopted" if answer == "adopted" else f"not adopted{_in_use(now)}"
    return Verdict(
        asked.round,
        asked.kind,
        answer,
        f"{name_of(model)}: {told}, {why}",
        folder,
        {**model, **mine.soundness.described()},
        release=asked.release,
        against=against,
        instead=best.model if best else None,
        compared=_compared(mine, rivals, field),
    )


def _in_use(model: Model | None) -> str:
    return f" (in use: {name_of(model)})" if model else ""


def _no_candidate(folder: Path, asked: Evaluate) -> Verdict:
    name = f"{SOURCES[asked.kind]} model of round {asked.round}"
    try:
        why = str(json.loads((folder / RESULT).read_bytes())["no_model"])
    except (OSError, ValueError, KeyError):
        left = f"{name}: the training process left no model, the present model stays"
        return Verdict(asked.round, asked.kind, "failed", left, release=asked.release)
    return Verdict(asked.round, asked.kind, "none", f"{name}: {why}, the present model stays", release=asked.release)


def _compared(mine: ModelEvaluation, rivals: Sequence[ModelEvaluation], field: ComparisonSet) -> dict[str, Any]:
    """Describe every model that ran by the same windows: the candidate, the present one, and the others."""
    rows = []
    for run in (mine, *([field.present] if field.present else []), *rivals):
        evidence = field.compare(run) if run is not field.present else None
        paired = evidence and evidence.paired
        against = {"better": paired.better, "worse": paired.worse, "p": paired.p_better} if paired else {}
        validated = {"validated": True} if evidence and evidence.validated else {}
        rows.append({**{name: run.model[name] for name in ("source", "round", "sha256")}, **against, **validated})
        rows[-1]["score"] = run.soundness.score
    return {
        "at": time.time(),
        "metric": mine.soundness.metric,
        "windows": mine.soundness.examples,
        "classes": mine.soundness.described().get("classes"),
        "stretches": len(field.windows.groups),
        "unit": field.windows.groups.unit,
        "models": rows,
    }


def evenly(windows: ClientWindows, count: int) -> ClientWindows:
    """Thin windows out to at most `count`, over all of the time that they cover, so that no class goes missing."""
    if len(windows) <= count:
        return windows
    return windows.select(np.linspace(0, len(windows) - 1, count).astype(np.int64))


def decide(mine: ModelEvaluation, field: ComparisonSet, asked: Evaluate) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a candidate that runs, and why."""
    if not mine.soundness.undecided_reason:
        return _compare(mine, field)
    answer, why = _by_the_server(mine, field, asked.server_score)
    why = f"whether it works cannot be checked here ({mine.soundness.undecided_reason}); {why}"
    evidence = field.compare(mine)
    if evidence is None:
        return answer, why
    if evidence.validated and answer != "failed":
        found, more = _compare(mine, field)
        return found, f"{why}; {more}"
    default = mine.is_global and field.present is not None and not field.present.is_global
    if answer == "adopted" and evidence.gain < 0 and not default:
        answer = "kept"
    return answer, f"{why}; {evidence.words}"


def _compare(run: ModelEvaluation, field: ComparisonSet) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a model where windows can tell, and why."""
    evidence = field.compare(run)
    found = evidence.found if evidence and run.soundness.undecided_reason else run.soundness
    if found.failure_reason:
        return "failed", f"it does not work: {found.failure_reason}; {found.words}"
    if field.present is None or evidence is None:
        none = "the present model does not run any more" if field.has_model else "there was no model before"
        return "adopted", f"{run.soundness.words}; {none}"
    why = f"{evidence.words}; {evidence.paired.words}"
    if evidence.gain >= 0 and field.present.soundness.failure_reason:
        return "adopted", f"{why}; the present model does not work: {field.present.soundness.failure_reason}"
    if field.released or not run.is_global:
        return _with_reason(evidence, field, why)
    return _by_default(evidence, field.present, field.margin, why)


def _with_reason(evidence: Evidence, field: ComparisonSet, why: str) -> tuple[AdoptionOutcome, str]:
    """Decide about a model that needs a reason to replace the present one: it is better, or was asked for."""
    if field.released and evidence.gain >= 0 and not evidence.paired.is_worse:
        return "adopted", f"{why}; a released model need not be better, and it is no worse"
    if not field.released and evidence.is_better(field.margin):
        return "adopted", f"{why}; it is better"
    if evidence.is_worse():
        return "refused", f"{why}; it is worse"
    margin = f" by {field.margin:g}" if field.margin else ""
    told = "it scores lower here" if field.released else f"it is not shown to be better{margin}"
    return "kept", f"{why}; {told}, so the present model stays"


def _by_default(evidence: Evidence, present: ModelEvaluation, margin: float, why: str) -> tuple[AdoptionOutcome, str]:
    """Decide about a global model: it is used unless the present one is shown to be better."""
    if evidence.is_worse(0.0 if present.is_global else margin):
        return "refused", f"{why}; it is worse"
    other = "it is not shown to be worse" if present.is_global else "this device's own is not shown to be better"
    return "adopted", f"{why}; {other}, so the federation's is used"


def _best(
    rivals: Sequence[ModelEvaluation], used: ModelEvaluation | None, field: ComparisonSet
) -> ModelEvaluation | None:
    """Return the best of the models judged before that take the place of the one to be used; None if none does."""
    able = [run for run in rivals if run.soundness.works and (used is None or _replaces(run, used, field))]
    return max(able, key=lambda run: run.gain(able[0]), default=None)


def _replaces(run: ModelEvaluation, used: ModelEvaluation, field: ComparisonSet) -> bool:
    """Whether a model that was judged before is used in place of another: it is better, or it is the default."""
    evidence = field.windows.compare(run, used)
    if evidence is None:
        return False
    if used.soundness.failure_reason:
        return evidence.gain >= 0
    if run.is_global:
        return not used.is_global and not evidence.is_worse(field.margin)
    return evidence.is_better(field.margin)


def _by_the_server(
    mine: ModelEvaluation, field: ComparisonSet, score: VersionScore | None
) -> tuple[AdoptionOutcome, str]:
    """Let what the server knows of the version stand in for a check of one's own."""
    version = "it" if mine.is_global else "the version that it began from"
    if score is None:
        answer, so = _unknown(mine, field)
        return answer, f"the server has no score of {version}, {so}"
    if not score.is_sound:
        # of what was trained here since, other devices' word about the beginning does not say that it does not work
        speaks = f"the server's score of {version} speaks against it: {score.words}"
        return "failed" if mine.is_global else "undecided", speaks
    why = f"the server's score of {version} stands in: {score.words}"
    if mine.is_global or field.present is None:
        return "adopted", why
    answer, so = _unknown(mine, field)
    return answer, f"{why}; of what was trained here it says nothing, {so}"


def _unknown(mine: ModelEvaluation, field: ComparisonSet) -> tuple[AdoptionOutcome, str]:
    """Decide about a model of which nobody knows whether it works: the federation's is the default, or the newer."""
    if field.present is None:
        return "adopted", "and there is no model yet, so it is used unchecked"
    if field.released or field.present.is_global:
        return "undecided", "so the present model stays"
    if mine.is_global:
        return "adopted", "and the present one was never shown to be better, so the federation's is used unchecked"
    return "adopted", "and nobody could check the present one either, so the newer one is used unchecked"
