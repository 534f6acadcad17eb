"""A sum method of one's own: it says what its sums are and what comes of them, and inherits how they add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from federation.aggregation.averaging import Accumulator, SumChanges
from federation.aggregation.present_sums import KeptContributions
from federation.errors import SettingsError
from federation.method import SumMethod, trains
from federation.methods.fedavg import FedAvg
from federation.plan import SecureSettings, TrainingConfig
from federation.records import Client, SumKind, Tensors, TrainingStats, Tree, UploadGroup
from federation.secure_sums.summation import encoded, layout_of, next_state
from gaitway.plugins import named_subclass
from tests.federation.federated import SIZES, Federation, federation


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
