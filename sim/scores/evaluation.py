"""The three scores: personalization, generalization, global (Ek et al. 2024, section 5.1).

Where a run's scores stand: every client's latest, and all that is kept of the rounds that were chosen.
A round is chosen in three ways: `best` by the test scores, as the papers do; `validation` by examples that were cut off
the training sets, so that nothing is chosen by a test set; `last` is no choice at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from federation.records import Client, Examples, Tree
from federation.records.tree import map_tree
from federation.records.tree import total as sum_of
from federation.seeds import generator
from federation.tasks.task import Statistics, Task
from federation.training.local_round import Setup
from federation.training.prediction import measure, measure_each, measure_stacked
from sim.engines.client_store import Clients
from sim.engines.fork_map import batched, fork_map
from sim.scores.records import Selection


class ClientModel(NamedTuple):
    """A client's model, and the setup that it was trained in."""

    setup: Setup
    client: Client


class Evaluator(NamedTuple):
    """How to evaluate: examples at a time, clients stacked at a time (1: none), and processes (1: this one)."""

    batch: int
    chunk: int = 1
    workers: int = 1

    def evaluate_client(self, model: ClientModel, examples: Examples) -> Statistics:
        """Return statistics of one client's model on some examples."""
        return measure(*model, examples, self.batch)

    def evaluate_clients(
        self, models: Mapping[str, ClientModel], examples: Mapping[str, Examples]
    ) -> dict[str, Statistics]:
        """Return statistics of clients' models, each on that client's examples."""
        names = sorted(models)
        if min(self.workers, len(names)) < 2:
            return {name: self.evaluate_client(models[name], examples[name]) for name in names}

        def work(number: int) -> Tree:
            return self.evaluate_client(models[names[number]], examples[names[number]])

        order = sorted(range(len(names)), key=lambda number: -len(examples[names[number]].y))
        found = {
            names[number]: map_tree(torch.clone, tree)  # else each would keep its place in the shared memory
            for part in batched(order)
            for number, tree in fork_map(part, work, self.workers, lambda number: f"scoring client {names[number]}")
        }
        return {name: found[name] for name in names}

    def evaluate_per_client(self, model: ClientModel, examples: Mapping[str, Examples]) -> dict[str, Statistics]:
        """Return statistics of one model on every client's examples, from one pass over their union."""
        return measure_each(*model, examples, self.batch)

    def evaluate_union(self, models: Mapping[str, ClientModel], union: Examples) -> dict[str, Statistics]:
        """Return statistics of many clients' models on the same examples."""
        if self.chunk == 1 or not len(union.y):
            return self.evaluate_clients(models, dict.fromkeys(models, union))
        found: dict[str, Statistics] = {}
        for names in self._chunks(models):
            clients = [models[name].client for name in names]
            measured = measure_stacked(models[names[0]].setup, clients, union, self.batch)
            found |= dict(zip(names, measured, strict=True))
        return dict(sorted(found.items()))

    def _chunks(self, models: Mapping[str, ClientModel]) -> Iterator[Sequence[str]]:
        """Divide clients into chunks with one network each."""

        def network(name: str) -> int:
            return id(models[name].setup)

        for _, alike in groupby(sorted(models, key=network), key=network):
            names = list(alike)
            yield from (names[start : start + self.chunk] for start in range(0, len(names), self.chunk))


def subsample(union: Examples, limit: int | None, seed: int) -> Examples:
    """Draw `limit` examples, the same for every method: a thousand models on the union of their tests take days."""
    if limit is None or limit >= len(union.y):
        return union
    rows = torch.from_numpy(generator(seed, "union").permutation(len(union.y))[:limit]).sort().values.to(union.y.device)
    return Examples(union.x[rows], union.y[rows])


def spread(task: Task, clients: Mapping[str, Statistics]) -> dict[str, Any] | None:
    """Return mean and standard deviation over clients of each metric; clients without examples do not count.

    None where no client has examples.
    """
    scores = [scores for statistics in clients.values() if is_scored(task, scores := task.metrics(statistics))]
    if not scores:
        return None
    columns = {name: np.array([score[name] for score in scores]) for name in task.metric_kinds}
    return {name: {"mean": float(values.mean()), "std": float(values.std())} for name, values in columns.items()}


def is_scored(task: Task, metrics: Mapping[str, float]) -> bool:
    """Whether metrics are of any example."""
    return not math.isnan(metrics[task.primary_metric])


def total(clients: Mapping[str, Statistics]) -> Statistics:
    """Add the statistics of at least one client."""
    found: Statistics = sum_of(clients.values())
    return found


def plain(task: Task, statistics: Statistics) -> dict[str, float | None]:
    """Return metrics of one set as JSON; None where it is empty."""
    return {name: None if math.isnan(value) else value for name, value in task.metrics(statistics).items()}


UNEVALUATED: dict[str, Any] = {
    "evaluated": False,
    "personalization": None,
    "generalization": None,
    "global": None,
    "global_per_client": None,
    "validation": None,
}
"""The scores in the record of a round that was not evaluated."""


@dataclass
class Chosen:
    """One round: its scores, their statistics on the clients' own test sets, and the clients' models.

    `statistics` are of the clients' own models, `served` of the server's; `score` is what the round was chosen by.
    """

    round: int = 0
    score: float | None = None
    record: dict[str, Any] = field(default_factory=lambda: UNEVALUATED)
    statistics: dict[str, Statistics] = field(default_factory=dict)
    served: dict[str, Statistics] = field(default_factory=dict)
    clients: Clients = field(default_factory=Clients)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the models."""
        return {
            "round": self.round,
            "score": self.score,
            "record": self.record,
            "statistics": _listed(self.statistics),
            "served": _listed(self.served),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], clients: Clients) -> Chosen:
        """Read what `to_json` wrote, and take the models."""
        statistics, served = _tensors(saved["statistics"]), _tensors(saved["served"])
        return cls(saved["round"], saved["score"], saved["record"], statistics, served, clients)


@dataclass
class BestRound:
    """Rounds are chosen by the mean personalization, the task's primary metric; the earlier one of equals.

    Where no client has a model and examples of its own, by the mean of the server's model over the clients' sets.
    """

    task: Task
    statistics: dict[str, Statistics] = field(default_factory=dict)  # of who has trained, on its own test set
    validation: dict[str, Statistics] = field(default_factory=dict)  # and on its own validation set
    best: Chosen = field(default_factory=Chosen)
    validated: Chosen = field(default_factory=Chosen)
    last: Chosen = field(default_factory=Chosen)  # without its models, which are the present ones

    def outdate(self, client: str) -> None:
        """Forget the scores of a client that has a new model."""
        self.statistics.pop(client, None)
        self.validation.pop(client, None)

    def update(
        self, round_number: int, record: Mapping[str, Any], clients: Clients, served: Mapping[str, Statistics]
    ) -> None:
        """Keep a round's models and scores if it is the best so far, by test or by validation."""
        self.last = Chosen(round_number, None, dict(record), dict(self.statistics), dict(served))
        tested = self._mean(record["personalization"] or record["global_per_client"])
        validated = self._mean(record["validation"])
        if self.task.improves(tested, self.best.score):
            self.best = replace(self.last, score=tested, clients=Clients(clients.stored))
        if self.task.improves(validated, self.validated.score):
            self.validated = replace(self.last, score=validated, clients=Clients(clients.stored))

    def selections(self, present: Clients) -> dict[Selection, Chosen | None]:
        """Return the three rounds; none by validation where nobody has validation examples."""
        return {
            "best": self.best,
            "validation": self.validated if self.validated.round else None,
            "last": replace(self.last, clients=present),
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything but the models."""
        chosen = {name: getattr(self, name).to_json() for name in ("best", "validated", "last")}
        return {**chosen, "statistics": _listed(self.statistics), "validation": _listed(self.validation)}

    @classmethod
    def from_json(cls, task: Task, saved: Mapping[str, Any], best: Clients, validated: Clients) -> BestRound:
        """Read what `to_json` wrote, and take the chosen rounds' models."""
        return cls(
            task,
            _tensors(saved["statistics"]),
            _tensors(saved["validation"]),
            Chosen.from_json(saved["best"], best),
            Chosen.from_json(saved["validated"], validated),
            Chosen.from_json(saved["last"], Clients()),
        )

    def _mean(self, scores: Mapping[str, Any] | None) -> float | None:
        return None if scores is None else float(scores[self.task.primary_metric]["mean"])


def _listed(clients: Mapping[str, Statistics]) -> dict[str, Any]:
    return {name: {key: value.tolist() for key, value in statistics.items()} for name, statistics in clients.items()}


def _tensors(saved: Mapping[str, Any]) -> dict[str, Statistics]:
    # by numpy, whose numbers with a point are float64
    return {
        name: {key: torch.from_numpy(np.array(value)) for key, value in lists.items()} for name, lists in saved.items()
    }
