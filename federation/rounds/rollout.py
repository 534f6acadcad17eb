"""The staged release of a model version as a state machine without I/O: an event goes in, the next rollout comes out.

rolling (wave after wave) → completed, or halted with a reason; paused in between. A wave is a share of the devices, or
groups of them, and holds those of the waves before it. No wave is passed over or ends before its time, also where it
gains no device. Halting is decided with each answer, going on only when somebody looks at the clock.

The machine counts devices and knows none of them: whoever drives it keeps where each of them stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from federation.errors import RolloutError
from federation.plan import RolloutSettings
from federation.seeds import seed_for
from gaitway.python310 import StrEnum

MILLION = 1_000_000
"""Places are told to devices in millionths: whole numbers are the same in every language."""


class RolloutPhase(StrEnum):
    """Where a rollout stands."""

    ROLLING = "rolling"
    PAUSED = "paused"  # the present wave keeps the model, and no further one gets it
    COMPLETED = "completed"
    HALTED = "halted"  # whoever has the model goes back


class AdoptionAnswer(StrEnum):
    """What became of the model on one device of the wave."""

    PENDING = "pending"
    ADOPTED = "adopted"
    KEPT = "kept"  # it works there, but its present model is no worse on its own holdout, and stays
    REFUSED = "refused"  # shown to be worse than its present model, on its own holdout
    FAILED = "failed"  # it does not work there
    ROLLED_BACK = "rolled_back"  # adopted, and left again

    @property
    def is_good(self) -> bool:
        """Whether it speaks for the version."""
        return self in (AdoptionAnswer.ADOPTED, AdoptionAnswer.KEPT)

    @property
    def is_bad(self) -> bool:
        """Whether it counts as a failure of the version."""
        return self in (AdoptionAnswer.REFUSED, AdoptionAnswer.FAILED, AdoptionAnswer.ROLLED_BACK)


@dataclass(frozen=True)
class DevicesAdded:
    """So many devices have come into the wave: it has begun, or they are new."""

    devices: int


@dataclass(frozen=True)
class AnswerReceived:
    """A device of the wave, which had said `before`, says `now`."""

    before: AdoptionAnswer
    now: AdoptionAnswer


@dataclass(frozen=True)
class ClockTick:
    """The time is `at`, in seconds; and what devices have measured of the version, where it does not speak for it."""

    at: float
    worse: str = ""  # why it must go no further
    unproven: str = ""  # why it cannot be completed yet


@dataclass(frozen=True)
class Paused:
    """The operator wants no further wave."""


@dataclass(frozen=True)
class Resumed:
    """The operator lets it go on at time `at`; the present wave begins anew."""

    at: float


@dataclass(frozen=True)
class Halted:
    """The operator takes the model back, also after the rollout was completed."""

    reason: str


Event = DevicesAdded | AnswerReceived | ClockTick | Paused | Resumed | Halted


@dataclass(frozen=True)
class Rollout:
    """One rollout's state without its devices; it can be written as a row and read back."""

    wave_started_at: float  # when the present wave began
    wave: int = 0
    members: int = 0  # devices of the present wave, those of earlier waves included
    successes: int = 0  # of them have adopted, or kept a model that is no worse
    failures: int = 0  # of them have refused, failed or rolled back
    phase: RolloutPhase = RolloutPhase.ROLLING
    reason: str = ""  # why it was halted, or is not completed yet


def place_of(device: str, version: int) -> int:
    """Return a device's place in a version's rollout, in millionths: the devices with the smallest ones go first.

    It is drawn from the device's name and the version: so waves nest, a new device moves no other, and it is not always
    the same devices that go first.
    """
    return seed_for(0, "rollout", version, device) % MILLION


def is_within(device: str, version: int, reach: int) -> bool:
    """Whether a device belongs to those that a version's rollout has reached, in millionths."""
    return place_of(device, version) < reach


def wave_size(share: float, devices: int) -> int:
    """Return how many of the devices a share of them is, rounded up: at least one, if there is one."""
    # as the share was written: 0.07 of 100 are 7, though as a binary number it is above 0.07
    return min(devices, max(1, math.ceil(Fraction(repr(float(share))) * devices)))


def reach_of(places: Sequence[int], share: float) -> int:
    """Return below which place, in millionths, so many of the devices lie as their share is, or more at equal places.

    A share itself will not do: of seven devices none may have a place below a twentieth.
    """
    if share >= 1:
        return MILLION
    return sorted(places)[wave_size(share, len(places)) - 1] + 1 if places else 0


def step(settings: RolloutSettings, current: Rollout, event: Event) -> Rollout:
    """Apply one event.

    Raises:
        RolloutError: if the operator's wish cannot be met in this phase.
    """
    match event:
        case DevicesAdded(devices):
            return replace(current, members=current.members + devices)
        case AnswerReceived(before, now):
            return _answered(settings, current, before, now)
        case ClockTick():
            return _go_on(settings, current, event) if current.phase is RolloutPhase.ROLLING else current
        case Paused():
            _expect(current, RolloutPhase.ROLLING)
            return replace(current, phase=RolloutPhase.PAUSED)
        case Resumed(at):
            _expect(current, RolloutPhase.PAUSED)
            return replace(current, phase=RolloutPhase.ROLLING, wave_started_at=at)
        case Halted(reason):
            _expect(current, RolloutPhase.ROLLING, RolloutPhase.PAUSED, RolloutPhase.COMPLETED)
            return _halt(current, reason)


def _answered(settings: RolloutSettings, current: Rollout, before: AdoptionAnswer, now: AdoptionAnswer) -> Rollout:
    if current.phase is RolloutPhase.HALTED:
        return current  # devices go back because of the halt; the counts say what led to it
    good = current.successes + now.is_good - before.is_good
    bad = current.failures + now.is_bad - before.is_bad
    counted = replace(current, successes=good, failures=bad)
    if current.phase is RolloutPhase.COMPLETED or not _too_bad(settings, good, bad):
        return counted
    return _halt(counted, f"{bad} of {good + bad} devices that answered have failed")


def _too_bad(settings: RolloutSettings, good: int, bad: int) -> bool:
    """Whether failures reach the share of the answers and the number of devices, whichever is more."""
    # the quotient is exact where the share is: 3 of 30 are 10 %, while 0.1 * 30 is above 3
    return bad >= settings.halt_devices and bad / (good + bad) >= settings.halt_share


def is_time(settings: RolloutSettings, current: Rollout, at: float) -> bool:
    """Whether the present wave has lasted its time and enough of it have answered."""
    last, waited = current.wave == len(settings.waves) - 1, at - current.wave_started_at
    if current.phase is not RolloutPhase.ROLLING or waited < settings.soak_s:
        return False
    if not current.members:  # there is no device yet, or none in the wave's groups
        return not last
    enough = current.successes / current.members >= settings.success_threshold
    return enough or (current.successes + current.failures > 0 and waited >= settings.wave_timeout_s)


def _go_on(settings: RolloutSettings, current: Rollout, tick: ClockTick) -> Rollout:
    if not is_time(settings, current, tick.at):
        return current
    if tick.worse:
        return _halt(current, tick.worse)
    if current.wave < len(settings.waves) - 1:
        return replace(current, wave=current.wave + 1, wave_started_at=tick.at)
    if not current.successes:
        return _halt(current, "no device has adopted it")
    if tick.unproven:
        return replace(current, reason=tick.unproven)
    return replace(current, phase=RolloutPhase.COMPLETED, reason="")


def _halt(current: Rollout, reason: str) -> Rollout:
    return replace(current, phase=RolloutPhase.HALTED, reason=reason)


def _expect(current: Rollout, *phases: RolloutPhase) -> None:
    if current.phase not in phases:
        raise RolloutError(f"the rollout is {current.phase}; this needs one that is {' or '.join(phases)}")
