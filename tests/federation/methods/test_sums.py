"""Which methods need a sum alone, and that their server half is given nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from federation.aggregation.averaging import Accumulator, SumChanges
from federation.aggregation.present_sums import KeptContributions
from federation.errors import SettingsError
from federation.method import Method, SumMethod, trains
from federation.methods import METHODS, method_from_json
from federation.methods.fedavg import FedAvg
from federation.plan import RoundSettings, SecureSettings, TrainingConfig
from federation.records import Client, SumKind, Tensors, TrainingStats, Tree, Update, UploadGroup
from federation.records.tree import flatten
from federation.secure_sums.plausibility import OpenedSum, implausibility
from federation.secure_sums.summation import (
    Segment,
    SumLayout,
    check_secure,
    decoded,
    encoded,
    layout_of,
    next_state,
    summed_gains,
    vector_length,
)
from gaitway.plugins import named_subclass
from tests.federation.federated import SIZES, Federation, federation

SECURE = SecureSettings(mode="masked")
UNSCREENED = RoundSettings(norm_factor=None, max_weight_ratio=None)
SUMMED = {
    *("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedper", "fedrep", "ditto", "moon", "scaffold"),
    *("fedproto", "fedpr", "analytic", "fedali", "fedala", "fedbabu", "fesem"),
}
REFUSED = {
    "local": "sends nothing",
    "centralized": "in one place",
    "fedatt": "by how far its own parameters went",
    "fedpac": "the single heads of all",
    "fedtgp": "the single prototypes of all",
    "pfedfda": "doesn't define what adds up",
    "fedproto_margin": "the margins of its own prototypes",
}
OPTIONS: dict[str, dict[str, Any]] = {name: {"clustering": "one_step"} for name in ("fedali", "fesem")}


def method_named(name: str, **options: Any) -> Method:
    return method_from_json({"name": name, **OPTIONS.get(name, {}), **options})


def summed(fed: Federation, updates: list[Update]) -> tuple[SumLayout, np.ndarray]:
    method = fed.setup.method
    layout = layout_of(method, fed.setup.training, fed.initial, SECURE)
    vectors = [encoded(method, layout, one, method.broadcast(fed.state, one.client_id), SECURE) for one in updates]
    return layout, np.sum(vectors, axis=0)


def alone(fed: Federation, layout: SumLayout, total: np.ndarray, names: list[str]) -> Tree:
    """Let the server's half work where everything that takes a single client's update fails."""
    method = fed.setup.method

    def never(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("the server's half was given a single client's tensors")

    kind = type(method)
    blind = type(kind.__name__, (kind,), dict.fromkeys(("fold", "fold_params", "aggregate", "summand"), never))
    object.__setattr__(method, "__class__", blind)
    try:
        return next_state(method, fed.state, layout, total, names)
    finally:
        object.__setattr__(method, "__class__", kind)


def test_every_method_is_summed_or_refused() -> None:
    assert SUMMED | set(REFUSED) == set(METHODS)
    assert not SUMMED & set(REFUSED)


@pytest.mark.parametrize("name", sorted(SUMMED))
def test_the_server_half_needs_the_sum_alone(name: str) -> None:
    """Two rounds, the second one from a state that the first has made: as `aggregate` up to fixed point."""
    fed = federation(method_named(name), dtype=torch.float32)
    for _ in range(2):
        updates = fed.updates()
        layout, total = summed(fed, updates)
        opened = OpenedSum(layout, total, len(updates))
        assert implausibility(fed.setup.method, SECURE, opened) == "", "an honest sum is possible"
        state = alone(fed, layout, total, [update.client_id for update in updates])
        method = fed.setup.method
        before = method.without_contributions(fed.state) if isinstance(method, SumMethod) else fed.state
        expected = flatten(method.aggregate(before, updates))
        came = flatten(state)
        assert list(came) == list(expected)
        for path, value in expected.items():
            # half a step for each of three clients, of 22 examples or at the least one of a class
            torch.testing.assert_close(came[path], value, atol=3e-3, rtol=2e-3, msg=lambda text, p=path: f"{p}: {text}")
            assert came[path].dtype == value.dtype
        fed = fed._replace(state=state)


def test_sums_of_the_analytic_method_are_the_same_bit_for_bit() -> None:
    fed = federation(method_named("analytic"), dtype=torch.float32)
    updates = fed.updates()
    layout, total = summed(fed, updates)
    came = flatten(alone(fed, layout, total, [update.client_id for update in updates]))
    expected = flatten(fed.setup.method.aggregate(fed.state, updates))
    assert all(torch.equal(came[path], value) for path, value in expected.items())


def test_whole_sums_take_the_place_of_those_before() -> None:
    fed = federation(method_named("analytic"), dtype=torch.float32)
    updates = fed.updates()
    all_three = fed._replace(state=fed.setup.method.aggregate(fed.state, updates))
    staying = [updates[0], updates[2]]
    layout, total = summed(all_three, staying)
    left = flatten(alone(all_three, layout, total, ["ada", "cyd"]))
    never_there = flatten(fed.setup.method.aggregate(fed.state, staying))
    assert all(torch.equal(left[path], value) for path, value in never_there.items())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_methods_are_refused_in_words(name: str) -> None:
    with pytest.raises(SettingsError, match=REFUSED[name]):
        check_secure(METHODS[name](), UNSCREENED, SECURE)
    check_secure(METHODS[name](), RoundSettings(), SecureSettings())


@pytest.mark.parametrize(("options", "words"), [
    ({"name": "fedavg", "aggregation": "median"}, "needs every client's parameters"),
    ({"name": "fedproto", "average_over": "clients"}, "set average_over=round"),
    ({"name": "fedali"}, "set clustering=one_step"),
    ({"name": "fesem"}, "the centre that its own parameters are nearest to; set clustering=one_step"),
])  # fmt: skip
def test_options_that_need_single_updates_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_secure(method_from_json(options), UNSCREENED, SECURE)


@pytest.mark.parametrize(("changes", "words"), [
    ({"norm_factor": 10.0}, "rounds.norm_factor=null"),
    ({"max_weight_ratio": 2.0}, "rounds.max_weight_ratio=null"),
    ({"clip_norm": 1.0}, "rounds.clip_norm=null"),
    ({"late": "next"}, "rounds.late=drop"),
])  # fmt: skip
def test_rules_that_judge_single_updates_are_refused(changes: dict[str, Any], words: str) -> None:
    rounds = UNSCREENED.model_copy(update=changes)
    with pytest.raises(SettingsError, match=words):
        check_secure(METHODS["fedavg"](), rounds, SECURE)


def test_a_method_that_overrides_fold_alone_is_refused() -> None:
    """A plug-in that has never heard of sums must not be summed as FedAvg is."""

    class Other(METHODS["fedavg"]):  # type: ignore[misc]
        def fold(self, state: Any, accumulator: Any, update: Any) -> Any:
            return super().fold(state, accumulator, update._replace(examples=1))

    with pytest.raises(SettingsError, match="doesn't define what adds up"):
        check_secure(Other(), UNSCREENED, SECURE)


def test_the_ring_is_so_large_that_no_sum_wraps() -> None:
    fed = federation(method_named("fedavg"), dtype=torch.float32)
    layout = layout_of(fed.setup.method, fed.setup.training, fed.initial, SECURE)
    assert layout.bound == 4 * 4096 * 1024
    assert (layout.bits_for(127), layout.bits_for(128)) == (32, 64)
    with pytest.raises(SettingsError, match="does not fit 64 bits"):
        layout.bits_for(1 << 40)
    most = np.full(layout.length, 127 * layout.bound)
    assert most.astype(np.int32).tolist() == most.tolist()
    assert layout.digest != layout_of(fed.setup.method, fed.setup.training, fed.initial, SECURE.model_copy(
        update={"steps": 512}
    )).digest  # fmt: skip


REPORT = [1, -700, 49, 1, -900, 0, 0, 1, -500]


def test_gains_are_summed_exactly_and_change_no_model() -> None:
    fed = federation(method_named("scaffold"), dtype=torch.float32)
    method, updates = fed.setup.method, fed.updates()
    layout = layout_of(method, fed.setup.training, fed.initial, SECURE)
    reports = [{"personalized": REPORT}, {"midway": REPORT, "personalized": REPORT[:3]}, {"adapted": REPORT}]
    broadcast = method.broadcast(fed.state, "")
    vectors = [
        encoded(method, layout, update, broadcast, SECURE, report)
        for update, report in zip(updates, reports, strict=True)
    ]
    total = np.sum(vectors, axis=0)
    assert summed_gains(layout, total) == {"personalized": REPORT, "midway": REPORT}
    twice = {name: [2 * number for number in REPORT] for name in ("personalized", "midway")}
    assert summed_gains(layout, np.concatenate([total, total]), 2) == twice
    names = [update.client_id for update in updates]
    without = np.sum([encoded(method, layout, update, broadcast, SECURE) for update in updates], axis=0)
    came, expected = (flatten(alone(fed, layout, each, names)) for each in (total, without))
    assert came.keys() == expected.keys()
    assert all(torch.equal(came[path], value) for path, value in expected.items())


@pytest.mark.parametrize(
    ("name", "changes", "names"),
    [
        ("fedavg", {}, {"gains/personalized", "gains/midway"}),
        ("fedper", {}, {"gains/personalized", "gains/midway"}),
        ("analytic", {}, set()),
        ("fedavg", {"noise_multiplier": 1.0, "clip_norm": 1.0, "max_weight": 1}, set()),
    ],
)
def test_where_gains_are_among_the_numbers(name: str, changes: dict[str, Any], names: set[str]) -> None:
    fed = federation(method_named(name), dtype=torch.float32)
    settings = SECURE.model_copy(update=changes)
    layout = layout_of(fed.setup.method, fed.setup.training, fed.initial, settings)
    assert {segment.name for segment in layout.segments if segment.name.startswith("gains")} == names


def test_a_vector_of_all_groups_is_no_longer_than_a_sum_can_have() -> None:
    layout = SumLayout((Segment("w", (1 << 22,), 1, 9),))
    grouped = SECURE.model_copy(update={"groups": 32})
    assert vector_length(layout, grouped) == 1 << 27
    with pytest.raises(SettingsError, match="a device would send 138,412,032 numbers"):
        vector_length(layout, SECURE.model_copy(update={"groups": 33}))


def test_numbers_are_rounded_and_cut_off_where_the_plan_says() -> None:
    fed = federation(method_named("fedavg"), dtype=torch.float64)
    method, broadcast = fed.setup.method, fed.setup.method.broadcast(fed.state, "")
    layout = layout_of(method, fed.setup.training, fed.initial, SECURE)
    params = {name: value + 1e9 for name, value in broadcast["params"].items()}
    first = next(iter(params))
    params[first] = broadcast["params"][first] + 0.3
    tree = decoded(layout, encoded(method, layout, Update("x", 10**9, 1, {"params": params}), broadcast, SECURE))
    assert int(tree["weight"]) == 4096
    assert float(tree["params"][first].reshape(-1)[0]) == round(0.3 * 4096 * 1024) / 1024
    assert {float(v.max()) for n, v in tree["params"].items() if n != first} == {4.0 * 4096}


@dataclass(frozen=True, kw_only=True)
class ClassCounts(SumMethod):
    """Count everybody's examples of each class."""

    name: ClassVar[str] = "class_counts"
    upload_groups: ClassVar[Mapping[str, UploadGroup]] = {"counts": UploadGroup.VALUE}
    sum_groups: ClassVar[Mapping[str, SumKind]] = {"counts": SumKind.WHOLE, "clients": SumKind.COUNT}

    def upload(self, client: Client, round_state: Tree, stats: TrainingStats) -> tuple[Client, Tree]:
        """Send the counts."""
        return client, {"counts": stats.after.counts.int()}

    def server_init(self, params: Tensors, buffers: Tensors, training: TrainingConfig) -> Tree:
        """Have counted nothing."""
        nothing = torch.zeros(training.classes, dtype=torch.int64)
        return {"params": params, "sums": {"counts": nothing, "clients": torch.tensor(0)}}

    def finish(self, state: Tree, accumulator: Accumulator) -> Tree:
        """Add the changes."""
        changes, sums = SumChanges.of(accumulator), state["sums"]
        counts = sums["counts"] + changes.change.get("counts", 0)
        return {**state, "sums": {"counts": counts, "clients": sums["clients"] + changes.clients}}


@pytest.fixture
def fed() -> Federation:
    return federation(ClassCounts())


def counted(fed: Federation, names: tuple[str, ...]) -> list[int]:
    return [sum(int((fed.examples[name].y == label).sum()) for name in names) for label in range(3)]


def test_it_is_a_method_of_the_table_that_trains_nothing(fed: Federation) -> None:
    assert named_subclass(SumMethod)("class_counts", ClassCounts) == ""
    assert not trains(fed.setup.method, fed.setup.training)


def test_clients_join_send_again_and_leave_exactly(fed: Federation) -> None:
    method, kept = fed.setup.method, KeptContributions()
    updates = fed.updates()
    joined = method.aggregate(fed.state, updates)
    assert joined["sums"]["counts"].tolist() == counted(fed, tuple(SIZES))
    kept.note(updates)
    again = method.aggregate(joined, [kept.replacing(update) for update in updates])
    assert again["sums"]["counts"].tolist() == counted(fed, tuple(SIZES))
    left = method.aggregate(again, [kept.withdrawal("ada")])
    assert left["sums"]["counts"].tolist() == counted(fed, ("bob", "cyd"))
    assert int(left["sums"]["clients"]) == 2


def test_a_secure_sum_makes_the_same_state(fed: Federation) -> None:
    method, settings = fed.setup.method, SecureSettings(mode="masked")
    layout = layout_of(method, fed.setup.training, fed.initial, settings)
    total = sum(encoded(method, layout, update, fed.state, settings) for update in fed.updates())
    made = next_state(method, fed.state, layout, total, tuple(SIZES))
    assert made["sums"]["counts"].tolist() == counted(fed, tuple(SIZES))
    assert int(made["sums"]["clients"]) == len(SIZES)


def test_it_refuses_a_rule_that_sums_cannot_follow() -> None:
    with pytest.raises(SettingsError, match="aggregation=krum: expected mean, median, trimmed_mean"):
        ClassCounts(aggregation="krum")


def test_a_trait_that_is_set_on_the_class_is_refused_with_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"Pooled sets pools_data: write traits = Traits\(pools_data=True\) instead"):
        type("Pooled", (FedAvg,), {"pools_data": True})
