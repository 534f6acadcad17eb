"""What REST says about checkpoints."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field

from aggregator_api.api.schemas.resources import View
from aggregator_api.federations.checkpoints import UploadedCheckpoint


class CheckpointView(View):
    """An uploaded checkpoint, by what its file says."""

    sha256: str = Field(description="names it in `start_from`")
    size: int = Field(description="bytes")
    model: str
    options: dict[str, Any] = Field(description="of the model")
    labels: list[str]
    task: dict[str, Any]
    method: str = Field(description="that trained it; empty: unknown")
    federation: str = Field(description="that it is from; empty: unknown")
    round: int
    keep_s: float = Field(description="for how long it is kept if no federation starts from it")

    @classmethod
    def of(cls, found: UploadedCheckpoint, keep_s: float) -> Self:
        """Describe a checkpoint."""
        info = found.info
        return cls(
            sha256=found.sha256, size=found.size, model=info.model, options=info.options, labels=list(info.labels),
            task=info.task, method=info.method, federation=info.federation, round=info.round, keep_s=keep_s,
        )  # fmt: skip
