"""The staged release of a model version as a state machine without I/O: an event goes in, the next rollout comes out.

rolling (wave after wave) → completed, or halted with a reason; paused in between. A wave is a share of the devices, or
groups of them, and holds those of the waves before it. Halting is decided with each answer, going on only when
somebody looks at the clock.

The machine counts devices and knows none of them: whoever drives it keeps where each of them stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from federation.errors import RolloutError
from federation.plan import RolloutSettings
from federation.seeds import seed_for

WHOLE = 1_000_000
"""Shares are told to devices in millionths: whole numbers are the same in every language."""


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
class Joined:
    """So many devices have come into the wave: it has begun, or they are new."""

    devices: int


@dataclass(frozen=True)
class Answered:
    """A device of the wave, which had said `before`, says `now`."""

    before: AdoptionAnswer
    now: AdoptionAnswer


@dataclass(frozen=True)
class ClockTick:
    """The time is `at`, in seconds."""

    at: float


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


Event = Joined | Answered | ClockTick | Paused | Resumed | Halted


@dataclass(frozen=True)
class Rollout:
    """One rollout's state without its devices; it can be written as a row and read back."""

    wave_at: float  # when the present wave began
    wave: int = 0
    members: int = 0  # devices of the present wave, those of earlier waves included
    good: int = 0  # of them have adopted, or kept a model that is no worse
    bad: int = 0  # of them have refused, failed or rolled back
    phase: RolloutPhase = RolloutPhase.ROLLING
    reason: str = ""


def millionths(share: float) -> int:
    """Return a share of the devices as a whole number of millionths."""
    return round(share * WHOLE)


def is_within(device: str, version: int, share_millionths: int) -> bool:
    """Whether a device belongs to that share of a version's rollout.

    Each device has a place of its own, drawn from its name and the version: so shares nest, a new device moves no
    other, and it is not always the same devices that go first.
    """
    return seed_for(0, "rollout", version, device) % WHOLE < share_millionths


def step(settings: RolloutSettings, current: Rollout, event: Event) -> Rollout:
    """Apply one event.

    Raises:
        RolloutError: if the operator's wish cannot be met in this phase.
    """
    match event:
        case Joined(devices):
            return replace(current, members=current.members + devices)
        case Answered(before, now):
            return _answered(settings, current, before, now)
        case ClockTick(at):
            return _go_on(settings, current, at) if current.phase is RolloutPhase.ROLLING else current
        case Paused():
            _expect(current, RolloutPhase.ROLLING)
            return replace(current, phase=RolloutPhase.PAUSED)
        case Resumed(at):
            _expect(current, RolloutPhase.PAUSED)
            return replace(current, phase=RolloutPhase.ROLLING, wave_at=at)
        case Halted(reason):
            _expect(current, RolloutPhase.ROLLING, RolloutPhase.PAUSED, RolloutPhase.COMPLETED)
            return _halt(current, reason)


def _answered(settings: RolloutSettings, current: Rollout, before: AdoptionAnswer, now: AdoptionAnswer) -> Rollout:
    if current.phase is RolloutPhase.HALTED:
        return current  # devices go back because of the halt; the counts say what led to it
    good = current.good + now.is_good - before.is_good
    bad = current.bad + now.is_bad - before.is_bad
    counted = replace(current, good=good, bad=bad)
    if current.phase is RolloutPhase.COMPLETED or not _too_bad(settings, good, bad):
        return counted
    return _halt(counted, f"{bad} of {good + bad} devices that answered have failed")


def _too_bad(settings: RolloutSettings, good: int, bad: int) -> bool:
    """Whether failures reach the share of the answers and the number of devices, whichever is more."""
    # the quotient is exact where the share is: 3 of 30 are 10 %, while 0.1 * 30 is above 3
    return bad >= settings.halt_devices and bad / (good + bad) >= settings.halt_share


def _go_on(settings: RolloutSettings, current: Rollout, at: float) -> Rollout:
    last = current.wave == len(settings.waves) - 1
    if not current.members:  # of a few devices none may fall into a small wave
        return current if last else _next_wave(current, at)
    waited = at - current.wave_at
    enough = current.good / current.members >= settings.success_threshold and waited >= settings.soak_s
    overdue = current.good + current.bad > 0 and waited >= max(settings.wave_timeout_s, settings.soak_s)
    if not (enough or overdue):
        return current
    if not last:
        return _next_wave(current, at)
    if not current.good:
        return _halt(current, "no device has adopted it")
    return replace(current, phase=RolloutPhase.COMPLETED)


def _next_wave(current: Rollout, at: float) -> Rollout:
    return replace(current, wave=current.wave + 1, wave_at=at)


def _halt(current: Rollout, reason: str) -> Rollout:
    return replace(current, phase=RolloutPhase.HALTED, reason=reason)


def _expect(current: Rollout, *phases: RolloutPhase) -> None:
    if current.phase not in phases:
        raise RolloutError(f"the rollout is {current.phase}; this needs one that is {' or '.join(phases)}")
