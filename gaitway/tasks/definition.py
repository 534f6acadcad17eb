"""A task without torch: what devices, the server, exports and pages need to know about a federation's task.

A task is one class here and its torch half (`trained_by`: loss and statistics) in `federation.tasks`. All other code
uses these two, so a package that adds a task by an entry point adds it everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.errors import GaitwayError
from gaitway.python310 import StrEnum
from gaitway.tasks.soundness import Metric, Soundness

Arrays = Mapping[str, npt.NDArray[Any]]
"""A task's statistics of a set of examples, by name; those of two sets add array by array."""

Answers = npt.NDArray[Any]
"""True or predicted targets (n, …): class numbers int64, or numbers float64."""

Quality = npt.NDArray[np.float64] | npt.NDArray[np.int64] | npt.NDArray[np.bool_]
"""The quality of each example's answer (n,): right or wrong, a share, or a negated error."""


class TaskError(GaitwayError):
    """A task's options contradict each other, or the task doesn't support the request."""


class TargetKind(StrEnum):
    """The kind of answer that an example has."""

    CLASS = "class"
    MASK = "mask"
    """A class for every pixel of an image."""
    NUMBER = "number"
    """A number in its own unit, such as steps per minute."""
    WINDOW = "window"
    """The example itself, so no annotation is needed."""


class Judgement(NamedTuple):
    """A model's evaluation on a set of examples, and the quality of each answer (n,)."""

    soundness: Soundness
    quality: Quality


@dataclass(frozen=True, kw_only=True)
class TaskDefinition(ABC):
    """A task without torch: its fields are its options."""

    name: ClassVar[str]
    trained_by: ClassVar[str]
    """Its torch half, as `module:class`."""

    # ---- metrics

    metric_kinds: ClassVar[Mapping[str, Metric]]
    """The metrics that `scores` returns, by name, the primary one first."""
    primary_metric: ClassVar[str]
    """The metric for choosing rounds and comparing methods."""
    trivial_answer: ClassVar[str]
    """The trivial answer that a model must beat, as a phrase that begins with 'of'."""
    class_metric: ClassVar[Metric | None] = None
    """The metric that `scores_by_class` returns; None if classes have no scores of their own."""
    scored_unit: ClassVar[str] = "examples"
    """What class scores count."""

    # ---- inputs and targets

    target: ClassVar[TargetKind] = TargetKind.CLASS
    has_classes: ClassVar[bool] = True
    """Whether it learns classes, and so only from labelled examples; methods can use class prototypes."""
    min_labels: ClassVar[int] = 2
    """Minimum number of a plan's labels: two classes, or one number with its unit."""
    max_labels: ClassVar[int] = 1
    """Maximum number of labels per example; if it is one, each example has one."""
    input_kind: ClassVar[str | None] = None
    """The only kind of input that it accepts; None: any."""

    # ---- use on devices

    is_served: ClassVar[bool] = True
    """Whether devices use the models, and so export, evaluate and adopt them."""
    inference_batch: ClassVar[int] = 256
    """Examples that are answered together."""
    min_gate_examples: ClassVar[int] = 256
    """Number of examples for comparing an exported model with torch."""
    min_agreement: ClassVar[float] = 1.0
    """Share of answers that must equal torch's; among many pixels, some have two classes closer than rounding."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Use the first metric as the primary one."""
        super().__init_subclass__(**kwargs)
        if kinds := getattr(cls, "metric_kinds", None):
            cls.primary_metric = next(iter(kinds))

    @classmethod
    def takes(cls, target: str) -> bool:
        """Whether the task learns such targets, or at least ignores them."""
        return cls.target in (target, TargetKind.WINDOW)

    def labels(self, classes: tuple[str, ...], number: str) -> tuple[str, ...]:
        """Return a plan's labels for examples with these classes and a number of this name ("": none)."""
        return (number,) if self.target is TargetKind.NUMBER else classes

    def advice(self, targets: npt.NDArray[Any]) -> str:
        """Say which options don't fit these training targets (n, …), and what to do; "" if all fit."""
        return ""

    @property
    def outside(self) -> int | None:
        """The target of padding, for targets that are laid out like an image's pixels and move with them.

        None if augmentation doesn't change the targets.
        """
        return None

    def class_of_mask(self, mask: npt.NDArray[Any]) -> int | None:
        """Return the class by which a mask (height, width) is partitioned and counted; None if no pixel has one.

        Raises:
            TaskError: for a task that learns no masks.
        """
        raise TaskError(f"{self.name} learns no masks")

    # ---- scores from statistics

    @abstractmethod
    def scores(self, statistics: Arrays) -> dict[str, float]:
        """Return each metric by name; NaN without examples."""

    def trivial(self, statistics: Arrays) -> float | None:
        """Return the trivial answer's primary metric; None without examples."""
        return None

    def scores_by_class(self, statistics: Arrays) -> list[float]:
        """Return each class's score (C,), NaN for classes neither present nor predicted; [] without class scores."""
        return []

    @abstractmethod
    def soundness(self, statistics: Arrays, examples: int, labels: Sequence[str], noun: str = "windows") -> Soundness:
        """Judge whether a model works from the statistics of this many held-out examples, which are called `noun`."""

    # ---- answers of an exported model

    def answer_shape(self, example_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one example's answer without the class dimension: () or (height, width)."""
        return ()

    def answers(self, logits: npt.NDArray[np.float32]) -> Answers:
        """Turn a model's output (n, C, …) into answers (n, …)."""
        found: Answers = logits.argmax(axis=1).astype(np.int64)
        return found

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Turn a model's output into the probability of each class (n, C, …); (n, 0) for a task without classes."""
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        found: npt.NDArray[np.float32] = shifted / shifted.sum(axis=1, keepdims=True)
        return found

    def agreement(self, logits: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> float:
        """Return the share of answers on which two models' outputs (n, C, …) practically agree."""
        return float(np.mean(logits.argmax(axis=1) == others.argmax(axis=1)))

    @property
    def max_score_loss(self) -> float:
        """How much of the primary metric an int8 model may lose compared with float32."""
        return 0.005

    def words(self, answer: float, labels: Sequence[str]) -> str:
        """Write one example's answer for people."""
        return labels[int(answer)]

    def judge(self, truth: Answers, answered: Answers, labels: Sequence[str], noun: str = "windows") -> Judgement:
        """Compare true and answered targets (n, …) of examples called `noun`.

        Raises:
            TaskError: for a task whose models devices don't use.
        """
        raise TaskError(f"{self.name}: devices don't use its models, so none can be evaluated")

    def improves(self, score: float | None, best: float | None) -> bool:
        """Whether a primary metric is better than the best so far; None means no score, worse than any."""
        if score is None or best is None:
            return score is not None
        return self.metric_kinds[self.primary_metric].gain(score, best) > 0
