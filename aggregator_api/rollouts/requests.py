"""What an operator asks of rollouts, validated."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aggregator_api.fields import WHOLE, Override
from federation.plan import Waves


class NewRollout(Override):
    """Which version to release."""

    version: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] | None = Field(
        default=None, description="null: the newest, `latest`"
    )
    waves: Waves | None = Field(
        default=None,
        description='shares of the devices, or groups of them ({"tags": ["pilot"]}), of this rollout alone; null: the '
        "plan's",
    )
