"""Versions that most devices can't use, each in its own signed words: withdrawn, and few liars can't have that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from aggregator_api.federations import exports
from aggregator_api.notifications import attention
from aggregator_api.rollouts import promotion, transitions
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, EventRow, FederationRow, ModelVersionRow
from edge_agent.storage.credentials import manifest_signer, status_signer
from federation.plan import Plan
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, DeviceStatus, ModelRefusal, write
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, tiny_plan
from tests.live.summing_devices import SummingDevice

NAMES = ("ada", "bob", "cyd", "dan", "eve")
REASON = "the server's model can't be used: tensor 'params/head.weight' holds NaN or infinity"


class Fleet(Bench):
    """A server and five enrolled devices, whose words are signed."""

    def __init__(self, folder: Path, plan: Plan, **settings: Any) -> None:
        super().__init__(folder / "server", plan, **settings)
        self.folder = folder
        self.runtime.federations.pause(FEDERATION)
        for name in NAMES:
            SummingDevice(folder, name).enrol(self)
            self.say(name, "ready")
        self.runtime.federations.resume(FEDERATION)

    def begin(self, parcel: Parcel) -> Acknowledgement:
        """Announce an update, signed."""
        name = parcel.manifest.client
        signed = manifest_signer(self.folder / name, FEDERATION, name)
        self.send(parcel.topic("begin"), signed(parcel.manifest))
        return self.last(name)

    def play(self, number: int) -> None:
        """Have a round published."""
        wait_for(lambda: self.collects(number))
        for name in self.invited():
            self.upload(self.update_of(name))
        wait_for(lambda: self.versions()[-1][0] == number or self.now().round > number)

    def refuse(self, name: str, model: str, signer: str = "", **about: Any) -> None:
        """Publish a device's status, which says that it can't use a model."""
        refusal = ModelRefusal.model_validate(
            {"instance": self.now().instance, "model": model, "reason": REASON, **about}
        )
        status = DeviceStatus(state="ready", examples=10, unusable=refusal.model_dump_json())
        sign = status_signer(self.folder / (signer or name), FEDERATION, name)
        self.send(topics.status(FEDERATION, name), write(status if signer == "nobody" else sign(status)))

    def base(self) -> str:
        """Return the model that rounds start from."""
        with self.runtime.database.read() as session:
            return repositories.current_version(session, federation_in(session)).broadcast_sha256

    def latest(self) -> int:
        """Return the number of the version that rounds start from."""
        with self.runtime.database.read() as session:
            return repositories.current_version(session, federation_in(session)).version

    def versions(self) -> list[tuple[int, bool]]:
        """Return each version's number, and whether it was withdrawn."""
        with self.runtime.database.read() as session:
            rows = session.scalars(select(ModelVersionRow).order_by(ModelVersionRow.version))
            return [(row.version, bool(row.withdrawn)) for row in rows]

    def events(self, kind: str) -> list[str]:
        """Return what the journal says of a kind."""
        with self.runtime.database.read() as session:
            return list(session.scalars(select(EventRow.detail).where(EventRow.kind == kind).order_by(EventRow.id)))

    def needs_attention(self) -> str:
        """Return what the operator is told to look at."""
        with self.runtime.database.read() as session:
            return " ".join(item.message for item in attention.of_federation(session, federation_in(session)))


def federation_in(session: Any) -> FederationRow:
    row: FederationRow = session.scalars(select(FederationRow)).one()
    return row


def rounds_plan(**settings: Any) -> Plan:
    found = tiny_plan(rounds=9, clients=None, deadline_s=3600)
    return found.model_copy(update={"rounds": found.rounds.model_copy(update=settings)})


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A federation whose second round has begun, from version 1."""
    found = Fleet(tmp_path, rounds_plan())
    found.play(1)
    wait_for(lambda: found.collects(2))
    yield found
    found.stop()


def test_what_most_of_the_cohort_cannot_use_is_withdrawn_and_the_next_round_starts_from_the_version_before(
    fleet: Fleet,
) -> None:
    before, bad = fleet.wires.invitations("ada")[0].model.sha256, fleet.base()
    assert before != bad
    assert fleet.invited() == NAMES
    for name in NAMES[:2]:
        fleet.refuse(name, bad)
    assert (fleet.versions(), fleet.base()) == ([(0, False), (1, False)], bad)
    fleet.refuse("cyd", bad)
    wait_for(lambda: fleet.collects(3))
    assert fleet.versions() == [(0, False), (1, True)]
    assert {fleet.wires.invitations(name)[-1].model.sha256 for name in NAMES} == {before}
    announced = fleet.now()
    assert announced.model is not None
    assert announced.model.sha256 == before
    words = f"3 of 5 devices can't use version 1: {REASON}"
    assert fleet.events("model.withdrawn") == [f"{words}; rounds start from version 0 again"]
    assert fleet.events("round.failed") == [words]
    assert fleet.events("device.refuses_model") == [REASON] * 3
    assert f"{words}. It was withdrawn" in fleet.needs_attention()
    fleet.play(3)
    assert fleet.versions() == [(0, False), (1, True), (2, False)]
    assert (fleet.latest(), "withdrawn" in fleet.needs_attention()) == (2, False)


def test_repetitions_and_forgeries_count_nothing(fleet: Fleet) -> None:
    bad = fleet.base()
    for name in ("ada", "bob") * 3:
        fleet.refuse(name, bad)
    fleet.refuse("cyd", bad, "nobody")
    fleet.refuse("cyd", bad, "ada")
    fleet.refuse("cyd", bad, instance="f" * 32)
    fleet.refuse("cyd", bad, epoch=9)
    fleet.refuse("cyd", "0" * 64)
    assert (fleet.versions(), fleet.base()) == ([(0, False), (1, False)], bad)


@pytest.mark.parametrize("row", [{"suspended_at": 1.0}, {"enrolment": "revoked"}], ids=["suspended", "revoked"])
def test_a_device_that_may_not_take_part_is_no_witness(row: dict[str, Any], fleet: Fleet) -> None:
    bad = fleet.base()
    for name in ("ada", "bob"):
        fleet.refuse(name, bad)
    with fleet.runtime.database.write() as session:
        session.execute(update(DeviceRow).where(DeviceRow.name == "ada").values(row))
    fleet.refuse("cyd", bad)
    assert (fleet.versions(), fleet.base()) == ([(0, False), (1, False)], bad)


def test_two_of_three_are_too_few(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, rounds_plan(clients_per_round=3))
    fleet.play(1)
    wait_for(lambda: fleet.collects(2))
    bad, cohort = fleet.base(), fleet.invited()
    for name in cohort[:2]:
        fleet.refuse(name, bad)
    assert (len(cohort), fleet.base()) == (3, bad)
    fleet.refuse(cohort[2], bad)
    assert fleet.versions() == [(0, False), (1, True)]
    fleet.stop()


def test_a_device_without_a_key_is_no_witness(fleet: Fleet) -> None:
    with fleet.runtime.database.write() as session:
        for row in session.scalars(select(DeviceRow).where(DeviceRow.name != "eve")):
            row.enrolment, row.public_key = "open", None
    for name in NAMES:
        fleet.refuse(name, fleet.base(), signer="" if name == "eve" else "nobody")
    assert fleet.versions() == [(0, False), (1, False)]


def test_three_who_refuse_are_no_majority_of_seven_and_who_was_not_invited_is_not_asked(
    fleet: Fleet, tmp_path: Path
) -> None:
    bad, late = fleet.base(), ("fay", "gus", "hal", "ivy", "jan", "kim")
    for name in late:
        SummingDevice(tmp_path, name).enrol(fleet)
    for name in (*late, "ada", "bob"):
        fleet.refuse(name, bad)
    assert fleet.base() == bad, "eight of eleven, two of the five who were invited"
    fleet.refuse("cyd", bad)
    wait_for(lambda: fleet.collects(3))
    assert fleet.versions() == [(0, False), (1, True)]


def test_of_the_last_version_all_devices_are_asked(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, rounds_plan(rounds=1))
    fleet.play(1)
    wait_for(lambda: fleet.now().state == "finished")
    bad = fleet.base()
    for name in ("fay", "gus"):
        SummingDevice(tmp_path, name).enrol(fleet)
    for name in NAMES[:3]:
        fleet.refuse(name, bad)
    assert fleet.base() == bad, "three of seven"
    fleet.refuse("fay", bad)
    assert (fleet.latest(), fleet.versions()[-1], fleet.now().state) == (0, (1, True), "finished")
    announced = fleet.now()
    assert announced.model is not None
    assert announced.model.sha256 == fleet.base() != bad
    fleet.stop()


def test_the_second_withdrawal_in_a_row_pauses(fleet: Fleet) -> None:
    for number, version in ((2, 1), (4, 2)):
        wait_for(lambda number=number: fleet.collects(number))  # type: ignore[misc]
        bad = fleet.base()
        for name in NAMES[:3]:
            fleet.refuse(name, bad)
        wait_for(lambda version=version: fleet.versions()[-1] == (version, True))  # type: ignore[misc]
        if version == 1:
            fleet.play(3)
    wait_for(lambda: (fleet.now().state, fleet.latest()) == ("paused", 0))
    assert "the second one in a row" in fleet.events("federation.paused")[-1]
    fleet.runtime.federations.resume(FEDERATION)
    fleet.play(5)
    wait_for(lambda: (fleet.versions()[-1], fleet.now().state) == ((3, False), "collecting"))
    wait_for(lambda: fleet.collects(6))
    for name in NAMES[:3]:
        fleet.refuse(name, fleet.base())
    wait_for(lambda: fleet.now().state == "paused")  # nothing sound was made since


def test_a_sound_version_in_between_ends_the_row(fleet: Fleet) -> None:
    for name in NAMES[:3]:
        fleet.refuse(name, fleet.base())
    for number in (3, 4):
        fleet.play(number)
    wait_for(lambda: fleet.collects(5))
    for name in NAMES[:3]:
        fleet.refuse(name, fleet.base())
    wait_for(lambda: fleet.collects(6))
    assert fleet.versions() == [(0, False), (1, True), (2, False), (3, True)]
    assert fleet.latest() == 2


def test_the_first_version_has_none_before_it_so_the_federation_pauses(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, rounds_plan())
    wait_for(lambda: fleet.collects(1))
    for name in NAMES[:3]:
        fleet.refuse(name, fleet.base())
    assert (fleet.now().state, fleet.versions()) == ("paused", [(0, False)])
    assert "there is no version before it" in fleet.events("federation.paused")[-1]
    fleet.stop()


def test_a_rollout_of_the_version_is_halted_and_stable_goes_back(tmp_path: Path) -> None:
    plan = rounds_plan().model_dump(mode="json") | {"rollout": {"mode": "automatic"}}
    fleet = Fleet(tmp_path, Plan.model_validate(plan))
    fleet.play(1)
    wait_for(lambda: fleet.collects(2))
    bad = fleet.base()
    with fleet.runtime.database.write() as session:
        row = repositories.newest_version(session, federation_in(session))
        stable = promotion.name_of(session, federation_in(session), "stable")
        assert stable is not None
        stable.version_id = row.id
    for name in NAMES[:3]:
        fleet.refuse(name, bad)
    with fleet.runtime.database.read() as session:
        federation = federation_in(session)
        rollout, named = transitions.latest(session, federation), promotion.named_version(session, federation, "stable")
        assert rollout is not None
        assert named is not None
        assert (rollout.version.version, rollout.phase, named.version) == (1, "halted", 0)
        assert transitions.under_way(session, federation) is None
    fleet.stop()


def test_a_continuous_federation_goes_back_and_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")
    fleet = Fleet(tmp_path, continuous_plan())
    sends(fleet, "ada", 1)
    wait_for(lambda: fleet.versions()[-1] == (1, False))
    bad = fleet.base()
    for name in NAMES[:3]:
        fleet.refuse(name, bad)
    assert (fleet.now().state, fleet.versions(), fleet.latest()) == ("paused", [(0, False), (1, True)], 0)
    assert "the next version would be made of the same sums" in fleet.events("federation.paused")[-1]
    fleet.stop()
