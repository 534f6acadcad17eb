"""What an operator does about rollouts: start, pause, resume, halt; rows first, then the announcement."""

from __future__ import annotations

from aggregator_api import records, rollouts
from aggregator_api.changes import version_of
from aggregator_api.errors import ConflictError, NotFoundError
from aggregator_api.runtime import Runtime
from aggregator_api.service import named
from federation.errors import RolloutError
from federation.rounds.rollout import Event


def start(runtime: Runtime, name: str, version: int | None) -> int:
    """Begin to release a version, or the newest; returns the rollout's number.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if the federation releases nothing, or another rollout is under way.
    """
    with runtime.coordinator.lock:
        with runtime.database.write() as session:
            federation = named(session, name)
            if not rollouts.settings_of(federation).used:
                raise ConflictError(
                    f"the devices of {name!r} choose their models themselves (rollout.mode is off); "
                    f'PATCH the federation with {{"rollout": {{"mode": "manual"}}}} first'
                )
            if (other := rollouts.under_way(session, federation)) is not None:
                raise ConflictError(f"rollout {other.number} is {other.phase}; wait until it has ended, or halt it")
            if version is None:
                row = records.current_version(session, federation)
            else:
                row = version_of(session, federation, version)
            number = rollouts.start(session, federation, row, runtime.coordinator.clock()).number
        runtime.coordinator.announce(name)
    return number


def steer(runtime: Runtime, name: str, number: int, event: Event) -> None:
    """Pause, resume or halt a rollout.

    Raises:
        NotFoundError: if there is no such rollout.
        ConflictError: if it is in a phase in which that cannot be.
    """
    with runtime.coordinator.lock:
        with runtime.database.write() as session:
            federation = named(session, name)
            row = rollouts.numbered(session, federation, number)
            if row is None:
                raise unknown(name, number)
            try:
                told = rollouts.apply(session, federation, row, event, runtime.coordinator.clock())
            except RolloutError as error:
                raise ConflictError(str(error)) from error
        if told:
            runtime.coordinator.announce(name)


def unknown(name: str, number: int) -> NotFoundError:
    """Return the error for a rollout that does not exist."""
    return NotFoundError(f"federation {name!r} has no rollout {number}")
