"""A version's gains are the sums of the reports of exactly the devices whose updates it is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from aggregator_api.federations import exports
from aggregator_api.rollouts import transitions
from aggregator_api.rounds.aggregation import Aggregate
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import Blob, ModelVersionRow, UpdateRow
from federation.plan import Plan
from federation.rounds import gains
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, tiny_plan
from tests.aggregator_api.rounds.test_continuous_rules import settled
from tests.aggregator_api.updates.test_screening import Fleet


def report(gain: int) -> tuple[int, ...]:
    """A device's report: held-out windows of the first of two classes."""
    return (1, gain, gain // 2, 1, gain, 0, 0)


def total(*found: int) -> list[int]:
    """What the reports of these gains add up to."""
    return [len(found), sum(found), sum(gain // 2 for gain in found), len(found), sum(found), 0, 0]


def with_gains(parcel: Parcel, **reports: Sequence[int]) -> Parcel:
    manifest = parcel.manifest.model_copy(update={"gains": {name: tuple(sums) for name, sums in reports.items()}})
    return replace(parcel, manifest=manifest)


def newest(bench: Bench) -> ModelVersionRow:
    with bench.runtime.database.read() as session:
        return session.scalars(select(ModelVersionRow).order_by(ModelVersionRow.version.desc()).limit(1)).one()


def test_a_version_has_the_gains_of_the_updates_that_were_used(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "abcdz", rounds=2)
    hostile = with_gains(fleet.step("z", 1000.0), personalized=report(5000), midway=report(5000))
    honest = [with_gains(fleet.step(device), personalized=report(100 * i)) for i, device in enumerate("abc")]
    honest[0] = with_gains(honest[0], personalized=report(-300), midway=report(40))
    fleet.play([hostile, *honest, fleet.step("d")])
    assert len(fleet.reasons("excluded")) == 1
    expected = {"personalized": total(-300, 100, 200), "midway": total(40)}
    assert newest(fleet.bench).gains == expected
    wait_for(lambda: fleet.bench.collects(2) and len(fleet.bench.invited()) == 5)
    for pointer in (fleet.bench.now().model, fleet.bench.wires.invitations("d")[-1].model):
        assert pointer is not None
        assert {name: list(sums) for name, sums in pointer.gains.items()} == expected
    fleet.stop()


def test_gains_of_other_classes_or_candidates_are_dropped_and_the_update_is_used(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1))
    for device in "ab":
        bench.say(device, "ready")
    first = with_gains(bench.update_of("a"), personalized=(1, 5, 2, 1, 5), midway=report(7), adapted=report(9))
    for update in (first, with_gains(bench.update_of("b"), network=report(8))):
        assert bench.upload(update).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    assert newest(bench).gains == {"midway": total(7)}
    with bench.runtime.database.read() as session:
        kept = [row.manifest.get("gains") for row in session.scalars(select(UpdateRow).order_by(UpdateRow.id))]
    assert kept == [{"midway": list(report(7))}, None]
    bench.stop()


def test_a_released_version_carries_its_gains(tmp_path: Path) -> None:
    plan = {**tiny_plan().model_dump(), "rollout": {"mode": "manual"}}
    bench = Bench(tmp_path, Plan.model_validate(plan))
    with bench.runtime.database.write() as session:
        federation = repositories.find_federation(session, FEDERATION)
        assert federation is not None
        blob = Blob("a" * 64, 5)
        repositories.add_version(session, federation, 1, blob, blob, {"midway": report(7)})
        version = session.scalars(select(ModelVersionRow).where(ModelVersionRow.version == 1)).one()
        transitions.start(session, federation, version, 0.0)
        order = transitions.order(session, federation)
    assert order is not None
    assert order.candidate is not None
    assert order.candidate.model.gains == {"midway": report(7)}
    bench.stop()


@pytest.fixture(autouse=True)
def told_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let devices be told the sums of any number of devices; tests/federation/rounds has the bound."""
    monkeypatch.setattr(gains, "MIN_DEVICES", 1)


def test_a_continuous_federation_drops_gains_and_uses_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")
    bench = Bench(tmp_path, continuous_plan())
    bench.say("a", "ready")
    sends(bench, "a", 1, gains={"personalized": report(100), "adapted": report(-40)})
    settled(bench)
    model = bench.now().model
    assert model is not None
    assert (newest(bench).version, newest(bench).gains, model.gains) == (1, {}, {})
    with bench.runtime.database.read() as session:
        assert [row.manifest.get("gains") for row in session.scalars(select(UpdateRow))] == [None]
    bench.stop()


def test_gains_reach_and_leave_the_worker() -> None:
    made = Aggregate(Blob("a", 1), Blob("b", 2), gains={"midway": total(7)})
    assert Aggregate.from_json(json.loads(json.dumps(made.to_json()))) == made
