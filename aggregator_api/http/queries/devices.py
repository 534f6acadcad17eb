"""A device's history by round, its current state, and what a federation waits for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, select, union
from sqlalchemy.orm import Session, aliased

from aggregator_api.devices import contributions, presence, suspension
from aggregator_api.http.queries import resources
from aggregator_api.http.queries.listings import PageParams, columns, update_view
from aggregator_api.rollouts.scores import metric_in
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import (
    AdoptionRow,
    DeviceRow,
    FederationRow,
    MetricRow,
    ParticipationRow,
    RoundRow,
    UpdateRow,
)
from federation.rounds.server_round import ClientStatus, RoundPhase, resting_rounds

UPDATES_SHOWN = 20
"""Of one round; a device that sends nonsense has one quarantined update for each."""


def history(session: Session, device: DeviceRow, page: PageParams) -> resources.DeviceHistory:
    """Describe the rounds that a device had a part in or sent something for, from the cursor's round on."""
    numbers = _numbers(session, device, page)
    shown = numbers[: page.limit]
    parts, updates, metrics, adopted = (
        _parts(session, device, shown),
        _updates(session, device, shown),
        _metrics(session, device, shown),
        _adoptions(session, device, shown),
    )
    metric = metric_in(session.get_one(FederationRow, device.federation_id))
    items = [
        _round(number, parts.get(number), updates[number], metrics[number], adopted[number], metric) for number in shown
    ]
    following = numbers[page.limit] if len(numbers) > page.limit else None
    return resources.DeviceHistory(device=resources.Device.model_validate(device), items=items, next_cursor=following)


def _numbers(session: Session, device: DeviceRow, page: PageParams) -> Sequence[int]:
    found = union(
        select(RoundRow.number.label("number")).join(ParticipationRow).where(ParticipationRow.device_id == device.id),
        select(UpdateRow.base_round).where(UpdateRow.device_id == device.id),
        select(MetricRow.round_number).where(MetricRow.device_id == device.id),
        select(AdoptionRow.round_number).where(AdoptionRow.device_id == device.id),
    ).subquery()
    query = select(found.c.number).where(found.c.number >= page.cursor).order_by(found.c.number)
    return session.scalars(query.limit(page.limit + 1)).all()


def _parts(session: Session, device: DeviceRow, numbers: Sequence[int]) -> dict[int, tuple[RoundRow, ParticipationRow]]:
    query = select(RoundRow, ParticipationRow).join(ParticipationRow, ParticipationRow.round_id == RoundRow.id)
    query = query.where(ParticipationRow.device_id == device.id, RoundRow.number.in_(numbers))
    return {row.number: (row, part) for row, part in session.execute(query)}


def _updates(session: Session, device: DeviceRow, numbers: Sequence[int]) -> defaultdict[int, list[UpdateRow]]:
    newest = func.row_number().over(partition_by=UpdateRow.base_round, order_by=UpdateRow.id.desc()).label("newest")
    chosen = UpdateRow.device_id == device.id, UpdateRow.base_round.in_(numbers)
    ranked = select(UpdateRow, newest).where(*chosen).subquery()
    entity = aliased(UpdateRow, ranked)
    found = defaultdict(list)
    for row in session.scalars(select(entity).where(ranked.c.newest <= UPDATES_SHOWN).order_by(entity.id)):
        found[row.base_round].append(row)
    return found


def _metrics(session: Session, device: DeviceRow, numbers: Sequence[int]) -> defaultdict[int, dict[str, float]]:
    query = select(MetricRow).where(MetricRow.device_id == device.id, MetricRow.round_number.in_(numbers))
    found: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for row in session.scalars(query.order_by(MetricRow.id)):
        found[row.round_number][row.name] = row.value
    return found


def _adoptions(session: Session, device: DeviceRow, numbers: Sequence[int]) -> defaultdict[int, list[AdoptionRow]]:
    query = select(AdoptionRow).where(AdoptionRow.device_id == device.id, AdoptionRow.round_number.in_(numbers))
    found = defaultdict(list)
    for row in session.scalars(query.order_by(AdoptionRow.source)):
        found[row.round_number].append(row)
    return found


def _round(
    number: int,
    part: tuple[RoundRow, ParticipationRow] | None,
    updates: Sequence[UpdateRow],
    metrics: dict[str, float],
    adoptions: Sequence[AdoptionRow],
    metric: str,
) -> resources.DeviceRound:
    row, participation = part or (None, None)
    return resources.DeviceRound.model_validate(
        {
            "round": number,
            "phase": row and row.phase,
            "invited": participation is not None and participation.invited,
            "outcome": participation and participation.outcome,
            "rounds_late": participation and participation.rounds_late,
            "base_model": participation and participation.broadcast_sha256,
            "updates": [update_view(update) for update in updates],
            "metrics": metrics,
            "adoptions": [_adoption(metric, adoption) for adoption in adoptions],
        }
    )


def _adoption(metric: str, row: AdoptionRow) -> dict[str, Any]:
    return {**columns(row), "metric": metric}


AT_WORK = ("training", "uploading")
TRAINS, IDLE = "It trains", "Why it does not take part"


class DeviceActivity(NamedTuple):
    """What it does, or why it does nothing, under a heading."""

    heading: str
    reason: str


def activity(session: Session, federation: FederationRow, device: DeviceRow) -> DeviceActivity:
    """Say what a device does, by its last word and by where its federation stands; the first obstacle counts."""
    current = repositories.open_round(session, federation)
    part = repositories.participation(session, current, device) if current is not None else None
    if device.state in AT_WORK and device.enrolment != "revoked":
        return DeviceActivity(TRAINS, f"It is {device.state} now{_detail_suffix(device)}.")
    obstacle = (
        _not_approved_reason(device)
        or _suspended(device)
        or _refusing(device)
        or _federation_idle_reason(federation)
        or _device_reason(device)
        or _left_out(device)
    )
    if obstacle:
        return DeviceActivity(IDLE, obstacle)
    if federation.kind.sums:
        return DeviceActivity("What of it is in the model", _in_sums(session, federation, device))
    waits = _in_round(current, part, device) if current is not None else waiting_for(session, federation)
    return DeviceActivity(IDLE, waits)


def _not_approved_reason(device: DeviceRow) -> str:
    if device.enrolment == "revoked":
        return "It was revoked: its keys and its account are invalid. A token made for it lets it return."
    if device.enrolment == "pending":
        return "It has enrolled and waits for an operator's approval."
    return ""


def _suspended(device: DeviceRow) -> str:
    if device.suspended_at is None:
        return ""
    return f"It is suspended: {device.suspension_reason}. No round invites it until an operator reinstates it."


def _refusing(device: DeviceRow) -> str:
    return f"It refuses the plan: {device.plan_refusal}." if device.plan_refusal else ""


def _left_out(device: DeviceRow) -> str:
    left_s = (device.left_out_until or 0.0) - time.time()
    if left_s <= 0:
        return ""
    return f"It has missed {device.missed_rounds:,} rounds in a row, so none will draw it for another {left_s:.0f} s."


def _federation_idle_reason(federation: FederationRow) -> str:
    return {
        "paused": "The federation is paused: no round begins or ends until it is resumed.",
        "finished": "The federation has finished its rounds.",
        "stopped": "The federation was stopped.",
    }.get(federation.status, "")


def _device_reason(device: DeviceRow) -> str:
    if device.state == "offline":
        return "It is offline: its program isn't running, or it can't reach the broker."
    if device.state == "collecting":
        return f"It doesn't have enough labelled windows yet{_detail_suffix(device)}."
    return ""


def _in_sums(session: Session, federation: FederationRow, device: DeviceRow) -> str:
    """Say what a device has in the sums of a continuous federation."""
    if federation.kind.masked:
        return _in_masked_sum(session, device)
    row = contributions.find(session, device)
    if row is None:
        return f"It has sent no sums yet{_detail_suffix(device)}."
    if row.sha256 is None:
        rest = "the next version excludes them" if row.changed_at else "none are left"
        return f"Its sums were removed; {rest}."
    sums = f"Its sums of {row.examples:,} windows"
    if row.changed_at is None:
        return f"{sums} are in the model since version {row.published_version}."
    earlier = f"; the model has earlier ones since version {row.published_version}" if row.published_version else ""
    return f"{sums} wait for the next version{earlier}."


def _in_masked_sum(session: Session, device: DeviceRow) -> str:
    """Say whether the newest sum has a device; with what, only the device knows."""
    row = contributions.find_masked(session, device)
    if row is not None and row.seen and row.seen == row.reported:
        return "It sits out until its sums change: they were in an impossible sum, and aren't added again."
    if row is None or row.version is None:
        return f"The newest version's sum doesn't have it{_detail_suffix(device)}."
    others = "" if row.reported == row.sequence else ", and it would add other sums by now"
    return f"It is in the sum of version {row.version}{others}. Only the device knows what it added."


def _in_round(current: RoundRow, part: ParticipationRow | None, device: DeviceRow) -> str:
    number = current.number
    if current.phase == RoundPhase.AGGREGATING:
        return f"Round {number} is being aggregated; the next one sends new invitations."
    if part is None:
        return f"It is ready, and was not drawn into round {number}."
    if part.outcome == ClientStatus.RECEIVED:
        others = f"{current.pending:,} other{'' if current.pending == 1 else 's'}"
        return f"Its update of round {number} has arrived; the round waits for {others}."
    if part.outcome == ClientStatus.LOST:
        return f"Round {number} dropped it because it was offline too long{_detail_suffix(device)}."
    own_words = f": {device.detail}" if device.detail else ", and hasn't said why it doesn't start"
    return f"It is invited to round {number}{own_words}."


def waiting_for(session: Session, federation: FederationRow) -> str:
    """Say what a running federation in rounds waits for while none is open."""
    plan = federation.parsed_plan
    rounds, needed = plan.rounds, suspension.needed_devices(session, federation, plan)
    able = repositories.count_online(session, federation, rounds.cohort_tags)
    rest = resting_rounds(rounds)
    ready = repositories.count_online(session, federation, rounds.cohort_tags, resting=rest)
    groups = f" in the groups {', '.join(rounds.cohort_tags)}" if rounds.cohort_tags else ""
    if able < needed == 1 and not suspension.counts(session, federation):
        return f"No round is open: a round needs a device{groups}, and none is online."
    silent = presence.count_left_out(session, federation, time.time())
    if ready < needed or silent:
        out = suspension.count_suspended(session, federation)
        but = f"; {out:,} device{' is' if out == 1 else 's are'} suspended" if out else ""
        if refusals := suspension.counts(session, federation):
            but += f"; {suspension.describe_refusals(refusals)}"
        if silent:
            but += f"; {silent:,} {'is' if silent == 1 else 'are'} left out for a while, having missed rounds"
        if resting := able - ready:
            but += (
                f"; {resting:,} online rest{'s' if resting == 1 else ''}, since with noise_bands a device takes part "
                f"in one of {rounds.noise_bands:,} published rounds at most"
            )
        if unknown := repositories.count_unknown(session, federation, rounds.cohort_tags):
            but += f"; {unknown:,} online can't take part in secure sums because they haven't enrolled with a key"
        devices = "device" if needed == 1 else "devices"
        return f"No round is open: {ready:,} of the {needed:,} {devices}{groups} that a round needs are online{but}."
    return "No round is open; the next one is about to begin."


def _detail_suffix(device: DeviceRow) -> str:
    return f": {device.detail}" if device.detail else ""
