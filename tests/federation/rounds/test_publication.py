"""When a version is published, by hand-made times."""

from __future__ import annotations

import pytest

from federation.plan import PublicationSettings, RoundSettings
from federation.rounds.progress import (
    RAMP_VERSIONS,
    LastPublication,
    WaitingChanges,
    begin_publication,
    is_publication_due,
    publication_due_at,
)
from federation.rounds.server_round import Action, Aggregated, AggregationFailed, RoundPhase, step

SETTINGS = PublicationSettings(interval_s=60, min_changes=3, max_wait_s=600)


@pytest.mark.parametrize(
    ("count", "oldest_at", "last_at", "expected"),
    [
        (0, 0, 1000, None),
        (3, 1010, 1000, 1060),  # enough: the interval counts
        (3, 1010, None, 1010),  # enough, and nothing was published before
        (9, 1100, 1000, 1060),  # the interval is over: since then
        (1, 1010, 1000, 1610),  # too few: the oldest has waited for long enough
        (1, 400, 1000, 1060),  # it has, but the interval is not over
        (2, 1010, None, 1610),
    ],
)
def test_when_a_version_is_published(
    count: int, oldest_at: float, last_at: float | None, expected: float | None
) -> None:
    waiting, last = WaitingChanges(count, oldest_at), LastPublication(last_at, RAMP_VERSIONS + 8)
    assert publication_due_at(SETTINGS, waiting, last) == expected
    if expected is not None:
        now = max(expected, oldest_at, last_at or 0)
        assert is_publication_due(SETTINGS, waiting, last, now)
        if oldest_at < expected:
            assert not is_publication_due(SETTINGS, waiting, last, expected - 1)


def test_a_clock_that_was_set_back_keeps_nobody_waiting() -> None:
    last = LastPublication(9e9, 20)
    assert is_publication_due(SETTINGS, WaitingChanges(3, 9e9), last, now=1000)
    assert not is_publication_due(SETTINGS, WaitingChanges(1, 9e9), last, now=1000), "too few still wait"


def test_the_first_versions_follow_one_another_within_seconds() -> None:
    enough = WaitingChanges(3, 1000)
    rests = [publication_due_at(SETTINGS, enough, LastPublication(1000, number)) for number in (1, 2, 6, 12, 13)]
    assert rests == [1005, 1010, 1030, 1060, 1060]


def test_a_publication_is_a_round_that_begins_at_its_end() -> None:
    began = begin_publication(7)
    assert began.actions == (Action.AGGREGATE,)
    published = step(RoundSettings(), began.round, Aggregated())
    assert (published.round.phase, published.round.number) == (RoundPhase.PUBLISHED, 7)
    failed = step(RoundSettings(), began.round, AggregationFailed("no memory"))
    assert (failed.round.phase, failed.round.reason) == (RoundPhase.FAILED, "no memory")
