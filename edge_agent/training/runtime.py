"""The interface of training runtimes, and the code that they share with and without torch.

`edge_agent.training.trainer` does a round by these calls. There are three runtimes: torch, ONNX Runtime with the
federation's program, and ONNX Runtime with exact sums. What a client is, a tree of tensors or a dict of arrays, only
the runtime knows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.errors import JobError, NonRetryableJobError, StoreError, UnusableModelError
from edge_agent.machine.state import leaves_model
from edge_agent.storage.data_folder import sha256_of, write_file
from edge_agent.storage.images import Preparation
from edge_agent.training.job import HEADS, ORIENTATION, PARITY, UNTRAINED, Job
from edge_agent.training.limits import ON_CPU, Placement, RoundBudget
from edge_agent.training.local_data import LocalData, noun
from federation.aggregation.ridge_numpy import FAR, FixedSums, feature_moments
from federation.errors import UpdateError, WireError
from federation.rounds.gains import Gains
from federation.rounds.serving import ADAPTED, usable_heads
from gaitway.input_spec import InputSpec
from gaitway.tasks import Soundness, TaskDefinition, task_of

Client = Any
"""What a device keeps of its model between rounds, as the runtime has it."""


Served = Any
"""One network that a device can serve with, as the runtime has it."""


class Measurement(NamedTuple):
    """What the holdout says about a model: the task's metrics by name, and whether it works."""

    metrics: Mapping[str, float]
    sound: Soundness
    classes: Sequence[float] = ()
    """The score of each class; NaN for one that the holdout does not have."""


class TrainedRound(NamedTuple):
    """What a local round leaves: the client as it is kept, what travels, its last epoch's mean loss; steps by plan."""

    client: Client
    upload: Any
    loss: float
    asked_steps: int


class SentUpload(NamedTuple):
    """An upload's bytes, and the client's as it is kept until its next one."""

    upload: bytes
    client: bytes


class Orientation(NamedTuple):
    """How far gravity lies from what is usual (`models.har_features`), in deviations; None: nobody has said what is."""

    distance: float | None

    @classmethod
    def of(cls, shared: FixedSums, columns: Sequence[int], gravity: np.ndarray) -> Orientation:
        """Compare gravity (n, D) on a device's windows with that in the shared sums, whose `columns` it is."""
        usual = feature_moments(shared, columns) if columns and len(gravity) else None
        return cls(usual.distance(gravity.astype(np.float64).mean(0)) if usual else None)

    @property
    def is_far(self) -> bool:
        """Whether a head that does not know the axes is the safer one."""
        return self.distance is not None and self.distance > FAR

    def to_json(self) -> bytes:
        """Write it as a file has it."""
        return json.dumps({"distance": self.distance, "is_far": self.is_far}).encode()


class TrainingRuntime(ABC):
    """A job's windows, broadcast and model, ready to be computed with; what a runtime has no use for it refuses."""

    refusal: str
    """Why it does not do what it leaves out."""

    def __init__(self, job: Job, settings: Preparation, data: LocalData, placement: Placement = ON_CPU) -> None:
        self.job, self.settings, self.data, self.placement = job, settings, data, placement
        self.task: TaskDefinition = task_of(job.plan.task)

    @property
    def input_spec(self) -> InputSpec:
        """Describe the examples to a model."""
        return self.settings.input_spec(self.data.mean, self.data.std)

    @property
    def refused(self) -> NonRetryableJobError:
        """The error of what it leaves out."""
        return NonRetryableJobError(self.refusal)

    # ---- rounds

    @property
    @abstractmethod
    def has_global_model(self) -> bool:
        """Whether the server has one model for all."""

    @property
    @abstractmethod
    def trains(self) -> bool:
        """Whether a client takes steps at all."""

    @property
    @abstractmethod
    def keeps_partial_work(self) -> bool:
        """Whether an update is used whose client had no time for all steps."""

    @abstractmethod
    def load_client(self) -> tuple[Client, Any]:
        """Return the client as its last round left it, or the initial one, and what its last upload lost.

        Raises:
            JobError: if the kept state is of another model.
        """

    @abstractmethod
    def received(self, client: Client) -> Client:
        """Lay the broadcast over a client."""

    @abstractmethod
    def statistics(self, client: Client) -> Mapping[str, np.ndarray]:
        """Compare a client's answers to the holdout with what they should be, as the task's metrics need it."""

    def measured(self, client: Client) -> Measurement:
        """Measure a client on the holdout."""
        found, plan = self.statistics(client), self.job.plan
        sound = self.task.soundness(found, len(self.data.holdout), plan.labels, noun(self.settings))
        return Measurement(self.task.scores(found), sound, self.task.scores_by_class(found))

    @abstractmethod
    def train(self, client: Client, budget: RoundBudget) -> TrainedRound:
        """Run the round, a checkpoint an epoch, until it is done or the budget says stop.

        Raises:
            UpdateError: if training left NaN or infinity.
        """

    def class_counts(self) -> list[int] | None:
        """Count the training examples of each class."""
        if not self.task.has_classes:
            return None
        counted: list[int] = np.bincount(self.data.train.y, minlength=len(self.job.plan.labels)).tolist()
        return counted

    @abstractmethod
    def sent(self, trained: TrainedRound, residual: Any) -> SentUpload:
        """Write what travels, as the job's precision and compression have it, and what is kept."""

    def write_summand(self, trained: TrainedRound, steps: int, path: Path, gains: Gains) -> dict[str, Any]:
        """Write what the device adds to the round's secure sum, as whole numbers.

        Returns, as JSON, what they mean and how large they may be.
        """
        raise self.refused

    # ---- models to serve with

    @abstractmethod
    def is_trained(self) -> bool:
        """Whether the broadcast serves with other parameters than the network that the federation began with."""

    def shared_model(self, client: Client) -> Served:
        """Return the network that the server's model serves with, for this client; only where there is one."""
        raise self.refused

    def personal_model(self, client: Client) -> Served:
        """Return the network that a client serves with."""
        raise self.refused

    def midway_model(self, first: Served, second: Served) -> Served:
        """Return the network with weights midway between two; what is no number with a fraction is the second's."""
        raise self.refused

    def answers(self, served: Served, data: LocalData) -> np.ndarray:
        """Return a network's answers (n, ...) to the holdout."""
        raise self.refused

    def retrain(self, fold: LocalData) -> Client:
        """Train the round again, from its beginning, on a fold's training windows, and return the client.

        The client is one that has taken part in nothing: what the method keeps has seen the fold.
        """
        raise self.refused

    def save(self, served: Served, folder: Path, round_number: int) -> None:
        """Write the checkpoint of a network into a folder; the round made it."""
        raise self.refused

    def export(self, checkpoints: Mapping[Path, Path]) -> None:
        """Write checkpoint, ONNX model and parity report into each folder, from the checkpoint that it stands for."""
        raise self.refused

    # ---- heads of a continuous federation

    def update_heads(self, client: Client | None) -> None:
        """Make each head that the device can serve with, of the client that was trained, or of the one that is kept.

        Raises:
            NonRetryableJobError: if there is none yet.
        """
        job = self.job
        if client is None:
            client = self.refreshed_client()
        if not leaves_model(job.plan):
            return
        is_labelled = self.data.is_labelled
        heads = usable_heads(self.heads(client), is_trained=self.is_trained(), is_labelled=is_labelled)
        if not heads:
            raise NonRetryableJobError(UNTRAINED)
        orientation = self.orientation()
        if not is_labelled and (adapted := self.adapted_head(client, is_far=orientation.is_far)) is not None:
            heads[ADAPTED] = adapted
        self.save_heads(heads, max(0, job.round - 1) if job.kind == "train" else job.round)
        write_file(job.out / HEADS / ORIENTATION, orientation.to_json())

    def refreshed_client(self) -> Client:
        """Return the client that is kept, with the newest sums of everybody."""
        return self.load_client()[0]

    def heads(self, client: Client) -> Mapping[str, Served]:
        """Solve every head of everybody's sums and the client's own, by name."""
        raise self.refused

    def orientation(self) -> Orientation:
        """Measure how far gravity on all windows lies from that in the shared sums."""
        raise self.refused

    def adapted_head(self, client: Client, *, is_far: bool) -> Served | None:
        """Return what serves a device without labels that has windows enough; nothing of them is sent."""
        raise self.refused

    def save_heads(self, heads: Mapping[str, Served], version: int) -> None:
        """Write ONNX model, checkpoint and parity report of each head; version: of the federation's sums in them.

        Raises:
            UnusableModelError: if one has NaN or infinity in its weights.
        """
        raise self.refused


def parity_examples(data: LocalData, count: int) -> np.ndarray:
    """Return the holdout's raw examples (n, ...), then training examples, up to a number."""
    return np.concatenate([data.holdout.x, data.train.x])[:count]


class FileParity(NamedTuple):
    """How far a model's file and what it was made of agree on a device's own examples."""

    max_abs_diff: float
    argmax_agreement: float
    windows: int
    windows_from: str
    batch_agreement: float | None = None

    @classmethod
    def of(cls, found: np.ndarray, expected: np.ndarray, origin: str) -> FileParity:
        """Compare logits (n, K) of both."""
        difference = float(np.abs(found - expected).max(initial=0))
        agreement = float((found.argmax(1) == expected.argmax(1)).mean()) if len(found) else 1.0
        return cls(difference, agreement, len(found), f"{len(found)} {origin}")

    def write(self, folder: Path) -> None:
        """Write the report beside the model."""
        write_file(folder / PARITY, json.dumps(self._asdict()).encode())


@contextmanager
def blaming_model(what: str = "the server's model can't be used") -> Iterator[None]:
    """Blame the server's model for what goes wrong with it: its bytes are the announced ones. `what` goes wrong.

    Raises:
        UnusableModelError: in place of what says that the model can't be used.
    """
    try:
        yield
    except (UpdateError, WireError, StoreError) as error:
        raise UnusableModelError(f"{what}: {error}") from error


def require_whole_broadcast(job: Job) -> None:
    """Refuse a broadcast that is not the announced one.

    Raises:
        JobError: if its bytes are others.
    """
    if sha256_of(job.broadcast) != job.model.sha256:
        raise JobError(f"the broadcast in {job.broadcast} is damaged: its sha256 is not the announced one")
