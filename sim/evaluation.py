"""The three scores: personalization, generalization, global (Ek et al. 2024, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from federation.records import Client, Examples, Forward, Tree
from federation.seeds import generator
from federation.training.client_round import Setup
from federation.training.prediction import predict, predict_stacked
from gaitway.scores import Scores, confusion, scores_of
from sim.engines.fork_map import batched, fork_map

Matrix = npt.NDArray[np.int64]

BATCHES = 16
"""Of examples that are laid together at a time where one model scores everybody's."""


class Model(NamedTuple):
    """A client's model, and the setup that it was trained in."""

    setup: Setup
    client: Client


class Evaluator(NamedTuple):
    """How to evaluate: examples at a time, clients stacked at a time (1: none), and processes (1: this one)."""

    batch: int
    chunk: int = 1
    workers: int = 1

    def own(self, model: Model, examples: Examples) -> Matrix:
        """Confusion matrix (C, C) of one client's model on some examples."""
        return _confusion(model, self._predicted(model, examples.x), examples)

    def each_own(self, models: Mapping[str, Model], examples: Mapping[str, Examples]) -> dict[str, Matrix]:
        """Confusion matrices (C, C) of clients' models, each on that client's examples."""
        names = sorted(models)
        if min(self.workers, len(names)) < 2:
            return {name: self.own(models[name], examples[name]) for name in names}

        def work(number: int) -> Tree:
            return {"matrix": torch.from_numpy(self.own(models[names[number]], examples[names[number]]))}

        order = sorted(range(len(names)), key=lambda number: -len(examples[names[number]].y))
        matrices = {
            names[number]: tree["matrix"].numpy().copy()  # else each would keep its place in the shared memory
            for part in batched(order)
            for number, tree in fork_map(part, work, self.workers, lambda number: f"scoring client {names[number]}")
        }
        return {name: matrices[name] for name in names}

    def on_each(self, model: Model, examples: Mapping[str, Examples]) -> dict[str, Matrix]:
        """Confusion matrices of one model on every client's examples, from one pass over their union."""
        sizes = [len(part.y) for part in examples.values()]
        blocks = in_blocks((part.x for part in examples.values()), BATCHES * self.batch)
        scored = [
            predict(model.setup.method, model.setup.network.evaluate, model.client, x, self.batch) for x in blocks
        ]
        predicted = np.split(np.concatenate([np.zeros(0, np.int64), *scored]), np.cumsum(sizes)[:-1])
        tests = zip(examples.items(), predicted, strict=True)
        return {name: _confusion(model, part, own) for (name, own), part in tests}

    def on_union(self, models: Mapping[str, Model], union: Examples) -> dict[str, Matrix]:
        """Confusion matrices of many clients' models on the same examples."""
        if self.chunk == 1:
            return self.each_own(models, dict.fromkeys(models, union))
        matrices: dict[str, Matrix] = {}
        for names in self._chunks(models):
            setup = models[names[0]].setup
            clients = [models[name].client for name in names]
            rows = predict_stacked(setup.method, setup.network.evaluate, clients, union.x, self.batch)
            matrices |= {n: _confusion(models[n], row, union) for n, row in zip(names, rows, strict=True)}
        return dict(sorted(matrices.items()))

    def _chunks(self, models: Mapping[str, Model]) -> Iterator[Sequence[str]]:
        """Divide clients into chunks with one network each."""

        def network(name: str) -> int:
            return id(models[name].setup)

        for _, alike in groupby(sorted(models, key=network), key=network):
            names = list(alike)
            yield from (names[start : start + self.chunk] for start in range(0, len(names), self.chunk))

    def _predicted(self, model: Model, x: Tensor) -> Matrix:
        setup, client = model
        return predict(setup.method, setup.network.evaluate, client, x, self.batch)


def in_blocks(parts: Iterable[Tensor], rows: int) -> Iterator[Tensor]:
    """Lay parts (n, ...) together as blocks of `rows`, the last one shorter, without a copy of all of them at once."""
    waiting: list[Tensor] = []
    room = rows
    for part in parts:
        for piece in (part[:room], *torch.split(part[room:], rows)):
            if not len(piece):
                continue
            waiting.append(piece)
            room -= len(piece)
            if not room:
                yield torch.cat(waiting)
                waiting, room = [], rows
    if waiting:
        yield torch.cat(waiting)


def subsample(union: Examples, limit: int | None, seed: int) -> Examples:
    """Draw `limit` examples, the same for every method: a thousand models on the union of their tests take days."""
    if limit is None or limit >= len(union.y):
        return union
    rows = torch.from_numpy(generator(seed, "union").permutation(len(union.y))[:limit]).sort().values.to(union.y)
    return Examples(union.x[rows], union.y[rows])


def _confusion(model: Model, predicted: npt.NDArray[np.int64], examples: Examples) -> Matrix:
    return confusion(examples.y.cpu().numpy(), predicted, model.setup.training.classes)


def spread(matrices: Mapping[str, Matrix]) -> dict[str, Any] | None:
    """Mean and standard deviation over clients of macro-F1 and accuracy; clients without examples do not count.

    None where no client has examples.
    """
    scores = [scores_of(matrix) for matrix in matrices.values() if matrix.sum()]
    if not scores:
        return None
    columns = {name: np.array([getattr(score, name) for score in scores]) for name in Scores._fields}
    return {name: {"mean": float(values.mean()), "std": float(values.std())} for name, values in columns.items()}


def total(matrices: Mapping[str, Matrix]) -> Matrix:
    """Add the confusion matrices of at least one client."""
    counts: Matrix = np.sum(list(matrices.values()), axis=0)
    return counts


def plain(matrix: Matrix) -> dict[str, float | None]:
    """Scores of one confusion matrix as JSON; None where it is empty."""
    return {name: None if np.isnan(value) else value for name, value in scores_of(matrix)._asdict().items()}


class Dissimilarity(NamedTuple):
    """(1/K) Σ‖∇L_k − ∇L‖², ‖∇L‖², and each client's ‖∇L_k‖²."""

    value: float
    overall: float
    clients: Mapping[str, float]


def mean_gradient(evaluate: Forward, model: Client, examples: Examples, batch: int) -> Tensor:
    """Gradient (parameters,) of the mean cross-entropy over all examples, summed in batches, in float64.

    `evaluate` is the network in evaluation mode, so that dropout adds no noise.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in model.params.items()}
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(torch.split(examples.x, batch), torch.split(examples.y, batch), strict=True):
        loss = cross_entropy(evaluate(leaves, model.buffers, x, None).logits, y, reduction="sum") / len(examples.y)
        parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        total = total + torch.cat([part.double().flatten() for part in parts])
    return total


def dissimilarity(gradients_: Iterable[tuple[str, int, Tensor]]) -> Dissimilarity:
    """Take (client, examples n_k, ∇L_k) one by one; memory does not grow with clients.

    Σ‖g_k − g‖² = Σ‖g_k‖² − 2⟨g, Σ g_k⟩ + K‖g‖²; in float64 the cancellation costs nothing that shows.
    """
    squares: dict[str, float] = {}
    plain, weighted, examples = torch.zeros(()), torch.zeros(()), 0
    for name, count, gradient in gradients_:
        squares[name] = float(gradient @ gradient)
        plain, weighted, examples = plain + gradient, weighted + count * gradient, examples + count
    mean = weighted / examples
    overall, clients = float(mean @ mean), len(squares)
    value = (sum(squares.values()) - 2 * float(mean @ plain)) / clients + overall
    return Dissimilarity(max(value, 0.0), overall, squares)
