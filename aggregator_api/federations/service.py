"""What the operator does: create a federation, and pause, resume or stop it; rows first, then the effect."""

from __future__ import annotations

import secrets
import time
from uuid import uuid4

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_api.db import repositories
from aggregator_api.db.models import FederationRow, RoundRow
from aggregator_api.errors import ConflictError, NotFoundError
from aggregator_api.federations.initial_state import InitialState, build_initial_state
from aggregator_api.federations.requests import NewFederation
from aggregator_api.runtime import Runtime
from aggregator_api.storage.blobs import Blob
from aggregator_api.updates.contract import write_schema
from federation.rounds.server_round import Event, Paused, Resumed, Stopped


def create_federation(runtime: Runtime, new: NewFederation) -> None:
    """Make the initial model of a federation, store it, and announce that the federation waits for devices.

    Raises:
        UnprocessableError: if the plan contradicts itself.
        ConflictError: if there is a federation of that name.
    """
    with runtime.database.read() as session:
        if repositories.federation_named(session, new.name) is not None:
            raise _exists(new.name)
    initial = build_initial_state(new.plan, max_model_bytes=runtime.settings.max_model_bytes)
    state, broadcast = runtime.blobs.put(initial.state), runtime.blobs.put(initial.broadcast)
    try:
        with runtime.database.write() as session:
            _write(session, new, initial, state, broadcast)
    except IntegrityError as error:
        raise _exists(new.name) from error  # another request was faster
    runtime.coordinator.created(new.name)


def pause(runtime: Runtime, name: str) -> None:
    """Let no further round begin or close; updates are still taken.

    Raises:
        ConflictError: unless the federation runs.
    """
    _steer(runtime, name, "paused", ("running",), Paused())


def resume(runtime: Runtime, name: str) -> None:
    """Resume a paused federation.

    Raises:
        ConflictError: unless the federation is paused.
    """
    _steer(runtime, name, "running", ("paused",), Resumed())


def stop(runtime: Runtime, name: str) -> None:
    """End a federation for good; the open round fails, the present model stays.

    Raises:
        ConflictError: if the federation has ended.
    """
    _steer(runtime, name, "stopped", ("running", "paused"), Stopped("stopped by the operator"))


def unknown(name: str) -> NotFoundError:
    """Return the error for a federation that does not exist."""
    return NotFoundError(f"there is no federation {name[:80]!r}; GET /v1/federations lists them")


def named(session: Session, name: str) -> FederationRow:
    """Return the federation of that name.

    Raises:
        NotFoundError: if there is none.
    """
    found = repositories.federation_named(session, name)
    if found is None:
        raise unknown(name)
    return found


def round_numbered(session: Session, name: str, number: int) -> RoundRow:
    """Return a federation's round of that number.

    Raises:
        NotFoundError: if there is no such federation, or no such round.
    """
    federation = named(session, name)
    found = repositories.round_numbered(session, federation, number)
    if found is None:
        last = repositories.last_number(session, federation)
        raise NotFoundError(f"federation {name!r} has no round {number}; the latest is {last}")
    return found


def _steer(runtime: Runtime, name: str, status: str, allowed: tuple[str, ...], event: Event) -> None:
    coordinator = runtime.coordinator
    with coordinator.lock:
        with runtime.database.write() as session:
            row = named(session, name)
            if row.status not in allowed:
                raise ConflictError(
                    f"federation {name!r} is {row.status}; this needs one that is {' or '.join(allowed)}"
                )
            row.status = status
            repositories.journal(
                session, row, f"federation.{status}", round_number=repositories.last_number(session, row)
            )
            result = coordinator.transition(session, row, event)
        if result is not None:
            coordinator.execute(name, result.actions)
        coordinator.advance(name)


def _write(session: Session, new: NewFederation, initial: InitialState, state: Blob, broadcast: Blob) -> None:
    row = FederationRow(
        name=new.name,
        # servers that remember an earlier federation of this name by its revision must not take this one for it
        revision=secrets.randbits(30),
        instance=uuid4().hex,
        plan=new.plan.model_dump(mode="json"),
        upload_schema=write_schema(initial.upload_schema),
        status="running",
        created_at=time.time(),
    )
    session.add(row)
    session.flush()
    repositories.add_version(session, row, 0, state, broadcast)
    repositories.journal(session, row, "federation.created", detail=f"model {broadcast.sha256[:12]}")


def _exists(name: str) -> ConflictError:
    return ConflictError(f"there is a federation {name!r} already; choose another name")
