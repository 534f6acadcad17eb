"""The three scores: personalization, generalization, global (Ek et al. 2024, section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.client_round import Setup
from federation.evaluate import predict, predict_stacked
from federation.records import Client, Examples
from federation.scores import Scores, confusion, scores_of

Matrix = npt.NDArray[np.int64]


class Evaluator(NamedTuple):
    """How to evaluate: the federation's setup, examples at a time, and clients stacked at a time (1: none)."""

    setup: Setup
    batch: int
    chunk: int = 1

    def own(self, client: Client, examples: Examples) -> Matrix:
        """Confusion matrix (C, C) of one client's model on some examples."""
        predicted = predict(self.setup.method, self.setup.network.evaluate, client, examples.x, self.batch)
        return self._confusion(predicted, examples)

    def on_union(self, clients: Sequence[Client], union: Examples) -> list[Matrix]:
        """Confusion matrices of many clients' models on the same examples."""
        if self.chunk == 1:
            return [self.own(client, union) for client in clients]
        matrices: list[Matrix] = []
        for start in range(0, len(clients), self.chunk):
            part = clients[start : start + self.chunk]
            method, forward = self.setup.method, self.setup.network.evaluate
            rows = predict_stacked(method, forward, part, union.x, self.batch)
            matrices += [self._confusion(row, union) for row in rows]
        return matrices

    def _confusion(self, predicted: npt.NDArray[np.int64], examples: Examples) -> Matrix:
        return confusion(examples.y.cpu().numpy(), predicted, self.setup.task.classes)


def spread(matrices: Mapping[str, Matrix]) -> dict[str, Any]:
    """Mean and standard deviation over clients of macro-F1 and accuracy; clients without examples do not count."""
    scores = [scores_of(matrix) for matrix in matrices.values() if matrix.sum()]
    columns = {name: np.array([getattr(score, name) for score in scores]) for name in Scores._fields}
    return {name: {"mean": float(values.mean()), "std": float(values.std())} for name, values in columns.items()}


def plain(matrix: Matrix) -> dict[str, float]:
    """Scores of one confusion matrix as JSON."""
    return dict(scores_of(matrix)._asdict())
