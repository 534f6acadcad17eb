"""What an operator asks of rollouts, validated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from aggregator_api.fields import Override
from federation.plan import Waves


class NewRollout(Override):
    """Which version to release."""

    version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="null: the newest, `latest`"
    )
    waves: Waves | None = Field(
        default=None,
        description='shares of the devices, or groups of them ({"tags": ["pilot"]}), of this rollout alone; null: the '
        "plan's",
    )
    soak_s: float | None = Field(
        default=None, ge=0, le=3.2e7, description="a wave of this rollout lasts at least so long; null: the plan's"
    )

    @property
    def changed_settings(self) -> dict[str, Any]:
        """What this rollout does otherwise than the plan says."""
        given = {"waves": self.waves, "soak_s": self.soak_s}
        return {name: value for name, value in given.items() if value is not None}
