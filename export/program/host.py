"""Runs a client's local round with a program: like `federation.training.client_round.train_one`, without torch.

The host sets batch order, seeds, rates and stops, by the same functions as with torch. A `ProgramRound` takes one step
at a time, and its progress can be stored after each: `saved` is all that a later process needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.program.manifest import PhaseEntry, TensorType
from export.program.runtime import Arrays, TrainingProgram, checked, zeros
from export.runtime import ProgramError
from federation.seeds import noise_seed
from federation.training.schedule import DRAWS, RoundStream, Schedule, in_order, rate_of_round, rate_sum, schedule
from federation.training.window_changes import ChannelScale, changed_windows

BUFFERS = "client/buffers/"
PROGRESS = {
    name: TensorType(dtype="int64", shape=()) for name in ("progress/epoch", "progress/batch", "progress/steps")
}
SUMS = {name: TensorType(dtype="float64", shape=()) for name in ("progress/loss", "progress/examples")}


class DeviceExamples(NamedTuple):
    """A client's labelled examples, as the network takes them: x (n, …), y (n,).

    `scale` is what windows are normalized by, None where they are raw: the plan may have them changed as they were
    measured.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    scale: ChannelScale | None = None


class RoundIdentity(NamedTuple):
    """Whose round it is, and which: what order and masks are drawn by. `max_steps`: None for all that the plan asks."""

    client_id: str
    round_number: int
    max_steps: int | None = None


class RoundOutcome(NamedTuple):
    """What a local round leaves: the client as it is kept, what travels, its last epoch's mean loss, and its steps."""

    client: Arrays
    upload: Arrays
    loss: float
    steps: int


class ProgramRound:
    """A local round that goes on step by step.

    `client` is what an earlier round left, {} for a new one; `saved` what this round had come to before.

    Raises:
        ProgramError: if client, broadcast, examples or `saved` are not what the program takes.
    """

    def __init__(
        self,
        program: TrainingProgram,
        client: Mapping[str, NDArray[Any]],
        broadcast: Mapping[str, NDArray[Any]],
        examples: DeviceExamples,
        identity: RoundIdentity,
        saved: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.program, self._manifest, self._scale = program, program.manifest, examples.scale
        self._examples = _checked_examples(program, examples)
        training = self._manifest.training
        self._rate = rate_of_round(training, identity.round_number, self._manifest.rounds)
        self._order = schedule(
            len(examples.y),
            training.batch_size,
            sum(phase.epochs for phase in self._manifest.phases),
            RoundStream(training.seed, identity.client_id, identity.round_number),
            max_steps=identity.max_steps,
            draws=0 if training.augmentation.is_off else DRAWS,
        )
        self.epoch = self._batch = self.steps = 0
        self._loss = self._count = 0.0  # of the last epoch that began
        self._values = receive(program, client, broadcast, identity)
        if "before" in self._manifest.sums_at:
            self._values |= self._sums("before")
        if saved is not None:
            self._resume(saved)
        elif self._manifest.phases:
            self._values |= zeros(self._phase.momenta)

    @property
    def is_done(self) -> bool:
        """Whether the last step is done."""
        return self.epoch == len(self._order.rows) or not self._order.mask[self.epoch, self._batch].any()

    @property
    def steps_asked(self) -> int:
        """All steps of the round."""
        return self._order.steps

    @property
    def _phase(self) -> PhaseEntry:
        end = 0
        for phase in self._manifest.phases:
            end += phase.epochs
            if self.epoch < end:
                return phase
        return self._manifest.phases[-1]

    def step(self) -> None:
        """Take the next step; `is_done` says whether there is one."""
        phase, training = self._phase, self._manifest.training
        if self._batch == 0:
            self._loss = self._count = 0.0
        rows, mask = (part[self.epoch, self._batch] for part in (self._order.rows, self._order.mask))
        count = int(mask.sum())
        batch = _batch(self._examples, rows[:count], len(rows))
        if self._order.draws is not None and count:
            draws, x = self._order.draws[self.epoch, self._batch, :count], batch["batch/x"]
            x[:count] = changed_windows(training.augmentation, draws, x[:count], self._scale)
        lr = np.array(training.lr * phase.rate * self._rate, np.float32)
        self._values |= self.program.run(phase.step, self._values | batch | {"lr": lr})
        self._loss += float(self._values.pop("loss"))
        self._count += float(mask.sum())
        self.steps, self._batch = self.steps + 1, self._batch + 1
        if self._batch == self._order.rows.shape[1]:
            self.epoch, self._batch = self.epoch + 1, 0
            if self._phase is not phase:
                self._values = {name: value for name, value in self._values.items() if name not in phase.momenta}
                self._values |= zeros(self._phase.momenta)

    @property
    def saved(self) -> Arrays:
        """What the round has come to: parameters, buffers, the optimizer's state, and where it is."""
        names = [name for name in self._manifest.client if not name.startswith("client/memory/")]
        momenta = self._phase.momenta if self._manifest.phases else {}
        numbers = (self.epoch, self._batch, self.steps, self._loss, self._count)
        progress = dict(zip((*PROGRESS, *SUMS), numbers, strict=True))
        kept = {name: self._values[name] for name in (*names, *momenta)}
        return kept | {name: np.array(value) for name, value in progress.items()}

    def _resume(self, saved: Mapping[str, NDArray[Any]]) -> None:
        self.epoch = int(saved.get("progress/epoch", np.array(-1)))
        if not 0 <= self.epoch <= len(self._order.rows) or not self._manifest.phases:
            raise ProgramError(f"the saved round is in epoch {self.epoch} of {len(self._order.rows)}")
        kept = {n: kind for n, kind in self._manifest.client.items() if not n.startswith("client/memory/")}
        found = checked(saved, kept | self._phase.momenta | PROGRESS | SUMS, "the saved round")
        self._batch, self.steps = int(found["progress/batch"]), int(found["progress/steps"])
        if (
            not 0 <= self._batch < self._order.rows.shape[1]
            or self.steps != self.epoch * self._order.rows.shape[1] + self._batch
        ):
            raise ProgramError(
                "the saved round's position isn't a step of this one: the examples or the batch size differ"
            )
        self._loss, self._count = float(found["progress/loss"]), float(found["progress/examples"])
        self._values |= {name: value for name, value in found.items() if not name.startswith("progress/")}

    def finish(self) -> RoundOutcome:
        """Return the round's outcome as far as it has come."""
        manifest = self._manifest
        values = self._values | (self._sums("after") if "after" in manifest.sums_at else {})
        rates = rate_sum(manifest.training, manifest.phases, self._order, self.steps)
        lr_sum = np.array(manifest.training.lr * self._rate * float(rates), np.float32)
        values |= self.program.run("upload", values | {"lr_sum": lr_sum})
        client = checked({name: values[name] for name in manifest.client}, manifest.client, "the trained client")
        upload = checked({n: v for n, v in values.items() if n in manifest.upload}, manifest.upload, "the upload")
        return RoundOutcome(client, upload, self._loss / max(self._count, 1.0), self.steps)

    def _sums(self, when: str) -> Arrays:
        values = self._values | {f"sums/{name}": value for name, value in zeros(self._manifest.sums).items()}
        order = in_order(len(self._examples.y), self._manifest.statistics_batch)
        for batch in _batches(self._examples, order):
            values |= self.program.run("statistics", values | batch)
        return {f"{when}/{name}": values[f"sums/{name}"] for name in self._manifest.sums}


def receive(
    program: TrainingProgram,
    client: Mapping[str, NDArray[Any]],
    broadcast: Mapping[str, NDArray[Any]],
    identity: RoundIdentity,
) -> Arrays:
    """Lay a broadcast over a client, {} for a new one, with dropout's counters set for the round.

    Raises:
        ProgramError: if either is not what the program takes.
    """
    manifest = program.manifest
    values = checked(client, manifest.client, "the client") if client else program.run("initial", {})
    for name in manifest.noise:
        bits = 31 if manifest.client[name].dtype == "int32" else 62
        seed = noise_seed(
            manifest.training.seed, identity.client_id, identity.round_number, name.removeprefix(BUFFERS), bits
        )
        values[name] = np.full(manifest.client[name].shape, seed, manifest.client[name].dtype)
    values |= checked(broadcast, manifest.broadcast, "the broadcast")
    values |= program.run("receive", values)
    return {name: value for name, value in values.items() if not name.startswith("broadcast/")}


def served_by(program: TrainingProgram, client: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the network that a client serves with, `served/…`."""
    return program.run("serving", client)


def global_model(
    program: TrainingProgram, client: Mapping[str, NDArray[Any]], broadcast: Mapping[str, NDArray[Any]]
) -> Arrays:
    """Return the network that the server's model serves with, `served/…`, for a client, {} for a new one.

    Raises:
        ProgramError: if either is not what the program takes.
    """
    manifest = program.manifest
    values = checked(client, manifest.client, "the client") if client else program.run("initial", {})
    return program.run("global_model", values | checked(broadcast, manifest.broadcast, "the broadcast"))


def train(device_round: ProgramRound, should_stop: Callable[[ProgramRound], bool] | None = None) -> RoundOutcome:
    """Take all steps, or those before which nobody says to stop."""
    while not device_round.is_done and not (should_stop and should_stop(device_round)):
        device_round.step()
    return device_round.finish()


def measure(program: TrainingProgram, client: Mapping[str, NDArray[Any]], examples: DeviceExamples) -> Arrays:
    """Return the task's statistics of a client's model on examples; {} of none.

    Raises:
        ProgramError: if the examples are not what the program takes.
    """
    found: Arrays = {}
    kept = _checked_examples(program, examples, least=0)
    for batch in _batches(kept, in_order(len(kept.y), program.manifest.evaluation_batch)):
        part = program.run("evaluate", {**client, **batch})
        counted = {name: value for name, value in part.items() if name.startswith("statistics/")}
        found = {name: value + found.get(name, 0) for name, value in counted.items()}
    return {name.removeprefix("statistics/"): value for name, value in found.items()}


def predict(program: TrainingProgram, client: Mapping[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[np.float32]:
    """Return what a client's model scores each example x (n, …) with: its logits (n, C)."""
    y = program.manifest.y
    examples = DeviceExamples(x, np.zeros(len(x), y.dtype))
    order = in_order(len(x), program.manifest.evaluation_batch)
    parts = [
        program.run("evaluate", {**client, **batch})["logits"][: int(batch["batch/mask"].sum())]
        for batch in _batches(examples, order)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, program.manifest.training.classes), np.float32)


def _batches(examples: DeviceExamples, order: Schedule) -> Iterator[Arrays]:
    for rows, mask in zip(order.rows[0], order.mask[0], strict=True):
        yield _batch(examples, rows[: int(mask.sum())], len(rows))


def _batch(examples: DeviceExamples, rows: NDArray[np.int64], size: int) -> Arrays:
    """Gather a batch, padded with zeros to the program's size."""
    x = np.zeros((size, *examples.x.shape[1:]), examples.x.dtype)
    y, mask = np.zeros(size, examples.y.dtype), np.zeros(size, np.float32)
    x[: len(rows)], y[: len(rows)], mask[: len(rows)] = examples.x[rows], examples.y[rows], 1
    return {"batch/x": x, "batch/y": y, "batch/mask": mask}


def _checked_examples(program: TrainingProgram, examples: DeviceExamples, least: int = 1) -> DeviceExamples:
    manifest, count = program.manifest, len(examples.y)
    kinds = {
        name: TensorType(dtype=kind.dtype, shape=(count, *kind.shape[1:]))
        for name, kind in (("x", manifest.x), ("y", manifest.y))
    }
    if count < least:
        raise ProgramError("a round needs examples, but there are none")
    classes = manifest.training.classes
    if examples.y.dtype.kind == "i" and count and not 0 <= examples.y.min() <= examples.y.max() < classes:
        raise ProgramError(f"classes from {examples.y.min()} to {examples.y.max()}; expected 0 to {classes - 1}")
    found = checked({"x": examples.x, "y": examples.y}, kinds, "the examples")
    return DeviceExamples(found["x"], found["y"], examples.scale)
