"""How model versions reach devices: in waves, and when `stable` moves by itself."""

from __future__ import annotations

import operator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from federation.plan.strict import Name, Strict


class GroupWave(Strict):
    """A wave of a rollout that goes to groups of devices, besides those that have the model already."""

    tags: tuple[Name, ...] = Field(min_length=1, max_length=32, description="devices in one of these groups")


Wave = Annotated[float, Field(gt=0, le=1)] | GroupWave
"""A share of the devices, or groups of them."""


def _growing(waves: tuple[Wave, ...]) -> tuple[Wave, ...]:
    shares = [wave for wave in waves if not isinstance(wave, GroupWave)]
    if waves[-1] != 1 or any(after <= before for before, after in zip((0.0, *shares), shares, strict=False)):
        raise ValueError("waves' shares must grow, and the last one must be 1 (every device)")
    return waves


Waves = Annotated[tuple[Wave, ...], Field(min_length=1, max_length=16), AfterValidator(_growing)]


class RolloutSettings(Strict):
    """How a model version is released to devices, in growing waves, as `federation.rounds.rollout` carries it out."""

    mode: Literal["off", "manual", "automatic"] = Field(
        default="off",
        description="off: a device uses its own model, and finally the federation's last model; "
        "manual: it uses what an operator releases; automatic: each published version is released, one after another",
    )
    waves: Waves = Field(
        default=(0.05, 0.25, 1.0), description='shares of the devices, or groups of them: {"tags": ["pilot"]}'
    )
    success_threshold: float = Field(
        default=0.8, gt=0, le=1, description="share of a wave that must have adopted the model"
    )
    soak_s: float = Field(default=3600.0, ge=0, le=3.2e7, description="minimum duration of a wave")
    wave_timeout_s: float = Field(
        default=86_400.0,
        ge=0,
        le=3.2e7,
        description="time after which a wave stops waiting for devices that haven't answered",
    )
    halt_share: float = Field(
        default=0.1, gt=0, le=1, description="share of failures among the answers that halts a rollout,"
    )
    halt_devices: int = Field(default=2, ge=1, le=10**9, description="together with at least this many failed devices")
    own_models: bool = Field(
        default=False,
        # left out where it is false, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="devices may serve their own model if it is expected to be better than the released one",
    )

    def share_of(self, wave: int) -> float:
        """Return the share of the devices that a wave has reached; a wave of groups leaves it as it was before."""
        return max((share for share in self.waves[: wave + 1] if not isinstance(share, GroupWave)), default=0.0)

    def tags_of(self, wave: int) -> tuple[str, ...]:
        """Return the groups that a wave goes to; none: it goes to a share of all devices."""
        found = self.waves[wave]
        return found.tags if isinstance(found, GroupWave) else ()

    @property
    def used(self) -> bool:
        """Whether devices use what is released to them, and no other shared model."""
        return self.mode != "off"

    @property
    def allows_own(self) -> bool:
        """Whether devices may serve a model that they trained themselves."""
        return self.mode == "off" or self.own_models


class PromotionSettings(Strict):
    """When the name `stable` moves to a newer version by itself, and a rollout's version becomes `released`."""

    min_devices: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="so many devices must have measured the version, and both it and the one that it replaces; none: a "
        "tenth of those that a round asks, but at least two, or the only one",
    )
    margin: float = Field(
        default=0.02,
        ge=0,
        le=1e6,
        description="by so much of the task's metric it may be worse, on average over the devices that measured both; "
        "0.02 of macro-F1 are two points",
    )
