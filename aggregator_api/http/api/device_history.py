"""What one device did, round by round: its part, what it sent, what became of that, and what it measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, union
from sqlalchemy.orm import Session, aliased

from aggregator_api.http.api.queries import PageParams, columns, update_view
from aggregator_api.http.api.schemas import resources
from aggregator_api.rollouts.scores import metric_in
from aggregator_api.storage.db.models import (
    AdoptionRow,
    DeviceRow,
    FederationRow,
    MetricRow,
    ParticipationRow,
    RoundRow,
    UpdateRow,
)

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
