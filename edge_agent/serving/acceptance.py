"""Which model a device uses: a candidate is run beside those that it has, on the same examples, and the best stays.

A candidate must run and work, as `edge_agent.serving.soundness` has it. It replaces a present model that works only
where it scores higher and `edge_agent.serving.comparison` shows that this is no chance; a released model, which the
operator asks for, only has to score no lower. Models that were judged before and not adopted are run again with it:
there are more windows now. Where the holdout cannot tell whether a candidate works, what the server knows of the
version from other devices stands in; it never puts what was trained here in the place of a present model that runs.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, StoreError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome, Kind
from edge_agent.serving.comparison import Groups, Paired, Quality, by_stretch, one_each
from edge_agent.serving.model_registry import SOURCES, ModelRegistry, Verdict, name_of
from edge_agent.serving.soundness import ClassSoundness, PixelSoundness, Soundness
from edge_agent.storage.files import sha256_of
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.job import MODEL, PARITY, RESULT, job_folder
from edge_agent.training.local_data import noun, preparation, read_local_data
from export.runtime import ExportError, Session
from federation.plan import Plan
from federation.protocol.messages import VersionScore
from gaitway.metrics import metric_of
from gaitway.scores import confusion, pixel_scores_of
from har_pipeline import ClientWindows

log = logging.getLogger(__name__)

Model = Mapping[str, Any]
"""A model as the registry describes it."""


class Run(NamedTuple):
    """A model, what the holdout says about it, and how well it answered each example (n,)."""

    model: Model
    found: Soundness
    quality: Quality

    @property
    def score(self) -> float:
        """The task's primary metric on the holdout; 0 without examples."""
        return self.found.score or 0.0

    def gain(self, other: Run) -> float:
        """Return by how much it scores better than another."""
        return metric_of(self.found.metric).gain(self.score, other.score)


class Judged(NamedTuple):
    """What the examples are, and which pixels of masks count nowhere."""

    noun: str = "windows"
    ignore_index: int = 255

    @classmethod
    def of(cls, plan: Plan, noun: str) -> Judged:
        """Read it off a plan."""
        return cls(noun, int(plan.task.get("ignore_index", 255)))

    def groups(self, holdout: ClientWindows) -> Groups:
        """Group examples that err together: windows of a stretch of time; of pictures each errs for itself."""
        return by_stretch(holdout) if self.noun == "windows" else one_each(len(holdout), self.noun)

    def against(
        self, truth: npt.NDArray[np.int64], answered: npt.NDArray[np.int64], labels: Sequence[str]
    ) -> tuple[Soundness, Quality]:
        """Compare true and answered classes (n,), or masks (n, height, width)."""
        if truth.ndim == 1:
            return ClassSoundness.of(truth, answered, labels, self.noun), answered == truth
        matrices = [
            confusion(mask[known], own[known], len(labels))
            for mask, own in zip(truth, answered, strict=True)
            for known in [mask != self.ignore_index]
        ]
        none = np.zeros((len(labels), len(labels)), np.int64)
        quality = np.array([pixel_scores_of(matrix).mean_iou for matrix in matrices])
        return PixelSoundness(sum(matrices, none), labels, self.noun, len(truth)), np.nan_to_num(quality)


class Field(NamedTuple):
    """What a candidate is compared with: the present model's run (None: it does not run, or there is none)."""

    groups: Groups
    present: Run | None
    has_model: bool
    margin: float
    released: bool  # the operator asks for the candidate

    def paired(self, run: Run) -> Paired | None:
        """Compare a run with the present model's; None where there is nothing to compare."""
        if self.present is None or not len(self.groups):
            return None
        return Paired.of(self.groups, run.quality, self.present.quality)


def evaluate_job(config: Config, plan: Plan, asked: Evaluate) -> Verdict:
    """Judge what a job left, on the device's own holdout windows; for a thread of its own."""
    settings = preparation(config.sensors, plan)
    with closing(StateStore(config.agent.data_dir)) as store, closing(WindowStore(config.agent.data_dir)) as windows:
        registry = ModelRegistry(store)
        present, others = registry.present(), registry.others()
        holdout = read_local_data(windows, config.sensor_client, settings, plan).holdout
    return evaluate(
        job_folder(config.agent.data_dir.resolve(), asked.round, asked.kind),
        asked,
        evenly(holdout, config.model.holdout_windows),
        present,
        others,
        margin=config.model.adopt_margin,
        threads=config.training.threads,
        judged=Judged.of(plan, noun(settings)),
    )


def evaluate(
    folder: Path,
    asked: Evaluate,
    holdout: ClientWindows,
    present: Model | None,
    others: Sequence[Model] = (),
    *,
    margin: float = 0.0,
    threads: int = 1,
    judged: Judged | None = None,
) -> Verdict:
    """Run the candidate in `folder` and the device's models on the raw holdout windows, and say which is used.

    `others` were judged before; where the candidate is released they are not asked. `asked.server_score` is what the
    server knows of the candidate's version, of a personalized one of the version that it began from. It counts only
    where the holdout cannot tell whether the candidate works.
    """
    judged = judged or Judged()
    model: dict[str, Any] = {"source": SOURCES[asked.kind], "round": asked.round}
    against = present["sha256"] if present else ""
    if not (folder / MODEL).is_file():
        return _no_candidate(folder, asked)
    try:
        model |= {"sha256": sha256_of(folder / MODEL), "parity": json.loads((folder / PARITY).read_bytes())}
        mine = _run(folder / MODEL, model, holdout, threads, judged)
    except (AgentError, ExportError, OSError, ValueError) as error:
        reason = f"{name_of(model)}: not adopted, it does not work: {error}"
        return Verdict(asked.round, asked.kind, "failed", reason, release=asked.release)
    field = Field(
        judged.groups(holdout),
        _run_again(present, holdout, threads, judged),
        present is not None,
        margin,
        asked.release > 0,
    )
    rivals = [] if field.released else [run for one in others if (run := _run_again(one, holdout, threads, judged))]
    answer, why = decide(mine, field, asked)
    best = _best([run for run in rivals if answer != "adopted" or run.gain(mine) > 0], field)
    if best:
        answer = "kept" if answer == "adopted" else answer
        why = f"{why}; the {name_of(best.model)}, which was judged before, has {best.score:.3f} there and is used now"
    reason = f"{name_of(model)}: {'adopted' if answer == 'adopted' else 'not adopted'}, {why}"
    return Verdict(
        asked.round,
        asked.kind,
        answer,
        reason,
        folder,
        {**model, **mine.found.described()},
        release=asked.release,
        against=against,
        instead=best.model if best else None,
        compared=_compared(mine, rivals, field),
    )


def _no_candidate(folder: Path, asked: Evaluate) -> Verdict:
    name = f"{SOURCES[asked.kind]} model of round {asked.round}"
    try:
        why = str(json.loads((folder / RESULT).read_bytes())["no_model"])
    except (OSError, ValueError, KeyError):
        left = f"{name}: the training process left no model, the present model stays"
        return Verdict(asked.round, asked.kind, "failed", left, release=asked.release)
    return Verdict(asked.round, asked.kind, "none", f"{name}: {why}, the present model stays", release=asked.release)


def _compared(mine: Run, rivals: Sequence[Run], field: Field) -> dict[str, Any]:
    """Describe every model that ran by the same windows: the candidate, the present one, and the others."""
    rows = []
    for run in (mine, *([field.present] if field.present else []), *rivals):
        paired = field.paired(run) if run is not field.present else None
        against = {"better": paired.better, "worse": paired.worse, "p": paired.p_better} if paired else {}
        rows.append({**{name: run.model[name] for name in ("source", "round", "sha256")}, **against})
        rows[-1]["score"] = run.found.score
    return {
        "at": time.time(),
        "metric": mine.found.metric,
        "windows": mine.found.examples,
        "classes": mine.found.described().get("classes"),
        "stretches": len(field.groups),
        "unit": field.groups.unit,
        "models": rows,
    }


def evenly(windows: ClientWindows, count: int) -> ClientWindows:
    """Thin windows out to at most `count`, over all of the time that they cover, so that no class goes missing."""
    if len(windows) <= count:
        return windows
    return windows.select(np.linspace(0, len(windows) - 1, count).astype(np.int64))


def decide(mine: Run, field: Field, asked: Evaluate) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a candidate that runs, and why."""
    if not mine.found.obstacle:
        return _judge(mine, field)
    answer, why = _by_the_server(asked.kind, field.present is not None, asked.server_score)
    if answer == "adopted" and asked.kind != "adopt" and field.present is not None:
        answer, why = "undecided", f"{why}; of what was trained here it says nothing, so the present model stays"
    why = f"whether it works cannot be checked here ({mine.found.obstacle}); {why}"
    if field.present is None or not len(field.groups):
        return answer, why
    if answer == "adopted" and mine.gain(field.present) < 0:
        answer = "kept"
    return answer, f"{why}; {mine.found.words} and {field.present.score:.3f} of the present model"


def _judge(run: Run, field: Field) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a model where the holdout can tell, and why."""
    if run.found.fault:
        return "failed", f"it does not work: {run.found.fault}; {run.found.words}"
    paired = field.paired(run)
    if field.present is None or paired is None:
        none = "the present model does not run any more" if field.has_model else "there was no model before"
        return "adopted", f"{run.found.words}; {none}"
    gain = run.gain(field.present)
    why = f"{run.found.words} and {field.present.score:.3f} of the present model; {paired.words}"
    if gain >= 0 and field.present.found.fault:
        return "adopted", f"{why}; the present model does not work: {field.present.found.fault}"
    if field.released and gain >= 0 and not paired.is_worse:
        return "adopted", f"{why}; a released model need not be better, and it is no worse"
    if gain > 0 and gain >= field.margin and paired.is_better:
        return "adopted", f"{why}; it is better"
    if gain <= 0 and paired.is_worse:
        return "refused", f"{why}; it is worse"
    margin = f" by {field.margin:g}" if field.margin and not field.released else ""
    told = "it scores lower here" if field.released else f"it is not shown to be better{margin}"
    return "kept", f"{why}; {told}, so the present model stays"


def _best(runs: Sequence[Run], field: Field) -> Run | None:
    """Return the best of those that may replace the present model; None if none may."""
    able = [run for run in runs if not run.found.obstacle and _judge(run, field)[0] == "adopted"]
    return max(able, key=lambda run: run.gain(able[0]), default=None)


def _by_the_server(kind: Kind, has_model: bool, server_score: VersionScore | None) -> tuple[AdoptionOutcome, str]:
    """Let what the server knows of the version stand in for a check of one's own."""
    version = "it" if kind == "adopt" else "the version that it began from"
    if server_score is None:
        so = "so the present model stays" if has_model else "and there is no model yet, so it is used unchecked"
        return "undecided" if has_model else "adopted", f"the server has no score of {version}, {so}"
    if server_score.is_sound:
        return "adopted", f"the server's score of {version} stands in: {server_score.words}"
    so = f"the server's score of {version} speaks against it: {server_score.words}"
    # of what was trained here since, other devices' word about the beginning does not say that it does not work
    return "failed" if kind == "adopt" else "undecided", so


def _run_again(model: Model | None, holdout: ClientWindows, threads: int, judged: Judged) -> Run | None:
    """Run a model that the device has; None if there is none, or it does not run any more."""
    if model is None:
        return None
    try:
        return _run(Path(model["path"]), model, holdout, threads, judged)
    except (AgentError, ExportError, OSError, ValueError) as error:
        log.warning("the %s does not run any more: %s", name_of(model), error)
        return None


def _run(path: Path, model: Model, holdout: ClientWindows, threads: int, judged: Judged) -> Run:
    """Classify the holdout, or one window of zeros where there is none: the model must run in any case."""
    session = Session.load(path, threads=threads)
    smoke = holdout.x if len(holdout) else np.zeros((1, *session.metadata.input.shape), np.float32)
    prediction = session.predict(smoke)
    if not (np.isfinite(prediction.logits).all() and np.isfinite(prediction.embedding).all()):
        raise StoreError(f"{path.name} gives NaN or infinity on the device's own windows")
    answered = prediction.logits.argmax(axis=1).astype(np.int64)[: len(holdout)]
    return Run(model, *judged.against(holdout.y, answered, session.metadata.labels))
