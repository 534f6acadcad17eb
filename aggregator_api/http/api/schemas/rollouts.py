"""What REST says about rollouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from aggregator_api.http.api.schemas.resources import View
from federation.plan import RolloutSettings

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
    """The devices that came in with one wave, by their last word."""

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
