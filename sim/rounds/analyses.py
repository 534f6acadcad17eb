"""What a run with `--analyses` measures after each evaluated round, as one small JSON object in the round's line.

U. Michieli, M. Ozay: Prototype Guided Federated Learning of Visual Feature Representations, 2021, arXiv 2105.08982:
training loss and gradient dissimilarity of the server's model over all clients (figure 2, as in Li et al., arXiv
1812.06127), and the aggregate mean margin of the round's clients (eq. 10 and 15, figure 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from federation.aggregation.class_statistics import class_stats, empty_class_stats
from federation.aggregation.prototypes import uploaded
from federation.records import Batch, ClassStats, Client, Examples, Forward, Tensors
from federation.seeds import generator
from federation.tasks.task import Task
from federation.training.client_round import STATS_NUMBERS
from federation.training.forward import Moments, network_input
from federation.training.prediction import answer
from sim.rounds.simulation import Simulation
from sim.scores.diagnostics import aggregate_margin, rounded
from sim.scores.evaluation import ClientModel
from sim.scores.records import RoundAnalyses

MANY_CLIENTS = 1000
"""Of so many clients or more, loss and gradients are measured over a sample."""
SAMPLED_CLIENTS = 100
"""Clients in the sample: the same in all rounds, and for all methods of one seed."""


def analyse_round(simulation: Simulation, record: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the round that `record` is the line of, and add the seconds that it took to the line."""
    before = simulation.seconds.get("analyses", 0.0)
    with simulation.timed("analyses"):
        found = RoundAnalyses(
            **_server_model(simulation), aggregate_margin=_margin(simulation, _aggregated_clients(record))
        )
    record["seconds"]["analyses"] = round(simulation.seconds["analyses"] - before, 4)
    measured: dict[str, Any] = rounded(found.model_dump(mode="json"))
    return measured


def batches_of(examples: Examples, batch: int) -> Iterator[Examples]:
    """Divide examples into batches, smaller ones of large images, whose maps must fit into memory."""
    together = STATS_NUMBERS // max(1, math.prod(examples.x.shape[1:]))
    size = max(1, min(batch, together))
    yield from map(Examples, torch.split(examples.x, size), torch.split(examples.y, size))


# ---- the server's model


def measured_clients(sizes: Mapping[str, int], seed: int) -> list[str]:
    """Return the clients, of `sizes` training examples each, whose loss and gradient are measured."""
    names = sorted(sizes)
    if len(names) < MANY_CLIENTS:
        return names
    drawn = generator(seed, "analyses").permutation(len(names))[:SAMPLED_CLIENTS]
    return [names[k] for k in sorted(drawn)]


def _server_model(simulation: Simulation) -> dict[str, Any]:
    setup, data = simulation.setup, simulation.data
    names = measured_clients(data.train_sizes, setup.training.seed)
    if not setup.method.has_global_model:
        return {"clients": len(names)}
    # of a method with personal models, in the tensors of one network
    model = setup.method.serving_model(simulation.server_model())
    evaluate, batch = setup.network.evaluate, simulation.evaluator.batch
    losses = (
        BatchLosses(simulation.task, evaluate, model, data.clients[name].train, batch, data.moments) for name in names
    )
    if setup.method.traits.pools_data:
        return {"clients": 1, "server_loss": next(losses).mean()}
    found = dissimilarity((len(loss.examples.y), loss.gradient()) for loss in losses)
    return {
        "clients": len(names),
        "server_loss": found.loss,
        "gradient_dissimilarity": found.value,
        "gradient_square": found.overall,
    }


class LossGradient(NamedTuple):
    """A mean loss, and its gradient (parameters,) in float64."""

    loss: float
    gradient: Tensor


class BatchLosses(NamedTuple):
    """A task's mean loss over examples, taken in batches; bytes are normalized by `moments`.

    `evaluate` is the network in evaluation mode, so that dropout adds no noise.
    """

    task: Task
    evaluate: Forward
    model: Client
    examples: Examples
    batch: int
    moments: Moments | None = None

    @torch.no_grad()
    def mean(self) -> float:
        """Return the loss."""
        return sum(float(part) for part in self._parts(self.model.params))

    def gradient(self) -> LossGradient:
        """Return the loss with its gradient."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.model.params.items()}
        loss, gradient = 0.0, torch.zeros((), dtype=torch.float64)
        for part in self._parts(leaves):
            found = torch.autograd.grad(part, list(leaves.values()), materialize_grads=True)
            loss, gradient = (
                loss + float(part.detach()),
                gradient + torch.cat([tensor.double().flatten() for tensor in found]),
            )
        return LossGradient(loss, gradient)

    def _parts(self, params: Tensors) -> Iterator[Tensor]:
        """Yield what each batch adds to the mean."""
        for part in batches_of(self.examples, self.batch):
            x = network_input(part.x, self.moments)
            output = self.evaluate(params, self.model.buffers, x, None)
            yield self.task.loss(output, Batch(x, part.y, x.new_ones(len(x)))).sum() / len(self.examples.y)


class Dissimilarity(NamedTuple):
    """(1/K) Σ‖∇L_k − ∇L‖², ‖∇L‖², and L = Σ n_k L_k / Σ n_k."""

    value: float
    overall: float
    loss: float


def dissimilarity(clients: Iterable[tuple[int, LossGradient]]) -> Dissimilarity:
    """Take (examples n_k, L_k with ∇L_k) one by one; memory does not grow with clients.

    Σ‖g_k − g‖² = Σ‖g_k‖² − 2⟨g, Σ g_k⟩ + K‖g‖²; in float64 the cancellation costs nothing that shows.
    """
    plain, weighted, square, loss = torch.zeros(()), torch.zeros(()), 0.0, 0.0
    number, examples = 0, 0
    for count, (own, gradient) in clients:
        plain, weighted = plain + gradient, weighted + count * gradient
        square, loss = square + float(gradient @ gradient), loss + count * own
        number, examples = number + 1, examples + count
    mean = weighted / examples
    overall = float(mean @ mean)
    value = (square - 2 * float(mean @ plain)) / number + overall
    return Dissimilarity(max(value, 0.0), overall, loss / examples)


# ---- prototypes


def _aggregated_clients(record: Mapping[str, Any]) -> list[str]:
    """Return the clients of the round whose updates were used; nobody's are in a round that failed."""
    if "failed" in record:
        return []
    left_out = {*record["lost"], *record.get("excluded", ())}
    return [name for name in record["cohort"] if name not in left_out]


def _margin(simulation: Simulation, names: Iterable[str]) -> float | None:
    """Return the aggregate margin of the prototypes under each client's own model, as it has just been trained."""
    if not simulation.task.has_classes:
        return None
    kept = [name for name in names if name in simulation.clients]
    models, batch = simulation.models(kept, simulation.clients), simulation.evaluator.batch
    stats = [class_sums(models[name], simulation.data.clients[name].train, batch) for name in kept]
    return aggregate_margin([uploaded(sums) for sums in stats]) if stats else None


def class_sums(model: ClientModel, examples: Examples, batch: int) -> ClassStats:
    """Sum a client's features by class, those of its examples or of their pixels."""
    setup, client = model
    sums = empty_class_stats(setup.training, next(iter(client.params.values())))
    for part in batches_of(examples, batch):
        x = setup.inputs(part.x)
        labelled = setup.task.labelled_features(answer(setup, client, part.x), Batch(x, part.y, x.new_ones(len(x))))
        sums = class_stats(labelled, setup.training.classes, sums)
    return sums
