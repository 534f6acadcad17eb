"""The contract of design.md, over every registered method."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch

from federation import wire
from federation.errors import SettingsError
from federation.method import SumMethod, empty_training_stats, trains
from federation.methods import METHODS, method_from_json, method_to_json
from federation.records import Client, Update, UploadGroup
from federation.records.tree import flatten, leaves, map_tree
from federation.training.client_round import train_stacked
from federation.training.local_round import ClientWork, LocalRound, local_round
from federation.training.optimizers import optimizer_for
from federation.training.schedule import Schedule, in_order
from federation.wire.schema import check_tree, upload_schema
from tests.federation.federated import SIZES, Federation, each_step, federation

every_method = pytest.mark.parametrize("name", METHODS)
every_step = pytest.mark.parametrize("name", each_step(METHODS))


@functools.cache
def untrained(name: str, **options: Any) -> Federation:
    """A federation that tests share; that nothing changes what it is given is tested below, on one of its own."""
    return federation(method_from_json({"name": name, **options}))


@functools.cache
def trained(name: str, client: str, **options: Any) -> LocalRound:
    return untrained(name, **options).train(client)


def updates(name: str, **options: Any) -> list[Update]:
    return [Update(client, n, 1, trained(name, client, **options).upload) for client, n in SIZES.items()]


@functools.cache
def after_a_round(name: str, **options: Any) -> Federation:
    fed = untrained(name, **options)
    return fed._replace(state=fed.setup.method.aggregate(fed.state, updates(name, **options)))


@functools.cache
def second_round(name: str, client: str, **options: Any) -> LocalRound:
    """A client that was not there in the first round."""
    return after_a_round(name, **options).train(client, round_number=2)


def clients(name: str) -> list[Client]:
    return [trained(name, client).client for client in SIZES]


def difference(a: Any, b: Any) -> float:
    """Largest absolute difference of two trees with the same names."""
    first, second = flatten(a), flatten(b)
    assert list(first) == list(second)
    gaps = [float((first[n].double() - second[n].double()).abs().max()) for n in first if first[n].numel()]
    return max(gaps, default=0.0)


def as_tree(result: Any) -> dict[str, Any]:
    return {"client": result.client._asdict(), "upload": result.upload, "loss": result.loss}


@every_method
def test_stacked_equals_one_by_one(name: str) -> None:
    """With dropout, whose masks must not depend on who else trains; without it below."""
    fed = federation(METHODS[name](), dropout=0.4)
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


@pytest.mark.ci
@every_step
def test_a_second_round_stacked_equals_one_by_one(name: str) -> None:
    fed, mine = after_a_round(name), clients(name)
    broadcasts = [fed.setup.method.broadcast(fed.state, client) for client in SIZES]
    alone = [fed.train(client, before, 2) for client, before in zip(SIZES, mine, strict=True)]
    together = train_stacked(
        fed.setup, mine, broadcasts, list(fed.examples.values()), client_ids=list(SIZES), round_number=2
    )
    for one, other in zip(alone, together, strict=True):
        assert difference(as_tree(one), as_tree(other)) < 1e-10


@every_step
def test_padding_changes_nothing(name: str) -> None:
    """Steps of nothing but padding, and rows of padding with absurd values, leave no trace."""
    fed = federation(METHODS[name](), dropout=0.3)
    training, method = fed.setup.training, fed.setup.method
    mine = fed.examples["ada"]
    order = in_order(len(mine.y), training.batch_size)
    epochs = sum(phase.epochs for phase in method.phases(training))
    plain = Schedule(order.rows.repeat(epochs, 0), order.mask.repeat(epochs, 0))
    padded = Schedule(_pad_steps(plain.rows), _pad_steps(plain.mask))
    garbage = mine._replace(
        x=torch.cat([mine.x, torch.full_like(mine.x[:1], 1e6)]), y=torch.cat([mine.y, mine.y.new_tensor([2])])
    )
    padded.rows[padded.mask == 0] = len(mine.y)  # padding points at the absurd example

    def run(examples: Any, schedule: Schedule) -> dict[str, Any]:
        work = map_tree(lambda value: value[None], (fed.initial, method.broadcast(fed.state, "ada"), examples))
        stacked = Schedule(schedule.rows[None], schedule.mask[None])
        stats_order = Schedule(order.rows[None], order.mask[None])
        result = local_round(
            fed.setup,
            optimizer_for(training, stacked=True),
            work[0],
            work[1],
            ClientWork(work[2], stacked, stats_order),
            stacked=True,
        )
        return as_tree(result)

    assert difference(run(mine, plain), run(garbage, padded)) < 1e-12


def _pad_steps(part: Any) -> Any:
    return np.pad(part, ((0, 0), (0, 2), (0, 0)))


@every_method
def test_hooks_do_not_change_their_inputs(name: str) -> None:
    fed = federation(METHODS[name]())
    method, training = fed.setup.method, fed.setup.training
    updates = fed.updates()
    before = copy.deepcopy((fed.state, fed.initial, updates))
    broadcast = method.broadcast(fed.state, "ada")
    received, round_state = method.receive(fed.initial, broadcast)
    method.upload(
        received, round_state, empty_training_stats(method, training, next(iter(fed.initial.params.values())))
    )
    method.global_model(fed.initial, broadcast)
    method.refresh(received, method.broadcast(method.aggregate(fed.state, updates), "ada"))
    method.predict(fed.setup.network.evaluate, received, fed.examples["ada"].x)
    method.aggregate(fed.state, updates)
    fed.train("ada")
    for old, new in zip(leaves(before), leaves((fed.state, fed.initial, updates)), strict=True):
        if isinstance(old, torch.Tensor):
            assert torch.equal(old, new)
        else:
            assert old == new


@every_method
def test_json_round_trip(name: str) -> None:
    method = METHODS[name](weighting="uniform")
    assert method_from_json(method_to_json(method)) == method
    assert hash(method) == hash(method_from_json(method_to_json(method)))


@every_method
def test_state_survives_bytes_bit_for_bit(name: str) -> None:
    state = after_a_round(name).state
    for compression in ("none", "zstd"):
        data = wire.encode(state, compression=compression)
        again = wire.decode(data, limit_bytes=1 << 24, compression=compression)
        first, second = flatten(state), flatten(again)
        assert sorted(first) == sorted(second)
        assert all(first[n].dtype == second[n].dtype and torch.equal(first[n], second[n]) for n in first)


@every_method
def test_a_state_that_came_from_bytes_goes_on(name: str) -> None:
    """What the server reads back from its disk aggregates to the same, from the first round on."""
    fed = untrained(name)
    method, said = fed.setup.method, updates(name)
    first, second = fed.state, wire.decode(wire.encode(fed.state), limit_bytes=1 << 24)
    for _ in range(2):
        first = method.aggregate(first, said)
        second = wire.decode(wire.encode(method.aggregate(second, said)), limit_bytes=1 << 24)
    assert difference(dict(sorted(flatten(first).items())), dict(sorted(flatten(second).items()))) == 0.0


@every_method
def test_what_is_not_shared_does_not_travel(name: str) -> None:
    fed = untrained(name)
    method = fed.setup.method
    upload = trained(name, "ada").upload
    if trains(method, fed.setup.training):  # else the network comes from the server alone
        assert set(upload.get("params", {})) == {p for p in fed.initial.params if method.shared(p)}
    assert set(upload) == set(method.upload_groups)
    broadcast = method.broadcast(fed.state, "ada")
    for group, kind in method.upload_groups.items():
        if kind is UploadGroup.CHANGE:
            assert set(flatten(upload[group])) <= set(flatten(broadcast[group]))
        if kind is UploadGroup.CLASS_COUNTS:
            assert upload[group].tolist() == torch.bincount(fed.examples["ada"].y, minlength=3).tolist()
    assert not any("noise_state" in path for path in flatten(upload))
    assert method.shared("convolutions.0.weight") or "params" not in upload


@every_method
def test_order_of_other_clients_does_not_matter_to_a_client(name: str) -> None:
    fed = federation(METHODS[name](), dropout=0.3)
    first = fed.train("cyd")
    fed.train("bob")
    torch.manual_seed(99)
    assert difference(as_tree(first), as_tree(fed.train("cyd"))) == 0.0


FEDAVG, UNIFORM = {"name": "fedavg"}, {"name": "fedavg", "weighting": "uniform"}
LIMITS = [
    ("fedprox", {"mu": 0.0}, FEDAVG),
    ("moon", {"mu": 0.0}, FEDAVG),
    ("fedpr", {"lam": 0.0}, FEDAVG),
    ("ditto", {"lam": 0.0}, FEDAVG),
    ("fedavgm", {"momentum": 0.0}, FEDAVG),
    ("fedala", {"weight_epochs": 0}, FEDAVG),
    ("fedavg", {"aggregation": "trimmed_mean", "trim": 0.0, "weighting": "uniform"}, UNIFORM),
    ("centralized", {}, FEDAVG),
]


@pytest.mark.parametrize(("name", "options", "simple"), LIMITS)
def test_limits_reduce_to_the_simpler_method(name: str, options: dict[str, Any], simple: dict[str, Any]) -> None:
    """Two rounds end in the same parameters on the server and on every client."""
    both = ({"name": name, **options}, simple)
    left, right = (after_a_round(**one).state for one in both)
    assert difference(left["params"], right["params"]) < 1e-14
    for client in SIZES:
        ours, theirs = (second_round(client=client, **one).upload for one in both)
        assert difference(ours["params"], theirs["params"]) < 1e-14


def test_fesem_with_one_centre_is_fedavg() -> None:
    left, right = after_a_round("fesem", centres=1).state, after_a_round("fedavg").state
    assert difference(left["centres"]["0"], right["params"]) == 0.0


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_fedproto_without_pull_is_local(name: str) -> None:
    for client in SIZES:
        ours, theirs = second_round(name, client, lam=0.0).client, second_round("local", client).client
        assert difference(ours.params, theirs.params) < 1e-14


def test_fedproto_margin_is_fedavg_in_its_first_round() -> None:
    left, right = after_a_round("fedproto_margin").state, after_a_round("fedavg").state
    assert difference(left["params"], right["params"]) < 1e-15


def test_ditto_serves_with_the_personal_model() -> None:
    mine = trained("ditto", "ada")
    served = untrained("ditto").setup.method.serving_model(mine.client)
    assert set(served.params) == set(untrained("fedavg").initial.params)
    assert difference(served.params, mine.upload["params"]) > 0


@every_method
def test_a_client_joins_in_one_shape(name: str) -> None:
    """New clients and old ones are stacked together, so a round must not change what a client consists of."""
    before, after = untrained(name).initial, trained(name, "ada").client
    assert [flatten(part._asdict()).keys() for part in (before, after)] == [flatten(after._asdict()).keys()] * 2


@every_method
def test_a_newer_broadcast_changes_predictions_only_where_a_method_says_so(name: str) -> None:
    fed, after = untrained(name), after_a_round(name)
    method, client, x = fed.setup.method, trained(name, "ada").client, fed.examples["bob"].x
    newer = method.refresh(client, method.broadcast(after.state, "ada"))
    assert all(torch.equal(value, newer.params[path]) for path, value in client.params.items())
    ours, theirs = (method.predict(fed.setup.network.evaluate, one, x) for one in (client, newer))
    assert torch.equal(ours.logits, theirs.logits) is not method.predicts_by_broadcast
    again = after.train("ada", newer, 2), after.train("ada", client, 2)
    assert difference(as_tree(again[0]), as_tree(again[1])) == 0.0, "its next round is the same with and without"


@every_method
def test_the_upload_is_as_its_schema_says(name: str) -> None:
    fed = untrained(name)
    schema = upload_schema(fed.setup.method, fed.setup.training, fed.initial)
    check_tree(trained(name, "ada").upload, schema)


ROBUST = [name for name, method in METHODS.items() if method.averages_parameters]


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
def test_a_robust_rule_forgets_a_client_that_sends_nonsense(name: str, rule: str) -> None:
    method = method_from_json({"name": name, "aggregation": rule, "trim": 0.3, "byzantine": 1})
    honest = [update._replace(client_id=f"{update.client_id}{i}") for update in updates(name) for i in range(2)]
    params = {path: torch.full_like(value, 1e6) for path, value in honest[0].tensors["params"].items()}
    liar = honest[0]._replace(client_id="zoe", tensors={**honest[0].tensors, "params": params})
    state = method.aggregate(untrained(name).state, [*honest, liar])
    largest = max(float(value.abs().max()) for value in state.get("params", {}).values())
    assert largest < 10.0, (
        f"{name} ignores aggregation={rule}: combine parameters by `fold_params` and `combined`, or set "
        "`averages_parameters = False`"
    )


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in ROBUST and not issubclass(METHODS[name], SumMethod)]
)
def test_a_robust_rule_is_refused_where_there_is_no_mean(name: str) -> None:
    with pytest.raises(SettingsError, match="average parameters"):
        METHODS[name](aggregation="median")


def test_fedali_with_one_client_keeps_its_prototypes() -> None:
    """With G points and G clusters started at those points, k-means stays where it is; the rest is FedAvg."""
    fed = untrained("fedali")
    update = updates("fedali")[0]
    state = fed.setup.method.aggregate(fed.state, [update])
    assert int(state.pop("rounds")) == 1
    assert difference(state, update.tensors) < 1e-12
