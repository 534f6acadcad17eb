"""Updates that are well formed and a lie: quarantined with a reason that an operator can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from aggregator_api import service
from aggregator_api.tables import UpdateRow
from federation.norms import SAMPLE, RunningMedian, change_norms
from federation.tree import map_tree

from .bench import Bench
from .devices import FEDERATION, Parcel, parcel, tiny_plan

HONEST = tuple("abcd")


def opened(folder: Path, method: str = "fedavg", **rounds: object) -> Bench:
    """Open a round for four honest devices and z, which judges after three updates."""
    bench = Bench(folder, tiny_plan(rounds=1, clients=None, method=method, norm_after=3, **rounds))
    service.pause(bench.runtime, FEDERATION)
    for device in (*HONEST, "z"):
        bench.say(device, "ready", examples=40)
    service.resume(bench.runtime, FEDERATION)
    return bench


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Bench]:
    bench = opened(tmp_path)
    yield bench
    bench.runtime.stop()


def reasons(bench: Bench) -> list[str]:
    """What the operator reads of the quarantined updates."""
    with bench.runtime.database.read() as session:
        return list(session.scalars(select(UpdateRow.reason).where(UpdateRow.status == "quarantined")))


def far(bench: Bench, device: str, factor: float) -> Parcel:
    """Make an update whose change is `factor` times what a generated one would be."""
    honest, start = bench.update_of(device), broadcast(bench)
    moved = map_tree(lambda mine, old: old + factor * (mine - old), honest.tree, start)
    return parcel(bench.now(), device, moved)


def broadcast(bench: Bench) -> dict[str, dict[str, torch.Tensor]]:
    from federation import wire

    data = bench.runtime.blobs.read(bench.base_of("a"))
    return wire.decode(data, limit_bytes=len(data))


def test_a_change_far_from_the_median_is_quarantined(judged: Bench) -> None:
    for device in HONEST:
        assert judged.upload(judged.update_of(device)).status == "accepted"
    reason = judged.refused(far(judged, "z", 30.0))
    assert "the change of params has the L2 norm" in reason
    assert "over 10 times the median" in reason
    assert "4 updates accepted before" in reason
    assert reasons(judged) == [reason]


def test_a_change_below_the_factor_is_used(judged: Bench) -> None:
    for device in HONEST[:3]:
        judged.upload(judged.update_of(device))
    assert judged.upload(far(judged, "z", 5.0)).status == "accepted"


def test_too_few_updates_judge_nobody_and_none_switches_it_off(tmp_path: Path) -> None:
    few = opened(tmp_path / "few")
    for device in HONEST[:2]:
        few.upload(few.update_of(device))
    assert few.upload(far(few, "z", 1e4)).status == "accepted"
    few.runtime.stop()
    off = opened(tmp_path / "off", norm_factor=None)
    for device in HONEST:
        off.upload(off.update_of(device))
    assert off.upload(far(off, "z", 1e4)).status == "accepted"
    off.runtime.stop()


def test_what_is_usual_survives_a_restart(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for device in HONEST:
        before.upload(before.update_of(device))
    before.runtime.stop()
    after = Bench(tmp_path)
    assert "the median" in after.refused(far(after, "z", 30.0))
    after.runtime.stop()


def test_prototypes_are_judged_where_nothing_else_is_sent(tmp_path: Path) -> None:
    bench = opened(tmp_path, method="fedproto")
    tree = {"prototypes": torch.ones(2, 8), "counts": torch.tensor([4.0, 6.0])}
    for n, device in enumerate(HONEST):
        own = {**tree, "prototypes": tree["prototypes"] + n / 10}
        assert bench.upload(parcel(bench.now(), device, own)).status == "accepted"
    reason = bench.refused(parcel(bench.now(), "z", {**tree, "prototypes": tree["prototypes"] * 50}))
    assert reason.startswith("prototypes has the L2 norm 200")
    bench.runtime.stop()


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([4.0, 7.0], "tensor 'counts' sums to 11, not to 10 examples"),
        ([-1.0, 11.0], "whole numbers of at least 0"),
        ([4.5, 5.5], "whole numbers of at least 0"),
    ],
)
def test_counts_of_prototypes_must_be_those_of_the_examples(tmp_path: Path, counts: list[float], words: str) -> None:
    bench = opened(tmp_path, method="fedproto")
    tree = {"prototypes": torch.ones(2, 8), "counts": torch.tensor(counts)}
    assert words in bench.refused(parcel(bench.now(), "z", tree))
    bench.runtime.stop()


def test_more_examples_than_the_device_announced_are_quarantined(judged: Bench) -> None:
    tree = judged.update_of("z").tree
    assert judged.upload(parcel(judged.now(), "a", tree, examples=2 * 40 + 64)).status == "accepted"
    reason = judged.refused(parcel(judged.now(), "z", tree, examples=10**8))
    assert reason == "100000000 examples are claimed, the device announced 40: at most 144 are plausible"
    assert reasons(judged) == [reason]


def test_class_counts_must_sum_to_the_examples(judged: Bench) -> None:
    tree = judged.update_of("z").tree
    assert judged.upload(parcel(judged.now(), "a", tree, class_counts=(4, 6))).status == "accepted"
    reason = judged.refused(parcel(judged.now(), "z", tree, class_counts=(4, 60)))
    assert reason == "class_counts sum to 64, not to 10 examples"


def test_norms_by_hand() -> None:
    start = {"params": {"w": torch.tensor([1.0, 1.0])}}
    upload = {
        "params": {"w": torch.tensor([4.0, 5.0])},
        "prototypes": torch.tensor([[6.0, 8.0]]),
        "counts": torch.ones(1),
    }
    assert change_norms(upload, start) == {"params": 5.0, "prototypes": 10.0}
    assert change_norms({"params": {"new": torch.tensor([3.0, 4.0])}}, start) == {"params": 5.0}


def test_the_median_of_many_needs_no_more_memory() -> None:
    running = RunningMedian()
    assert running.median == 0.0
    for value in (3.0, 1.0, 2.0):
        running.add(value)
    assert running.median == 2.0
    for value in range(20_000):
        running.add(float(value))
    assert len(running.values) == SAMPLE
    assert running.median == pytest.approx(10_000, rel=0.1)
