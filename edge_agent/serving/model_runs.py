"""Runs a device's models on the same windows: their answers, whether they work, and their gains over each other."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.errors import AgentError, StoreError
from edge_agent.serving.model_registry import name_of
from edge_agent.training.comparison import Groups, HeldOut, by_stretch, singleton_groups
from edge_agent.training.cross_validation import NOT_VALIDATED, Answers, CrossValidation
from edge_agent.training.job import CROSS_VALIDATION, MODEL
from export.runtime import ExportError, Session
from federation.plan import Plan
from federation.rounds.serving import SHARED, SHARED_HEAD, Evidence
from gaitway.tasks import DEFAULT_TASK, Quality, Soundness, TargetKind, TaskDefinition, task_of
from har_pipeline import ClientWindows

log = logging.getLogger(__name__)

Model = Mapping[str, Any]
"""A model as the registry describes it."""


class ExampleKind(NamedTuple):
    """What the examples are called, and what is asked of them."""

    noun: str = "windows"
    task: TaskDefinition = DEFAULT_TASK()

    @classmethod
    def of(cls, plan: Plan, noun: str) -> ExampleKind:
        """Read it off a plan."""
        return cls(noun, task_of(plan.task))


def kind_of(model: Model) -> str:
    """Return what a model is among a device's models: its head's name, or its source."""
    return str(model.get("head") or model["source"])


class ModelEvaluation(NamedTuple):
    """A model, what the holdout says about it, and how well it answered each example (n,).

    `validated` (m,) are its answers to all labelled windows: of a model that was trained here those of
    cross-validation, `NOT_VALIDATED` where there are none.
    """

    model: Model
    soundness: Soundness
    quality: Quality
    validated: Answers | None = None

    @property
    def score(self) -> float:
        """The task's primary metric on the holdout; 0 without examples."""
        return self.soundness.score or 0.0

    @property
    def is_global(self) -> bool:
        """Whether it is the federation's."""
        return bool(self.model["source"] == "global")

    @property
    def is_shared(self) -> bool:
        """Whether it is the one that the others are compared with: the federation's model, or its shared head."""
        return self.is_global and kind_of(self.model) in (SHARED, SHARED_HEAD)

    @property
    def key(self) -> str:
        """Tell it from the device's other models."""
        return f"{kind_of(self.model)} {self.model['round']} {self.model['sha256']}"

    def gain(self, other: ModelEvaluation) -> float:
        """Return by how much it scores better than another."""
        return self.soundness.gain(other.soundness)


class PairedAnswers(NamedTuple):
    """How well two models answered the same examples (n,), and what these say of the first one."""

    examples: HeldOut
    quality: Quality
    other: Quality
    found: Soundness
    is_validated: bool = False
    """Whether the first one's answers are those of cross-validation."""

    @property
    def evidence(self) -> Evidence:
        """The first model's gain over the other."""
        return self.examples.evidence(self.quality, self.other)


class Windows(NamedTuple):
    """What models are run on: the holdout and, where cross-validation may say more, all labelled windows."""

    holdout: HeldOut
    labelled: HeldOut | None
    noun: str = "windows"
    threads: int = 1
    """That a model runs on."""

    @classmethod
    def of(
        cls,
        holdout: ClientWindows,
        labelled: ClientWindows | None,
        judged: ExampleKind,
        labels: Sequence[str],
        threads: int = 1,
    ) -> Windows:
        """Look at the holdout; labelled windows are asked where cross-validation has answered them."""
        can_ask = labelled is not None and judged.noun == "windows" and judged.task.target is TargetKind.CLASS
        held_out = HeldOut(labelled, judged.task, labels) if can_ask and labelled is not None else None
        return cls(HeldOut(holdout, judged.task, labels), held_out, judged.noun, threads)

    @property
    def groups(self) -> Groups:
        """Groups of the holdout that err together: stretches of time; of images each errs for itself."""
        holdout = self.holdout.windows
        return by_stretch(holdout) if self.noun == "windows" else singleton_groups(len(holdout), self.noun)

    def only_holdout(self) -> Windows:
        """Return the same without the windows that cross-validation has answered."""
        return self._replace(labelled=None)

    def compare(self, run: ModelEvaluation, other: ModelEvaluation) -> PairedAnswers | None:
        """Compare two models on the holdout, or where labelled windows are looked at on those; None without any.

        The labelled windows are answered by what cross-validation left of a model that was trained here.
        """
        if self.labelled is not None:
            return self._validated(self.labelled, run, other)
        if not len(self.holdout.windows):
            return None
        return PairedAnswers(self.holdout, run.quality, other.quality, run.soundness)

    def _validated(self, labelled: HeldOut, run: ModelEvaluation, other: ModelEvaluation) -> PairedAnswers | None:
        if run.validated is None or other.validated is None:
            return None
        known = (run.validated != NOT_VALIDATED) & (other.validated != NOT_VALIDATED)
        if not known.any():
            return None
        examples = labelled._replace(windows=labelled.windows.select(known))
        found = examples.task.judge(examples.windows.targets, run.validated[known], examples.labels, self.noun)
        quality = examples.quality(other.validated[known])
        return PairedAnswers(examples, found.quality, quality, found.soundness.of_part("labelled"), is_validated=True)


def run_again(model: Model | None, windows: Windows) -> ModelEvaluation | None:
    """Run a model that the device has; None if there is none, or it does not run any more."""
    if model is None:
        return None
    try:
        return run_model(Path(model["path"]), model, windows)
    except (AgentError, ExportError, OSError, ValueError) as error:
        log.warning("model failed to run model=%r: %s", name_of(model), error)
        return None


def run_model(path: Path, model: Model, windows: Windows) -> ModelEvaluation:
    """Classify the holdout, or one window of zeros where there is none: the model must run in any case."""
    session, holdout = Session.load(path, threads=windows.threads), windows.holdout.windows
    smoke = holdout.x if len(holdout) else np.zeros((1, *session.metadata.input.shape), np.float32)
    answered = _answers(session, smoke, path)[: len(holdout)]
    task = windows.holdout.task
    found, quality = task.judge(holdout.targets, answered, session.metadata.labels, windows.noun)
    labelled = windows.labelled and windows.labelled.windows
    return ModelEvaluation(model, found, quality, _validated(session, path, model, labelled))


def _answers(session: Session, x: npt.NDArray[np.float32], path: Path) -> Answers:
    prediction = session.predict(x)
    if not (np.isfinite(prediction.logits).all() and np.isfinite(prediction.embedding).all()):
        raise StoreError(f"{path.name} gives NaN or infinity on the device's own windows")
    return session.metadata.answered.answers(prediction.logits)


def _validated(session: Session, path: Path, model: Model, labelled: ClientWindows | None) -> Answers | None:
    """Return the answers to all labelled windows: a global model's own, of a personalized one those that were kept."""
    if labelled is None or not len(labelled):
        return None
    if model["source"] == "global":
        return _answers(session, labelled.x, path)
    kept = CrossValidation.read(validation_of(path))
    return kept.answers_to(labelled) if kept else None


def validation_of(path: Path) -> Path:
    """Return where the answers of cross-validation lie that belong to a model's file, in a job's folder or kept."""
    return path.parent / CROSS_VALIDATION if path.name == MODEL else path.with_suffix(".json")
