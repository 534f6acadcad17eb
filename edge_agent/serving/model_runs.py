"""A device's models run on the same windows: what each answers, whether it works, and which of two is better."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.errors import AgentError, StoreError
from edge_agent.serving.model_registry import name_of
from edge_agent.training.comparison import Groups, PairedComparison, by_stretch, is_small, singleton_groups
from edge_agent.training.cross_validation import NOT_VALIDATED, Answers, CrossValidation
from edge_agent.training.job import CROSS_VALIDATION, MODEL
from export.runtime import ExportError, Session
from federation.plan import Plan
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

    def groups(self, holdout: ClientWindows) -> Groups:
        """Group examples that err together: windows of a stretch of time; of images each errs for itself."""
        return by_stretch(holdout) if self.noun == "windows" else singleton_groups(len(holdout), self.noun)


class ModelEvaluation(NamedTuple):
    """A model, what the holdout says about it, and how well it answered each example (n,).

    `validated` (m,) are its answers to all labelled windows, where the holdout is small: of a personalized model those
    of cross-validation, `NOT_VALIDATED` where there are none.
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

    def gain(self, other: ModelEvaluation) -> float:
        """Return by how much it scores better than another."""
        return self.soundness.kind.gain(self.score, other.score)


class Evidence(NamedTuple):
    """How much one model scores better than another, the paired test of it, and by which windows.

    `soundness` is what these windows say of the one; `validated`: by answers of cross-validation, not on the holdout.
    """

    gain: float
    paired: PairedComparison
    found: Soundness
    other_score: float
    validated: bool = False

    def is_better(self, margin: float = 0.0) -> bool:
        """Whether it is shown to be better, by the margin at least."""
        return self.gain > 0 and self.gain >= margin and self.paired.is_better

    def is_worse(self, margin: float = 0.0) -> bool:
        """Whether it is shown to be worse, by the margin at least."""
        return self.gain <= 0 and -self.gain >= margin and self.paired.is_worse

    @property
    def words(self) -> str:
        """Both scores in words, and the counts of the test."""
        how = "by cross-validation over stretches of time, " if self.validated else ""
        return f"{how}{self.found.words} and {self.other_score:.3f} of the present model"


class Windows(NamedTuple):
    """What models are run on: the holdout and its groups and, where it is small, all labelled windows."""

    holdout: ClientWindows
    groups: Groups
    labelled: ClientWindows | None
    judged: ExampleKind

    @classmethod
    def of(cls, holdout: ClientWindows, labelled: ClientWindows | None, judged: ExampleKind) -> Windows:
        """Look at the holdout: `labelled` windows are asked only where it is small, and of classes alone."""
        groups = judged.groups(holdout)
        can_ask = judged.noun == "windows" and judged.task.target is TargetKind.CLASS
        asked = labelled is not None and can_ask and is_small(groups)
        return cls(holdout, groups, labelled if asked else None, judged)

    def compare(self, run: ModelEvaluation, other: ModelEvaluation) -> Evidence | None:
        """Compare two models, by cross-validation where there is one, else on the holdout; None where it is empty."""
        if (validated := self._validated(run, other)) is not None:
            return validated
        if not len(self.groups):
            return None
        paired = PairedComparison.of(self.groups, run.quality, other.quality)
        return Evidence(run.gain(other), paired, run.soundness, other.score)

    def _validated(self, run: ModelEvaluation, other: ModelEvaluation) -> Evidence | None:
        """Compare a personalized and a global model on the windows that cross-validation has answered; None: none."""
        if self.labelled is None or run.validated is None or other.validated is None:
            return None
        known = (run.validated != NOT_VALIDATED) & (other.validated != NOT_VALIDATED)
        if run.is_global == other.is_global or not known.any():
            return None
        windows = self.labelled.select(known)
        labels: Sequence[str] = getattr(run.soundness, "labels", ())
        (mine, right), (its, rightly) = (
            self.judged.task.judge(windows.targets, answers[known], labels, self.judged.noun)
            for answers in (run.validated, other.validated)
        )
        gain = mine.kind.gain(mine.score or 0.0, its.score or 0.0)
        paired = PairedComparison.of(by_stretch(windows), right, rightly)
        return Evidence(gain, paired, mine.of_part("labelled"), its.score or 0.0, validated=True)


def run_again(model: Model | None, windows: Windows, threads: int) -> ModelEvaluation | None:
    """Run a model that the device has; None if there is none, or it does not run any more."""
    if model is None:
        return None
    try:
        return run_model(Path(model["path"]), model, windows, threads)
    except (AgentError, ExportError, OSError, ValueError) as error:
        log.warning("model failed to run model=%r: %s", name_of(model), error)
        return None


def run_model(path: Path, model: Model, windows: Windows, threads: int) -> ModelEvaluation:
    """Classify the holdout, or one window of zeros where there is none: the model must run in any case."""
    session, holdout = Session.load(path, threads=threads), windows.holdout
    smoke = holdout.x if len(holdout) else np.zeros((1, *session.metadata.input.shape), np.float32)
    answered = _answers(session, smoke, path)[: len(holdout)]
    found, quality = windows.judged.task.judge(holdout.targets, answered, session.metadata.labels, windows.judged.noun)
    return ModelEvaluation(model, found, quality, _validated(session, path, model, windows.labelled))


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
    kept = CrossValidation.read(path.parent / CROSS_VALIDATION if path.name == MODEL else path.with_suffix(".json"))
    return kept.answers_to(labelled) if kept else None
