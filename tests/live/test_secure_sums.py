"""A live round whose updates are added by a secure sum: the real server and the agent's own half of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import func, select

from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations.initial_state import build_initial_state
from aggregator_api.storage.db import epochs
from aggregator_api.storage.db.models import (
    EventRow,
    MetricRow,
    ModelVersionRow,
    RoundRow,
    SecureSumDeviceRow,
    SecureSumRow,
)
from edge_agent.machine.commands import BeginEpoch
from edge_agent.supervisor import secure_sum
from edge_agent.supervisor.persistence import begin_epoch
from federation import wire
from federation.methods import method_from_json
from federation.plan import Plan, SecureSettings
from federation.rounds.gains import added
from federation.secure_sums.summation import next_state
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import tiny_plan
from tests.live.summing_devices import SummingDevice, invited_to, layout_of, pass_stage, stage_of

NAMES = ("ada", "bob", "cyd", "dan", "eve")
LOST = ("shares", "vectors")
"""The stage after which one device says nothing more."""


def secure_plan(**settings: object) -> Plan:
    plan = tiny_plan(clients=None, max_weight_ratio=None, norm_factor=None)
    plan = plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"minimum_clients": len(NAMES)})})
    return plan.model_copy(update={"secure": SecureSettings(mode="masked", **settings)})


def federation(folder: Path, **settings: object) -> tuple[Bench, list[SummingDevice]]:
    server = Bench(folder / "server", secure_plan(**settings))
    devices = [SummingDevice(folder, name) for name in NAMES]
    for one in devices:
        one.enrol(server)
    server.say("nobody", "ready")  # it has not enrolled: no sum can name its key
    for one in devices:
        server.say(one.name, "ready")
    return server, devices


def numbers_for(server: Bench, name: str) -> NDArray[np.int64]:
    layout = layout_of(server)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    numbers, at = np.random.default_rng(seed).integers(-900, 900, layout.length), 0
    for segment in layout.segments:
        if segment.name == "weight":
            numbers[at] = min(10, segment.bound)  # the examples
        if segment.name.startswith("gains/"):
            numbers[at : at + math.prod(segment.shape)] = report_of(segment.name, name)
        at += math.prod(segment.shape)
    return np.asarray(numbers, np.int64)


def report_of(candidate: str, name: str) -> list[int]:
    """What a device says of its model's gain; eve has no held-out windows."""
    if name == "eve":
        return [0] * 7
    gain = 7 * sum(name.encode()) % 3000 - 1500 + len(candidate)
    return [1, gain, gain**2 // 10_000, 1, gain, 0, 0]


def version_gains(server: Bench) -> dict[str, list[int]]:
    with server.runtime.database.read() as session:
        row = session.scalars(select(ModelVersionRow).where(ModelVersionRow.version == 1)).one()
        return row.gains or {}


def expected_gains(names: Sequence[str]) -> dict[str, list[int]]:
    candidates = ("personalized", "midway")
    return added({one: report_of(f"gains/{one}", name) for one in candidates} for name in names)


def begun(server: Bench, devices: list[SummingDevice], number: int = 1) -> None:
    invited_to(server, devices, number)
    for one in devices:
        if not one.is_lost:
            one.begin(server, numbers_for(server, one.name))
    for one in devices:
        if not one.is_lost:
            one.send(server)


def expected(server: Bench, before: bytes, names: list[str]) -> bytes:
    """Add the numbers up in the open, as the simulation's `--secure clear` does."""
    method = method_from_json(secure_plan().method)
    total = np.sum([numbers_for(server, name) for name in names], axis=0)
    state = wire.decode(before, limit_bytes=len(before))
    return wire.encode(next_state(method, state, layout_of(server), total, sorted(names)))


def ended(server: Bench, phase: str) -> Callable[[], bool]:
    def found() -> bool:
        with server.runtime.database.read() as session:
            return session.scalars(select(RoundRow.phase).where(RoundRow.number == 1)).one() == phase

    return found


@pytest.mark.ci
@pytest.mark.parametrize("lost", LOST)
def test_the_model_is_of_the_sum_whoever_is_lost_and_however_often_the_server_is_started(
    lost: str, tmp_path: Path
) -> None:
    """The server is ended and started again in every stage, and devices keep nothing in memory."""
    server, devices = federation(tmp_path)
    before = server.state()
    begun(server, devices)
    seen = []
    while (stage := stage_of(server)) not in ("done", "failed"):
        assert len(seen) < 8, seen
        seen.append(stage)
        server.stop()
        server = Bench(tmp_path / "server")
        if lost in seen[:-1]:
            devices[2].is_lost = True
        for one in reversed(devices):
            one.take_part(server)
        if stage_of(server) == stage:
            pass_stage(server)
    wait_for(ended(server, "published"))
    assert seen == ["shares", "vectors", "lists", "opening"]
    names = [name for name in NAMES if lost != "shares" or name != devices[2].name]
    assert server.state() == expected(server, before, names)
    assert version_gains(server) == expected_gains(names)
    with server.runtime.database.read() as session:
        first = select(RoundRow.id).where(RoundRow.number == 1)
        left = select(func.count()).where(SecureSumDeviceRow.round_id.in_(first))
        assert session.scalars(left).one() == 0  # what devices have said goes with the round
        assert session.scalars(select(func.count()).select_from(MetricRow)).one() == 0
        row = session.scalars(select(SecureSumRow).order_by(SecureSumRow.round_id)).first()
        assert row is not None
        assert (row.stage, row.total, row.listed_devices, row.summed_devices) == ("done", b"", 5, len(names))
    server.stop()


def test_too_few_are_left_and_the_round_ends_in_words(tmp_path: Path) -> None:
    server, devices = federation(tmp_path)
    before = server.state()
    begun(server, devices)
    for one in devices[:2]:
        one.take_part(server)  # two of five deal shares
    pass_stage(server)
    wait_for(ended(server, "failed"))
    with server.runtime.database.read() as session:
        reason = session.scalars(select(RoundRow.reason).where(RoundRow.number == 1)).one()
    assert reason == "the secure sum failed: 2 of 5 members have dealt shares, 4 are needed"
    assert server.state() == before
    # the next round begins anew; what is left of the first one changes nothing
    begun(server, devices, 2)
    assert stage_of(server) == "shares"
    assert devices[0].hear(server).update_id.startswith("m2-shares-ada-")
    server.stop()


@pytest.mark.ci
def test_a_restored_server_ends_the_sum_that_was_under_way(tmp_path: Path) -> None:
    """Else a device would be asked for the same round's numbers under other masks, or the round would wait for ever."""
    server, devices = federation(tmp_path)
    begun(server, devices)
    old = devices[0].invitation(server)
    with server.runtime.database.write() as session:
        epoch = epochs.begin(session)
    server.stop()
    server = Bench(tmp_path / "server")
    wait_for(ended(server, "failed"))
    invited_to(server, devices, 2)
    assert devices[0].invitation(server).epoch == epoch
    with devices[0].store() as store:
        begin_epoch(store, BeginEpoch(epoch, 2, None))
        assert secure_sum.files_of(store) == set()
        assert secure_sum.answer(store, old) == secure_sum.SumAnswer()
    devices[0].begin(server, numbers_for(server, "ada"))
    devices[0].send(server)
    assert devices[0].answers[-1].status == "accepted"
    server.stop()


@pytest.mark.ci
def test_what_the_server_has_of_a_device_is_random(tmp_path: Path) -> None:
    """All devices have the same numbers, over and over: a mask that lacked would be seen in what is stored."""
    server, devices = federation(tmp_path, max_change=1.0)
    length = layout_of(server).length
    invited_to(server, devices, 1)
    own = np.full(length, 10, np.int64)
    for one in devices:
        one.begin(server, own)
    for one in devices:
        one.send(server)
    for one in devices:
        one.take_part(server)
    stored: list[bytes] = []
    for one in devices:
        one.hear(server)
        (parcel,) = one.outbox()
        assert (parcel.manifest.sum, parcel.manifest.examples, parcel.manifest.metrics) == ("vector", 0, {})
        stored.append(parcel.data[-own.size * 4 :])
        one.send(server)
        with server.runtime.database.read() as session:
            row = session.scalars(select(SecureSumRow)).one()
            stored.append(row.total)
    assert stage_of(server) == "lists"
    counts = np.bincount(np.frombuffer(b"".join(stored), np.uint8), minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi_square < 400, chi_square  # 255 degrees of freedom: beyond it once in 10^8
    for own_bytes in (own.astype("<u4").tobytes()[:64], own.astype("<i8").tobytes()[:64]):
        for path in (tmp_path / "server").rglob("*"):
            assert not path.is_file() or own_bytes not in path.read_bytes(), path
    server.stop()


def test_a_device_answers_one_request_a_round_and_an_update_as_such_is_refused(tmp_path: Path) -> None:
    server, devices = federation(tmp_path)
    begun(server, devices[:1])
    with pytest.raises(ValueError, match="has begun the sum of round 1 before; it does so once"):
        devices[0].begin(server, numbers_for(server, "someone else"))
    plain = server.update_of("nobody")
    assert "adds updates up without seeing one alone" in server.refused(plain)
    assert set(server.invited()) == set(NAMES)
    with server.runtime.database.read() as session:
        kinds = session.scalars(select(EventRow.detail).where(EventRow.kind == "update.accepted")).all()
    assert len(kinds) == 1
    assert kinds[0].endswith("0 examples; keys for the secure sum")
    server.stop()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "fedavg", "aggregation": "median"}}, "needs every client's parameters"),
        ({"method": {"name": "fesem"}}, "choose a method such as fedavg"),
        ({"rounds": {"norm_factor": 5.0}}, "judges single updates"),
        ({"rounds": {"clients_per_round": 2}}, "a round has 2 devices"),
        ({"rounds": {"clients_per_round": 10_001}}, "10000 at most"),
        ({"rounds": {"sampling": "examples"}}, "doesn't know the number"),
    ],
)
def test_a_plan_that_needs_single_updates_is_refused_in_words(
    changes: dict[str, dict[str, object]], words: str
) -> None:
    plan = secure_plan().model_dump(mode="json")
    for section, given in changes.items():
        plan[section] = {**plan[section], **given}
    with pytest.raises(UnprocessableError, match=words):
        build_initial_state(Plan.model_validate(plan), max_model_bytes=1 << 20)
