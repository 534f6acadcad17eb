"""The round machine: every transition, and invariants under any order of events."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import RoundError
from federation.plan import RoundSettings
from federation.rounds.progress import Progress, is_to_suspend, refused_updates
from federation.rounds.server_round import (
    Action,
    Aggregated,
    AggregationFailed,
    ClientStatus,
    DeadlinePassed,
    DeviceLost,
    Event,
    InMemoryRound,
    Opened,
    Paused,
    Resumed,
    Round,
    RoundPhase,
    Step,
    Stopped,
    UpdateArrived,
    discount,
    sample_cohort,
    step,
)

ALL = RoundSettings(minimum_clients=2)
COHORT = ("a", "b", "c")


def called(settings: RoundSettings, *events: Event) -> InMemoryRound:
    """Apply events to round 5 of the cohort."""
    call = InMemoryRound.of(settings, 5, COHORT)
    for event in (Opened(), *events):
        call.feed(event)
    return call


def play(settings: RoundSettings, *events: Event) -> Step:
    """Apply events to round 5 of the cohort; return the last step."""
    return called(settings, *events[:-1]).feed(events[-1])


def arrive(name: str, base: int = 5) -> UpdateArrived:
    return UpdateArrived(name, base)


def test_the_plain_way() -> None:
    opened = step(ALL, Round(5, len(COHORT)), Opened())
    assert opened.actions == (Action.ANNOUNCE,)
    assert opened.round.phase is RoundPhase.COLLECTING
    last = play(ALL, arrive("b"), arrive("a"), arrive("c"))
    assert last.actions == (Action.ACCEPT, Action.AGGREGATE)
    assert last.round.phase is RoundPhase.AGGREGATING
    published = step(ALL, last.round, Aggregated())
    assert published.actions == (Action.PUBLISH,)
    assert published.round.phase is RoundPhase.PUBLISHED


def test_the_deadline_closes_with_a_quorum() -> None:
    result = play(ALL, arrive("a"), arrive("b"), DeadlinePassed())
    assert result.actions == (Action.AGGREGATE,)
    assert result.round.received == 2


def test_the_deadline_fails_without_a_quorum() -> None:
    result = play(ALL, arrive("a"), DeadlinePassed())
    assert result.actions == (Action.FAIL,)
    assert result.round.reason == "quorum not reached: got 1 updates, 2 are needed"


def test_lost_devices_are_not_waited_for() -> None:
    result = play(ALL, DeviceLost("c"), arrive("a"), arrive("b"))
    assert result.round.phase is RoundPhase.AGGREGATING
    assert play(ALL, arrive("a"), arrive("b"), DeviceLost("c")).actions == (Action.AGGREGATE,)
    assert play(ALL, DeviceLost("a"), DeviceLost("b"), DeviceLost("c")).actions == (Action.FAIL,)


def test_over_selection_closes_when_enough_came() -> None:
    settings = RoundSettings(clients_per_round=2, over_selection=1.5)
    assert play(settings, arrive("a"), arrive("c")).actions == (Action.ACCEPT, Action.AGGREGATE)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((arrive("a"), arrive("a")), "a has already reported in round 5"),
        ((arrive("z"),), "z is not in the cohort of round 5"),
        ((arrive("a", 4),), "round 4 is over"),
        ((arrive("a", 6),), "round 6 has not begun"),
        ((arrive("a"), arrive("b"), arrive("c"), arrive("z")), "round 5 is aggregating"),
    ],
)
def test_refusals_say_why_and_change_nothing(events: tuple[Event, ...], reason: str) -> None:
    call = called(ALL, *events[:-1])
    before, statuses = call.round, dict(call.statuses)
    result = call.feed(events[-1])
    assert result.actions == (Action.REFUSE,)
    assert result.reason == reason
    assert (call.round, call.statuses) == (before, statuses)


def test_a_late_update_counts_in_the_next_round_with_a_discount() -> None:
    settings = RoundSettings(late="next", staleness_exponent=0.5)
    call = called(settings, arrive("z", 2))
    assert (call.round.received, call.round.pending) == (1, 3)  # it is no client of this cohort
    assert call.received == {"z": 3}
    assert discount(settings, 3) == 0.5
    assert discount(settings, 0) == 1.0


def test_a_paused_round_collects_but_does_not_close() -> None:
    result = play(ALL, Paused(), arrive("a"), arrive("b"), arrive("c"), DeadlinePassed())
    assert result.round.phase is RoundPhase.COLLECTING
    assert step(ALL, result.round, Resumed()).actions == (Action.AGGREGATE,)


def test_stop_and_failure() -> None:
    stopped = play(ALL, arrive("a"), Stopped("the operator said so"))
    assert stopped.actions == (Action.FAIL,)
    assert stopped.round.reason == "the operator said so"
    failed = play(ALL, arrive("a"), arrive("b"), arrive("c"), AggregationFailed("disk full"))
    assert (failed.round.phase, failed.round.reason) == (RoundPhase.FAILED, "disk full")
    assert step(ALL, failed.round, Stopped("again")).actions == ()


@pytest.mark.parametrize("event", [Aggregated(), AggregationFailed("x"), Opened()])
def test_impossible_events_are_refused(event: Event) -> None:
    with pytest.raises(RoundError, match="came in phase collecting, expected"):
        play(ALL, event)


events = st.lists(
    st.one_of(
        st.builds(UpdateArrived, st.sampled_from("abcz"), st.integers(3, 6)),
        st.builds(DeviceLost, st.sampled_from("abcz")),
        st.sampled_from([DeadlinePassed(), Paused(), Resumed(), Stopped("s")]),
    ),
    max_size=12,
)


@given(events, st.sampled_from(["drop", "next"]), st.integers(1, 3), st.none() | st.integers(1, 3))
def test_any_order_of_events(happened: list[Event], late: str, minimum: int, per_round: int | None) -> None:
    settings = RoundSettings(late=late, minimum_clients=minimum, clients_per_round=per_round)
    call, done = called(settings), Counter[Action]()
    for event in happened:
        done.update(call.feed(event).actions)
        # the counters say what counting the clients says
        stand = Counter(call.statuses.values())
        assert (call.round.pending, call.round.received) == (stand[ClientStatus.WAITING], stand[ClientStatus.RECEIVED])
    current = call.round
    assert done[Action.AGGREGATE] + done[Action.FAIL] <= 2
    assert done[Action.AGGREGATE] <= 1
    assert done[Action.ACCEPT] == current.received == len(call.received)
    if current.phase is RoundPhase.AGGREGATING:
        assert current.received >= minimum


def test_cohorts_repeat_and_a_new_client_changes_no_draw() -> None:
    settings = RoundSettings(clients_per_round=5)
    names = [f"c{i:02}" for i in range(20)]
    one = sample_cohort(settings, names, seed=1, round_number=3)
    assert one == sample_cohort(settings, reversed(names), seed=1, round_number=3)
    assert len(one) == 5
    assert one != sample_cohort(settings, names, seed=1, round_number=4)
    more = sample_cohort(settings, [*names, "new"], seed=1, round_number=3)
    assert len(set(more) - set(one) - {"new"}) == 0
    assert sample_cohort(RoundSettings(), names, seed=1, round_number=3) == tuple(names)


def test_sampling_by_examples_prefers_large_clients() -> None:
    for ratio, share in ((None, 0.9), (2.0, 2 / 3)):  # nobody counts for more than twice the median, which is 1
        settings = RoundSettings(clients_per_round=1, max_weight_ratio=ratio)
        drawn = Counter(
            sample_cohort(settings, "ab", seed=0, round_number=r, examples={"a": 9, "b": 1})[0] for r in range(2000)
        )
        assert drawn["a"] / 2000 == pytest.approx(share, abs=0.03)


PUBLISHED, FAILED = RoundPhase.PUBLISHED, RoundPhase.FAILED


def test_failed_rounds_do_not_count_and_too_many_in_a_row_pause() -> None:
    settings = RoundSettings(rounds=2, max_failed_rounds=2)
    progress, course = Progress(), []
    for phase in (FAILED, PUBLISHED, FAILED, FAILED, FAILED, FAILED, PUBLISHED):
        progress = progress.after(phase)
        course.append((progress.published, progress.must_pause(settings), progress.is_finished(settings)))
    assert course == [
        (0, False, False),
        (1, False, False),
        (1, False, False),
        (1, True, False),
        (1, False, False),  # an operator has resumed it: as many attempts again
        (1, True, False),
        (2, False, True),
    ]


def test_only_refusals_in_a_row_suspend() -> None:
    settings, count, course = RoundSettings(max_refused_updates=2), 0, []
    for used in (False, True, False, False, True):
        count = refused_updates(count, used=used)
        course.append(is_to_suspend(settings, count))
    assert course == [False, False, False, True, False]
    assert not is_to_suspend(RoundSettings(max_refused_updates=None), 10**6)
