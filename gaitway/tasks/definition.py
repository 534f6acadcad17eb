"""What a task is without torch: what devices, the server, exports and pages must know of what a federation learns.

A task is one class here and its torch half (`trained_by`: loss and statistics) in `federation.tasks`. Everything else
asks these two: a package that adds a task by an entry point adds it everywhere.
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
"""How good an answer is to each example (n,): right or wrong, a share, or an error with a minus sign."""


class TaskError(GaitwayError):
    """A task's options contradict each other, or it is asked for what it does not do."""


class TargetKind(StrEnum):
    """What an example is to be answered with."""

    CLASS = "class"
    MASK = "mask"
    """A class for every pixel of an image."""
    NUMBER = "number"
    """A number in a unit of its own, such as steps a minute."""
    WINDOW = "window"
    """The example itself: nobody has to annotate anything."""


class Judgement(NamedTuple):
    """What a set of examples says about a model, and how well it answered each (n,)."""

    soundness: Soundness
    quality: Quality


@dataclass(frozen=True, kw_only=True)
class TaskDefinition(ABC):
    """A task without torch: its fields are its options."""

    name: ClassVar[str]
    trained_by: ClassVar[str]
    """Its torch half, as `module:class`."""

    # ---- what it is measured by

    metric_kinds: ClassVar[Mapping[str, Metric]]
    """What `scores` returns, by name; the primary one first."""
    primary_metric: ClassVar[str]
    """What rounds are chosen by, and methods compared by."""
    trivial_answer: ClassVar[str]
    """What needs no learning, and what a model must beat, in words that begin with 'of'."""
    class_metric: ClassVar[Metric | None] = None
    """What `scores_by_class` returns for each class; None where a class has no score of its own."""
    scored_unit: ClassVar[str] = "examples"
    """What class scores count."""

    # ---- what it learns from

    target: ClassVar[TargetKind] = TargetKind.CLASS
    has_classes: ClassVar[bool] = True
    """Whether it learns classes, and so from labelled examples alone; methods may take prototypes of them."""
    min_labels: ClassVar[int] = 2
    """How many names a plan's labels have at the least: of classes two, of a number its own and its unit."""
    max_labels: ClassVar[int] = 1
    """How many labels an example has at the most; where it is one, each example has one."""
    input_kind: ClassVar[str | None] = None
    """The only kind of input that it can learn from; None: any."""

    # ---- what devices do with it

    is_served: ClassVar[bool] = True
    """Whether devices use what is learnt, and so export, judge and adopt models."""
    inference_batch: ClassVar[int] = 256
    """Examples that are answered together."""
    min_gate_examples: ClassVar[int] = 256
    """How many examples an exported model is compared with torch on."""
    min_agreement: ClassVar[float] = 1.0
    """Share of answers that must be torch's; among many pixels some have two classes closer than rounding."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the first metric for the primary one."""
        super().__init_subclass__(**kwargs)
        if kinds := getattr(cls, "metric_kinds", None):
            cls.primary_metric = next(iter(kinds))

    @classmethod
    def takes(cls, target: str) -> bool:
        """Whether it learns such targets, or at least ignores them."""
        return cls.target in (target, TargetKind.WINDOW)

    def labels(self, classes: tuple[str, ...], number: str) -> tuple[str, ...]:
        """Return what a plan's labels are where examples have these classes, and a number of this name ("": none)."""
        return (number,) if self.target is TargetKind.NUMBER else classes

    def advice(self, targets: npt.NDArray[Any]) -> str:
        """Say what of the options does not fit these targets of training (n, …), and what to do; "" where all does."""
        return ""

    @property
    def outside(self) -> int | None:
        """The target of what an image does not reach, where targets lie as its pixels do, and move with them.

        None where augmentation leaves the targets as they are.
        """
        return None

    def class_of_mask(self, mask: npt.NDArray[Any]) -> int | None:
        """Return the class by which a mask (height, width) is dealt and counted; None where no pixel has one.

        Raises:
            TaskError: for a task that learns no masks.
        """
        raise TaskError(f"{self.name} learns no masks")

    # ---- what statistics say

    @abstractmethod
    def scores(self, statistics: Arrays) -> dict[str, float]:
        """Return each metric by name; NaN where the statistics are of no examples."""

    def trivial(self, statistics: Arrays) -> float | None:
        """Return the primary metric of the answer that needs no learning; None where the statistics are of nothing."""
        return None

    def scores_by_class(self, statistics: Arrays) -> list[float]:
        """Return the score of each class (C,), NaN for one that is neither present nor predicted; [] without any."""
        return []

    @abstractmethod
    def soundness(self, statistics: Arrays, examples: int, labels: Sequence[str], noun: str = "windows") -> Soundness:
        """Say whether a model works by the statistics of so many held-out examples, which are called `noun`."""

    # ---- what an exported model answers

    def answer_shape(self, example_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what is answered in one example, beside the classes: () or (height, width)."""
        return ()

    def answers(self, logits: npt.NDArray[np.float32]) -> Answers:
        """Read what a model says (n, C, …) as answers (n, …)."""
        found: Answers = logits.argmax(axis=1).astype(np.int64)
        return found

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the probability of each class (n, C, …) of what a model says; (n, 0) of a task without classes."""
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        found: npt.NDArray[np.float32] = shifted / shifted.sum(axis=1, keepdims=True)
        return found

    def agreement(self, logits: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> float:
        """Return the share of answers in which what two models say (n, C, …) is as good as the same."""
        return float(np.mean(logits.argmax(axis=1) == others.argmax(axis=1)))

    @property
    def max_score_loss(self) -> float:
        """How much of the primary metric an int8 model may lose against float32."""
        return 0.005

    def words(self, answer: float, labels: Sequence[str]) -> str:
        """Write one example's answer for people."""
        return labels[int(answer)]

    def judge(self, truth: Answers, answered: Answers, labels: Sequence[str], noun: str = "windows") -> Judgement:
        """Compare true and answered targets (n, …) of examples that are called `noun`.

        Raises:
            TaskError: for a task whose models devices do not use.
        """
        raise TaskError(f"{self.name}: devices have no use for its models, so none is judged")

    def improves(self, score: float | None, best: float | None) -> bool:
        """Whether a primary metric is better than the best so far; None is no score, and worse than any."""
        if score is None or best is None:
            return score is not None
        return self.metric_kinds[self.primary_metric].gain(score, best) > 0
