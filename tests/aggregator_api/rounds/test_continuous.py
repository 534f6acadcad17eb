"""A continuous federation: whoever has enrolled sends, what it sends replaces what it sent, and versions follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select
from typer.testing import CliRunner

from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import ConflictError
from aggregator_api.devices.service import find
from aggregator_api.federations import exports
from aggregator_api.federations.service import FederationChanges
from aggregator_api.maintenance import fsck
from aggregator_api.rounds.aggregation import Aggregate, publish
from aggregator_api.rounds.aggregation_executor import InProcessExecutor
from aggregator_api.storage import findings
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.models import ContributionRow, ModelVersionRow, RoundRow, UpdateRow
from aggregator_api.storage.findings import Severity
from federation import wire
from federation.records import Tree
from federation.records.tree import flatten
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import (
    continuous_plan,
    sends,
    state_of,
    sums_of,
    sums_parcel,
    withdrawal_parcel,
)
from tests.aggregator_api.generated_devices import FEDERATION

LONG_AGO = 10_000.0


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network below the head takes seconds to export; test_feature_model does it."""
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make servers with a continuous federation of devices a, b and c, each in a folder of its own."""
    made: list[Bench] = []

    def start(*, executor: Any = None, **publication: Any) -> Bench:
        folder = tmp_path / str(len(made))
        # PostgreSQL has a database for the first one; another beside it has its own
        beside = {"database_url": f"sqlite:///{folder}.sqlite3"} if made else {}
        bench = Bench(folder, continuous_plan(**publication), executor=executor, **beside)
        made.append(bench)
        for device in "abc":
            bench.say(device, "ready")
        return bench

    yield start
    for bench in made:
        bench.stop()


def published(bench: Bench, version: int) -> None:
    """Wait until that version is there."""
    wait_for(lambda: newest(bench) >= version)
    assert newest(bench) == version


def newest(bench: Bench) -> int:
    with bench.runtime.database.read() as session:
        return max(session.scalars(select(ModelVersionRow.version)))


def tick(bench: Bench) -> None:
    bench.as_inbox(bench.runtime.coordinator.tick)


def rows(bench: Bench) -> dict[str, ContributionRow]:
    with bench.runtime.database.read() as session:
        return {row.device.name if row.device else "": row for row in session.scalars(select(ContributionRow))}


def wait_longer(bench: Bench) -> None:
    """Let every change have waited for hours, and the last version be hours old."""
    with bench.runtime.database.write() as session:
        for row in session.scalars(select(ContributionRow).where(ContributionRow.changed_at.is_not(None))):
            row.changed_at = (row.changed_at or 0) - LONG_AGO
        for ended in session.scalars(select(RoundRow).where(RoundRow.closed_at.is_not(None))):
            ended.closed_at = (ended.closed_at or 0) - LONG_AGO


def same(one: Tree, other: Tree) -> bool:
    left, right = flatten(one), flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def expected_state(trees: list[Tree]) -> Tree:
    """What the sums are by adding these alone, and the number of devices."""
    total = {name: torch.zeros_like(value, dtype=torch.int64) for name, value in sums_of(1).items()}
    for tree in trees:
        total = {name: value + tree[name] for name, value in total.items()}
    return {"sums": {**total, "clients": torch.tensor(len(trees))}}


def assert_sums(bench: Bench, *trees: Tree) -> None:
    assert same({"sums": state_of(bench)["sums"]}, expected_state(list(trees)))
    with bench.runtime.database.read() as session:
        (found,) = findings.check_sums(session, bench.runtime.blobs)
    assert found.level is Severity.OK, found


def test_it_is_announced_as_collecting_the_next_version(make: Callable[..., Bench]) -> None:
    bench = make()
    now = bench.now()
    assert (now.state, now.round, now.invited, now.deadline) == ("collecting", 1, 0, None)
    assert now.continuous
    assert now.feature_model is not None
    assert bench.runtime.blobs.read(now.feature_model.sha256) == b"onnx"
    assert not bench.wires.guests(), "nobody is invited"
    sent = sends(bench, "a", 7)
    published(bench, 1)
    assert (bench.now().state, bench.now().round) == ("collecting", 2)
    wait_for(lambda: bench.wires.announcements()[-1].round == 2)
    assert bench.now().model != now.model
    assert_sums(bench, sent.tree)


def test_a_device_replaces_what_it_sent_by_its_running_number(make: Callable[..., Bench]) -> None:
    bench = make()
    first = sends(bench, "a", 7)
    other = sends(bench, "b", 1)
    wait_for(lambda: rows(bench)["b"].published_version is not None)
    for again in (first, sums_parcel(bench.now(), "a", 7, tree=first.tree, update_id="another")):
        assert bench.upload(again).status == "accepted"
    assert "number 7 was accepted already" in bench.refused(sums_parcel(bench.now(), "a", 6))
    assert "number 7 was accepted already" in bench.refused(sums_parcel(bench.now(), "a", 7, seed=99))
    assert_sums(bench, first.tree, other.tree)
    second = sends(bench, "a", 8)
    wait_for(lambda: rows(bench)["a"].changed_at is None)
    assert_sums(bench, second.tree, other.tree)
    assert rows(bench)["a"].published_version == newest(bench)


def test_late_absent_and_returning_devices_are_nothing_special(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.say("a", "offline")
    sent = sums_parcel(bench.now(), "a", 7, round=1000, base_version="ab" * 32)
    assert bench.upload(sent).status == "accepted", "whatever round and model it says"
    published(bench, 1)
    assert_sums(bench, sent.tree)


def test_a_version_waits_for_enough_changes_or_for_long_enough(make: Callable[..., Bench]) -> None:
    bench = make(min_changes=2, max_wait_s=3600)
    one = sends(bench, "a", 1)
    more = sends(bench, "a", 2)
    tick(bench)
    assert newest(bench) == 0, "two updates of one device are one change"
    two = sends(bench, "b", 1)
    published(bench, 1)
    assert_sums(bench, more.tree, two.tree)
    del one
    third = sends(bench, "c", 1)
    tick(bench)
    assert newest(bench) == 1
    wait_longer(bench)
    tick(bench)
    published(bench, 2)
    assert_sums(bench, more.tree, two.tree, third.tree)


def test_versions_follow_one_another_after_the_interval(make: Callable[..., Bench]) -> None:
    bench = make(interval_s=600)
    sends(bench, "a", 1)
    published(bench, 1)
    sends(bench, "b", 1)
    tick(bench)
    assert newest(bench) == 1
    bench.runtime.federation_settings.change(
        FEDERATION, FederationChanges.model_validate({"publication": {"interval_s": 0}})
    )
    published(bench, 2)


def test_a_paused_federation_takes_sums_and_publishes_them_later(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.runtime.federations.pause(FEDERATION)
    sent = sends(bench, "a", 1)
    tick(bench)
    assert newest(bench) == 0
    bench.runtime.federations.resume(FEDERATION)
    published(bench, 1)
    assert_sums(bench, sent.tree)
    bench.runtime.federations.stop(FEDERATION)
    assert "it takes no more sums" in bench.refused(sums_parcel(bench.now(), "a", 2))


WAYS_OUT: dict[str, Callable[[Bench], object]] = {
    "its person": lambda bench: bench.begin(withdrawal_parcel(bench.now(), "b", 100)),
    "the operator": lambda bench: bench.runtime.devices.withdraw(FEDERATION, "b"),
    "its deletion": lambda bench: bench.runtime.deletion.delete_device(FEDERATION, "b", dry_run=False),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "its person" else pytest.mark.ci) for way in WAYS_OUT]
)
def test_who_leaves_is_unlearned_bit_for_bit(way: str, make: Callable[..., Bench]) -> None:
    """The next version is that of a federation which never had the device: the same bytes."""
    bench, without = make(), make()
    for device in "abc":
        sends(bench, device, 1)
    sends(bench, "b", 2)
    wait_for(lambda: all(row.changed_at is None for row in rows(bench).values()))
    bench.as_inbox(lambda: WAYS_OUT[way](bench))
    wait_for(lambda: int(state_of(bench)["sums"]["clients"]) == 2)
    for device in "ac":
        sends(without, device, 1)
    wait_for(lambda: int(state_of(without)["sums"]["clients"]) == 2)
    assert bench.state() == without.state()
    assert_sums(bench, *(sums_of(sum(device.encode()) + 1000) for device in "ac"))
    left = rows(bench)
    assert ("b" in left) is (way != "its deletion")
    assert "" not in left, "nothing of a deleted device is left"


@pytest.mark.parametrize("second", ["a withdrawal", "the sums of before"])
def test_an_id_that_comes_again_with_another_number_is_not_taken_for_what_it_named(
    make: Callable[..., Bench], second: str
) -> None:
    """An id may be formed of version and bytes alone, which are the same for every withdrawal."""
    bench = make(min_changes=3)  # one version for all of it
    sends(bench, "a", 1, seed=5, update_id="u-1")
    assert bench.begin(withdrawal_parcel(bench.now(), "a", 2, update_id="out")).status == "accepted"
    latest = sends(bench, "a", 3, seed=6)
    if second == "a withdrawal":
        answer = bench.begin(withdrawal_parcel(bench.now(), "a", 4, update_id="out"))
    else:
        answer = bench.begin(sums_parcel(bench.now(), "a", 4, seed=5, update_id="u-1"))
    assert answer.status == "refused"
    assert "number 4 came; give every number an id of its own" in answer.reason
    assert rows(bench)["a"].sequence == 3
    assert bench.begin(latest).status == "accepted", "the same once more"
    assert bench.begin(withdrawal_parcel(bench.now(), "a", 4)).status == "accepted"
    assert rows(bench)["a"].sha256 is None


def test_a_withdrawal_before_anything_was_published_leaves_nothing_to_do(make: Callable[..., Bench]) -> None:
    bench = make(min_changes=2)
    sends(bench, "a", 1)
    assert bench.begin(withdrawal_parcel(bench.now(), "a", 2)).status == "accepted"
    assert rows(bench)["a"].changed_at is None
    with pytest.raises(ConflictError, match="'c' has no sums"):
        bench.runtime.devices.withdraw(FEDERATION, "c")


def test_only_devices_that_may_take_part_send(make: Callable[..., Bench]) -> None:
    bench = make()
    with bench.runtime.database.write() as session:
        find(session, FEDERATION, "a")[1].suspended_at = 1.0
        find(session, FEDERATION, "b")[1].enrolment = "revoked"
    assert "is suspended" in bench.refused(sums_parcel(bench.now(), "a", 1))
    assert "was revoked" in bench.refused(sums_parcel(bench.now(), "b", 1))
    assert bench.begin(withdrawal_parcel(bench.now(), "b", 2)).status == "refused"
    assert rows(bench) == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence": None}, "has `sequence`"),
        ({"precision": "float16"}, "travel lossless"),
        ({"steps": 3}, "3 steps"),
        ({"method": "fedavg"}, "is from method 'fedavg'"),
        ({"tree": {**sums_of(1), "gram": -sums_of(1)["gram"]}}, "below 0"),
        ({"tree": {name: 10 * value for name, value in sums_of(1).items()}}, "examples, but 10 are claimed"),
        ({"examples": 5, "tree": sums_of(1)}, "examples, but 5 are claimed"),
    ],
)
def test_what_cannot_be_sums_is_refused(changes: dict[str, Any], words: str, make: Callable[..., Bench]) -> None:
    bench = make()
    assert words in bench.refused(sums_parcel(bench.now(), "a", **{"sequence": 1, **changes}))
    assert rows(bench) == {}
    assert bench.count("quarantined") == 1


def test_a_device_that_goes_on_sending_impossible_sums_is_suspended(make: Callable[..., Bench]) -> None:
    bench = make()
    for k in range(3):
        bench.refused(sums_parcel(bench.now(), "a", k + 1, examples=5, tree=sums_of(k), update_id=f"u{k}"))
    assert "is suspended" in bench.refused(sums_parcel(bench.now(), "a", 9))


def test_a_device_that_enrols_again_under_its_name_replaces_what_it_sent(make: Callable[..., Bench]) -> None:
    bench = make()
    sends(bench, "a", 1)
    published(bench, 1)
    for enrolment in ("revoked", "open"):
        with bench.runtime.database.write() as session:
            find(session, FEDERATION, "a")[1].enrolment = enrolment
    again = sends(bench, "a", 1_795_000_000_000)
    published(bench, 2)
    assert_sums(bench, again.tree)


def test_a_command_on_the_servers_machine_takes_sums_out(make: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make()
    sends(bench, "a", 1)
    other = sends(bench, "b", 1)
    wait_for(lambda: all(row.changed_at is None for row in rows(bench).values()))
    words = ["devices", "withdraw", "--federation", FEDERATION, "a", "--data-dir", str(tmp_path / "0")]
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, "a: withdrawn" in done.output) == (0, True), done.output
    tick(bench)
    wait_for(lambda: rows(bench)["a"].changed_at is None)
    assert_sums(bench, other.tree)
    assert "'c' has no sums" in CliRunner().invoke(cli, [*words[:4], "c", *words[5:]]).output


def test_compressed_sums_count_as_others(make: Callable[..., Bench]) -> None:
    bench = make()
    tree = sums_of(3)
    data = wire.encode(tree, compression="zstd")
    assert bench.upload(sums_parcel(bench.now(), "a", 1, tree=tree, data=data, compression="zstd")).status == "accepted"
    published(bench, 1)
    assert_sums(bench, tree)


def test_fsck_finds_nothing_while_a_version_is_made(make: Callable[..., Bench], tmp_path: Path) -> None:
    """Of compressed sums and of a withdrawal there is no blob of what was sent."""
    executor, said = Interrupted(tmp_path), list[str]()
    bench = make(executor=executor, min_changes=2)
    for device in "ab":
        sends(bench, device, 1)
    published(bench, 1)
    executor.meanwhile = [lambda: said.extend(one.message for one in fsck.check(bench.runtime.settings) if one.advice)]
    data = wire.encode(tree := sums_of(9), compression="zstd")
    assert bench.upload(sums_parcel(bench.now(), "a", 2, tree=tree, data=data, compression="zstd")).status == "accepted"
    assert bench.begin(withdrawal_parcel(bench.now(), "b", 2)).status == "accepted"
    published(bench, 2)
    assert said == []
    assert not executor.meanwhile


class Interrupted(InProcessExecutor):
    """Does something while a publication is computed, and fails as often as it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(blobs := BlobStore((folder / "0" / "blobs").as_uri()))
        self._store, self.meanwhile, self.failures = blobs, [], 0

    meanwhile: list[Callable[[], object]]

    def publish(self, contract: Any, state: str, contributed: Any) -> Aggregate:
        while self.meanwhile:
            self.meanwhile.pop()()
        if self.failures:
            self.failures -= 1
            raise MemoryError("none left")
        return publish(contract, self._store, state, contributed)


def test_what_changes_while_a_version_is_made_is_in_the_next_one(make: Callable[..., Bench], tmp_path: Path) -> None:
    executor = Interrupted(tmp_path)
    bench = make(executor=executor)
    executor.meanwhile = [
        lambda: sends(bench, "a", 2),
        lambda: sends(bench, "b", 1),
    ]
    sends(bench, "a", 1)
    published(bench, 2)
    wait_for(lambda: all(row.changed_at is None for row in rows(bench).values()))
    assert_sums(bench, sums_of(ord("a") + 2000), sums_of(ord("b") + 1000))
    with bench.runtime.database.read() as session:
        used = {(row.device.name, row.base_round): row.round_id for row in session.scalars(select(UpdateRow))}
        numbers = {row.id: (row.number, row.received) for row in session.scalars(select(RoundRow))}
    assert sorted(numbers.values()) == [(1, 1), (2, 2)]
    assert {key: numbers[row][0] for key, row in used.items() if row} == {("a", 1): 1, ("a", 2): 2, ("b", 2): 2}


def test_a_device_that_is_deleted_while_a_version_is_made_is_not_in_the_next_one(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    executor = Interrupted(tmp_path)
    bench = make(executor=executor)
    executor.meanwhile = [lambda: bench.runtime.deletion.delete_device(FEDERATION, "a", dry_run=False)]
    sends(bench, "a", 1)
    published(bench, 2)
    assert_sums(bench)
    assert rows(bench) == {}


def test_the_changes_of_a_publication_that_failed_wait_for_the_next_one(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    executor = Interrupted(tmp_path)
    executor.failures = 2
    bench = make(executor=executor)
    sent = sends(bench, "a", 1)

    def is_published() -> bool:
        tick(bench)
        return newest(bench) == 1

    wait_for(is_published)
    assert_sums(bench, sent.tree)
    with bench.runtime.database.read() as session:
        phases = [(row.number, row.phase) for row in session.scalars(select(RoundRow).order_by(RoundRow.number))]
    assert phases == [(1, "failed"), (2, "failed"), (3, "published")]


def test_the_sums_go_on_from_the_newest_version_wherever_latest_was_moved(make: Callable[..., Bench]) -> None:
    bench = make()
    one = sends(bench, "a", 1)
    published(bench, 1)
    bench.runtime.aliases.move(FEDERATION, "latest", 0, force="for a test")
    two = sends(bench, "b", 1)
    published(bench, 2)
    assert_sums(bench, one.tree, two.tree)


def test_a_round_federation_takes_no_running_numbers(make: Callable[..., Bench], tmp_path: Path) -> None:
    from tests.aggregator_api.generated_devices import tiny_plan

    bench = Bench(tmp_path / "rounds", tiny_plan())
    try:
        bench.say("a", "ready")
        bench.say("b", "ready")
        assert "has no `sequence`" in bench.refused(bench.update_of("a", sequence=4))
    finally:
        bench.stop()
