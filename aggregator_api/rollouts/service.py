"""An operator's actions on rollouts: choose a schedule of waves; start, pause, resume, halt.

A device judges a model on its own holdout within minutes of hearing of it, so a wave needs no longer than that to tell
a model that works from one that does not; what only shows in use takes longer, which is what the careful one is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError, NotFoundError
from aggregator_api.federations.service import get_federation
from aggregator_api.rollouts import transitions
from aggregator_api.rollouts.scheduler import FederationDriver
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RolloutRow
from aggregator_api.storage.db.repositories import select_devices
from federation.errors import RolloutError
from federation.plan import GroupWave, RolloutSettings, Strict, Text, Waves
from federation.rounds.rollout import Event, Halted, Paused, Resumed


class Override(Strict):
    """What an operator does against what devices have measured, or without it, and why."""

    force: bool = Field(default=False, description="do it whatever devices have measured; needs a reason")
    reason: Text = Field(default="", max_length=200, description="why, for the journal and the audit; needs force")

    @model_validator(mode="after")
    def _together(self) -> Override:
        if self.force != bool(self.reason.strip()):
            raise ValueError("force and reason go together: say why what devices have measured does not count")
        return self

    @property
    def forced(self) -> str:
        """The reason; empty where the measure counts."""
        return self.reason.strip()


class NewRollout(Override):
    """Which version to release."""

    version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="null: the newest, `latest`"
    )
    waves: Waves | None = Field(
        default=None,
        description='shares of the devices, or groups of them ({"tags": ["pilot"]}), of this rollout alone; null: the '
        "plan's",
    )
    soak_s: float | None = Field(
        default=None, ge=0, le=3.2e7, description="a wave of this rollout lasts at least so long; null: the plan's"
    )

    @property
    def changed_settings(self) -> dict[str, Any]:
        """What this rollout does otherwise than the plan says."""
        given = {"waves": self.waves, "soak_s": self.soak_s}
        return {name: value for name, value in given.items() if value is not None}


class ReleaseSchedule(NamedTuple):
    """Which shares of the devices get a version, how long each wave lasts at least, and what that is good for."""

    label: str
    waves: tuple[float, ...]
    soak_s: float
    purpose: str


SCHEDULES: dict[str, ReleaseSchedule] = {
    "standard": ReleaseSchedule(
        "10 %, then half, then all; ten minutes each",
        (0.1, 0.5, 1.0),
        600.0,
        "a version that works reaches everybody in twenty minutes; one that does not meets a tenth of the devices",
    ),
    "careful": ReleaseSchedule(
        "5 %, then a quarter, then all; a day each",
        (0.05, 0.25, 1.0),
        86_400.0,
        "for faults that only show in use: each wave sees a whole day of people's lives",
    ),
    "at-once": ReleaseSchedule(
        "all devices at once",
        (1.0,),
        0.0,
        "a first model, or one that must replace another now; nothing stops it before everybody has heard of it",
    ),
}
STANDARD = "standard"


def release_settings(mode: str, schedule: str = STANDARD) -> dict[str, object]:
    """Return a plan's `rollout` for a mode and a schedule, as JSON.

    Raises:
        KeyError: if there is no such schedule.
    """
    if mode == "off":
        return {"mode": mode}
    chosen = SCHEDULES[schedule]
    return {"mode": mode, "waves": list(chosen.waves), "soak_s": chosen.soak_s}


def schedule_of(settings: RolloutSettings) -> str:
    """Name the schedule that a federation's settings follow; empty where they are its own."""
    for name, schedule in SCHEDULES.items():
        if settings.waves == schedule.waves and settings.soak_s == schedule.soak_s:
            return name
    return ""


class RolloutService:
    """Starts rollouts, and steers them as the operator wishes."""

    def __init__(self, database: Database, host: FederationDriver, clock: Callable[[], float]) -> None:
        self._database = database
        self._host = host
        self._clock = clock

    def start(self, name: str, new: NewRollout) -> int:
        """Begin to release a version, or the newest, and announce it; returns the rollout's number.

        Raises:
            NotFoundError: if there is no such version.
            ConflictError: if the federation releases nothing, or another rollout is under way.
        """
        with self._host.lock:
            with self._database.write() as session:
                number = begin(session, get_federation(session, name), new, self._clock()).number
            self._host.announce(name)
        return number

    def pause(self, name: str, number: int) -> None:
        """Let no further wave begin.

        Raises:
            NotFoundError: if there is no such rollout.
            ConflictError: if it is in a phase in which that cannot be; so for `resume` and `halt`.
        """
        self._transition(name, number, Paused())

    def resume(self, name: str, number: int) -> None:
        """Resume a paused rollout; its current wave starts again."""
        self._transition(name, number, Resumed(self._clock()))

    def halt(self, name: str, number: int) -> None:
        """Have every device that uses the version go back to the model before."""
        self._transition(name, number, Halted("halted by the operator"))

    def _transition(self, name: str, number: int, event: Event) -> None:
        with self._host.lock:
            with self._database.write() as session:
                devices = move(session, get_federation(session, name), number, event, self._clock())
            if devices:
                self._host.announce(name)


def begin(session: Session, federation: FederationRow, new: NewRollout, now: float) -> RolloutRow:
    """Begin to release a version inside the caller's transaction; a running server announces it.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if the federation releases nothing, another rollout is under way, a group has no device, or the
            version is measured to be worse than what is released and nothing forces it.
    """
    if not transitions.settings_of(federation).used:
        raise ConflictError(
            f"the devices of {federation.name!r} choose their own models (rollout.mode is off); "
            'set it to "manual" or "automatic" first, on the page Rollouts or over REST'
        )
    if (other := transitions.under_way(session, federation)) is not None:
        raise ConflictError(f"rollout {other.number} is {other.phase}; wait until it has ended, or halt it")
    waves = new.waves or ()
    for tag in (tag for wave in waves if isinstance(wave, GroupWave) for tag in wave.tags):
        if session.scalars(select_devices(None, tag).where(DeviceRow.federation_id == federation.id)).first() is None:
            raise ConflictError(
                f"no device of {federation.name!r} is in the group {tag!r}; put one in, or check the name"
            )
    if new.version is None:
        version = repositories.current_version(session, federation)
    else:
        version = repositories.version_of(session, federation, new.version)
    if (worse := transitions.known_worse(session, federation, version)) is not None and not new.forced:
        raise ConflictError(
            f'version {version.version} is not released: {worse}. To release it all the same: "force": true and a '
            '"reason"'
        )
    return transitions.start(session, federation, version, now, new.changed_settings, new.forced)


def move(session: Session, federation: FederationRow, number: int, event: Event, now: float) -> bool:
    """Pause, resume or halt a rollout inside the caller's transaction; return whether to notify devices.

    Raises:
        NotFoundError: if there is no such rollout.
        ConflictError: if it is in a phase in which that cannot be.
    """
    row = get_rollout(session, federation.name, number)
    try:
        return transitions.apply(session, federation, row, event, now)
    except RolloutError as error:
        raise ConflictError(str(error)) from error


def get_rollout(session: Session, name: str, number: int) -> RolloutRow:
    """Return the rollout of that number.

    Raises:
        NotFoundError: if there is no such federation or rollout.
    """
    row = transitions.numbered(session, get_federation(session, name), number)
    if row is None:
        raise NotFoundError(f"federation {name!r} has no rollout {number}")
    return row
