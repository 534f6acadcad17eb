"""Devices that do less than was asked, claim more, are not heard of any more, or are drawn by what they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.db.models import DeviceRow, RoundRow
from federation import wire
from federation.methods import METHODS, method_from_json
from federation.plan import TrainingConfig
from federation.rounds.server_round import sample_cohort
from federation.training.client_round import steps_of
from federation.training.forward import network
from federation.training.local_round import Setup
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan

LONG = 200  # examples: four steps of 64


def opened(folder: Path, **plan: Any) -> Bench:
    """A server with round 1 open for a and b."""
    bench = Bench(folder, tiny_plan(rounds=1, **plan))
    for device in ("a", "b"):
        bench.say(device, "ready", examples=LONG)
    return bench


def phase(bench: Bench) -> tuple[str, str]:
    """Return the phase and reason of the first round."""
    with bench.runtime.database.read() as session:
        row = session.get(RoundRow, 1)
        assert row is not None
        return row.phase, row.reason


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"centralized"}))
@settings(deadline=None, max_examples=20)
@given(examples=st.integers(1, 300), epochs=st.integers(1, 3))
def test_the_steps_asked_are_those_that_a_device_takes(name: str, examples: int, epochs: int) -> None:
    training = TrainingConfig(classes=2, epochs=epochs, batch_size=16, optimizer="sgd")
    plan = tiny_plan().model_copy(update={"training": training})
    method = method_from_json({"name": name})
    nothing = network(nn.Identity())
    assert Contract(plan, method, {}).steps(examples) == steps_of(Setup(method, training, nothing), examples)


@pytest.mark.parametrize(
    ("method", "partial_work", "kept"),
    [("fedavg", "method", False), ("fedprox", "method", True), ("fedavg", "use", True), ("fedprox", "drop", False)],
)
def test_partial_work_is_used_or_dropped_and_the_device_is_told(
    tmp_path: Path, method: str, partial_work: str, kept: bool
) -> None:
    bench = opened(tmp_path, method=method, partial_work=partial_work, minimum_clients=1)
    answer = bench.upload(bench.update_of("a", examples=LONG, steps=3))
    assert answer.reason.startswith("partial work: 3 of 4 steps")
    assert (answer.status, "drops" in answer.reason) == (("accepted", False) if kept else ("refused", True))
    state = wire.decode(bench.state(), limit_bytes=1 << 20)
    whole = bench.update_of("b", examples=LONG)
    assert bench.upload(whole).reason == ""
    # a dropped device is not waited for: it does not train again
    wait_for(lambda: phase(bench)[0] == "published")
    alone = method_from_json({"name": method}).aggregate(state, [whole.update])
    assert (bench.state() == wire.encode(alone)) is not kept
    bench.runtime.stop()


def test_a_repeated_begin_of_partial_work_is_answered_alike(tmp_path: Path) -> None:
    bench = opened(tmp_path, partial_work="use")
    update = bench.update_of("a", examples=LONG, steps=1)
    first = bench.upload(update)
    assert bench.begin(update) == first
    bench.runtime.stop()


def test_more_steps_than_the_examples_give_are_not_believed(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    assert "5 steps on 200 examples are claimed, the plan asks for 4" in bench.refused(
        bench.update_of("a", examples=LONG, steps=5)
    )
    bench.runtime.stop()


def test_a_round_whose_other_devices_were_refused_ends(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    bench.refused(bench.update_of("a", method="fedprox"))
    assert phase(bench)[0] == "collecting"
    bench.upload(bench.update_of("b"))
    assert phase(bench) == ("failed", "quorum not reached: got 1 updates, 2 are needed")
    bench.runtime.stop()


def forget(bench: Bench, device: str, seconds: float, *, listening: bool = True) -> None:
    """Let a device have been silent, and the server have listened, for so long; the server ticks by itself as well."""
    bench.runtime.coordinator.listening_since -= seconds if listening else 0
    with bench.runtime.database.write() as session:
        for row in session.query(DeviceRow).where(DeviceRow.name == device):
            row.seen_at -= seconds


def test_a_device_that_vanished_is_given_up_after_the_grace_period(tmp_path: Path) -> None:
    bench = opened(tmp_path, minimum_clients=1)
    bench.upload(bench.update_of("a"))
    bench.say("b", "offline")
    bench.say("b", "offline")  # the broker repeats a last will to a server that reconnects
    forget(bench, "b", 119.0)
    bench.runtime.coordinator.tick()
    assert phase(bench)[0] == "collecting"
    bench.say("b", "offline")
    forget(bench, "b", 1.1)
    bench.runtime.coordinator.tick()
    wait_for(lambda: phase(bench)[0] == "published")
    bench.runtime.stop()


@pytest.mark.parametrize("why", ["it came back", "the server has just come back", "there is a deadline"])
def test_a_silent_device_is_waited_for(tmp_path: Path, why: str) -> None:
    bench = opened(tmp_path, minimum_clients=1, deadline_s=3600 if "deadline" in why else None)
    bench.upload(bench.update_of("a"))
    bench.say("b", "offline")
    if why == "it came back":
        bench.say("b", "training")
    forget(bench, "b", 500.0, listening=why != "the server has just come back")
    bench.runtime.coordinator.tick()
    assert phase(bench)[0] == "collecting"
    bench.runtime.stop()


def test_a_device_that_was_given_up_may_report_after_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1, clients=3))
    for device in ("a", "b", "c"):
        bench.say(device, "ready")
    bench.upload(bench.update_of("a"))
    bench.say("b", "offline")
    forget(bench, "b", 500.0)
    bench.runtime.coordinator.tick()
    assert outcomes(bench) == ["received", "lost", "waiting"]
    assert bench.upload(bench.update_of("b")).status == "accepted"
    assert outcomes(bench) == ["received", "received", "waiting"]
    bench.runtime.stop()


def outcomes(bench: Bench) -> list[str]:
    """Return what became of the devices of the first round."""
    with bench.runtime.database.read() as session:
        row = session.get(RoundRow, 1)
        assert row is not None
        return [part.outcome for part in sorted(row.participations, key=lambda part: part.device.name)]


def test_devices_are_drawn_by_the_examples_that_they_say_they_have(tmp_path: Path) -> None:
    plan = tiny_plan(rounds=4, clients=1, minimum_clients=1, sampling="examples")
    bench = Bench(tmp_path, plan)
    bench.runtime.federations.pause(FEDERATION)
    said = {"a": 1, "b": 999, "c": 0}
    for device, examples in said.items():
        bench.say(device, "ready", examples=examples)
    bench.runtime.federations.resume(FEDERATION)
    drawn = []
    for number in range(1, 5):
        wait_for(lambda number=number: bench.collects(number) and bool(bench.invited()))
        drawn.append(bench.invited())
        bench.upload(bench.update_of(*bench.invited()))

    def expected(examples: dict[str, int] | None) -> list[tuple[str, ...]]:
        seed = plan.training.seed
        return [sample_cohort(plan.rounds, said, seed=seed, round_number=n, examples=examples) for n in range(1, 5)]

    assert drawn == expected({**said, "c": 500})  # c has not said how many: it counts like the mean of the others
    assert drawn != expected(None)
    bench.runtime.stop()
