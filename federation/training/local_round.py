"""The one local round: the device calls it for one client, the simulation for many stacked along a first dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from federation.method import Method
from federation.plan import TrainingConfig
from federation.records import Batch, Broadcast, Client, Examples, ExampleSums, Phase, Tensors, TrainingStats, Tree
from federation.tasks.classification import Classification
from federation.tasks.task import Task
from federation.training.augmentation import augmented, check_images
from federation.training.callbacks import EpochCheckpoint, TrainingCallback
from federation.training.forward import Network
from federation.training.optimizers import Optimizer, sgd
from federation.training.pixels import Moments, network_input
from federation.training.schedule import Schedule
from federation.tree import map_tree, merge, select, where

Step = Callable[..., Any]
"""One training step: a pure function of trees of tensors."""
Compile = Callable[[float, Step], Step]
"""compile(rate, step) -> a faster step; steps of one rate and of tensors of the same shapes are the same."""


@dataclass(frozen=True)
class Setup:
    """What all clients of a federation have in common."""

    method: Method
    training: TrainingConfig
    network: Network
    task: Task = field(default_factory=Classification)
    moments: Moments | None = None
    """What images that are kept as bytes are normalized by."""
    rounds: int | None = None
    """Of the federation, for a schedule of learning rates."""

    def inputs(self, x: Tensor) -> Tensor:
        """Return examples (n, ...) as the network takes them; raises SettingsError for bytes without moments."""
        return network_input(x, self.moments)


class ClientWork(NamedTuple):
    """A client's examples, the order in which it trains on them, and one sweep over them for statistics.

    `rate`: by how much the round's learning rates are the phases'.
    """

    examples: Examples
    order: Schedule
    stats_order: Schedule
    rate: float = 1.0


class LocalRound(NamedTuple):
    """What a local round leaves: the client as it is kept, what travels, and its last epoch's mean loss."""

    client: Client
    upload: Tree
    loss: Tensor


class _State(NamedTuple):
    params: Tensors
    buffers: Tensors
    loss: Tensor  # Σ loss · examples of the last epoch that began
    examples: Tensor
    steps: int = 0  # of a single client; stacked ones count theirs in the schedule
    stopped: bool = False  # by the callback, before the last step


def local_round(
    setup: Setup,
    optimizer: Optimizer,
    client: Client,
    broadcast: Broadcast,
    work: ClientWork,
    *,
    stacked: bool = False,
    callback: TrainingCallback | None = None,
    compiled: Compile | None = None,
) -> LocalRound:
    """Receive, train through the method's phases, and make the upload.

    Stacked, every tensor of `client`, `broadcast` and `work` has a first dimension K, and so has the result. A step
    whose mask is all zero changes nothing. A `callback` may resume or end a single client's round. `compiled` may give
    a faster step for the one of stacked clients, which is pure.
    """
    if stacked and optimizer.in_place:
        raise ValueError("an optimizer that works in place cannot be stacked: optimizer_for(training, stacked=True)")
    lift, method, training = _stacked if stacked else _single, setup.method, setup.training
    client, round_state = lift(method.receive)(client, broadcast)
    before = _statistics("before", setup, client, work, stacked)
    zero = setup.inputs(work.examples.x[:0]).new_zeros(work.examples.y.shape[:1] if stacked else ())
    state, done, callback = _State(client.params, client.buffers, zero, zero), 0, callback or TrainingCallback()
    loop = _Loop(setup, optimizer, round_state, work, stacked, callback, compiled)
    begun, phases = callback.resume(), method.phases(training)
    if begun:
        state = _State(begun.params, begun.buffers, begun.loss, begun.examples, begun.steps)
    for phase in phases:
        epochs = range(done, done + phase.epochs)
        done += phase.epochs
        if begun is None or epochs.stop > begun.epoch:
            state = _train(loop, phase, state, epochs, begun)
    client = client._replace(params=state.params, buffers=state.buffers)
    after = _statistics("after", setup, client, work, stacked)
    rates = _rates(training, phases, work.order, None if stacked else state.steps)
    stats = TrainingStats(before, after, training.lr * work.rate * torch.as_tensor(rates).to(zero))
    client, upload = lift(method.upload)(client, round_state, stats)
    return LocalRound(client, upload, state.loss / state.examples.clamp(min=1))


class _Loop(NamedTuple):
    """What all phases of a round have in common."""

    setup: Setup
    optimizer: Optimizer
    round_state: Tree
    work: ClientWork
    stacked: bool
    callback: TrainingCallback
    compiled: Compile | None


def _train(loop: _Loop, phase: Phase, state: _State, epochs: range, begun: EpochCheckpoint | None) -> _State:
    """Run one phase with a fresh optimizer, at its rate times the round's; parameters outside it stay as they are."""
    setup, optimizer, round_state, work, stacked, callback, compiled = loop
    lift, differentiate = (_stacked, _transformed) if stacked else (_single, _recorded)
    if phase.plain_sgd:
        optimizer = sgd(setup.training.lr, in_place=not stacked)
    frozen = select(state.params, lambda name: not phase.trainable(name))
    trained = select(state.params, phase.trainable)
    momenta, buffers = lift(optimizer.init)(trained), state.buffers
    if begun and begun.epoch > epochs.start:  # in the middle of this phase
        momenta, epochs = begun.momenta, epochs[begun.epoch - epochs.start :]
    # an optimizer that works in place gets its own tensors, and a callback never those
    own = _copied if optimizer.in_place else _single
    trained, momenta = own(trained), own(momenta)

    # a rate that changes by the round is a tensor to stacked steps: one compiled program serves all rounds
    scheduled = stacked and setup.training.lr_schedule != "constant"
    rates = (torch.full_like(state.loss, phase.rate * work.rate),) if scheduled else ()

    def step(
        trained: Tensors, buffers: Tensors, momenta: Any, batch: Batch, frozen: Tensors, extra: Tree, *rates: Tensor
    ) -> Any:
        def objective(params: Tensors) -> tuple[Tensor, Tensors]:
            return setup.method.loss(setup.task, setup.network, {**frozen, **params}, buffers, batch, extra)

        gradients, loss, moved = differentiate(objective, trained)
        new_momenta, new = optimizer.apply(gradients, momenta, trained, *rates or (phase.rate * work.rate,))
        new = setup.method.project(new)
        count = batch.mask.sum()
        if stacked:  # a single client never runs an empty step; a stacked one waits for the longest
            new, moved, new_momenta = where(count > 0, (new, moved, new_momenta), (trained, buffers, momenta))
        return (new, moved, new_momenta), loss * count, count

    run = compiled(phase.rate, lift(step)) if compiled and stacked else lift(step)
    loss, examples, steps, stopped = state.loss, state.examples, state.steps, state.stopped
    for epoch in epochs:
        epoch_loss = epoch_examples = torch.zeros_like(state.loss)
        for batch in _batches(setup, work.examples, work.order, epoch, stacked):
            if stopped := stopped or callback.should_stop(steps):
                break
            (trained, buffers, momenta), part, count = run(
                trained, buffers, momenta, batch, frozen, round_state, *rates
            )
            epoch_loss, epoch_examples, steps = epoch_loss + part, epoch_examples + count, steps + 1
        began = epoch_examples > 0  # a straggler stops before the last epoch
        loss, examples = torch.where(began, epoch_loss, loss), torch.where(began, epoch_examples, examples)
        if callback.wants_checkpoints and not stopped:
            params = merge(state.params, own(trained))
            callback.on_epoch_end(EpochCheckpoint(epoch + 1, steps, params, buffers, own(momenta), loss, examples))
    return _State(merge(state.params, trained), buffers, loss, examples, steps, stopped)


def _statistics(when: str, setup: Setup, client: Client, work: ClientWork, stacked: bool) -> ExampleSums:
    """Sum over all examples what the method sums, in evaluation mode, if it wants that now."""
    lift, like, method = _stacked if stacked else _single, setup.inputs(work.examples.x[:0]), setup.method
    stats = method.empty_sums(setup.training, like, work.examples.y.shape[:1] if stacked else ())
    if when not in method.sums_at:
        return stats

    def one(client: Client, batch: Batch, before: ExampleSums) -> ExampleSums:
        output = setup.network.evaluate(client.params, client.buffers, batch.x, batch.mask)
        return method.add_sums(setup.task, setup.training, output, batch, before)

    with torch.no_grad():
        for batch in _batches(setup, work.examples, work.stats_order, 0, stacked):
            stats = lift(one)(client, batch, stats)
    return stats


def _rates(training: TrainingConfig, phases: Sequence[Phase], order: Schedule, limit: int | None) -> Any:
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


def _batches(setup: Setup, examples: Examples, order: Schedule, epoch: int, stacked: bool) -> Iterator[Batch]:
    """Gather an epoch's batches by index, normalized and augmented.

    Single batches come without their padding, empty ones not at all.
    """
    index, mask = order.rows[..., epoch, :, :], order.mask[..., epoch, :, :]
    rows = torch.arange(len(examples.x), device=examples.x.device)[:, None] if stacked else None
    for step in range(index.shape[-2]):
        here, real = index[..., step, :], mask[..., step, :]
        size = here.shape[-1] if stacked else int(real.sum())
        if not size:
            return
        where_ = torch.as_tensor(here[..., :size], device=examples.x.device)
        key = where_ if rows is None else (rows, where_)
        x, y = setup.inputs(examples.x[key]), examples.y[key]
        if order.draws is not None:
            check_images(setup.training.augmentation, x[0] if stacked else x)
            draws = order.draws[..., epoch, step, :size, :]
            x, y = augmented(setup.training.augmentation, draws, x, y, setup.task.outside)
        yield Batch(x, y, torch.as_tensor(real[..., :size]).to(x))


Objective = Callable[[Tensors], tuple[Tensor, Tensors]]


def _transformed(objective: Objective, params: Tensors) -> tuple[Tensors, Tensor, Tensors]:
    """Return gradients, loss and moved buffers, by torch.func, which vmap can lift."""
    gradients, (loss, moved) = grad_and_value(objective, has_aux=True)(params)
    return gradients, loss.detach(), moved


def _recorded(objective: Objective, params: Tensors) -> tuple[Tensors, Tensor, Tensors]:
    """Return the same by plain autograd: a tenth faster for HART, two fifths for a small network on small batches."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    loss, moved = objective(leaves)
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), loss.detach(), {n: v.detach() for n, v in moved.items()}


def _single(function: Any) -> Any:
    return function


def _copied(tree: Any) -> Any:
    # contiguous, whatever was given: a kernel that works in place may walk raw memory
    return map_tree(lambda value: value.clone(memory_format=torch.contiguous_format), tree)


def _stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    # dropout here is seeded by buffers; "different" only serves networks that bring torch's own
    return vmap(function, randomness="different")
