"""When a federation is finished, pauses, and leaves a client out: worked out by hand, and for any course of rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from federation.plan import RoundSettings
from federation.rounds.progress import Progress, is_to_suspend, refused_updates
from federation.rounds.server_round import RoundPhase

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


@given(st.lists(st.sampled_from([PUBLISHED, FAILED])), st.integers(1, 5), st.integers(1, 5))
def test_between_two_pauses_there_are_at_most_so_many_failures(
    phases: list[RoundPhase], rounds: int, attempts: int
) -> None:
    settings = RoundSettings(rounds=rounds, max_failed_rounds=attempts)
    progress, since = Progress(), 0
    for phase in phases:
        progress = progress.after(phase)
        since = since + 1 if phase is FAILED else 0
        assert progress.must_pause(settings) == (since == attempts)
        since %= attempts
    assert progress.published == phases.count(PUBLISHED)
    assert progress.is_finished(settings) == (phases.count(PUBLISHED) >= rounds)


def test_only_refusals_in_a_row_suspend() -> None:
    settings, count, course = RoundSettings(max_refused_updates=2), 0, []
    for used in (False, True, False, False, True):
        count = refused_updates(count, used=used)
        course.append(is_to_suspend(settings, count))
    assert course == [False, False, False, True, False]
    assert not is_to_suspend(RoundSettings(max_refused_updates=None), 10**6)
