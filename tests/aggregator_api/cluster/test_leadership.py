"""Several servers on one PostgreSQL: who leads, who stands by, and what is passed from one to the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from aggregator_api.federations import exports, service
from aggregator_api.operations.leadership import Leases
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.storage import findings
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.findings import Severity
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends, state_of
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan
from tests.live.real_parts import Postgres

LONG_S = 60.0
"""A lease that does not run out while a test runs, however slow the machine."""


@pytest.fixture
def url(cluster: Postgres) -> Iterator[str]:
    made = cluster.new_database()
    yield made
    cluster.drop(made)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """A database with the federations f and g."""
    found = Database(url)
    with found.write() as session:
        for name in ("f", "g"):
            session.execute(
                text(
                    "INSERT INTO federations (name, instance, plan, upload_schema, status, created_at) "
                    "VALUES (:name, '0', '{}', '{}', 'running', 0)"
                ),
                {"name": name},
            )
    yield found
    found.close()


def run_out(database: Database) -> None:
    """Let every lease run out, as if its holder had been silent for so long."""
    with database.write() as session:
        session.execute(text("UPDATE leases SET expires_at = 1"))


def test_a_federation_has_one_holder_until_its_lease_runs_out(database: Database) -> None:
    a, b = Leases(database, "a", LONG_S), Leases(database, "b", LONG_S)
    assert a.take() == {"f": 0, "g": 0}
    assert b.take() == {}
    assert a.take() == {"f": 0, "g": 0}
    assert not b.load().has_free
    run_out(database)
    assert b.load() == ({}, True)
    assert b.take() == {"f": 0, "g": 0}
    assert a.take() == {}
    assert a.load() == ({}, False)
    b.release()
    assert a.take() == {"f": 0, "g": 0}


def test_a_short_lease_runs_out_by_the_database_clock(database: Database) -> None:
    a, b = Leases(database, "a", 0.05), Leases(database, "b", LONG_S)
    a.take()
    wait_for(lambda: b.take() != {})
    assert a.load().notifications == {}


def test_a_lease_that_ends_after_years_was_written_before_the_clock_was_set_back(database: Database) -> None:
    a, b = Leases(database, "a", LONG_S), Leases(database, "b", LONG_S)
    a.take()
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE leases SET expires_at = expires_at + 315360000"))
    assert b.load().has_free
    assert b.take() == {"f": 0, "g": 0}
    assert not a.load().has_free


def test_a_row_that_another_is_taking_is_left_to_it(database: Database) -> None:
    a = Leases(database, "a", LONG_S)
    a.take()
    run_out(database)
    with database.engine.begin() as other:
        other.execute(
            text("SELECT 1 FROM leases l JOIN federations f ON f.id = l.federation_id AND f.name = 'f' FOR UPDATE OF l")
        )
        assert a.take() == {"g": 0}  # at once, without waiting for the other


def test_many_takers_share_without_overlap(database: Database) -> None:
    taken: list[dict[str, int]] = []
    takers = [
        threading.Thread(target=lambda n=n: taken.append(Leases(database, f"p{n}", LONG_S).take())) for n in range(8)
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(name for each in taken for name in each) == ["f", "g"]


def test_the_holder_sees_that_it_was_notified(database: Database) -> None:
    a, b = Leases(database, "a", LONG_S), Leases(database, "b", LONG_S)
    a.take()
    b.notify("f")
    assert a.load() == ({"f": 1, "g": 0}, False)
    assert b.load() == ({}, False)


class Two:
    """Two servers over one database and one folder."""

    def __init__(self, folder: Path, url: str, lease_s: float = LONG_S) -> None:
        self._folder, self._options = folder, {"database_url": url, "lease_s": lease_s}
        self.first, self.second = self.start("one"), self.start("two")

    def start(self, node: str) -> Bench:
        return Bench(self._folder, node=node, **self._options)

    def leads(self, bench: Bench) -> bool:
        return bench.runtime.leadership.leads(FEDERATION)

    def vanish(self, bench: Bench) -> None:
        """Leave a server as a kill would: nothing more is done or given back, and its lease runs out."""
        bench.runtime.leadership.stop()
        bench.runtime.leadership.release()
        with bench.runtime.database.write() as session:
            session.execute(text("UPDATE leases SET expires_at = 1"))


@pytest.fixture
def two(tmp_path: Path, url: str) -> Iterator[Two]:
    """Two servers, of which the first leads a federation of two devices."""
    yield from both(tmp_path, url, _federation())


@pytest.fixture
def two_continuous(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """Two servers, of which the first leads a continuous federation of the devices a and b."""
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")
    for found in both(tmp_path, url, service.NewFederation(name=FEDERATION, plan=continuous_plan())):
        for device in ("a", "b"):
            found.first.say(device, "ready")
        yield found


def both(folder: Path, url: str, federation: service.NewFederation) -> Iterator[Two]:
    """Start two servers, and stop them; the first leads the federation."""
    found = Two(folder, url)
    found.first.runtime.federations.create(federation)
    wait_for(lambda: found.leads(found.first) or found.leads(found.second))
    if found.leads(found.second):
        found.first, found.second = found.second, found.first
    yield found
    for bench in (found.first, found.second):
        bench.runtime.stop()


def _federation() -> service.NewFederation:
    return service.NewFederation(name=FEDERATION, plan=tiny_plan(rounds=1))


def ready(bench: Bench) -> None:
    """Let both devices be there, and wait until they are invited."""
    for device in ("a", "b"):
        bench.say(device, "ready")
    assert bench.invited() == ("a", "b")


def test_one_leads_listens_and_announces(two: Two) -> None:
    wait_for(lambda: two.first.wires.listening == {FEDERATION})
    assert not two.second.wires.listening
    ready(two.first)
    assert two.second.wires.sent == []
    assert not two.leads(two.second)


@pytest.mark.ci
def test_what_the_operator_says_to_the_other_is_done_by_the_leader(two: Two) -> None:
    ready(two.first)
    two.second.runtime.federations.pause(FEDERATION)
    wait_for(lambda: two.first.wires.announcements()[-1].state == "paused")
    for device in ("a", "b"):
        assert two.first.upload(two.first.update_of(device)).status == "accepted"
    two.second.runtime.federations.resume(FEDERATION)  # all updates are in: the leader aggregates
    wait_for(lambda: two.first.wires.announcements()[-1].state == "finished")
    assert two.second.wires.sent == []


def test_the_other_goes_on_in_the_middle_of_a_round_and_of_an_upload(two: Two) -> None:
    ready(two.first)
    first, second = two.first.update_of("a"), two.first.update_of("b")
    assert two.first.upload(first).status == "accepted"
    two.first.begin(second)
    for n in (0, 1):
        two.first.send(second.topic("chunk", n), second.chunks()[n])
    two.vanish(two.first)
    wait_for(lambda: two.leads(two.second))
    # the second one asks for the rest by itself, from the first chunk that is missing
    wait_for(lambda: bool(two.second.wires.acknowledgements("b")))
    assert (two.second.last("b").status, two.second.last("b").next_chunk) == ("send", 2)
    wait_for(lambda: bool(two.second.wires.announcements()))
    assert two.second.wires.announcements()[-1].state == "collecting"
    assert two.second.invited() == ("b",)
    for n, chunk in list(enumerate(second.chunks()))[2:]:
        two.second.send(second.topic("chunk", n), chunk)
    two.second.send(second.topic("end"))
    assert two.second.last("b").status == "accepted"
    wait_for(lambda: two.second.now().state == "finished")
    assert two.second.count("accepted") == 2


@pytest.mark.ci
def test_an_aggregation_that_died_with_its_leader_is_made_by_the_other(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(two.first)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundJobs, "aggregate", lambda *_: None)  # the leader dies just here
        for device in ("a", "b"):
            two.first.upload(two.first.update_of(device))
        assert two.first.now().state == "aggregating"
        two.vanish(two.first)
    wait_for(lambda: two.second.now().state == "finished")


def test_a_leader_that_was_deposed_changes_nothing_any_more(two: Two) -> None:
    ready(two.first)
    said = len(two.first.wires.sent)
    two.vanish(two.first)
    wait_for(lambda: two.leads(two.second))
    two.first.runtime.coordinator.announce(FEDERATION)
    two.first.runtime.coordinator.tick()
    assert len(two.first.wires.sent) == said


def test_a_server_that_ends_hands_over_at_once(two: Two) -> None:
    ready(two.first)
    two.first.runtime.stop()
    began = time.monotonic()
    wait_for(lambda: two.leads(two.second))
    assert time.monotonic() - began < LONG_S / 2
    two.first = two.start("three")


@pytest.mark.ci
def test_a_server_without_its_broker_lets_its_leases_run_out(tmp_path: Path, url: str) -> None:
    pair = Two(tmp_path, url, lease_s=1.0)
    pair.first.runtime.federations.create(_federation())
    wait_for(lambda: pair.leads(pair.first) or pair.leads(pair.second))
    leader, other = (pair.first, pair.second) if pair.leads(pair.first) else (pair.second, pair.first)
    leader.wires.is_up = False
    wait_for(lambda: pair.leads(other))
    assert not pair.leads(leader)
    for bench in (leader, other):
        bench.runtime.stop()


def clients(bench: Bench) -> int:
    """How many devices are in the newest version's sums."""
    return int(state_of(bench)["sums"]["clients"])


def test_a_withdrawal_said_to_the_other_is_published_by_the_leader(two_continuous: Two) -> None:
    for device in ("a", "b"):
        sends(two_continuous.first, device, 1)
    wait_for(lambda: clients(two_continuous.first) == 2)
    two_continuous.second.runtime.devices.withdraw(FEDERATION, "b")
    wait_for(lambda: clients(two_continuous.first) == 1)
    assert two_continuous.second.wires.sent == []


@pytest.mark.ci
def test_a_publication_that_died_with_its_leader_is_made_by_the_other(
    two_continuous: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two_continuous.first, two_continuous.second
    sends(one, "a", 1)
    wait_for(lambda: clients(one) == 1)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundJobs, "publish", lambda *_: None)  # the leader dies just here
        sends(one, "a", 2)
        with one.runtime.database.read() as session:
            assert session.scalar(text("SELECT phase FROM rounds ORDER BY id DESC LIMIT 1")) == "aggregating"
        sends(one, "b", 1)
        two_continuous.vanish(one)
    wait_for(lambda: two_continuous.leads(other))
    wait_for(lambda: clients(other) == 2)
    with other.runtime.database.read() as session:
        (found,) = findings.check_sums(session, other.runtime.blobs)
        assert found.level is Severity.OK, found
        assert session.scalar(text("SELECT count(*) FROM contributions WHERE changed_at IS NOT NULL")) == 0
