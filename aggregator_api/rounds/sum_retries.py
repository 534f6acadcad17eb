"""Decides which devices the rounds after a failed secure sum have (`federation.secure_sums.retries`).

It writes this in the transaction that ends the round, so a server that is killed goes on with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.devices import contributions, suspension
from aggregator_api.rounds.secure_rounds import finding_of, load, retry_of
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RoundRow, SecureSumRow
from federation.methods import sums_in_rounds
from federation.plan import Plan
from federation.rounds.server_round import RoundPhase, resting_rounds
from federation.secure_sums.messages import written
from federation.secure_sums.retries import (
    Blamed,
    Division,
    Retry,
    SumFinding,
    after_failure,
    after_publication,
    complete_groups,
)
from federation.secure_sums.server import ServerStage, included_devices


class Candidates(NamedTuple):
    """Whom the next round may invite, and what it is of."""

    devices: Mapping[str, DeviceRow]
    retry: Retry
    needed: int
    """How many must be online for the round to begin; nobody waits for those that are left out."""

    @property
    def is_group(self) -> bool:
        """Whether all of them are invited, and nobody else."""
        return bool(self.retry.groups)


def choose(session: Session, federation: FederationRow, plan: Plan, now: float) -> Candidates | None:
    """Return whom a round after a failed sum may invite; None where everybody may be."""
    row = repositories.last_ended(session, federation)
    found = session.get(SecureSumRow, row.id) if row is not None else None
    seen = _sitting_out(session, federation, plan)
    if (found is None or not found.retry) and not seen:
        return None
    online = _online(session, federation, plan, at=now)
    ids = {device.id for device in online.values()}
    retry = _lasting(complete_groups(retry_of(found), ids), plan) if found is not None else Retry()
    if retry.groups:
        return Candidates(_those(online, retry.groups[0]), retry, len(retry.groups[0]))
    least, needed = least_devices(plan), suspension.needed_devices(session, federation, plan)
    if len(ids - seen - set(retry.left_out)) < least:
        retry = Retry()
    others = ids - seen - set(retry.left_out)
    tags, resting = plan.rounds.cohort_tags, resting_rounds(plan.rounds)
    left_out = repositories.count_online(session, federation, tags, resting=resting) - len(others)
    return Candidates(_those(online, others), retry, max(least, needed - left_out))


def goes_on_at_once(session: Session, federation: FederationRow) -> bool:
    """Whether the last round failed, and has brought the federation further: the next one does not rest."""
    row = repositories.last_ended(session, federation)
    found = session.get(SecureSumRow, row.id) if row is not None and row.phase == RoundPhase.FAILED else None
    return found is not None and retry_of(found).is_narrower


def note_publication(session: Session, row: RoundRow) -> None:
    """Note what follows a round that has made a version."""
    found = session.get(SecureSumRow, row.id)
    if found is not None and found.retry:
        _write(found, after_publication(retry_of(found)))


class Consequence(NamedTuple):
    """What follows from a failed round: whether it has brought the federation further, or why nothing can."""

    is_narrower: bool = False
    pause_reason: str = ""


def note_failure(session: Session, federation: FederationRow, plan: Plan, row: RoundRow) -> Consequence:
    """Decide who is left out of the next rounds, and in which groups the others go on; devices get their strikes."""
    found = session.get(SecureSumRow, row.id)
    if found is None:
        return Consequence()
    finding, before = finding_of(found), retry_of(found)
    found.finding = ""
    names = (*finding.culprits, *finding.silent, *finding.suspects)
    devices = _devices(session, federation, names)
    ids = {device.name: device.id for device in devices}
    strikes = {device.id: device.refused_updates for device in devices}
    division = after_failure(before, Blamed.of(finding, ids, strikes), least_devices(plan), row.number)
    others = {device.id for device in _online(session, federation, plan).values()} - set(division.retry.left_out)
    others -= _sitting_out(session, federation, plan)
    is_way_open = bool(division.retry.groups) or len(others) >= least_devices(plan)
    _write(found, _lasting(division, plan) if is_way_open else Retry())
    if division.is_smallest:
        _count_suspects(
            session, federation, plan, [device for device in devices if device.name in finding.suspects], row
        )
    if not is_way_open:
        return Consequence(pause_reason=_too_few(finding, plan) if finding.is_opened else "")
    if division.retry.is_narrower:
        _tell(session, federation, plan, division.retry, row)
    return Consequence(is_narrower=division.retry.is_narrower)


def note_unused(session: Session, federation: FederationRow, row: RoundRow) -> None:
    """Note an opened sum of which no version is made, such as that of a round which the operator ends.

    It was seen all the same, so its summands must not be in another sum. The end of the round forgets who they are.
    """
    state = load(session, row) if federation.kind.sums else None
    if state is not None and state.stage is ServerStage.DONE:
        added = contributions.sequences(session, row, included_devices(state))
        contributions.note_seen(session, federation.id, added)


def least_devices(plan: Plan) -> int:
    """Return how many devices a sum is of at least."""
    return max(plan.rounds.minimum_clients, plan.secure.min_devices * plan.secure.groups)


def _too_few(finding: SumFinding, plan: Plan) -> str:
    least = least_devices(plan)
    seen = "; each of these takes part again once its sums have changed" if sums_in_rounds(plan) else ""
    return (
        f"one of {', '.join(finding.suspects)} adds what no device can, and it can't be said which: that takes "
        f"{2 * least} devices, in two groups of {least}, or enough others; enrol more, or revoke one of these, and "
        f"resume{seen}"
    )


def _lasting(division: Division, plan: Plan) -> Retry:
    """Return what the next rounds are of; whose whole sums were seen may return as soon as they have changed."""
    if not sums_in_rounds(plan):
        return division.retry
    left_out = tuple(device for device in division.retry.left_out if device not in division.sit_out)
    return division.retry.model_copy(update={"left_out": left_out})


def _sitting_out(session: Session, federation: FederationRow, plan: Plan) -> frozenset[int]:
    """Return whose whole sums were seen and stay what they were; who trains has other numbers in the next round."""
    return contributions.sitting_out(session, federation) if sums_in_rounds(plan) else frozenset()


def _online(
    session: Session, federation: FederationRow, plan: Plan, *, at: float | None = None
) -> dict[str, DeviceRow]:
    resting, tags = resting_rounds(plan.rounds), plan.rounds.cohort_tags
    return repositories.online_devices(session, federation, tags, resting=resting, at=at)


def _those(devices: Mapping[str, DeviceRow], ids: Collection[int]) -> dict[str, DeviceRow]:
    return {name: device for name, device in devices.items() if device.id in ids}


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


def _tell(session: Session, federation: FederationRow, plan: Plan, retry: Retry, row: RoundRow) -> None:
    sizes = ", ".join(str(len(group)) for group in retry.groups)
    detail = f"tried again in disjoint groups of {sizes} devices" if sizes else "tried again"
    if retry.left_out:
        names = session.scalars(select(DeviceRow.name).where(DeviceRow.id.in_(retry.left_out)))
        end = "their sums have changed" if sums_in_rounds(plan) else "there is a version of the others"
        detail += f", without {', '.join(sorted(names))} until {end}"
    repositories.journal(session, federation, "round.retried", round_number=row.number, detail=detail[:2000])
