"""Whatever devices do, and in whatever order: the state is the sum over those that are present, bit for bit.

Over the server's own service and database. The same over the method alone is in `tests/federation/methods`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator_api.federations import exports
from aggregator_api.federations.service import FederationChanges
from federation.records import Tree
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, state_of, sums_of, sums_parcel, withdrawal_parcel
from tests.aggregator_api.rounds.test_continuous import assert_sums, rows, tick

DEVICES = "abc"
AT_ONCE = FederationChanges.model_validate({"publication": {"min_changes": 1, "interval_s": 0}})
EVENTS = st.tuples(
    st.sampled_from(["send", "send", "again", "older", "withdraw", "the operator's word", "delete", "publish"]),
    st.sampled_from(DEVICES),
)


class Devices:
    """What each device has sent last, by what the server has said of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.number = bench, 0
        self.present: dict[str, Tree] = {}
        self.last: dict[str, tuple[int, Tree]] = {}

    def do(self, what: str, device: str) -> None:
        bench = self.bench
        match what:
            case "send":
                self.number += 1
                tree = sums_of(self.number)
                assert bench.upload(sums_parcel(bench.now(), device, self.number, tree=tree)).status == "accepted"
                self.present[device], self.last[device] = tree, (self.number, tree)
            case "again" if device in self.present:
                number, tree = self.last[device]
                assert bench.upload(sums_parcel(bench.now(), device, number, tree=tree)).status == "accepted"
            case "older" if device in self.last:
                number, _ = self.last[device]
                sent = sums_parcel(bench.now(), device, max(1, number - 1), seed=999, update_id=f"old{self.number}")
                assert "was accepted already" in bench.refused(sent)
            case "withdraw":
                self.number += 1
                assert bench.begin(withdrawal_parcel(bench.now(), device, self.number)).status == "accepted"
                self.present.pop(device, None)
                self.last[device] = self.number, {}
            case "the operator's word" if device in self.present:
                bench.as_inbox(lambda: bench.runtime.devices.withdraw("walk", device))
                del self.present[device]
            case "delete" if device in self.present:
                bench.as_inbox(lambda: bench.runtime.deletion.delete_device("walk", device, dry_run=False))
                del self.present[device], self.last[device]
                bench.say(device, "ready")
            case "publish":
                tick(bench)

    def settle(self) -> None:
        def is_settled() -> bool:
            tick(self.bench)
            return all(row.changed_at is None for row in rows(self.bench).values())

        wait_for(is_settled)


def played(events: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench, beside = (Bench(Path(folder) / name, continuous_plan(min_changes=3)) for name in ("all", "present"))
        try:
            for device in DEVICES:
                bench.say(device, "ready")
                beside.say(device, "ready")
            devices = Devices(bench)
            for what, device in events:
                devices.do(what, device)
            bench.runtime.federation_settings.change("walk", AT_ONCE)
            beside.runtime.federation_settings.change("walk", AT_ONCE)
            devices.settle()
            assert_sums(bench, *devices.present.values())
            never = Devices(beside)
            for device, tree in reversed(devices.present.items()):
                assert beside.upload(sums_parcel(beside.now(), device, 7, tree=tree)).status == "accepted"
            never.settle()
            if devices.present:
                assert bench.state() == beside.state(), "who has left was never there"
            assert int(state_of(bench)["sums"]["clients"]) == len(devices.present)
        finally:
            bench.stop()
            beside.stop()


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network below the head takes seconds to export; test_feature_model does it."""
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")


QUIET = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(max_examples=4, **QUIET)
@given(st.lists(EVENTS, min_size=4, max_size=14))
def test_the_state_is_the_sum_of_whoever_is_present(events: list[tuple[str, str]]) -> None:
    played(events)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100, **QUIET)
@given(st.lists(EVENTS, max_size=40))
def test_the_state_is_the_sum_of_whoever_is_present_at_length(events: list[tuple[str, str]]) -> None:
    played(events)
