"""What a training process asks of what computes: torch, or ONNX Runtime with the federation's program.

`edge_agent.training.trainer` does a round by these calls; what a client is, a tree of tensors or a dict of arrays, only
the runtime knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from edge_agent.errors import JobError, StoreError, UnusableModelError
from edge_agent.storage.data_folder import sha256_of
from edge_agent.storage.images import Preparation
from edge_agent.training.job import Job
from edge_agent.training.local_data import LocalData
from edge_agent.training.processor import Placement
from edge_agent.training.round_budget import RoundBudget
from federation.errors import UpdateError, WireError
from federation.rounds.gains import Gains
from gaitway.tasks import Soundness

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


class TrainingRuntime(Protocol):
    """A job's windows, broadcast and model, ready to be computed with."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def placement(self) -> Placement:
        """What computes it."""

    @property
    def settings(self) -> Preparation:
        """How raw data become examples."""

    @property
    def data(self) -> LocalData:
        """The device's examples."""

    @property
    def has_global_model(self) -> bool:
        """Whether the server has one model for all."""

    @property
    def trains(self) -> bool:
        """Whether a client takes steps at all."""

    @property
    def keeps_partial_work(self) -> bool:
        """Whether an update is used whose client had no time for all steps."""

    @property
    def primary_metric(self) -> str:
        """Name of the task's."""

    def load_client(self) -> tuple[Client, Any]:
        """Return the client as its last round left it, or the initial one, and what its last upload lost."""

    def measured_as_received(self, client: Client) -> Measurement:
        """Measure a client on the holdout with the broadcast laid over it."""

    def measured(self, client: Client) -> Measurement:
        """Measure a client on the holdout."""

    def train(self, client: Client, budget: RoundBudget) -> TrainedRound:
        """Run the round, a checkpoint an epoch, until it is done or the budget says stop."""

    def class_counts(self) -> list[int] | None:
        """Count the training examples of each class."""

    def sent(self, trained: TrainedRound, residual: Any) -> SentUpload:
        """Write what travels, as the job's precision and compression have it, and what is kept."""

    def write_summand(self, trained: TrainedRound, steps: int, path: Path, gains: Gains) -> dict[str, Any]:
        """Write what the device adds to the round's secure sum, as whole numbers; return what they mean."""

    def is_trained(self) -> bool:
        """Whether the broadcast serves with other parameters than the network that the federation began with."""

    def shared_model(self, client: Client) -> Served:
        """Return the network that the server's model serves with, for this client; only where there is one."""

    def personal_model(self, client: Client) -> Served:
        """Return the network that a client serves with."""

    def midway_model(self, first: Served, second: Served) -> Served:
        """Return the network with weights midway between two."""

    def answers(self, served: Served, data: LocalData) -> np.ndarray:
        """Return a network's answers (n, ...) to the holdout."""

    def retrain(self, fold: LocalData) -> Client:
        """Train the round again, from its beginning, on a fold's training windows, and return the client."""

    def save(self, served: Served, folder: Path, round_number: int) -> None:
        """Write the checkpoint of a network into a folder; the round made it."""

    def export(self, checkpoints: Mapping[Path, Path]) -> None:
        """Write checkpoint, ONNX model and parity report into each folder, from the checkpoint that it stands for."""

    def update_heads(self, client: Client | None) -> None:
        """Make a continuous federation's heads, of the client that was trained, or of the one that is kept."""


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
