"""What a comparison consists of: groups of rows, their scores, curves and tests; the layout of comparison.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from federation.tasks import TASKS
from gaitway.tasks import Metric
from sim.results.statistics import PairedTest, Ranking
from sim.scores.records import Selection

SCORES = ("personalization", "worst", "generalization", "global")
NEW_CLIENTS = "new_clients_"
"""Begins the columns, one for each k, of clients that took no part, after the first k examples of each class."""
ROUND_SCORES = ("personalization", "global")
"""The scores that runs have after every round."""
PAIRED = ("personalization", "generalization", "global_per_client")
"""The scores that are tested: those that every client has one of, so that their spread over clients is known."""


def columns_of(metrics: Iterable[str], scores: Sequence[str] = SCORES) -> tuple[str, ...]:
    """Name the columns of these metrics, such as `personalization.macro_f1`, metric by metric."""
    return tuple(f"{score}.{metric}" for metric in metrics for score in scores)


@dataclass(frozen=True)
class ComparedScore:
    """One metric of one score; `clients_std` is the mean over seeds of the std over clients."""

    mean: float
    clients_std: float | None = None
    seeds_std: float | None = None


@dataclass(frozen=True)
class Curve:
    """Mean over seeds of the primary metric, by round, and the bytes that all clients together had moved by then."""

    rounds: tuple[int, ...]
    moved_bytes: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class SelectionScores:
    """The rounds that a way of choosing them chose in a row's runs, and their scores."""

    rounds: tuple[int, ...]
    scores: Mapping[str, ComparedScore | None]


@dataclass(frozen=True)
class Row:
    """One configuration, over its seeds; bytes are per client and round, seconds per run.

    `train_seconds` are of one client's local round, `client_bytes` what it holds meanwhile.

    `scores`, `ranks`, `tests` and `chosen_rounds` are of the comparison's selection; `selected` has the rounds and the
    scores of every selection that all of the row's runs have. `tests` are against the row `baseline`, None for a
    baseline itself; a `reference` sees what no federation can, and takes no part in the ranks.
    """

    label: str
    method: str
    model: str
    reference: bool
    seeds: tuple[int, ...]
    directories: tuple[str, ...]
    clients: int
    rounds: int
    chosen_rounds: tuple[int, ...]
    scores: Mapping[str, ComparedScore | None]
    ranks: Mapping[str, int]
    bytes_up: float
    bytes_down: float
    seconds: float
    train_seconds: float | None
    client_bytes: float | None
    curves: Mapping[str, Curve]
    selected: Mapping[Selection, SelectionScores]
    baseline: str | None = None
    tests: Mapping[str, PairedTest] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Runs of one task that were tested on the same examples, with one family of models.

    They are unranked where `refused` gives a reason. `where` names the settings that tell this group from others of the
    same data and family.
    """

    task: str
    data: str
    model: str
    where: str
    rows: tuple[Row, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The task's metrics, the primary one first."""
        return TASKS[self.task].metric_kinds

    @property
    def primary(self) -> str:
        """The name of the task's primary metric."""
        return TASKS[self.task].primary_metric

    def metric_of(self, column: str) -> Metric:
        """Return the metric of a column."""
        return self.metrics[column.split(".")[1]]

    @property
    def title(self) -> str:
        """The group's name in tables and figures."""
        networks = ", ".join(dict.fromkeys(row.model for row in self.rows))
        return f"{self.data} · {networks}" + (f" · {self.where}" if self.where else "")


@dataclass(frozen=True)
class OverDatasets:
    """Ranks of methods over the data sets that all of them ran on, by one score, with one family of models."""

    task: str
    model: str
    column: str
    datasets: tuple[str, ...]
    ranking: Ranking


@dataclass(frozen=True)
class Comparison:
    """All groups, by the scores of one selection; `warnings` name the runs left out, and what was kept apart."""

    groups: tuple[Group, ...]
    selection: Selection
    over_datasets: tuple[OverDatasets, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = field(default=3, init=False)
