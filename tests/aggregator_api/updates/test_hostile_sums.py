"""What a device could try with its sums: each is refused in words, and costs nobody else anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.federations import exports
from aggregator_api.storage import findings
from aggregator_api.storage.db.models import ContributionRow, DeviceRow
from aggregator_api.storage.findings import Severity
from federation.protocol import topics
from federation.protocol.messages import MAX_AHEAD_MS
from federation.records import Tree
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import (
    CLASSES,
    FEATURES,
    continuous_plan,
    sends,
    state_of,
    sums_of,
    sums_parcel,
    withdrawal_parcel,
)
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, parcel

SIZE = FEATURES + 1
LAST = SIZE * (SIZE + 1) // 2 - 1


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A server that has published the sums of a; b is the device that tries things."""
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")
    bench = Bench(tmp_path / "data", continuous_plan())
    for device in "abc":
        bench.say(device, "ready")
    sends(bench, "a", 1, tree=sums_of(1))
    wait_for(lambda: bench.now().round == 2)
    yield bench
    bench.stop()


def assert_unharmed(bench: Bench) -> None:
    """The sums are a's alone, and c joins as if nothing had been."""
    sent = sends(bench, "c", 1, tree=sums_of(2))

    def has_both() -> bool:
        bench.as_inbox(bench.runtime.coordinator.tick)
        return int(state_of(bench)["sums"]["clients"]) == 2

    wait_for(has_both)
    for name, value in state_of(bench)["sums"].items():
        if name != "clients":
            assert torch.equal(value, sums_of(1)[name].long() + sent.tree[name])
    with bench.runtime.database.read() as session:
        assert {row.device.name for row in session.scalars(select(ContributionRow)) if row.device} == {"a", "c"}
        (found,) = findings.check_sums(session, bench.runtime.blobs)
    assert found.level is Severity.OK


def changed(name: str, at: Any, value: int) -> Tree:
    tree = {key: part.clone() for key, part in sums_of(3).items()}
    tree[name][at] = value
    return tree


TREES: dict[str, tuple[Callable[[], Tree], str]] = {
    "as much as 32 bits hold": (lambda: {name: torch.full_like(v, 2**31 - 1) for name, v in sums_of(3).items()}, "cut"),
    "as little": (lambda: {name: torch.full_like(v, -(2**31)) for name, v in sums_of(3).items()}, "cut off"),
    "one huge product": (lambda: changed("gram", 1, 2**30), "a sum of products is"),
    "a negative square": (lambda: changed("gram", 0, -1000), "below 0"),
    "a negative weight": (lambda: changed("moment", (SIZE - 1, 0), -50_000), "has a weight of -"),
    "windows that no weight has": (lambda: changed("gram", LAST, 2**28), "in one place"),
    "a class of its own means": (lambda: changed("moment", (0, 0), 100_000), "over all examples than over"),
    "floats": (lambda: {name: v.float() for name, v in sums_of(3).items()}, "float32"),
    "NaN": (lambda: {name: v.float() * float("nan") for name, v in sums_of(3).items()}, ""),
    "64 bits": (lambda: {name: v.long() for name, v in sums_of(3).items()}, "int64"),
    "another network's": (lambda: {**sums_of(3), "gram": torch.zeros(3, dtype=torch.int32)}, "gram"),
    "one class more": (lambda: {**sums_of(3), "moment": torch.zeros(SIZE, CLASSES + 1, dtype=torch.int32)}, "moment"),
    "something beside": (lambda: {**sums_of(3), "params": torch.zeros(2)}, "params"),
    "nothing": (lambda: {"gram": sums_of(3)["gram"]}, "moment"),
}


def test_impossible_sums(live: Bench) -> None:
    for number, (what, (tree, words)) in enumerate(TREES.items()):
        live.say(f"t{number}", "ready")
        reason = live.refused(sums_parcel(live.now(), f"t{number}", 1, tree=tree()))
        assert words in reason, (what, reason)
    assert live.count("quarantined") == len(TREES)
    assert_unharmed(live)


def raw(bench: Bench, sent: Parcel, **changes: Any) -> str:
    """Send a manifest that no model of ours would write, on its device's topic, and return the answer's reason."""
    said = {**json.loads(sent.manifest.model_dump_json()), **changes}
    device = sent.manifest.client
    bench.send(topics.update(FEDERATION, device, sent.manifest.update_id, "begin"), json.dumps(said).encode())
    answer = bench.last(device)
    assert answer.status == "refused", answer
    return answer.reason


NUMBERS: dict[str, list[Any]] = {
    "sequence": [0, -1, 2**53, 2**63, 2**64, 1e300, "seven", 1.5],
    "examples": [0, -5, 2**63, 10**10],
}


def test_numbers_that_are_none(live: Bench) -> None:
    for name, values in NUMBERS.items():
        for number, value in enumerate(values):
            device = f"{name}{number}"
            live.say(device, "ready")
            assert name in raw(live, sums_parcel(live.now(), device, 1), **{name: value}), value
    assert_unharmed(live)


def test_a_number_far_ahead_freezes_no_name(live: Bench) -> None:
    """2⁵³ − 1 would be the last number of that name for good; one is at most a day ahead of the server's clock."""
    now_ms = int(1000 * time.time())
    for ahead in (2**53 - 1, now_ms + MAX_AHEAD_MS + 600_000):
        assert "a day ahead" in live.refused(sums_parcel(live.now(), "b", ahead, seed=3))
        assert "a day ahead" in raw(live, withdrawal_parcel(live.now(), "b", ahead))
    sends(live, "b", now_ms, seed=3)
    sends(live, "b", now_ms + MAX_AHEAD_MS - 600_000, seed=4)
    with live.runtime.database.read() as session:
        device = session.scalars(select(DeviceRow).where(DeviceRow.name == "b")).one()
        assert (device.refused_updates, device.suspended_at) == (0, None)


def test_sums_for_another_device(live: Bench) -> None:
    """b says that they are a's: on b's own topic; what comes on a's is a's word, for the broker lets b write none."""
    mine = sums_parcel(live.now(), "b", 5)
    assert "came on the topic of" in raw(live, mine, client="a")
    assert "came on the topic of" in raw(live, mine, client="c", update_id=mine.manifest.update_id)
    assert_unharmed(live)


def test_sums_of_another_federation_or_an_earlier_one_of_that_name(live: Bench) -> None:
    mine = sums_parcel(live.now(), "b", 5)
    assert "came on the topic of" in raw(live, mine, federation="others")
    assert "earlier federation" in raw(live, sums_parcel(live.now(), "b", 6), instance="0" * 32)
    assert_unharmed(live)


def test_what_was_recorded_changes_nothing_when_it_is_sent_again(live: Bench) -> None:
    old, new = sums_parcel(live.now(), "b", 1, seed=11), sums_parcel(live.now(), "b", 2, seed=12)
    left = withdrawal_parcel(live.now(), "b", 3)
    for sent in (old, new):
        assert live.upload(sent).status == "accepted"
    assert live.begin(left).status == "accepted"
    for sent in (old, new):
        live.begin(sent)  # answered as it was then
        again = sums_parcel(live.now(), "b", sent.manifest.sequence, tree=sent.tree, update_id="other")
        assert "number 3 was accepted already" in live.refused(again)
    assert live.begin(left).status == "accepted"
    assert_sums_of_a(live)


def assert_sums_of_a(bench: Bench) -> None:
    def alone() -> bool:
        bench.as_inbox(bench.runtime.coordinator.tick)
        return int(state_of(bench)["sums"]["clients"]) == 1

    wait_for(alone)
    assert torch.equal(state_of(bench)["sums"]["gram"], sums_of(1)["gram"].long())


def test_a_closed_federation(live: Bench) -> None:
    live.runtime.federations.stop(FEDERATION)
    before = live.state()
    assert "it takes no more sums" in live.refused(sums_parcel(live.now(), "b", 1))
    assert "it takes no more sums" in raw(live, withdrawal_parcel(live.now(), "b", 2))
    assert live.state() == before


def test_bytes_that_are_other_sums_than_announced(live: Bench) -> None:
    said, sent = sums_parcel(live.now(), "b", 1, seed=3), sums_parcel(live.now(), "b", 1, seed=4)
    assert "do not have the sha256" in live.refused(Parcel(said.manifest, sent.data, sent.tree))
    bomb = parcel(live.now(), "b", {}, data=b"\0" * 64, sequence=2, steps=0)
    assert live.refused(bomb)
    assert_unharmed(live)
