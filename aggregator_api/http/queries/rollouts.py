"""Rollouts as REST and pages show them, read off the rows."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.http.queries.listings import PageParams, columns, paginate
from aggregator_api.http.queries.resources import Page, View
from aggregator_api.rollouts.scores import metric_in
from aggregator_api.storage.db.models import FederationRow, RolloutDeviceRow, RolloutRow
from federation.plan import RolloutSettings
from federation.rounds.rollout import AdoptionAnswer

AnswerName = Literal["pending", "adopted", "kept", "refused", "failed", "rolled_back"]


class RolloutView(View):
    """The staged release of a model version."""

    id: int
    number: int
    version: int
    sha256: str = Field(description="name of the broadcast's blob")
    phase: Literal["rolling", "paused", "completed", "halted"]
    wave: int = Field(description="1 is the first")
    waves: int
    share: float = Field(description="of the devices, that the waves have reached")
    tags: list[str] = Field(description="groups that this wave goes to; none: it goes to the share")
    members: int = Field(description="devices of the wave, those of earlier waves included")
    successes: int = Field(
        description="of them have adopted it, or kept a model that is no worse; at a halt, when it was decided"
    )
    failures: int = Field(description="of them have refused it, failed, or rolled back; at a halt, when it was decided")
    reason: str = Field(description="why it was halted")
    wave_started_at: float
    started_at: float
    ended_at: float | None


class WaveProgress(View):
    """The devices of one wave, by their last answer."""

    share: float = Field(description="of the devices, that the waves up to this one reach")
    tags: list[str] = Field(default=[], description="groups that it goes to; none: to the share")
    devices: int
    pending: int = 0
    adopted: int = 0
    kept: int = 0
    refused: int = 0
    failed: int = 0
    rolled_back: int = 0


class RolloutDetail(RolloutView):
    """A rollout, wave by wave."""

    settings: RolloutSettings = Field(description="as they were when it was started")
    progress: list[WaveProgress]


class RolloutDevice(View):
    """What became of a rollout's model on one device."""

    device: str
    wave: int = Field(description="in which it was told; 1 is the first")
    answer: AnswerName
    metric: str = Field(description="the primary metric of the plan's task")
    score: float | None = Field(description="of the metric, on the device's own holdout")
    reason: str
    notified_at: float
    answered_at: float | None


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
