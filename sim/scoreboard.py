"""Where a run's scores stand: every client's latest, and all that is kept of the best round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.evaluation import Matrix
from sim.keeping import Clients

UNEVALUATED: dict[str, Any] = {
    "evaluated": False,
    "personalization": None,
    "generalization": None,
    "global": None,
    "global_per_client": None,
}
"""The scores in the record of a round that was not evaluated."""


@dataclass
class Scoreboard:
    """Both client scores come from the round with the best mean personalization.

    Where no client has a test set of its own, from the best mean of the server's model over the clients' sets.
    """

    matrices: dict[str, Matrix] = field(default_factory=dict)  # of who has trained, on its own test set
    best_round: int = 0
    best_score: float = -1.0
    best_record: dict[str, Any] = field(default_factory=lambda: UNEVALUATED)
    best_matrices: dict[str, Matrix] = field(default_factory=dict)
    best: Clients = field(default_factory=Clients)

    def offer(self, round_number: int, record: Mapping[str, Any], clients: Clients) -> None:
        """Keep a round's models and scores if it is the best so far."""
        scores = record["personalization"] or record["global_per_client"]
        if scores is None or scores["macro_f1"]["mean"] <= self.best_score:
            return
        self.best_score, self.best_round, self.best_record = scores["macro_f1"]["mean"], round_number, dict(record)
        self.best, self.best_matrices = Clients(clients.kept), dict(self.matrices)

    def to_json(self) -> dict[str, Any]:
        """Everything but the models."""
        return {
            "best_round": self.best_round,
            "best_score": self.best_score,
            "best_record": self.best_record,
            "matrices": {name: matrix.tolist() for name, matrix in self.matrices.items()},
            "best_matrices": {name: matrix.tolist() for name, matrix in self.best_matrices.items()},
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], best: Clients) -> Scoreboard:
        """Read what `to_json` wrote, and take the best round's models."""
        return cls(
            {name: np.array(matrix) for name, matrix in saved["matrices"].items()},
            saved["best_round"],
            saved["best_score"],
            saved["best_record"],
            {name: np.array(matrix) for name, matrix in saved["best_matrices"].items()},
            best,
        )
