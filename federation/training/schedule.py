"""The schedule of mini-batches and learning rates: drawn per client and round, the same on every engine.

Nothing here needs torch: whoever runs a local round without it takes the same batches (`export.program.host`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from federation.errors import SettingsError
from federation.plan import TrainingConfig
from federation.seeds import generator

DRAWS = 7
"""Numbers from 0 to 1 that an example takes: flip, scale, row, column, brightness, contrast, saturation of an image."""
ROTATION_DRAWS = 4
"""Numbers from 0 to 1 that a window takes: whether it is turned, and three for the rotation."""
WINDOW_DRAWS = ROTATION_DRAWS + 1
"""The last: whether its second sensor is lost."""


class Schedule(NamedTuple):
    """The batches of a local round: rows (E, S, B) of the examples, mask (E, S, B) of 0 and 1.

    The last short batch of an epoch is used, not dropped; its padding points at example 0 with mask 0.
    `draws` (E, S, B, D) from 0 to 1 are what augmentation changes each example by; None: nothing is changed.
    """

    rows: npt.NDArray[np.int64]
    mask: npt.NDArray[np.float32]
    draws: npt.NDArray[np.float32] | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps with at least one example."""
        return int((self.mask.sum(-1) > 0).sum())


class RoundStream(NamedTuple):
    """The random numbers of one client's round."""

    seed: int
    client_id: str
    round_number: int

    def named(self, name: str) -> tuple[int, str, str, int]:
        """Return what `generator` derives the stream of that name from."""
        return self.seed, name, self.client_id, self.round_number


def schedule(
    examples: int,
    batch_size: int,
    epochs: int,
    stream: RoundStream,
    *,
    max_steps: int | None = None,
    draws: int = 0,
) -> Schedule:
    """Draw the order of `epochs` epochs, and `draws` numbers for each example of each of them.

    `max_steps` cuts a straggler's work short (in steps).
    """
    steps = -(-examples // batch_size)
    index = np.zeros((epochs, steps * batch_size), np.int64)
    for epoch in range(epochs):
        index[epoch, :examples] = generator(*stream.named("order"), epoch).permutation(examples)
    mask = np.zeros((epochs, steps * batch_size), np.float32)
    mask[:, :examples] = 1
    if max_steps is not None:
        mask.reshape(epochs * steps, batch_size)[max_steps:] = 0
    found = Schedule(index.reshape(epochs, steps, batch_size), mask.reshape(epochs, steps, batch_size))
    if not draws:
        return found
    drawn = np.zeros((epochs, steps * batch_size, draws), np.float32)
    for epoch in range(epochs):
        random = generator(*stream.named("augmentation"), epoch)
        drawn[epoch, :examples] = random.random((examples, draws), np.float32)
    return found._replace(draws=drawn.reshape(epochs, steps, batch_size, draws))


def in_order(examples: int, batch_size: int) -> Schedule:
    """Make one epoch in the examples' own order, for statistics and evaluation."""
    steps = -(-examples // batch_size)
    index = np.zeros(steps * batch_size, np.int64)
    index[:examples] = np.arange(examples)
    mask = (np.arange(steps * batch_size) < examples).astype(np.float32)
    return Schedule(index.reshape(1, steps, batch_size), mask.reshape(1, steps, batch_size))


class WindowCopies(NamedTuple):
    """Which changed copies of each window are summed over, besides the window."""

    rotations: int = 0
    """How many, turned at random."""
    degrees: float = 180.0
    """By no more than these; 180: by any rotation."""
    sensor_loss: bool = False
    """Whether there is one more, whose second sensor reads nothing."""


def with_copies(order: Schedule, copies: WindowCopies, seed: int, client_id: str) -> Schedule:
    """Let epochs follow the one of a schedule: each with every example turned at random, then one with a sensor lost.

    A client draws the same in every round, for an example by its place: sums that it sends again are the same bits.
    """
    epochs = 1 + copies.rotations + copies.sensor_loss
    if epochs == 1:
        return order
    _, steps, size = order.rows.shape
    draws = np.ones((epochs, steps * size, WINDOW_DRAWS), np.float32)  # above every share: as it was measured
    for copy in range(1, 1 + copies.rotations):
        draws[copy, :, 0] = 0
        draws[copy, :, 1:ROTATION_DRAWS] = generator(seed, "rotations", client_id, copy).random(
            (steps * size, ROTATION_DRAWS - 1), np.float32
        )
    if copies.sensor_loss:
        draws[-1, :, -1] = 0
    rows, mask = np.repeat(order.rows, epochs, axis=0), np.repeat(order.mask, epochs, axis=0)
    return Schedule(rows, mask, draws.reshape(epochs, steps, size, WINDOW_DRAWS))


def stack_schedules(schedules: list[Schedule]) -> Schedule:
    """Pad K clients' schedules to the same number of steps and stack them: (K, E, S, B)."""
    steps = max(order.rows.shape[1] for order in schedules)

    def padded(arrays: Iterable[np.ndarray]) -> np.ndarray:
        missing = ((array, steps - array.shape[1]) for array in arrays)
        return np.stack([np.pad(array, ((0, 0), (0, more), *[(0, 0)] * (array.ndim - 2))) for array, more in missing])

    draws = [order.draws for order in schedules if order.draws is not None]
    return Schedule(
        padded(order.rows for order in schedules),
        padded(order.mask for order in schedules),
        padded(draws) if draws else None,
    )


class PhaseLength(Protocol):
    """What of a phase of local training counts here."""

    @property
    def epochs(self) -> int:
        """How many it has."""
        ...

    @property
    def rate(self) -> float:
        """What the plan's learning rate is multiplied by."""
        ...

    @property
    def plain_sgd(self) -> bool:
        """Whether it takes plain gradient steps, whatever the plan's optimizer."""
        ...


def rate_sum(training: TrainingConfig, phases: Sequence[PhaseLength], order: Schedule, limit: int | None) -> Any:
    """Sum the phases' rates over the steps that have examples, or the first `limit`: (), or (K,) where stacked.

    SGD with momentum m takes a constant gradient Σ_{s≤t} m^(t−s) = (1 − m^t)/(1 − m) times in a phase's step t, which
    is what counts then: times the learning rate, it is how far that gradient moves a parameter.
    """
    real = order.mask.sum(-1) > 0  # (..., epochs, steps)
    if limit is not None:
        real &= np.cumsum(real).reshape(real.shape) <= limit
    ends = np.cumsum([phase.epochs for phase in phases], dtype=np.int64)[:-1]
    momentum = training.momentum if training.optimizer == "sgd" else 0.0
    momenta = [0.0 if phase.plain_sgd else momentum for phase in phases]
    counts = [part.sum((-1, -2)) for part in np.split(real, ends, axis=-2)] if phases else []
    steps = [(n - m * (1 - m**n) / (1 - m)) / (1 - m) for n, m in zip(counts, momenta, strict=True)]
    none = np.zeros(real.shape[:-2])
    return sum((phase.rate * taken for phase, taken in zip(phases, steps, strict=True)), start=none)


def rate_of_round(training: TrainingConfig, round_number: int, rounds: int | None) -> float:
    """Return what a round's learning rates are multiplied by; the first of `rounds` is number 1.

    L.-C. Chen et al.: DeepLab, TPAMI 2018, arXiv 1606.00915 ("poly"), with a federation's rounds in the place of
    iterations: every client of a round, and every step of it, has one rate, whatever number of steps each has.
    A round after the last has the last one's.

    Raises:
        SettingsError: if a schedule needs the number of rounds, and nobody says it.
    """
    if training.lr_schedule == "constant":
        return 1.0
    if rounds is None:
        raise SettingsError("lr_schedule = 'polynomial' ends with the federation's last round: say their number")
    left = max(rounds - (round_number - 1), 1)
    return float((min(left, rounds) / rounds) ** training.lr_power)
