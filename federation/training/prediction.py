"""Predictions and scores in fixed batches of the examples' own order, so that a batch-coupled layer repeats itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from federation.records import Batch, Client, Examples, Output
from federation.records.tree import map_tree, stack, total, unstack
from federation.tasks.task import Statistics
from federation.training.local_round import Setup


@torch.no_grad()
def predict(setup: Setup, client: Client, x: Tensor, batch_size: int) -> npt.NDArray[Any]:
    """Return what a client's model answers to x (n, ...): the task's prediction (n, ...)."""
    if not len(x):
        return np.zeros(0, np.int64)
    parts = (setup.inputs(part) for part in torch.split(x, batch_size))
    answers = [setup.task.prediction(_output(setup, client, part)) for part in parts]
    array: npt.NDArray[Any] = torch.cat(answers).cpu().numpy()
    return array


@torch.no_grad()
def answer(setup: Setup, client: Client, x: Tensor) -> Output:
    """Return all that a client's model makes of a few examples x (n, ...): features, and the logits it predicts by."""
    return _output(setup, client, setup.inputs(x))


def measure(setup: Setup, client: Client, examples: Examples, batch_size: int) -> Statistics:
    """Compare a client's model with the targets of examples (n, ...)."""
    return measure_each(setup, client, {"": examples}, batch_size)[""]


@torch.no_grad()
def measure_each(
    setup: Setup, client: Client, examples: Mapping[str, Examples], batch_size: int
) -> dict[str, Statistics]:
    """Compare one model with the targets of several clients' examples, in batches of all of them laid together."""
    found: dict[str, list[Statistics]] = {name: [] for name in examples}
    for pieces in batched(examples, batch_size):
        # nothing is copied where a batch is one client's
        x = setup.inputs(torch.cat([piece.x for _, piece in pieces]) if len(pieces) > 1 else pieces[0][1].x)
        output, start = _output(setup, client, x), 0
        for name, piece in pieces:
            rows = slice(start, start + len(piece.x))
            batch = _batch(setup, Examples(x[rows], piece.y))
            found[name].append(setup.task.statistics(_rows(output, rows), batch))
            start = rows.stop
    none = setup.task.no_statistics(setup.training.classes)
    return {name: _on_cpu(total(parts)) if parts else none for name, parts in found.items()}


@torch.no_grad()
def measure_stacked(setup: Setup, clients: Sequence[Client], examples: Examples, batch_size: int) -> list[Statistics]:
    """Compare K clients' models with the targets of the same examples (n, ...), of which there are some."""
    together = stack(list(clients))

    def measured(client: Client, batch: Batch) -> Statistics:
        return setup.task.statistics(_output(setup, client, batch.x), batch)

    many = vmap(measured, in_dims=(0, None))
    parts = (
        many(together, _batch(setup, part)) for pieces in batched({"": examples}, batch_size) for _, part in pieces
    )
    return unstack(_on_cpu(total(parts)), len(clients))


@torch.no_grad()
def task_mismatch(setup: Setup, client: Client, examples: Examples) -> str | None:
    """Say in words why a client's network does not fit the task's targets, by some examples; None where it does."""
    served = setup.method.serving_model(client)
    batch = _batch(setup, examples)
    # of the network itself: a method's own scores need targets that fit
    output = setup.network.evaluate(served.params, served.buffers, batch.x, batch.mask)
    return setup.task.mismatch(output, batch)


def batched(examples: Mapping[str, Examples], rows: int) -> Iterator[list[tuple[str, Examples]]]:
    """Lay clients' examples together as batches of `rows`, the last one shorter: the pieces of each, and whose."""
    waiting: list[tuple[str, Examples]] = []
    room = rows
    for name, own in examples.items():
        start = 0
        while start < len(own.y):
            stop = min(start + room, len(own.y))
            waiting.append((name, Examples(own.x[start:stop], own.y[start:stop])))
            room -= stop - start
            start = stop
            if not room:
                yield waiting
                waiting, room = [], rows
    if waiting:
        yield waiting


def _output(setup: Setup, client: Client, x: Tensor) -> Output:
    return setup.method.predict(setup.network.evaluate, client, x)


def _batch(setup: Setup, examples: Examples) -> Batch:
    x = setup.inputs(examples.x)
    return Batch(x, examples.y, x.new_ones(len(x)))


def _rows(output: Output, rows: slice) -> Output:
    hidden = None if output.hidden is None else output.hidden[rows]
    return output._replace(features=output.features[rows], logits=output.logits[rows], hidden=hidden)


def _on_cpu(statistics: Statistics) -> Statistics:
    found: Statistics = map_tree(lambda value: value.cpu(), statistics)
    return found
