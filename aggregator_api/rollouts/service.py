"""What an operator does about rollouts: start, pause, resume, halt; rows first, then the announcement."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError, NotFoundError
from aggregator_api.federations.service import get_federation
from aggregator_api.rollouts import transitions
from aggregator_api.rollouts.scheduler import FederationDriver
from aggregator_api.rollouts.schedules import NewRollout
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RolloutRow
from aggregator_api.storage.db.repositories import select_devices
from federation.errors import RolloutError
from federation.plan import GroupWave
from federation.rounds.rollout import Event, Halted, Paused, Resumed


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
        """Resume a paused rollout; its present wave begins anew."""
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
            f"the devices of {federation.name!r} choose their models themselves (rollout.mode is off); "
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
    """Pause, resume or halt a rollout inside the caller's transaction; returns whether devices must be told.

    Raises:
        NotFoundError: if there is no such rollout.
        ConflictError: if it is in a phase in which that cannot be.
    """
    row = transitions.numbered(session, federation, number)
    if row is None:
        raise unknown(federation.name, number)
    try:
        return transitions.apply(session, federation, row, event, now)
    except RolloutError as error:
        raise ConflictError(str(error)) from error


def unknown(name: str, number: int) -> NotFoundError:
    """Return the error for a rollout that does not exist."""
    return NotFoundError(f"federation {name!r} has no rollout {number}")
