"""What REST says about rollouts: pydantic models, and how they are read off the rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.api.queries import PageParams, paginate
from aggregator_api.api.schemas.resources import Page, View, Whole
from aggregator_api.db.models import FederationRow, RolloutDeviceRow, RolloutRow
from federation.plan import RolloutSettings, Strict, Waves
from federation.rounds.rollout import Answer

AnswerName = Literal["pending", "adopted", "refused", "failed", "rolled_back"]


class NewRollout(Strict):
    """Which version to release."""

    version: Annotated[Whole, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="null: the newest, `stable`"
    )
    waves: Waves | None = Field(
        default=None,
        description='shares of the devices, or groups of them ({"tags": ["pilot"]}), of this rollout alone; null: the '
        "plan's",
    )


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
    good: int = Field(description="of them have adopted it; at a halt, when it was decided")
    bad: int = Field(description="of them have refused it, failed, or rolled back; at a halt, when it was decided")
    reason: str = Field(description="why it was halted")
    wave_at: float
    started_at: float
    ended_at: float | None


class WaveProgress(View):
    """The devices that came in with one wave, by their last word."""

    share: float = Field(description="of the devices, that the waves up to this one reach")
    tags: list[str] = Field(default=[], description="groups that it goes to; none: to the share")
    devices: int
    pending: int = 0
    adopted: int = 0
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
    score: float | None = Field(description="macro-F1 on the device's own holdout")
    reason: str
    told_at: float
    answered_at: float | None


def listing(session: Session, federation: FederationRow, page: PageParams) -> Page[RolloutView]:
    """List the rollouts of a federation."""
    query = select(RolloutRow).where(RolloutRow.federation_id == federation.id)
    return paginate(session, query, RolloutRow.id, page, described)


def described(row: RolloutRow) -> RolloutView:
    """Describe a rollout without its waves."""
    return RolloutView(**_said(row))


def detail(session: Session, row: RolloutRow) -> RolloutDetail:
    """Describe a rollout."""
    settings = RolloutSettings.model_validate(row.settings)
    counts = _counts(session, row)
    progress = [
        {**_reach(settings, wave), "devices": sum(counts.get(wave, {}).values()), **counts.get(wave, {})}
        for wave in range(row.wave + 1)
    ]
    return RolloutDetail.model_validate({**_said(row), "settings": row.settings, "progress": progress})


def devices(session: Session, row: RolloutRow, answer: AnswerName | None, page: PageParams) -> Page[RolloutDevice]:
    """List the devices that a rollout was meant for so far, all or those of one answer."""
    query = select(RolloutDeviceRow).where(RolloutDeviceRow.rollout_id == row.id)
    if answer is not None:
        query = query.where(RolloutDeviceRow.answer == Answer(answer))
    return paginate(session, query, RolloutDeviceRow.device_id, page, _device)


def _device(row: RolloutDeviceRow) -> RolloutDevice:
    said = {name: getattr(row, name) for name in ("answer", "score", "reason", "told_at", "answered_at")}
    return RolloutDevice(device=row.device.name, wave=row.wave + 1, **said)


def _said(row: RolloutRow) -> dict[str, Any]:
    settings = RolloutSettings.model_validate(row.settings)
    names = ("id", "number", "phase", "members", "good", "bad", "reason", "wave_at", "started_at", "ended_at")
    where = {"wave": row.wave + 1, "waves": len(settings.waves), **_reach(settings, row.wave)}
    what = {"version": row.version.version, "sha256": row.version.broadcast_sha256}
    return {**{name: getattr(row, name) for name in names}, **where, **what}


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
