"""Where a run's scores stand: every client's latest, and all that is kept of the rounds that were chosen.

A round is chosen in three ways: `best` by the test scores, as the papers do; `validation` by examples that were cut off
the training sets, so that nothing is chosen by a test set; `last` is no choice at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from federation.tasks.task import Statistics, Task
from sim.engines.client_store import Clients
from sim.scores.records import Selection

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
