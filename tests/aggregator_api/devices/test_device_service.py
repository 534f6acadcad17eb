"""What an operator decides about devices, with a broker and rounds that only remember what they were told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.core.errors import BrokerError, ConflictError, NotFoundError, UnavailableError
from aggregator_api.devices.service import DeviceService, find
from aggregator_api.storage.db.database import Database
from federation.rounds.server_round import DeviceLost, Event
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan


class Told:
    """Rounds and broker accounts in one list of what they were told; the broker can be away."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.away = False

    def apply_event(self, name: str, event: Event) -> None:
        self.said.append((name, event))

    def devices_changed(self, name: str) -> None:
        self.said.append((name, "changed"))

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        raise AssertionError("an operator's decision gives no password")

    def revoke(self, username: str) -> None:
        if self.away:
            raise BrokerError("it does not answer")
        self.said.append(username)

    def forget(self, federation: str, device: str) -> None:
        self.said.append(("forgotten", federation, device))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A federation in which the device `a` is ready."""
    bench = Bench(tmp_path / "server", tiny_plan())
    bench.say("a", "ready")
    yield bench.runtime.database
    bench.runtime.stop()


def service_of(database: Database, told: Told) -> DeviceService:
    return DeviceService(database, told, told, told.forget)


def enrolment(database: Database) -> tuple[str, list[str]]:
    with database.read() as session:
        row = find(session, FEDERATION, "a")[1]
        return row.enrolment, list(row.tags)


def test_a_revoked_device_is_lost_to_rounds_its_uploads_and_its_account(database: Database) -> None:
    told = Told()
    service_of(database, told).revoke(FEDERATION, "a")
    assert enrolment(database)[0] == "revoked"
    assert told.said == [(FEDERATION, DeviceLost("a")), ("forgotten", FEDERATION, "a"), f"{FEDERATION}~a"]
    with pytest.raises(ConflictError, match="was revoked"):
        service_of(database, told).approve(FEDERATION, "a")


def test_it_is_revoked_where_the_broker_is_away_and_the_account_goes_with_the_next_try(database: Database) -> None:
    told = Told()
    told.away = True
    with pytest.raises(UnavailableError, match="revoke it again"):
        service_of(database, told).revoke(FEDERATION, "a")
    assert enrolment(database)[0] == "revoked"
    told.away, told.said = False, []
    service_of(database, told).revoke(FEDERATION, "a")
    assert f"{FEDERATION}~a" in told.said


def test_groups_are_set_and_rounds_hear_of_it(database: Database) -> None:
    told = Told()
    service_of(database, told).set_tags(FEDERATION, "a", ["pilot", "lab", "pilot"])
    assert enrolment(database)[1] == ["lab", "pilot"]
    assert told.said == [(FEDERATION, "changed")]
    with pytest.raises(NotFoundError, match="no device 'b'"):
        service_of(database, told).set_tags(FEDERATION, "b", [])
