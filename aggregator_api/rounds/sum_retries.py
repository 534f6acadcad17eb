"""What the rounds after a failed secure sum are of, inside the caller's transaction (`federation.secure_sums.retries`).

It is written with the round that has ended: the next one is drawn by it, and a server that was killed goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.db import repositories
from aggregator_api.db.models import DeviceRow, FederationRow, RoundRow, SecureSumRow
from aggregator_api.devices import suspension
from aggregator_api.rounds.secure_rounds import finding_of, retry_of
from federation.methods import in_batches
from federation.plan import Plan
from federation.rounds.server_round import RoundPhase, needed_devices, resting_rounds
from federation.secure_sums.messages import written
from federation.secure_sums.retries import (
    Blamed,
    Finding,
    Retry,
    after_failure,
    after_publication,
    complete_groups,
)

SEEN = (
    "its numbers are in a sum that was seen and not used, and to add them to another one could show them; let it back "
    "once its data or its company has changed"
)


class Choice(NamedTuple):
    """Whom the next round may invite, and what it is of."""

    devices: Mapping[str, DeviceRow]
    retry: Retry

    @property
    def is_group(self) -> bool:
        """Whether all of them are invited, and nobody else."""
        return bool(self.retry.groups)


def present(session: Session, federation: FederationRow) -> Retry:
    """Return what the next round is to be of, by the last round that has ended."""
    row = repositories.last_ended(session, federation)
    found = session.get(SecureSumRow, row.id) if row is not None else None
    return Retry() if found is None else retry_of(found)


def is_due(session: Session, federation: FederationRow, plan: Plan) -> bool:
    """Whether a group's sum can be tried, or the rest of a round that failed, whenever the last one was."""
    row = repositories.last_ended(session, federation)
    found = session.get(SecureSumRow, row.id) if row is not None else None
    if row is None or found is None or not found.retry:
        return False
    retry = retry_of(found)
    ids = {device.id for device in _online(session, federation, plan, retry).values()}
    if complete_groups(retry, ids).retry.groups:
        return True
    goes_on = row.phase == RoundPhase.FAILED and retry.is_narrower and not in_batches(plan)
    return goes_on and len(ids - set(retry.left_out)) >= needed_devices(plan)


def choose(session: Session, federation: FederationRow, plan: Plan, number: int) -> Choice | None:
    """Return whom a round after a failed one may invite; None where it is drawn as ever."""
    retry = present(session, federation)
    if retry == Retry():
        return None
    online = _online(session, federation, plan, retry)
    division = complete_groups(retry, {device.id for device in online.values()})
    if in_batches(plan):
        _suspend(session, federation, division.sit_out, number)
    if division.retry.groups:
        group = division.retry.groups[0]
        return Choice({name: row for name, row in online.items() if row.id in group}, division.retry)
    left = {name: row for name, row in online.items() if row.id not in division.retry.left_out}
    return Choice(left, division.retry) if len(left) >= needed_devices(plan) else None


def note_publication(session: Session, row: RoundRow) -> None:
    """Note what follows a round that has made a version."""
    found = session.get(SecureSumRow, row.id)
    if found is not None and found.retry:
        _write(found, after_publication(retry_of(found)))


class Consequence(NamedTuple):
    """What follows from a failed round: whether it has brought the federation further, or why nothing can."""

    is_narrower: bool = False
    obstacle: str = ""


def note_failure(session: Session, federation: FederationRow, plan: Plan, row: RoundRow) -> Consequence:
    """Decide who is left out of the next rounds, and in which groups the others go on; devices get their strikes."""
    found = session.get(SecureSumRow, row.id)
    if found is None:
        return Consequence()
    finding, before = finding_of(found), retry_of(found)
    found.finding = ""
    names = (*finding.culprits, *finding.silent, *finding.suspects)
    devices = _devices(session, federation, names)
    blamed = Blamed.of(finding, {device.name: device.id for device in devices})
    division = after_failure(before, blamed, least_devices(plan), row.number, is_anew=found.is_anew)
    is_way_open = bool(division.retry.groups) or _others(session, federation, plan, division.retry)
    _write(found, division.retry if is_way_open else Retry())
    if division.is_smallest:
        _count_suspects(session, federation, plan, [one for one in devices if one.name in finding.suspects], row)
    if not is_way_open:
        return Consequence(obstacle=_obstacle(finding, plan) if finding.is_opened else "")
    if in_batches(plan):
        _suspend(session, federation, division.sit_out, row.number)
    if division.retry.is_narrower:
        _tell(session, federation, division.retry, row)
    return Consequence(is_narrower=division.retry.is_narrower)


def least_devices(plan: Plan) -> int:
    """Return how many devices a sum is of at least."""
    return max(plan.rounds.minimum_clients, plan.secure.min_devices * plan.secure.groups)


def _obstacle(finding: Finding, plan: Plan) -> str:
    least = least_devices(plan)
    return (
        f"one of {', '.join(finding.suspects)} adds what no device can, and it can't be said which: that takes "
        f"{2 * least} devices, in two groups of {least}, or enough others; enrol more, or revoke one of these, and "
        "resume"
    )


def _online(session: Session, federation: FederationRow, plan: Plan, retry: Retry) -> dict[str, DeviceRow]:
    changed = in_batches(plan) and not retry.is_anew
    resting = resting_rounds(plan.rounds)
    tags = plan.rounds.cohort_tags
    return repositories.online_devices(session, federation, tags, signing=True, changed=changed, resting=resting)


def _others(session: Session, federation: FederationRow, plan: Plan, retry: Retry) -> bool:
    """Whether enough devices are here besides those that are left out."""
    here = {device.id for device in _online(session, federation, plan, retry).values()}
    return len(here - set(retry.left_out)) >= needed_devices(plan)


def _devices(session: Session, federation: FederationRow, names: Collection[str]) -> Sequence[DeviceRow]:
    query = select(DeviceRow).where(DeviceRow.federation_id == federation.id, DeviceRow.name.in_(names))
    return session.scalars(query.order_by(DeviceRow.name)).all()


def _write(found: SecureSumRow, retry: Retry) -> None:
    found.retry = "" if retry == Retry() else written(retry).decode()


def _count_suspects(
    session: Session, federation: FederationRow, plan: Plan, devices: Sequence[DeviceRow], row: RoundRow
) -> None:
    reason = f"its sums with others' failed, and no other device was in as many of them; round {row.number}"
    suspension.count_suspects(session, federation, devices, plan.rounds, row.number, reason)


def _suspend(session: Session, federation: FederationRow, ids: Collection[int], number: int) -> None:
    for device in session.scalars(select(DeviceRow).where(DeviceRow.id.in_(ids)).order_by(DeviceRow.name)):
        suspension.suspend(session, federation, device, number, SEEN)


def _tell(session: Session, federation: FederationRow, retry: Retry, row: RoundRow) -> None:
    sizes = ", ".join(str(len(group)) for group in retry.groups)
    detail = f"tried again in disjoint groups of {sizes} devices" if sizes else "tried again"
    if retry.left_out:
        names = session.scalars(select(DeviceRow.name).where(DeviceRow.id.in_(retry.left_out)))
        detail += f", without {', '.join(sorted(names))} until there is a version of the others"
    repositories.journal(session, federation, "round.retried", round_number=row.number, detail=detail[:2000])
