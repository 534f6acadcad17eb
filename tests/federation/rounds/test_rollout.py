"""The rollout machine: every transition, who belongs to a wave, and invariants under any order of events."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from federation.errors import RolloutError
from federation.plan import RolloutSettings
from federation.rounds.rollout import (
    MILLION,
    AdoptionAnswer,
    AnswerReceived,
    ClockTick,
    DevicesAdded,
    Event,
    Halted,
    Paused,
    Resumed,
    Rollout,
    RolloutPhase,
    is_within,
    place_of,
    reach_of,
    step,
    wave_size,
)

SETTINGS = RolloutSettings(mode="manual", soak_s=60, wave_timeout_s=600)
PLACES = [32, 71, 77]
GOOD = (AdoptionAnswer.ADOPTED, AdoptionAnswer.KEPT)
BAD = (AdoptionAnswer.REFUSED, AdoptionAnswer.FAILED, AdoptionAnswer.ROLLED_BACK)


def after(*events: Event, start: Rollout | None = None) -> Rollout:
    """Apply events to a rollout that began at time 0."""
    found = start or Rollout(wave_started_at=0.0)
    for event in events:
        found = step(SETTINGS, found, event)
    return found


def answers(good: int, bad: int = 0) -> tuple[Event, ...]:
    said = [AdoptionAnswer.ADOPTED] * good + [AdoptionAnswer.FAILED] * bad
    return tuple(AnswerReceived(AdoptionAnswer.PENDING, answer) for answer in said)


# ---- which devices


def reached(devices: Sequence[str], version: int, share: float) -> set[str]:
    """The devices of a wave of that share."""
    reach = reach_of([place_of(device, version) for device in devices], share)
    return {device for device in devices if is_within(device, version, reach)}


@pytest.mark.parametrize(
    ("devices", "sizes"), [(1, (1, 1, 1)), (2, (1, 1, 2)), (7, (1, 2, 7)), (20, (1, 5, 20)), (21, (2, 6, 21))]
)
def test_small_federations_have_waves_of_at_least_their_share(devices: int, sizes: tuple[int, ...]) -> None:
    assert tuple(wave_size(share, devices) for share in (0.05, 0.25, 1.0)) == sizes
    assert tuple(len(reached([f"d{n}" for n in range(devices)], 1, share)) for share in (0.05, 0.25, 1.0)) == sizes


def test_a_share_is_rounded_up_as_it_was_written() -> None:
    assert wave_size(0.07, 100) == 7  # though 0.07 * 100 is above 7
    assert (wave_size(0.5, 0), reach_of([], 0.5), reach_of([], 1.0)) == (0, 0, MILLION)


SHARES = st.lists(st.floats(1e-6, 0.999), max_size=6, unique=True).map(lambda found: (*sorted(found), 1.0))


@given(st.integers(1, 60), SHARES, st.integers(0, 2**31))
def test_waves_of_any_devices_and_shares_nest_and_are_as_large_as_they_should_be(
    count: int, shares: tuple[float, ...], version: int
) -> None:
    devices = [f"device-{n}" for n in range(count)]
    waves = [reached(devices, version, share) for share in shares]
    assert waves == [reached(devices[::-1], version, share) for share in shares]  # whoever came first
    for share, wave, following in zip(shares, waves, waves[1:], strict=False):
        assert wave <= following
        assert len(wave) >= max(1, math.ceil(share * len(devices) - 1e-9))
    assert waves[-1] == set(devices)


@given(st.text(max_size=64), st.integers(0, 2**31), st.integers(0, MILLION), st.integers(0, MILLION))
def test_a_larger_share_takes_nobody_out(device: str, version: int, one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert is_within(device, version, large) or not is_within(device, version, small)
    assert is_within(device, version, MILLION)
    assert not is_within(device, version, 0)


def test_the_place_of_a_device_is_fixed_for_ever() -> None:
    # devices in the field and the server must agree, whatever their versions
    assert [n for n in range(100) if is_within(f"phone{n}", 3, 50_000)] == PLACES


# ---- when it goes on


def test_a_wave_goes_on_once_enough_have_adopted_and_it_has_lasted() -> None:
    wave = after(DevicesAdded(10), *answers(8))
    assert after(ClockTick(59.9), start=wave).wave == 0
    assert after(ClockTick(60.0), start=wave).wave == 1
    assert after(DevicesAdded(10), *answers(7), ClockTick(599.9)).wave == 0
    assert after(ClockTick(60.0), start=wave).wave_started_at == 60.0


def test_after_the_patience_a_wave_goes_on_without_its_silent_devices_but_not_without_any_word() -> None:
    assert after(DevicesAdded(10), *answers(1), ClockTick(600.0)).wave == 1
    assert after(DevicesAdded(10), ClockTick(10_000.0)).wave == 0


def test_a_wave_without_devices_lasts_its_time_too_and_the_last_one_waits_for_some() -> None:
    assert after(ClockTick(59.9)).wave == 0
    assert after(ClockTick(60.0), ClockTick(60.1), ClockTick(119.9)).wave == 1
    assert after(ClockTick(60.0), ClockTick(120.0)).wave == 2
    assert after(*[ClockTick(n) for n in range(10_000)]).phase is RolloutPhase.ROLLING


def test_after_the_last_wave_it_is_completed_or_halted_if_nobody_has_adopted_it() -> None:
    last = Rollout(wave_started_at=0.0, wave=2)
    assert after(DevicesAdded(10), *answers(8), ClockTick(60.0), start=last).phase is RolloutPhase.COMPLETED
    alone = after(DevicesAdded(1), *answers(0, 1), start=last)
    assert alone.phase is RolloutPhase.ROLLING
    assert after(ClockTick(600.0), start=alone) == Rollout(
        0.0, 2, 1, 0, 1, RolloutPhase.HALTED, "no device has adopted it"
    )


# ---- when it halts


@pytest.mark.parametrize(
    ("good", "bad", "halted"),
    [(0, 1, False), (0, 2, True), (1, 1, False), (18, 2, True), (19, 2, False), (27, 3, True), (28, 3, False)],
)
def test_it_halts_at_a_tenth_of_the_answers_or_two_devices_whichever_is_more(good: int, bad: int, halted: bool) -> None:
    found = after(DevicesAdded(100), *answers(good, bad))
    assert (found.phase is RolloutPhase.HALTED) is halted
    assert (found.reason == f"{bad} of {good + bad} devices that answered have failed") is halted


@pytest.mark.parametrize("answer", BAD)
def test_refusing_failing_and_going_back_all_count(answer: AdoptionAnswer) -> None:
    one = after(DevicesAdded(3), AnswerReceived(AdoptionAnswer.PENDING, answer))
    assert (one.failures, one.phase) == (1, RolloutPhase.ROLLING)
    assert (
        after(AnswerReceived(AdoptionAnswer.ADOPTED, answer), start=after(DevicesAdded(1), *answers(1))).successes == 0
    )
    assert after(AnswerReceived(AdoptionAnswer.PENDING, answer), start=one).phase is RolloutPhase.HALTED


def test_the_operator_pauses_resumes_and_takes_back_also_what_was_completed() -> None:
    wave = after(DevicesAdded(10), *answers(10), Paused())
    assert after(ClockTick(1000.0), start=wave) == wave
    resumed = after(Resumed(1000.0), start=wave)
    assert (after(ClockTick(1059.0), start=resumed).wave, after(ClockTick(1060.0), start=resumed).wave) == (0, 1)
    assert after(*answers(0, 2), start=wave).phase is RolloutPhase.HALTED  # a pause is no reason to look away
    done = Rollout(wave_started_at=0.0, wave=2, members=10, successes=10, phase=RolloutPhase.COMPLETED)
    assert after(Halted("it drains the battery"), start=done).reason == "it drains the battery"
    late = after(*answers(0, 9), start=done)
    assert (late.phase, late.failures) == (RolloutPhase.COMPLETED, 9)


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (RolloutPhase.PAUSED, Paused()),
        (RolloutPhase.COMPLETED, Paused()),
        (RolloutPhase.HALTED, Paused()),
        (RolloutPhase.ROLLING, Resumed(0.0)),
        (RolloutPhase.HALTED, Resumed(0.0)),
        (RolloutPhase.HALTED, Halted("")),
    ],
)
def test_what_cannot_be_is_refused_in_words(phase: RolloutPhase, event: Event) -> None:
    with pytest.raises(RolloutError, match=f"the rollout is {phase}; this needs one that is"):
        after(event, start=Rollout(wave_started_at=0.0, phase=phase))


@pytest.mark.parametrize("waves", [(), (0.5,), (0.5, 0.5, 1.0), (1.0, 0.5), (0.0, 1.0), (-0.1, 1.0), (0.5, 2.0)])
def test_waves_grow_to_everybody(waves: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        RolloutSettings(waves=waves)


# ---- under any order of events


class Fleet:
    """Devices that answer in any order, and the machine's count held against theirs."""

    def __init__(self, settings: RolloutSettings, size: int) -> None:
        self.settings, self.now = settings, 0.0
        self.said = {f"d{n}": AdoptionAnswer.PENDING for n in range(size)}
        self.rollout = Rollout(wave_started_at=0.0)
        self.told: set[str] = set()
        self.enlist()

    def enlist(self) -> None:
        new = reached(list(self.said), 1, self.settings.share_of(self.rollout.wave)) - self.told
        self.told |= new
        self.feed(DevicesAdded(len(new)))

    def feed(self, event: Event) -> None:
        before, self.rollout = self.rollout, step(self.settings, self.rollout, event)
        assert self.rollout.wave - before.wave in (0, 1)
        if before.phase is RolloutPhase.HALTED:
            assert self.rollout == before
        if self.rollout.wave > before.wave:
            assert before.phase is RolloutPhase.ROLLING
            assert self.now - before.wave_started_at >= self.settings.soak_s
            assert self.rollout.members >= wave_size(self.settings.share_of(before.wave), before.members)
            self.enlist()

    def enrol(self, size: int) -> None:
        """Let devices come in, which are looked at with the next tick."""
        known = len(self.said)
        self.said |= {f"d{known + n}": AdoptionAnswer.PENDING for n in range(size)}
        self.enlist()
        assert self.told >= reached(list(self.said), 1, self.settings.share_of(self.rollout.wave))

    def answer(self, index: int, answer: AdoptionAnswer) -> None:
        device = sorted(self.told)[index % len(self.told)]
        before, self.said[device] = self.said[device], answer
        halted = self.rollout.phase is RolloutPhase.HALTED
        self.feed(AnswerReceived(before, answer))
        if not halted:
            self.check()

    def check(self) -> None:
        told = [self.said[device] for device in self.told]
        good, bad = (sum(told.count(answer) for answer in kind) for kind in (GOOD, BAD))
        assert (self.rollout.members, self.rollout.successes, self.rollout.failures) == (len(told), good, bad)
        limit = max(self.settings.halt_devices, math.ceil((good + bad) / 10))
        if self.rollout.phase in (RolloutPhase.ROLLING, RolloutPhase.PAUSED):
            assert bad < limit
        elif self.rollout.phase is RolloutPhase.HALTED:
            assert bad >= limit or "no device" in self.rollout.reason or "operator" in self.rollout.reason


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.integers(0, 50), st.sampled_from(AdoptionAnswer)),
        st.tuples(st.just("wait"), st.floats(0, 900)),
        st.tuples(st.just("enrol"), st.integers(1, 20)),
        st.sampled_from([("pause",), ("resume",), ("halt",)]),
    ),
    max_size=60,
)


@given(st.integers(1, 40), MOVES)
def test_the_counts_are_those_of_the_devices_and_a_halt_is_final(size: int, moves: list[tuple[str, ...]]) -> None:
    fleet = Fleet(SETTINGS, size)
    for kind, *rest in moves:
        match kind:
            case "answer" if fleet.told:
                fleet.answer(*rest)
            case "wait":
                fleet.now += float(rest[0])
                fleet.feed(ClockTick(fleet.now))
            case "enrol" if fleet.rollout.phase is RolloutPhase.ROLLING:
                fleet.enrol(int(rest[0]))
            case "pause" if fleet.rollout.phase is RolloutPhase.ROLLING:
                fleet.feed(Paused())
            case "resume" if fleet.rollout.phase is RolloutPhase.PAUSED:
                fleet.feed(Resumed(fleet.now))
            case "halt" if fleet.rollout.phase is not RolloutPhase.HALTED:
                fleet.feed(Halted("the operator"))
    if fleet.rollout.phase is RolloutPhase.COMPLETED:
        assert fleet.told == set(fleet.said)
