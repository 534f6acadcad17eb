"""A round that was interrupted after an epoch, or ended before its last step, for every method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from federation import wire
from federation.method import trains
from federation.methods import METHODS, method_from_json
from federation.methods.fedavg import FedAvg
from federation.plan import TrainingConfig
from federation.records import Client, Phase, TrainingStats, Tree
from federation.records.tree import flatten
from federation.training.client_round import steps_of, train_one, train_stacked
from federation.training.local_round import EpochCheckpoint, LocalRound, TrainingCallback
from tests.federation.federated import AS_FEDAVG, SIZES, Federation, federation


class Notes(TrainingCallback):
    """Keeps every checkpoint; may begin with one, and may stop after so many steps."""

    wants_checkpoints = True

    def __init__(self, begin: EpochCheckpoint | None = None, limit: int | None = None) -> None:
        self.begin, self.limit = begin, limit
        self.seen: list[EpochCheckpoint] = []

    def resume(self) -> EpochCheckpoint | None:
        return self.begin

    def should_stop(self, steps: int) -> bool:
        return self.limit is not None and steps >= self.limit

    def on_epoch_end(self, checkpoint: EpochCheckpoint) -> None:
        self.seen.append(checkpoint)


def watched(scene: Federation, callback: TrainingCallback | None = None, max_steps: int | None = None) -> LocalRound:
    """Ada's first round."""
    broadcast = scene.setup.method.broadcast(scene.state, "ada")
    return train_one(
        scene.setup, scene.initial, broadcast, scene.examples["ada"],
        client_id="ada", round_number=1, max_steps=max_steps, callback=callback,
    )  # fmt: skip


def assert_equal(left: LocalRound, right: LocalRound) -> None:
    for a, b in ((dict(left.client._asdict()), dict(right.client._asdict())), (left.upload, right.upload)):
        mine, other = flatten(a), flatten(b)
        assert mine.keys() == other.keys()
        assert all(torch.equal(value, other[key]) for key, value in mine.items())
    assert torch.equal(left.loss, right.loss)


def through_bytes(checkpoint: EpochCheckpoint) -> EpochCheckpoint:
    tensors: Tree = {k: v for k, v in checkpoint._asdict().items() if k not in ("epoch", "steps")}
    found = wire.decode(wire.encode(tensors), limit_bytes=1 << 24)
    in_order = {name: {key: found[name][key] for key in tensors[name]} for name in ("params", "buffers")}
    return checkpoint._replace(**{**found, "momenta": found.get("momenta", {}), **in_order})


LONG_HEADS = [{"name": name, "head_epochs": 2} for name in ("fedrep", "fedpac")]
"""Interrupted in the middle of a phase that has its own learning rate."""


@pytest.mark.parametrize(
    "description",
    [*(pytest.param({"name": n}, marks=pytest.mark.ci if n in AS_FEDAVG else ()) for n in METHODS), *LONG_HEADS],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_a_round_that_is_resumed_after_any_epoch_ends_with_the_same_bits(description: dict[str, Any]) -> None:
    scene = federation(method_from_json(description), dropout=0.3, epochs=3)
    notes = Notes()
    whole = watched(scene, notes)
    assert_equal(whole, watched(scene))
    assert [checkpoint.epoch for checkpoint in notes.seen] == list(range(1, len(notes.seen) + 1))
    for checkpoint in notes.seen:
        rest = Notes(through_bytes(checkpoint))
        assert_equal(watched(scene, rest), whole)
        assert [later.epoch for later in rest.seen] == [seen.epoch for seen in notes.seen[checkpoint.epoch :]]
        assert checkpoint.steps == checkpoint.epoch * -(-SIZES["ada"] // 4)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if trains(kind(), TrainingConfig(classes=3))])
@pytest.mark.parametrize("limit", [0, 1, 4])
def test_a_round_that_is_stopped_is_that_of_a_straggler_with_so_many_steps(name: str, limit: int) -> None:
    scene = federation(METHODS[name](), epochs=2)
    assert steps_of(scene.setup, SIZES["ada"], limit) == limit
    assert_equal(watched(scene, Notes(limit=limit)), watched(scene, max_steps=limit))


@pytest.mark.parametrize("name", METHODS)
def test_a_round_changes_nothing_that_it_was_given(name: str) -> None:
    scene = federation(METHODS[name](), epochs=2)
    broadcast = scene.setup.method.broadcast(scene.state, "ada")
    given = {**scene.initial._asdict(), "broadcast": broadcast}
    before = {key: value.clone() for key, value in flatten(given).items()}
    watched(scene)
    assert all(torch.equal(value, before[key]) for key, value in flatten(given).items())


class TwoRates(FedAvg):
    """Trains at three times the learning rate for an epoch, then at it, and sends what it is told of both."""

    def phases(self, training: TrainingConfig) -> tuple[Phase, ...]:
        first, *_ = super().phases(training)
        return first._replace(epochs=1, rate=3.0), first

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        return client, {"params": {}, "lr_sum": stats.lr_sum}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_sum_of_learning_rates_is_how_far_a_gradient_of_one_moves_torchs_sgd(momentum: float) -> None:
    scene = federation(TwoRates())
    scene = scene._replace(
        setup=replace(scene.setup, training=scene.setup.training.model_copy(update={"momentum": momentum, "epochs": 2}))
    )
    lr, epoch = scene.setup.training.lr, -(-SIZES["ada"] // 4)

    def moved(*phases: tuple[float, int]) -> float:
        weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
        for rate, steps in phases:
            optimizer = torch.optim.SGD([weight], lr=rate, momentum=momentum)
            for _ in range(steps):
                weight.grad = torch.ones_like(weight)
                optimizer.step()
        return -float(weight.detach())

    notes = Notes()
    whole = watched(scene, notes)
    assert float(whole.upload["lr_sum"]) == pytest.approx(moved((3 * lr, epoch), (lr, 2 * epoch)))
    assert float(watched(scene, max_steps=epoch + 1).upload["lr_sum"]) == pytest.approx(moved((3 * lr, epoch), (lr, 1)))
    for checkpoint in notes.seen:
        assert_equal(watched(scene, Notes(through_bytes(checkpoint))), whole)
    names = list(SIZES)
    together = train_stacked(
        scene.setup, [scene.initial] * len(names), [scene.state] * len(names), [scene.examples[n] for n in names],
        client_ids=names, round_number=1, max_steps=[None, 1, 3],
    )  # fmt: skip
    # bob's four examples are a step an epoch, cyd's seven are two
    wanted = [moved((3 * lr, 3), (lr, 6)), moved((3 * lr, 1)), moved((3 * lr, 2), (lr, 1))]
    assert [float(one.upload["lr_sum"]) for one in together] == pytest.approx(wanted)
