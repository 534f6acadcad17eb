"""The parts of the files that `python -m sim run` writes, each validated when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from federation.tasks import task_from_json
from federation.tasks.task import Task
from gaitway.tasks import Metric
from sim.experiment.settings import Experiment

Selection = Literal["validation", "last", "best"]


class Record(BaseModel):
    """An immutable part of a file; keys that a later version adds are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, protected_namespaces=())


class MeanStd(Record):
    """Mean and population standard deviation over clients."""

    mean: float
    std: float


Spread = dict[str, MeanStd]
"""Each of the task's metrics over clients."""


def _none_for_nan(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


Plain = dict[str, Annotated[float | None, BeforeValidator(_none_for_nan)]]
"""Each of the task's metrics of one model on one set; None where the set was empty."""


class Scored(Record):
    """What has scores by name, of which `global` is a word of Python's."""

    def score(self, name: str) -> Any:
        """Return one score: of one model, or of all clients' own, or its confusions; None where it has none."""
        return getattr(self, "global_" if name == "global" else name)

    def mean(self, name: str, metric: str) -> float | None:
        """Return one metric of a score, its mean where it is of many clients."""
        value: MeanStd | float | None = (self.score(name) or {}).get(metric)
        return value.mean if isinstance(value, MeanStd) else value


class RunConfig(Experiment):
    """`config.json`: the experiment, and where it was made; keys that a later version adds are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    split_leaks: bool
    findings: tuple[str, ...] = ()
    partition_class_names: tuple[str, ...] | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: str = ""
    parameters: dict[str, int] = Field(default_factory=dict)
    data_sha256: str | None = None  # of all clients' examples; none in runs of an earlier version

    @property
    def partition_labels(self) -> tuple[str, ...]:
        """Names of the classes that partitions deal by, and `clients.json` counts."""
        return self.labels if self.partition_class_names is None else self.partition_class_names

    @property
    def learnt(self) -> Task:
        """The task."""
        return task_from_json(self.task)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The task's metrics, the primary one first."""
        return self.learnt.metric_kinds

    @property
    def primary(self) -> tuple[str, Metric]:
        """The metric that rounds are chosen by, and its name."""
        name = self.learnt.primary_metric
        return name, self.metrics[name]

    @property
    def model_name(self) -> str:
        """Names of the networks, joined by +."""
        return "+".join(spec.name for spec in self.models)

    @property
    def method_name(self) -> str:
        """Name of the federated method."""
        return str(self.method["name"])

    @property
    def planned_rounds(self) -> int:
        """Rounds that the run was asked for."""
        return self.rounds.rounds

    @property
    def seed(self) -> int:
        """Seed of partitions, cohorts, initial weights and batch orders."""
        return self.training.seed


class ClientExamples(Record):
    """One line of `clients.json`: examples by part and class."""

    train: int
    validation: int = 0
    test: int
    train_per_class: tuple[int, ...]
    test_per_class: tuple[int, ...]


class RoundAnalyses(Record):
    """What `sim.rounds.analyses` has measured after a round; what a method has nothing of is None.

    `server_loss`, `gradient_dissimilarity`, (1/K) Σ‖∇L_k − ∇L‖², and `gradient_square`, ‖∇L‖², are of the server's
    model, over the training examples of so many `clients`.
    """

    clients: int
    server_loss: float | None = None
    gradient_dissimilarity: float | None = None
    gradient_square: float | None = None
    aggregate_margin: float | None = None


class RoundRecord(Scored):
    """One line of `rounds.jsonl`; `bytes_*` and `numbers_up` (`sim.rounds.collection`) are means over clients."""

    round: int
    cohort: tuple[str, ...]
    train_loss: float | None  # none where nobody trained
    evaluated: bool
    personalization: Spread | None = None
    generalization: Spread | None = None
    global_: Plain | None = Field(default=None, alias="global")
    validation: Spread | None = None  # on what was cut off the training sets, and the round is chosen by
    bytes_up: float
    bytes_down: float
    numbers_up: float | None = None  # none with masks, and in runs of an earlier version
    analyses: RoundAnalyses | None = None  # of an evaluated round, where the run was asked for them
    lost: tuple[str, ...] = ()  # of the cohort, those whose update never came
    capped: dict[str, int] = {}  # the examples that a client counted with, of those that have more
    excluded: dict[str, str] = {}  # why a client's update was not used
    failed: str | None = None  # why the round made no new model
    paused: str | None = None  # why there is no other after it
    secure: dict[str, float] = {}  # of the round's secure sum: its size, graph and cost
    seconds: dict[str, float]
    diagnostics: dict[str, Any] = {}  # `sim.scores.diagnostics` knows what is inside

    @property
    def moved_bytes(self) -> float:
        """Bytes of all clients up and down; who was lost took the download, and sent nothing."""
        return self.bytes_down * len(self.cohort) + self.bytes_up * (len(self.cohort) - len(self.lost))


class NewClients(Record):
    """How a finished federation serves clients that took no part in it, after the first k examples of each class.

    `together`, by k, has the scores of all their examples as one test set. `client_models` is the mean over all
    clients' own models, in methods without a server model. `turned` has the scores of phones that are carried
    otherwise or measure worse, by the way and by k; `heads` those of each head that a device could take, and `far`
    the share of clients that take the one without axes as they join. `unlabelled` is after adaptation to windows
    without labels (`sim.scores.diagnostics`), where the network's head allows it; `own_windows`, by the way, is what a
    device serves with once it has collected the training windows of a client, without labels, in a method that
    adapts by itself (`SumMethod.adapted_model`), and `adapted` the share of clients that do.
    """

    clients: tuple[str, ...]
    epochs: int
    shots: dict[int, Spread | None]
    together: dict[int, dict[str, float | None]] = {}
    client_models: Spread | None = None
    turned: dict[str, dict[int, Spread | None]] = {}
    heads: dict[str, dict[int, dict[str, Spread | None]]] = {}
    far: dict[str, float] = {}
    unlabelled: Spread | None = None
    own_windows: dict[str, Spread | None] = {}
    adapted: dict[str, float] = {}


SELECTIONS: tuple[Selection, ...] = ("validation", "last", "best")
"""The ways of choosing the round whose scores are reported, the one to trust first."""


class SelectedRound(Scored):
    """The scores of one round.

    Both client scores are None where no client has a model and a test set of its own: the method pooled their data.
    """

    round: int
    personalization: Spread | None
    generalization: Spread | None
    global_: Plain | None = Field(default=None, alias="global")
    global_per_client: Spread | None = None


class Summary(Scored):
    """`summary.json`, which exists once the last round is done.

    The scores that stand by themselves are of the best round by test.
    """

    clients: int
    rounds: int
    seed: int
    best_round: int
    personalization: Spread | None
    generalization: Spread | None
    global_: Plain | None = Field(default=None, alias="global")
    global_per_client: Spread | None = None
    validation: SelectedRound | None
    last: SelectedRound
    new_clients: NewClients | None = None
    seconds: dict[str, float]
    bytes_up: float
    bytes_down: float
    client_bytes: float | None = None  # that a client holds while it trains; none in runs of an earlier version

    @property
    def is_unscored(self) -> bool:
        """Whether there was no example to score anything on, as of a pretraining on all windows."""
        served = (self.last.global_ or {}).values()
        return self.last.personalization is None and all(value is None for value in served)

    def selected(self, selection: Selection) -> SelectedRound | None:
        """Return the scores of the round that was chosen so; None by validation where there were no examples for it."""
        if selection == "best":
            own = {name: getattr(self, name) for name in SelectedRound.model_fields if name != "round"}
            return SelectedRound(round=self.best_round, **own)
        chosen: SelectedRound | None = getattr(self, selection)
        return chosen

    @property
    def trusted(self) -> Selection:
        """The selection that claims may rest on: by validation, or else the last round, which is no choice."""
        return "validation" if self.validation else "last"


class ClientRound(Scored):
    """One client in one round: its own model's scores, and the server's model's on its test set."""

    personalization: Plain | None = None
    generalization: Plain | None = None
    global_: Plain | None = Field(default=None, alias="global")


class ClientScore(ClientRound):
    """One client's entry of `client_scores.json`; the scores that stand by themselves are of the best round by test."""

    validation: ClientRound | None
    last: ClientRound
    train: int
    test: int

    def selected(self, selection: Selection) -> ClientRound | None:
        """Return the scores of the round that was chosen so."""
        chosen: ClientRound | None = self if selection == "best" else getattr(self, selection)
        return chosen


Counts = tuple[tuple[int, ...], ...]


class Confusions(Scored):
    """Counts (C, C) summed over clients: rows true, columns predicted."""

    personalization: Counts | None = None
    generalization: Counts | None = None
    global_: Counts | None = Field(default=None, alias="global")
