"""Rollouts as REST shows them, read off the rows."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.http.api.queries import PageParams, columns, paginate
from aggregator_api.http.api.schemas.resources import Page
from aggregator_api.http.api.schemas.rollouts import AnswerName, RolloutDetail, RolloutDevice, RolloutView
from aggregator_api.rollouts.scores import metric_in
from aggregator_api.storage.db.models import FederationRow, RolloutDeviceRow, RolloutRow
from federation.plan import RolloutSettings
from federation.rounds.rollout import AdoptionAnswer


def listing(session: Session, federation: FederationRow, page: PageParams) -> Page[RolloutView]:
    """List the rollouts of a federation."""
    query = select(RolloutRow).where(RolloutRow.federation_id == federation.id)
    return paginate(session, query, RolloutRow.id, page, described)


def described(row: RolloutRow) -> RolloutView:
    """Describe a rollout without its waves."""
    return RolloutView.model_validate(_said(row))


def detail(session: Session, row: RolloutRow) -> RolloutDetail:
    """Describe a rollout."""
    settings = RolloutSettings.model_validate(row.settings)
    counts = _counts(session, row)
    progress = [
        {**_reach(settings, wave), "devices": sum(counts.get(wave, {}).values()), **counts.get(wave, {})}
        for wave in range(row.wave + 1)
    ]
    return RolloutDetail.model_validate({**_said(row), "progress": progress})


def devices(session: Session, row: RolloutRow, answer: AnswerName | None, page: PageParams) -> Page[RolloutDevice]:
    """List the devices that a rollout was meant for so far, all or those of one answer."""
    query = select(RolloutDeviceRow).where(RolloutDeviceRow.rollout_id == row.id)
    if answer is not None:
        query = query.where(RolloutDeviceRow.answer == AdoptionAnswer(answer))
    metric = metric_in(session.get_one(FederationRow, row.federation_id))
    return paginate(session, query, RolloutDeviceRow.device_id, page, partial(_device, metric))


def _device(metric: str, row: RolloutDeviceRow) -> RolloutDevice:
    return RolloutDevice.model_validate(
        {**columns(row), "device": row.device.name, "wave": row.wave + 1, "metric": metric}
    )


def _said(row: RolloutRow) -> dict[str, Any]:
    settings = RolloutSettings.model_validate(row.settings)
    where = {"wave": row.wave + 1, "waves": len(settings.waves), **_reach(settings, row.wave)}
    what = {"version": row.version.version, "sha256": row.version.broadcast_sha256}
    return {**columns(row), **where, **what}


def _reach(settings: RolloutSettings, wave: int) -> dict[str, Any]:
    return {"share": settings.share_of(wave), "tags": list(settings.tags_of(wave))}


def _counts(session: Session, row: RolloutRow) -> dict[int, dict[str, int]]:
    """Count the answers of each wave."""
    query = select(RolloutDeviceRow.wave, RolloutDeviceRow.answer, func.count())
    query = query.where(RolloutDeviceRow.rollout_id == row.id)
    found: dict[int, dict[str, int]] = {}
    for wave, answer, count in session.execute(query.group_by(RolloutDeviceRow.wave, RolloutDeviceRow.answer)):
        found.setdefault(wave, {})[answer] = count
    return found
