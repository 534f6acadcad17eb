"""What pages show beyond REST's listings: scores, rounds' history, what needs attention, and why a device rests."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from aggregator_api.devices.service import find
from aggregator_api.federations.service import get_federation
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.devices import TRAINS, activity
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.http.queries.rounds import costs, grid, latest_rounds, round_scores, spans
from aggregator_api.http.web import views
from aggregator_api.notifications import attention
from aggregator_api.rollouts import scores
from aggregator_api.storage.db.models import (
    AdoptionRow,
    DeviceRow,
    EventRow,
    MetricRow,
    RoundRow,
    ScoreRow,
    UpdateRow,
)
from tests.aggregator_api.bench import Bench, copied
from tests.aggregator_api.generated_devices import FEDERATION
from tests.aggregator_api.web.seeded import WALKS, seed


@pytest.fixture(scope="module")
def seeded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that ended: a federation of 12 devices and 10 rounds, the last one open."""
    folder = tmp_path_factory.mktemp("seeded") / "server"
    bench = Bench(folder)
    seed(bench.runtime, rounds=10)
    bench.stop()
    return folder


@pytest.fixture
def seeded(seeded_folder: Path, tmp_path: Path) -> Iterator[Bench]:
    """A server over a copy of it."""
    bench = Bench(copied(seeded_folder, tmp_path / "server"))
    yield bench
    bench.stop()


def test_scores_are_of_the_devices_that_measured_the_round(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        row = get_federation(session, WALKS)
        found = round_scores(session, row, [4, 9])
        query = select(MetricRow.value).where(MetricRow.round_number == 4, MetricRow.name == "macro_f1_after")
        values = sorted(session.scalars(query))
    assert found[4].devices == len(values)
    assert found[4].mean == pytest.approx(fmean(values))
    assert found[4].worst_tenth == pytest.approx(values[0])
    assert found[4].spread == pytest.approx(pstdev(values))
    assert (found[4].lowest, found[4].highest) == (values[0], values[-1])
    assert len(found[4].classes) == 6


def test_a_deleted_device_counts_in_no_score(seeded: Bench) -> None:
    with seeded.runtime.database.write() as session:
        row, device = find(session, WALKS, "phone-01")
        before = round_scores(session, row, [9])[9]
        own = select(MetricRow.value).where(MetricRow.device_id == device.id, MetricRow.round_number == 9)
        value = session.scalars(own.where(MetricRow.name == "macro_f1_after")).one()
        scores.remove_device(session, device, "macro_f1")
        for table in (MetricRow, AdoptionRow):
            session.execute(delete(table).where(table.device_id == device.id))
        after = round_scores(session, row, [9])[9]
        assert after.devices == before.devices - 1
        assert after.mean * after.devices == pytest.approx(before.mean * before.devices - value)
        assert sums(session) == pytest.approx(sums_anew(session), abs=1e-9)


Sums = dict[tuple[int, str, str], float]


def sums(session: Session) -> Sums:
    """Every sum that is kept, without those that are 0."""
    rows = session.scalars(select(ScoreRow).execution_options(populate_existing=True)).all()
    found = {(row.round_number, row.name, of): getattr(row, of) for row in rows for of in scores.SUMS}
    return {key: value for key, value in found.items() if abs(value) > 1e-9}


def sums_anew(session: Session) -> Sums:
    """The same, computed from all that devices have reported."""
    reports: defaultdict[tuple[int, int, int], dict[str, float]] = defaultdict(dict)
    for metric in session.scalars(select(MetricRow)):
        reports[metric.federation_id, metric.round_number, metric.device_id][metric.name] = metric.value
    session.execute(delete(ScoreRow))
    for (federation, number, _), figures in reports.items():
        scores.add_figures(session, federation, number, figures)
    for row in session.scalars(select(AdoptionRow)):
        scores.add_judgement(session, row, "macro_f1")
    return sums(session)


def test_the_worst_tenth_of_twenty_devices_are_two(tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = Bench(tmp_path_factory.mktemp("twenty"))
    seed(bench.runtime, devices=20, rounds=2)
    with bench.runtime.database.read() as session:
        query = select(MetricRow.value).where(MetricRow.round_number == 1, MetricRow.name == "macro_f1_after")
        values = sorted(session.scalars(query))
        found = round_scores(session, get_federation(session, WALKS), [1])[1]
    bench.runtime.stop()
    assert found.worst_tenth == pytest.approx(fmean(values[:2]))


def test_costs_are_what_came_and_what_was_sent(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        rounds = latest_rounds(session, get_federation(session, WALKS), 10)
        found = costs(session, rounds)
        received = select(func.sum(UpdateRow.size)).where(UpdateRow.round_id == rounds[2].id)
        assert found[3].received == session.scalar(received)
        assert found[3].sent == 48_000 * len(rounds[2].participations)


def test_listings_of_pages_show_the_newest_first(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        row = get_federation(session, WALKS)
        first = listings.model_versions(session, row, PageParams(0, 4, newest_first=True))
        rest = listings.model_versions(session, row, PageParams(first.next_cursor or 0, 100, newest_first=True))
        oldest = listings.model_versions(session, row, PageParams(0, 100))
    assert [each.version for each in first.items] == [9, 8, 7, 5]
    assert [*first.items, *rest.items] == oldest.items[::-1]
    assert rest.next_cursor is None


def test_a_round_is_told_by_its_phases_and_without_its_events_as_a_whole(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        row = get_federation(session, WALKS)
        rounds = latest_rounds(session, row, 3)
        found = spans(session, row, rounds)
    assert [each.number for each in rounds] == [8, 9, 10]
    assert [each.phase for each in found[9]] == ["announced", "collecting", "aggregating"]
    assert all(before.end == after.begin for before, after in zip(found[9], found[9][1:], strict=False))
    assert found[9][-1].end == rounds[1].closed_at
    assert found[10][-1].end is None
    with seeded.runtime.database.write() as session:
        session.query(EventRow).filter(EventRow.kind.startswith("round.")).delete(synchronize_session=False)
    with seeded.runtime.database.read() as session:
        found = spans(session, get_federation(session, WALKS), rounds)
    assert [(each.phase, each.begin, each.end) for each in found[9]] == [
        ("collecting", rounds[1].opened_at, rounds[1].closed_at)
    ]


def test_the_grid_says_what_each_device_did(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        found = grid(session, get_federation(session, WALKS), 6, PageParams(0, 5))
        after = grid(session, get_federation(session, WALKS), 6, PageParams(found.next_cursor or 0, 100))
    assert found.numbers == (5, 6, 7, 8, 9, 10)
    cells = {row.device: row.cells for row in (*found.rows, *after.rows)}
    assert cells["phone-01"] == ("trained",) * 5 + ("waiting",)
    assert cells["phone-04"] == ("trained", "lost", "trained", "trained", "lost", "trained")
    assert cells["phone-05"][0] == "late"
    assert cells["phone-06"][3] == "absent"
    assert len(cells) == 14
    assert found.rows[0].runs == [("trained", 0, 5), ("waiting", 5, 1)]
    assert found.rows[0].summary == "trained 5, is awaited 1"


def test_what_needs_attention_is_told_the_worst_first(seeded: Bench) -> None:
    now = time.time()
    with seeded.runtime.database.write() as session:
        session.execute(update(RoundRow).where(RoundRow.number == 10).values(phase="failed", reason="no quorum"))
        session.execute(update(DeviceRow).where(DeviceRow.name == "phone-02").values(cloned_at=now))
    with seeded.runtime.database.read() as session:
        row = get_federation(session, WALKS)
        found = attention.of_federation(session, row)
        later = attention.of_federation(session, row, now + 3 * 86_400)
    assert [each.level for each in found] == ["error"] * 2 + ["warning"] * 3
    words = " ".join(each.message for each in found)
    for said in ("Rollout 1 was halted", "Round 10 failed: no quorum", "1 update of 1 device", "the name of 1 device"):
        assert said in words
    assert "quarantine" not in " ".join(each.message for each in later)


class Authority:
    """A server whose broker's certificate ends in a week."""

    def problems(self) -> list[str]:
        return ["the disk is full: 3 bytes are left"]

    def certificates(self) -> dict[str, float]:
        return {"the broker": 7 * 86_400.0, "the broker's authority": 400 * 86_400.0, "another": -1.0}


def test_of_the_server_problems_and_what_ends_soon_are_told(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        found = attention.of_server(session, Authority(), now=0.0)
    assert [(each.level, each.message) for each in found] == [
        ("error", "The disk is full: 3 bytes are left."),
        ("warning", "The certificate of the broker expires in 7 days."),
        ("error", "The certificate of another has expired."),
    ]


@pytest.mark.parametrize(
    ("device", "changes", "words"),
    [
        ("phone-02", {"detail": "the battery is at 18 %"}, "It is invited to round 10: the battery is at 18 %."),
        ("phone-05", {"state": "ready"}, "Its update of round 10 has arrived; the round waits for 3 others."),
        ("phone-05", {"state": "offline"}, "It is offline"),
        ("phone-05", {"state": "collecting", "detail": "12 windows"}, "enough labelled windows yet: 12 windows"),
        ("phone-05", {"enrolment": "revoked"}, "It was revoked"),
        ("phone-new", {}, "waits for an operator's approval"),
    ],
)
def test_why_a_device_does_not_train(seeded: Bench, device: str, changes: dict[str, str], words: str) -> None:
    with seeded.runtime.database.write() as session:
        federation, row = find(session, WALKS, device)
        for name, value in changes.items():
            setattr(row, name, value)
        found = activity(session, federation, row)
    assert found.heading != TRAINS
    assert words in found.reason


def test_a_device_that_trains_is_said_to(seeded: Bench) -> None:
    with seeded.runtime.database.read() as session:
        assert activity(session, *find(session, WALKS, "phone-01")).heading == TRAINS


def test_before_the_first_round_the_missing_devices_are_counted(waiting: Bench) -> None:
    waiting.say("a", "ready")
    with waiting.runtime.database.read() as session:
        found = activity(session, *find(session, FEDERATION, "a"))
    assert found.reason == "No round is open: 1 of the 2 devices that a round needs are online."
    waiting.runtime.federations.pause(FEDERATION)
    with waiting.runtime.database.read() as session:
        assert "is paused" in activity(session, *find(session, FEDERATION, "a")).reason


def test_a_headline_is_of_enough_devices_and_says_how_far_they_reach(seeded: Bench) -> None:
    """One phone's round does not replace what a dozen devices have measured."""
    with seeded.runtime.database.write() as session:
        found = select(DeviceRow.id).where(DeviceRow.name.in_(("phone-01", "phone-02"))).scalar_subquery()
        few = (MetricRow.round_number >= 8) & MetricRow.device_id.not_in(found)
        session.execute(delete(MetricRow).where(few))
        sums_anew(session)
    with seeded.runtime.database.read() as session:
        row = get_federation(session, WALKS)
        query = select(MetricRow.value).where(MetricRow.round_number == 7, MetricRow.name == "macro_f1_after")
        values = sorted(100 * value for value in session.scalars(query))
        shown = views.summary(session, row)
    assert (shown.score_round, shown.score_text) == (7, f"{fmean(values):.2f} %")
    assert shown.score_note == f"round 7, {len(values)} devices, {values[0]:.2f} to {values[-1]:.2f}"
    with seeded.runtime.database.write() as session:
        session.execute(delete(MetricRow).where(MetricRow.round_number < 8))
        sums_anew(session)
    with seeded.runtime.database.read() as session:
        shown = views.summary(session, get_federation(session, WALKS))
    assert (shown.score, shown.score_note) == (None, "not measured by 3 devices yet")


def test_a_running_federation_without_a_device_online_needs_attention(seeded: Bench) -> None:
    def words() -> list[tuple[str, str]]:
        with seeded.runtime.database.read() as session:
            found = attention.of_federation(session, get_federation(session, WALKS))
        return [(item.level, item.message) for item in found if "offline" in item.message]

    assert words() == []
    with seeded.runtime.database.write() as session:
        session.execute(update(DeviceRow).values(state="offline"))
    ((level, message),) = words()
    assert level == "warning"
    assert message.startswith("All 14 devices are offline;")
    seeded.runtime.federations.pause(WALKS)
    assert words() == []
