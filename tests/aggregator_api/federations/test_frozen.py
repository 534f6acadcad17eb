"""Federations in which nobody trains and class means travel: FedProto with a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations.initial_state import build_initial_state
from aggregator_api.storage.db.models import ModelVersionRow
from federation import wire
from federation.plan import Plan
from federation.records import Tree
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, SMALL, parcel, tiny_plan

FROZEN = {"name": "fedproto", "backbone": "frozen"}


def frozen_plan(**changes: Any) -> Plan:
    return Plan.model_validate({**tiny_plan().model_dump(mode="json"), "method": FROZEN, **changes})


def test_a_head_that_cannot_answer_the_nearest_prototype_is_refused() -> None:
    model = {"name": "har_cnn", "options": {**SMALL, "hidden": 3}}
    with pytest.raises(UnprocessableError, match="two hidden units of the head for each class: 4"):
        build_initial_state(frozen_plan(model=model), max_model_bytes=1 << 24)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Bench]:
    """Round 1 of a federation in which nobody trains, open for devices a and b."""
    bench = Bench(tmp_path, frozen_plan())
    for device in ("a", "b"):
        bench.say(device, "ready", examples=10)
    yield bench
    bench.stop()


def means(scale: float = 1.0, counts: tuple[float, float] = (4.0, 6.0)) -> Tree:
    return {"prototypes": scale * torch.ones(2, 8), "counts": torch.tensor(counts)}


def test_class_means_without_a_step_are_whole_work(frozen: Bench) -> None:
    for device, scale in (("a", 1.0), ("b", 3.0)):
        answer = frozen.upload(parcel(frozen.now(), device, means(scale), steps=0, class_counts=(4, 6)))
        assert (answer.status, answer.reason) == ("accepted", "")
    wait_for(lambda: frozen.now().round == 2)
    state = wire.decode(frozen.state(), limit_bytes=1 << 20)
    torch.testing.assert_close(state["prototypes"], torch.full((2, 8), 2.0))
    assert state["known"].tolist() == [1, 1]
    assert "params" in state


@pytest.mark.parametrize(
    ("tree", "said", "words"),
    [
        (means(float("nan")), {}, "NaN or infinity"),
        (means(), {"steps": 3}, "3 steps on 10 examples are claimed, the plan asks for 0"),
        ({"prototypes": torch.ones(2, 9), "counts": torch.tensor([4.0, 6.0])}, {}, "prototypes"),
        ({"prototypes": torch.ones(2, 8)}, {}, "'counts' of shape"),
        (means(counts=(4.0, 60.0)), {}, "10 examples"),
        (means(counts=(-4.0, 14.0)), {}, "counts"),
        (means(counts=(4.5, 5.5)), {}, "counts"),
        ({**means(), "params": {"head.0.bias": torch.ones(8)}}, {}, "unexpected tensor"),
    ],
)
def test_hostile_means_are_refused(frozen: Bench, tree: Tree, said: dict[str, Any], words: str) -> None:
    given = {"steps": 0, "class_counts": (4, 6), **said}
    assert words in frozen.refused(parcel(frozen.now(), "a", tree, **given))
    assert frozen.upload(parcel(frozen.now(), "b", means(), steps=0)).status == "accepted"


def test_means_of_another_size_are_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, frozen_plan(rounds={"rounds": 1, "minimum_clients": 1}))
    bench.runtime.federations.pause(FEDERATION)
    for device in "abcde":
        bench.say(device, "ready", examples=10)
    bench.runtime.federations.resume(FEDERATION)
    for number, device in enumerate("abcde"):
        scale = 1e6 if device == "e" else 1 + 0.1 * number
        bench.upload(parcel(bench.now(), device, means(scale), steps=0))
    wait_for(lambda: bench.now().state == "finished")
    state = wire.decode(bench.state(), limit_bytes=1 << 20)
    bench.stop()
    assert float(state["prototypes"].max()) == pytest.approx(1.15)


def test_without_a_step_no_other_method_has_learnt_anything(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(partial_work="use"))
    for device in ("a", "b"):
        bench.say(device, "ready")
    assert "0 steps were done" in bench.refused(bench.update_of("a", steps=0))
    bench.stop()


def test_a_lone_devices_means_replace_no_one_elses_and_go_with_the_device(tmp_path: Path) -> None:
    rounds = {"rounds": 3, "minimum_clients": 1, "clients_per_round": 1}
    bench = Bench(tmp_path, frozen_plan(rounds=rounds))
    for number, (device, scale, counts) in enumerate(
        (("a", 1.0, (10.0, 0.0)), ("b", 3.0, (4.0, 6.0)), ("c", 5.0, (0.0, 10.0))), start=1
    ):
        bench.say(device, "ready", examples=10)
        wait_for(partial(bench.collects, number))
        bench.runtime.federations.pause(FEDERATION)  # the next round begins without this device
        given = parcel(bench.now(), device, means(scale, counts), steps=0)
        assert bench.upload(given).status == "accepted"
        bench.say(device, "offline")
        bench.runtime.federations.resume(FEDERATION)
    wait_for(lambda: bench.now().state == "finished")
    found = wire.decode(bench.state(), limit_bytes=1 << 20)
    assert sorted(found["clients"]) == ["a", "b", "c"]
    np.testing.assert_allclose(found["prototypes"][:, 0], [(10 + 4 * 3) / 14, (6 * 3 + 10 * 5) / 16], rtol=1e-6)
    last = bench.now().model
    assert last is not None
    sent = wire.decode(bench.runtime.blobs.read(last.sha256), limit_bytes=1 << 20)
    assert "clients" not in sent
    bench.runtime.deletion.delete_device(FEDERATION, "b", dry_run=False)
    left = wire.decode(bench.state(), limit_bytes=1 << 20)
    assert sorted(left["clients"]) == ["a", "c"]
    with bench.runtime.database.read() as session:
        names = [bench.runtime.blobs.read(row.state_sha256) for row in session.scalars(select(ModelVersionRow))]
    assert not any(b"clients/b/" in data for data in names)
    bench.stop()
