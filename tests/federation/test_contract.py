"""The contract of design.md, over every registered method."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from federation import wire
from federation.client_round import train_stacked
from federation.local_round import Work, local_round
from federation.losses import no_stats
from federation.methods import METHODS, method_from_json, method_to_json
from federation.optimizers import optimizer_for
from federation.schedule import Schedule, in_order
from federation.tree import flatten, leaves, map_tree
from tests.federation.federated import SIZES, federation

every_method = pytest.mark.parametrize("name", METHODS)


def difference(a: Any, b: Any) -> float:
    """Largest absolute difference of two trees with the same names."""
    first, second = flatten(a), flatten(b)
    assert list(first) == list(second)
    gaps = [float((first[n].double() - second[n].double()).abs().max()) for n in first if first[n].numel()]
    return max(gaps, default=0.0)


def as_tree(result: Any) -> dict[str, Any]:
    return {"client": result.client._asdict(), "upload": result.upload, "loss": result.loss}


@every_method
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_stacked_equals_one_by_one(name: str, dropout: float) -> None:
    fed = federation(METHODS[name](), dropout=dropout)
    alone = [fed.train(client) for client in SIZES]
    together = train_stacked(
        fed.setup,
        [fed.initial] * len(SIZES),
        [fed.setup.method.broadcast(fed.state, client) for client in SIZES],
        list(fed.examples.values()),
        client_ids=list(SIZES),
        round_number=1,
    )
    for one, other in zip(alone, together, strict=True):
        assert difference(as_tree(one), as_tree(other)) < 1e-10
    moved = difference(alone[0].client._asdict(), fed.initial._asdict())
    assert moved > 1e-3, "nothing was trained, so the comparison says nothing"


@every_method
def test_a_second_round_stacked_equals_one_by_one(name: str) -> None:
    fed = federation(METHODS[name]())
    clients = [fed.train(client).client for client in SIZES]
    state = fed.setup.method.aggregate(fed.state, fed.updates())
    fed = fed._replace(state=state)
    broadcasts = [fed.setup.method.broadcast(state, client) for client in SIZES]
    alone = [fed.train(name, client, 2) for name, client in zip(SIZES, clients, strict=True)]
    together = train_stacked(
        fed.setup, clients, broadcasts, list(fed.examples.values()), client_ids=list(SIZES), round_number=2
    )
    for one, other in zip(alone, together, strict=True):
        assert difference(as_tree(one), as_tree(other)) < 1e-10


@every_method
def test_padding_changes_nothing(name: str) -> None:
    """Steps of nothing but padding, and rows of padding with absurd values, leave no trace."""
    fed = federation(METHODS[name](), dropout=0.3)
    task, method = fed.setup.task, fed.setup.method
    mine = fed.examples["ada"]
    order = in_order(len(mine.y), task.batch_size)
    two_epochs = Schedule(order.rows.repeat(2, 0), order.mask.repeat(2, 0))
    padded = Schedule(*(_pad_steps(part) for part in two_epochs))
    garbage = mine._replace(
        x=torch.cat([mine.x, torch.full_like(mine.x[:1], 1e6)]), y=torch.cat([mine.y, mine.y.new_tensor([2])])
    )
    padded.rows[padded.mask == 0] = len(mine.y)  # padding points at the absurd example

    def run(examples: Any, schedule: Schedule) -> dict[str, Any]:
        work = map_tree(lambda value: value[None], (fed.initial, method.broadcast(fed.state, "ada"), examples))
        stacked = Schedule(schedule.rows[None], schedule.mask[None])
        sweep = Schedule(order.rows[None], order.mask[None])
        result = local_round(
            method,
            task,
            fed.setup.network,
            optimizer_for(task),
            work[0],
            work[1],
            Work(work[2], stacked, sweep),
            stacked=True,
        )
        return as_tree(result)

    assert difference(run(mine, two_epochs), run(garbage, padded)) < 1e-12


def _pad_steps(part: Any) -> Any:
    return np.pad(part, ((0, 0), (0, 2), (0, 0)))


@every_method
def test_hooks_do_not_change_their_inputs(name: str) -> None:
    fed = federation(METHODS[name]())
    method, task = fed.setup.method, fed.setup.task
    updates = fed.updates()
    before = copy.deepcopy((fed.state, fed.initial, updates))
    broadcast = method.broadcast(fed.state, "ada")
    received, round_state = method.receive(fed.initial, broadcast)
    empty = no_stats(task, next(iter(fed.initial.params.values())))
    method.upload(received, round_state, empty, empty)
    method.aggregate(fed.state, updates)
    fed.train("ada")
    for old, new in zip(leaves(before), leaves((fed.state, fed.initial, updates)), strict=True):
        assert torch.equal(torch.as_tensor(old), torch.as_tensor(new)) if not isinstance(old, str) else old == new


@every_method
def test_json_round_trip(name: str) -> None:
    method = METHODS[name](weighting="uniform")
    assert method_from_json(method_to_json(method)) == method
    assert hash(method) == hash(method_from_json(method_to_json(method)))


@every_method
def test_state_survives_bytes_bit_for_bit(name: str) -> None:
    fed = federation(METHODS[name]())
    state = fed.setup.method.aggregate(fed.state, fed.updates())
    for compression in ("none", "zstd"):
        data = wire.encode(state, compression=compression)
        again = wire.decode(data, limit_bytes=1 << 24, compression=compression)
        first, second = flatten(state), flatten(again)
        assert sorted(first) == sorted(second)
        assert all(first[n].dtype == second[n].dtype and torch.equal(first[n], second[n]) for n in first)


@every_method
def test_what_is_not_shared_does_not_travel(name: str) -> None:
    fed = federation(METHODS[name]())
    method = fed.setup.method
    upload = fed.train("ada").upload
    assert set(upload.get("params", {})) == {p for p in fed.initial.params if method.shared(p)}
    assert set(upload) <= {"params", "prototypes"}
    assert not any("noise_state" in path for path in flatten(upload))


@every_method
def test_order_of_other_clients_does_not_matter_to_a_client(name: str) -> None:
    fed = federation(METHODS[name](), dropout=0.3)
    first = fed.train("cyd")
    fed.train("bob")
    torch.manual_seed(99)
    assert difference(as_tree(first), as_tree(fed.train("cyd"))) == 0.0


@pytest.mark.parametrize(("special", "simple"), [(("fedprox", {"mu": 0.0}), "fedavg")])
def test_limits_reduce_to_the_simpler_method(special: tuple[str, dict[str, Any]], simple: str) -> None:
    name, options = special
    left, right = federation(METHODS[name](**options)), federation(METHODS[simple]())
    assert (
        difference(
            left.setup.method.aggregate(left.state, left.updates()),
            right.setup.method.aggregate(right.state, right.updates()),
        )
        < 1e-15
    )


def test_fedali_with_one_client_keeps_its_prototypes() -> None:
    """With G points and G clusters started at those points, k-means stays where it is; the rest is FedAvg."""
    fed = federation(METHODS["fedali"]())
    update = fed.updates()[0]
    state = fed.setup.method.aggregate(fed.state, [update])
    assert difference(state, update.tensors) < 1e-12
