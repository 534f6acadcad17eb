"""The three scores: personalization, generalization, global (Ek et al. 2024, section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from sim.engines.fork_map import batched, fork_map


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
