"""What an operator asks of rollouts, validated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from federation.plan import Strict, Text, Waves


class Override(Strict):
    """What an operator does against what devices have measured, or without it, and why."""

    force: bool = Field(default=False, description="do it whatever devices have measured; needs a reason")
    reason: Text = Field(default="", max_length=200, description="why, for the journal and the audit; needs force")

    @model_validator(mode="after")
    def _together(self) -> Override:
        if self.force != bool(self.reason.strip()):
            raise ValueError("force and reason go together: say why what devices have measured does not count")
        return self

    @property
    def forced(self) -> str:
        """The reason; empty where the measure counts."""
        return self.reason.strip()


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
