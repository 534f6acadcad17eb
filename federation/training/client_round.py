"""Runs a client's round from its identity: the seeds, the batch order, then `local_round`, alone or stacked.

Simulation engines and the device call these; nothing else decides what a client does in a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from federation.errors import SettingsError
from federation.privacy.example_level import ExampleNoise
from federation.records import Broadcast, Client, Examples
from federation.records.tree import expand, stack, unstack
from federation.training.forward import reseed
from federation.training.local_round import ClientWork, Compile, LocalRound, Setup, TrainingCallback, local_round
from federation.training.optimizers import optimizer_for
from federation.training.schedule import (
    DRAWS,
    RoundStream,
    Schedule,
    in_order,
    rate_of_round,
    schedule,
    stack_schedules,
    with_copies,
)

STATS_BATCH_SIZE = 64
"""Examples a batch, or more, in which class statistics are measured: small batches only cost time there."""
STATS_NUMBERS = 1 << 22
"""Of large images fewer: so many numbers of x a batch, or a batch of training, whose maps fit into memory too."""


def train_one(
    setup: Setup,
    client: Client,
    broadcast: Broadcast,
    examples: Examples,
    *,
    client_id: str,
    round_number: int,
    max_steps: int | None = None,
    callback: TrainingCallback | None = None,
) -> LocalRound:
    """Run one client's round; `max_steps` cuts a straggler's work short, a `callback` may resume it or end it."""
    noise = ExampleNoise.of(setup.training, client_id, round_number, secret=setup.has_secret_noise)
    setup = setup if noise is None else replace(setup, differentiate=noise)
    client = reseed(client, setup.training.seed, client_id, round_number)
    order = _order(setup, len(examples.y), client_id, round_number, max_steps)
    rate = rate_of_round(setup.training, round_number, setup.rounds)
    work = ClientWork(examples, order, _stats_order(setup, examples, client_id), rate)
    return local_round(setup, optimizer_for(setup.training), client, broadcast, work, callback=callback)


def train_stacked(
    setup: Setup,
    clients: Sequence[Client],
    broadcasts: Sequence[Broadcast],
    examples: Sequence[Examples],
    *,
    client_ids: Sequence[str],
    round_number: int,
    max_steps: Sequence[int | None] | None = None,
    compiled: Compile | None = None,
) -> list[LocalRound]:
    """Run K clients' rounds as one program, whose step `compiled` may make faster.

    The results are those of `train_one`, up to float order.

    Raises:
        SettingsError: if gradients are to be clipped by example.
    """
    if setup.training.example_clip_norm is not None:
        raise SettingsError("training.example_clip_norm: gradients by example are of one client at a time")
    limits = max_steps or [None] * len(clients)
    orders = [
        _order(setup, len(own.y), name, round_number, limit)
        for own, name, limit in zip(examples, client_ids, limits, strict=True)
    ]
    stats_orders = [_stats_order(setup, own, name) for own, name in zip(examples, client_ids, strict=True)]
    rate = rate_of_round(setup.training, round_number, setup.rounds)
    work = ClientWork(pad_examples(examples), stack_schedules(orders), stack_schedules(stats_orders), rate)
    seeded = [
        reseed(client, setup.training.seed, name, round_number)
        for client, name in zip(clients, client_ids, strict=True)
    ]
    same = all(broadcast is broadcasts[0] for broadcast in broadcasts)
    received = expand(broadcasts[0], len(clients)) if same else stack(broadcasts)
    result = local_round(
        setup,
        optimizer_for(setup.training, stacked=True),
        stack(seeded),
        received,
        work,
        stacked=True,
        compiled=compiled,
    )
    return [LocalRound(*parts) for parts in unstack(tuple(result), len(clients))]


def steps_of(setup: Setup, examples: int, max_steps: int | None = None) -> int:
    """Count the optimizer steps of a client with that many examples."""
    return _order(setup, examples, "", 0, max_steps).steps


def pad_examples(examples: Sequence[Examples]) -> Examples:
    """Stack ragged clients to x (K, n_max, ...) and y (K, n_max); the schedules never point at padding."""

    def pad(value: Tensor, length: int) -> Tensor:
        return torch.cat([value, value.new_zeros((length - len(value), *value.shape[1:]))])

    longest = max(len(own.y) for own in examples)
    return Examples(
        torch.stack([pad(own.x, longest) for own in examples]),
        torch.stack([pad(own.y, longest) for own in examples]),
    )


def _stats_order(setup: Setup, examples: Examples, client_id: str) -> Schedule:
    together = STATS_NUMBERS // max(1, math.prod(examples.x.shape[1:]))
    size = max(min(STATS_BATCH_SIZE, together), setup.training.batch_size)
    order, seed = in_order(len(examples.y), size), setup.training.seed
    return with_copies(order, setup.copies, seed, client_id)


def _order(setup: Setup, count: int, client_id: str, round_number: int, max_steps: int | None) -> Schedule:
    epochs = sum(phase.epochs for phase in setup.method.phases(setup.training))
    return schedule(
        count,
        setup.training.batch_size,
        epochs,
        RoundStream(setup.training.seed, client_id, round_number),
        max_steps=max_steps,
        draws=0 if setup.training.augmentation.is_off else DRAWS,
    )
