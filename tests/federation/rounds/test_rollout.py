"""The rollout machine: every transition, who belongs to a wave, and invariants under any order of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from federation.errors import RolloutError
from federation.plan import RolloutSettings
from federation.rounds.rollout import (
    WHOLE,
    AdoptionAnswer,
    Answered,
    ClockTick,
    Event,
    Halted,
    Joined,
    Paused,
    Resumed,
    Rollout,
    RolloutPhase,
    is_within,
    millionths,
    step,
)

SETTINGS = RolloutSettings(mode="manual", soak_s=60, wave_timeout_s=600)
PLACES = [32, 71, 77]
GOOD = (AdoptionAnswer.ADOPTED, AdoptionAnswer.KEPT)
BAD = (AdoptionAnswer.REFUSED, AdoptionAnswer.FAILED, AdoptionAnswer.ROLLED_BACK)


def after(*events: Event, start: Rollout | None = None) -> Rollout:
    """Apply events to a rollout that began at time 0."""
    found = start or Rollout(wave_at=0.0)
    for event in events:
        found = step(SETTINGS, found, event)
    return found


def answers(good: int, bad: int = 0) -> tuple[Event, ...]:
    said = [AdoptionAnswer.ADOPTED] * good + [AdoptionAnswer.FAILED] * bad
    return tuple(Answered(AdoptionAnswer.PENDING, answer) for answer in said)


# ---- which devices


@pytest.mark.parametrize("shares", [(0.05, 0.25, 1.0)])
def test_waves_nest_and_hold_their_share(shares: tuple[float, ...]) -> None:
    devices = [f"device-{n}" for n in range(10_000)]
    waves = [{device for device in devices if is_within(device, 7, millionths(share))} for share in shares]
    assert waves[0] < waves[1] < waves[2] == set(devices)
    assert [round(len(wave) / len(devices), 2) for wave in waves] == list(shares)
    other = {device for device in devices if is_within(device, 8, millionths(0.05))}
    assert len(other & waves[0]) < 100  # another version has other devices go first


@given(st.text(max_size=64), st.integers(0, 2**31), st.integers(0, WHOLE), st.integers(0, WHOLE))
def test_a_larger_share_takes_nobody_out(device: str, version: int, one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert is_within(device, version, large) or not is_within(device, version, small)
    assert is_within(device, version, WHOLE)
    assert not is_within(device, version, 0)


def test_the_place_of_a_device_is_fixed_for_ever() -> None:
    # devices in the field and the server must agree, whatever their versions
    assert [n for n in range(100) if is_within(f"phone{n}", 3, 50_000)] == PLACES


# ---- when it goes on


def test_a_wave_goes_on_once_enough_have_adopted_and_it_has_lasted() -> None:
    wave = after(Joined(10), *answers(8))
    assert after(ClockTick(59.9), start=wave).wave == 0
    assert after(ClockTick(60.0), start=wave).wave == 1
    assert after(Joined(10), *answers(7), ClockTick(599.9)).wave == 0
    assert after(ClockTick(60.0), start=wave).wave_at == 60.0


def test_after_the_patience_a_wave_goes_on_without_its_silent_devices_but_not_without_any_word() -> None:
    assert after(Joined(10), *answers(1), ClockTick(600.0)).wave == 1
    assert after(Joined(10), ClockTick(10_000.0)).wave == 0


def test_a_wave_without_devices_is_passed_but_not_the_last_one() -> None:
    assert after(ClockTick(0.1)).wave == 1
    assert after(ClockTick(0.1), ClockTick(0.2), ClockTick(0.3)).wave == 2
    assert after(*[ClockTick(n) for n in range(10_000)]).phase is RolloutPhase.ROLLING


def test_after_the_last_wave_it_is_completed_or_halted_if_nobody_has_adopted_it() -> None:
    last = Rollout(wave_at=0.0, wave=2)
    assert after(Joined(10), *answers(8), ClockTick(60.0), start=last).phase is RolloutPhase.COMPLETED
    alone = after(Joined(1), *answers(0, 1), start=last)
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
    found = after(Joined(100), *answers(good, bad))
    assert (found.phase is RolloutPhase.HALTED) is halted
    assert (found.reason == f"{bad} of {good + bad} devices that answered have failed") is halted


@pytest.mark.parametrize("answer", BAD)
def test_refusing_failing_and_going_back_all_count(answer: AdoptionAnswer) -> None:
    one = after(Joined(3), Answered(AdoptionAnswer.PENDING, answer))
    assert (one.bad, one.phase) == (1, RolloutPhase.ROLLING)
    assert after(Answered(AdoptionAnswer.ADOPTED, answer), start=after(Joined(1), *answers(1))).good == 0
    assert after(Answered(AdoptionAnswer.PENDING, answer), start=one).phase is RolloutPhase.HALTED


def test_the_operator_pauses_resumes_and_takes_back_also_what_was_completed() -> None:
    wave = after(Joined(10), *answers(10), Paused())
    assert after(ClockTick(1000.0), start=wave) == wave
    resumed = after(Resumed(1000.0), start=wave)
    assert (after(ClockTick(1059.0), start=resumed).wave, after(ClockTick(1060.0), start=resumed).wave) == (0, 1)
    assert after(*answers(0, 2), start=wave).phase is RolloutPhase.HALTED  # a pause is no reason to look away
    done = Rollout(wave_at=0.0, wave=2, members=10, good=10, phase=RolloutPhase.COMPLETED)
    assert after(Halted("it drains the battery"), start=done).reason == "it drains the battery"
    late = after(*answers(0, 9), start=done)
    assert (late.phase, late.bad) == (RolloutPhase.COMPLETED, 9)


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
        after(event, start=Rollout(wave_at=0.0, phase=phase))


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
        self.rollout = Rollout(wave_at=0.0)
        self.told: set[str] = set()
        self.enlist()

    def enlist(self) -> None:
        share = millionths(self.settings.waves[self.rollout.wave])
        new = {device for device in self.said if is_within(device, 1, share)} - self.told
        self.told |= new
        self.feed(Joined(len(new)))

    def feed(self, event: Event) -> None:
        before, self.rollout = self.rollout, step(self.settings, self.rollout, event)
        assert self.rollout.wave - before.wave in (0, 1)
        if before.phase is RolloutPhase.HALTED:
            assert self.rollout == before
        if self.rollout.wave > before.wave:
            assert before.phase is RolloutPhase.ROLLING
            self.enlist()

    def answer(self, index: int, answer: AdoptionAnswer) -> None:
        device = sorted(self.told)[index % len(self.told)]
        before, self.said[device] = self.said[device], answer
        halted = self.rollout.phase is RolloutPhase.HALTED
        self.feed(Answered(before, answer))
        if not halted:
            self.check()

    def check(self) -> None:
        told = [self.said[device] for device in self.told]
        good, bad = (sum(told.count(answer) for answer in kind) for kind in (GOOD, BAD))
        assert (self.rollout.members, self.rollout.good, self.rollout.bad) == (len(told), good, bad)
        limit = max(self.settings.halt_devices, math.ceil((good + bad) / 10))
        if self.rollout.phase in (RolloutPhase.ROLLING, RolloutPhase.PAUSED):
            assert bad < limit
        elif self.rollout.phase is RolloutPhase.HALTED:
            assert bad >= limit or "no device" in self.rollout.reason or "operator" in self.rollout.reason


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.integers(0, 50), st.sampled_from(AdoptionAnswer)),
        st.tuples(st.just("wait"), st.floats(0, 900)),
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
            case "pause" if fleet.rollout.phase is RolloutPhase.ROLLING:
                fleet.feed(Paused())
            case "resume" if fleet.rollout.phase is RolloutPhase.PAUSED:
                fleet.feed(Resumed(fleet.now))
            case "halt" if fleet.rollout.phase is not RolloutPhase.HALTED:
                fleet.feed(Halted("the operator"))
    if fleet.rollout.phase is RolloutPhase.COMPLETED:
        assert fleet.told == set(fleet.said)


@given(st.integers(1, 40))
def test_a_fleet_that_adopts_is_through_in_three_waves(size: int) -> None:
    fleet = Fleet(SETTINGS, size)
    for wave in range(1, 5):
        for device in range(len(fleet.told)):
            fleet.answer(device, AdoptionAnswer.ADOPTED)
        fleet.feed(ClockTick(100.0 * wave))
    assert fleet.rollout.phase is RolloutPhase.COMPLETED
    assert fleet.rollout.good == size
