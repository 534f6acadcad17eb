"""Where a run's scores stand: every client's latest, and all that is kept of the rounds that were chosen.

A round is chosen in three ways: `best` by the test scores, as the papers do; `validation` by examples that were cut off
the training sets, so that nothing is chosen by a test set; `last` is no choice at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sim.client_store import Clients
from sim.evaluation import Matrix
from sim.results.records import Selection

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
    """One round: its scores, confusion matrices on the clients' own test sets, and the clients' models.

    `matrices` are of the clients' own models, `served` of the server's; `score` is what the round was chosen by.
    """

    round: int = 0
    score: float = -1.0
    record: dict[str, Any] = field(default_factory=lambda: UNEVALUATED)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    served: dict[str, Matrix] = field(default_factory=dict)
    clients: Clients = field(default_factory=Clients)

    def to_json(self) -> dict[str, Any]:
        """Everything but the models."""
        return {
            "round": self.round,
            "score": self.score,
            "record": self.record,
            "matrices": _listed(self.matrices),
            "served": _listed(self.served),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], clients: Clients) -> Chosen:
        """Read what `to_json` wrote, and take the models."""
        matrices, served = _arrays(saved["matrices"]), _arrays(saved["served"])
        return cls(saved["round"], saved["score"], saved["record"], matrices, served, clients)


@dataclass
class BestRound:
    """Rounds are chosen by the mean personalization, macro-F1; the earlier one of equals.

    Where no client has a model and examples of its own, by the mean of the server's model over the clients' sets.
    """

    matrices: dict[str, Matrix] = field(default_factory=dict)  # of who has trained, on its own test set
    validation: dict[str, Matrix] = field(default_factory=dict)  # and on its own validation set
    best: Chosen = field(default_factory=Chosen)
    validated: Chosen = field(default_factory=Chosen)
    last: Chosen = field(default_factory=Chosen)  # without its models, which are the present ones

    def outdate(self, client: str) -> None:
        """Forget the scores of a client that has a new model."""
        self.matrices.pop(client, None)
        self.validation.pop(client, None)

    def update(
        self, round_number: int, record: Mapping[str, Any], clients: Clients, served: Mapping[str, Matrix]
    ) -> None:
        """Keep a round's models and scores if it is the best so far, by test or by validation."""
        self.last = Chosen(round_number, -1.0, dict(record), dict(self.matrices), dict(served))
        tested = _mean(record["personalization"] or record["global_per_client"])
        validated = _mean(record["validation"])
        if tested > self.best.score:
            self.best = replace(self.last, score=tested, clients=Clients(clients.stored))
        if validated > self.validated.score:
            self.validated = replace(self.last, score=validated, clients=Clients(clients.stored))

    def selections(self, present: Clients) -> dict[Selection, Chosen | None]:
        """Return the three rounds; none by validation where nobody has validation examples."""
        return {
            "best": self.best,
            "validation": self.validated if self.validated.round else None,
            "last": replace(self.last, clients=present),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything but the models."""
        chosen = {name: getattr(self, name).to_json() for name in ("best", "validated", "last")}
        return {**chosen, "matrices": _listed(self.matrices), "validation": _listed(self.validation)}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], best: Clients, validated: Clients) -> BestRound:
        """Read what `to_json` wrote, and take the chosen rounds' models."""
        return cls(
            _arrays(saved["matrices"]),
            _arrays(saved["validation"]),
            Chosen.from_json(saved["best"], best),
            Chosen.from_json(saved["validated"], validated),
            Chosen.from_json(saved["last"], Clients()),
        )


def _mean(scores: Mapping[str, Any] | None) -> float:
    return -1.0 if scores is None else float(scores["macro_f1"]["mean"])


def _listed(matrices: Mapping[str, Matrix]) -> dict[str, Any]:
    return {name: matrix.tolist() for name, matrix in matrices.items()}


def _arrays(saved: Mapping[str, Any]) -> dict[str, Matrix]:
    return {name: np.array(matrix) for name, matrix in saved.items()}
