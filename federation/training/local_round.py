"""The one local round: the device calls it for one client, the simulation for many stacked along a first dimension.

A `TrainingCallback` follows one client's round from outside: it resumes after an epoch or ends before the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from federation.errors import SettingsError
from federation.method import Method, SumMethod, features_incompatibility
from federation.plan import Augmentation, TrainingConfig
from federation.records import Batch, Broadcast, Client, Examples, ExampleSums, Phase, Tensors, TrainingStats, Tree
from federation.records.tree import map_tree, merge, select, where
from federation.tasks.classification import Classification
from federation.tasks.task import Task
from federation.training.augmentation import augmented, check_images
from federation.training.forward import Moments, Network, network_input
from federation.training.optimizers import Optimizer, sgd
from federation.training.schedule import Schedule, WindowCopies, rate_sum
from federation.training.window_changes import ChannelScale, changed_windows

Step = Callable[..., Any]
"""One training step: a pure function of trees of tensors."""
Compile = Callable[[float, Step], Step]
"""compile(rate, step) -> a faster step; steps of one rate and of tensors of the same shapes are the same."""


Objective = Callable[[Tensors, Batch], tuple[Tensor, Tensors]]
Differentiate = Callable[[Objective, Tensors, Batch], tuple[Tensors, Tensor, Tensors]]
"""differentiate(objective, parameters, batch) -> gradients, loss, moved buffers."""


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
    channels: ChannelScale | None = None
    """What windows were normalized by, all clients' alike; None: they are in the units in which they were measured."""
    differentiate: Differentiate | None = None
    """What makes a step's gradients of a single client, in the place of autograd, such as with noise
    (`federation.privacy.example_level`)."""

    has_secret_noise: bool = False
    """Whether noise on gradients is of the system's entropy, as on a device, not of the seed, which everybody knows."""

    def __post_init__(self) -> None:
        """Refuse features that the method can't use.

        Raises:
            SettingsError: saying why.
        """
        if reason := features_incompatibility(self.method, self.network.features_at):
            raise SettingsError(reason)

    @property
    def copies(self) -> WindowCopies:
        """Which changed copies of its windows a client sums over, besides the windows."""
        return self.method.copies if isinstance(self.method, SumMethod) else WindowCopies()

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
    if stacked and setup.differentiate is not None:
        raise ValueError("gradients of one's own, such as with noise, are of one client at a time: stacked=False")
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
    rates = rate_sum(training, phases, work.order, None if stacked else state.steps)
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
    lift, differentiate = (_stacked, transformed) if stacked else (_single, setup.differentiate or _recorded)
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
    rate = phase.rate * work.rate
    rates = (torch.full_like(state.loss, rate),) if scheduled else ()
    step = training_step(setup, optimizer, None if scheduled else rate, differentiate, skips_empty=stacked)
    run = compiled(phase.rate, lift(step)) if compiled and stacked else lift(step)
    loss, examples, steps, stopped = state.loss, state.examples, state.steps, state.stopped
    for epoch in epochs:
        epoch_loss = epoch_examples = torch.zeros_like(state.loss)
        for batch in _batches(setup, work.examples, work.order, epoch, stacked, setup.training.augmentation):
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


def training_step(
    setup: Setup, optimizer: Optimizer, rate: float | None, differentiate: Differentiate, *, skips_empty: bool
) -> Step:
    """Make step(trained, buffers, momenta, batch, frozen, round state, *rates) -> ((moved state), loss sum, examples).

    `rate` None: it comes as a tensor () with each step. A step that `skips_empty` leaves everything where a batch has
    no example: a single client never runs such a step, a stacked one waits for the longest.
    """

    def step(
        trained: Tensors, buffers: Tensors, momenta: Any, batch: Batch, frozen: Tensors, extra: Tree, *rates: Tensor
    ) -> Any:
        def objective(params: Tensors, examples: Batch) -> tuple[Tensor, Tensors]:
            return setup.method.loss(setup.task, setup.network, {**frozen, **params}, buffers, examples, extra)

        gradients, loss, moved = differentiate(objective, trained, batch)
        new_momenta, new = optimizer.apply(gradients, momenta, trained, *rates if rate is None else (rate,))
        new = setup.method.project(new)
        count = batch.mask.sum()
        if skips_empty:
            new, moved, new_momenta = where(count > 0, (new, moved, new_momenta), (trained, buffers, momenta))
        return (new, moved, new_momenta), loss * count, count

    return step


def _statistics(when: str, setup: Setup, client: Client, work: ClientWork, stacked: bool) -> ExampleSums:
    """Sum over all examples what the method sums, in evaluation mode, if it wants that now."""
    lift, like, method = _stacked if stacked else _single, setup.inputs(work.examples.x[:0]), setup.method
    stats = method.empty_sums(setup.training, like, work.examples.y.shape[:1] if stacked else ())
    if when not in method.sums_at:
        return stats
    turned = Augmentation(rotation=1, degrees=setup.copies.degrees, sensor_loss=1)  # those drawn for it
    with torch.no_grad():
        for epoch in range(work.stats_order.rows.shape[-3]):  # the second and those after it are of changed windows
            for batch in _batches(setup, work.examples, work.stats_order, epoch, stacked, turned):
                stats = lift(partial(sums_with, setup))(client, batch, stats)
    return stats


def sums_with(setup: Setup, client: Client, batch: Batch, before: ExampleSums) -> ExampleSums:
    """Add what the method sums of a batch, in evaluation mode."""
    output = setup.network.evaluate(client.params, client.buffers, batch.x, batch.mask)
    return setup.method.add_sums(setup.task, setup.training, output, batch, before)


def _batches(
    setup: Setup, examples: Examples, order: Schedule, epoch: int, stacked: bool, change: Augmentation
) -> Iterator[Batch]:
    """Gather an epoch's batches by index, normalized and augmented.

    Single batches come without their padding, empty ones not at all.
    """
    index, mask = order.rows[..., epoch, :, :], order.mask[..., epoch, :, :]
    rows = torch.arange(len(examples.x), device=examples.x.device)[:, None] if stacked else None
    for step in range(index.shape[-2]):
        indices, real = index[..., step, :], mask[..., step, :]
        size = indices.shape[-1] if stacked else int(real.sum())
        if not size:
            return
        where_ = torch.as_tensor(indices[..., :size], device=examples.x.device)
        key = where_ if rows is None else (rows, where_)
        x, y = setup.inputs(examples.x[key]), examples.y[key]
        if order.draws is not None:
            draws = order.draws[..., epoch, step, :size, :]
            if change.is_of_images:
                check_images(change, x[0] if stacked else x)
                x, y = augmented(change, draws, x, y, setup.task.outside)
            if change.is_of_windows:
                x = changed_windows(change, draws, x, setup.channels)
        yield Batch(x, y, torch.as_tensor(real[..., :size]).to(x))


def transformed(objective: Objective, params: Tensors, batch: Batch) -> tuple[Tensors, Tensor, Tensors]:
    """Return gradients, loss and moved buffers, by torch.func, which vmap can lift."""
    gradients, (loss, moved) = grad_and_value(objective, has_aux=True)(params, batch)
    return gradients, loss.detach(), moved


def _recorded(objective: Objective, params: Tensors, batch: Batch) -> tuple[Tensors, Tensor, Tensors]:
    """Return the same by plain autograd: a tenth faster for HART, two fifths for a small network on small batches."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    loss, moved = objective(leaves, batch)
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


class EpochCheckpoint(NamedTuple):
    """A local round after one of its epochs: what a later process needs to go on, bit for bit."""

    epoch: int  # epochs done, over all phases
    steps: int  # optimizer steps done
    params: Tensors  # all of them, in the model's order
    buffers: Tensors
    momenta: Tree  # the optimizer's state in the phase that the epoch belongs to
    loss: Tensor  # () Σ loss · examples of that epoch
    examples: Tensor  # ()


class TrainingCallback:
    """Sees a round of one client; this one lets it run undisturbed."""

    wants_checkpoints = False
    """Whether it wants `on_epoch_end`, which costs a copy of the parameters each time."""

    def resume(self) -> EpochCheckpoint | None:
        """Return where an earlier run of the same round came to; None to begin with the first epoch."""
        return None

    def should_stop(self, steps: int) -> bool:
        """Whether no further step is to begin after `steps` of them; what was done is then partial work."""
        return False

    def on_epoch_end(self, checkpoint: EpochCheckpoint) -> None:
        """Take note of a whole epoch; the tensors are not changed afterwards."""
