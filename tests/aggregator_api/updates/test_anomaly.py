"""Updates that are well formed and a lie: quarantined with a reason that an operator can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from aggregator_api.storage.db.models import UpdateRow
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, parcel, tiny_plan

HONEST = tuple("abcd")


def opened(folder: Path, method: str = "fedavg", **rounds: object) -> Bench:
    """Open a round for four honest devices and z."""
    bench = Bench(folder, tiny_plan(rounds=1, clients=None, method=method, **rounds))
    bench.runtime.federations.pause(FEDERATION)
    for device in (*HONEST, "z"):
        bench.say(device, "ready", examples=40)
    bench.runtime.federations.resume(FEDERATION)
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


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([4.0, 7.0], "tensor 'counts' must sum to the 10 examples, not to 11"),
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
    assert reason == "class_counts must sum to the 10 examples, not to 64"
