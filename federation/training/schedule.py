"""Which examples make up which mini-batch: drawn per client and round, the same on every engine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from federation.seeds import generator


class Schedule(NamedTuple):
    """The batches of a local round: rows (E, S, B) of the examples, mask (E, S, B) of 0 and 1.

    The last short batch of an epoch is used, not dropped; its padding points at example 0 with mask 0.
    """

    rows: npt.NDArray[np.int64]
    mask: npt.NDArray[np.float32]

    @property
    def steps(self) -> int:
        """Optimizer steps with at least one example."""
        return int((self.mask.sum(-1) > 0).sum())


def schedule(
    examples: int,
    batch_size: int,
    epochs: int,
    *,
    seed: int,
    client_id: str,
    round_number: int,
    max_steps: int | None = None,
) -> Schedule:
    """Draw the order of `epochs` epochs; `max_steps` cuts a straggler's work short (in steps)."""
    steps = -(-examples // batch_size)
    orders = [generator(seed, "order", client_id, round_number, epoch).permutation(examples) for epoch in range(epochs)]
    index = np.zeros((epochs, steps * batch_size), np.int64)
    index[:, :examples] = np.stack(orders)
    mask = np.zeros((epochs, steps * batch_size), np.float32)
    mask[:, :examples] = 1
    if max_steps is not None:
        mask.reshape(epochs * steps, batch_size)[max_steps:] = 0
    return Schedule(index.reshape(epochs, steps, batch_size), mask.reshape(epochs, steps, batch_size))


def in_order(examples: int, batch_size: int) -> Schedule:
    """One epoch in the examples' own order, for statistics and evaluation."""
    steps = -(-examples // batch_size)
    index = np.zeros(steps * batch_size, np.int64)
    index[:examples] = np.arange(examples)
    mask = (np.arange(steps * batch_size) < examples).astype(np.float32)
    return Schedule(index.reshape(1, steps, batch_size), mask.reshape(1, steps, batch_size))


def stack_schedules(schedules: list[Schedule]) -> Schedule:
    """Pad K clients' schedules to the same number of steps and stack them: (K, E, S, B)."""
    steps = max(one.rows.shape[1] for one in schedules)

    def pad(array: np.ndarray) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, steps - array.shape[1]), (0, 0)))

    return Schedule(np.stack([pad(s.rows) for s in schedules]), np.stack([pad(s.mask) for s in schedules]))
