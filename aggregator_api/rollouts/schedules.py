"""What an operator asks of releases, and the schedules of waves to choose from.

Ready schedules of waves, from which an operator chooses instead of writing shares and seconds.
A device judges a model on its own holdout within minutes of hearing of it, so a wave needs no longer than that to tell
a model that works from one that does not; what only shows in use takes longer, which is what the careful one is for.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from federation.plan import RolloutSettings, Strict, Text, Waves


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


class ReleaseSchedule(NamedTuple):
    """Which shares of the devices get a version, how long each wave lasts at least, and what that is good for."""

    label: str
    waves: tuple[float, ...]
    soak_s: float
    purpose: str


SCHEDULES: dict[str, ReleaseSchedule] = {
    "standard": ReleaseSchedule(
        "10 %, then half, then all; ten minutes each",
        (0.1, 0.5, 1.0),
        600.0,
        "a version that works reaches everybody in twenty minutes; one that does not meets a tenth of the devices",
    ),
    "careful": ReleaseSchedule(
        "5 %, then a quarter, then all; a day each",
        (0.05, 0.25, 1.0),
        86_400.0,
        "for faults that only show in use: each wave sees a whole day of people's lives",
    ),
    "at-once": ReleaseSchedule(
        "all devices at once",
        (1.0,),
        0.0,
        "a first model, or one that must replace another now; nothing stops it before everybody has heard of it",
    ),
}
STANDARD = "standard"


def release_settings(mode: str, schedule: str = STANDARD) -> dict[str, object]:
    """Return a plan's `rollout` for a mode and a schedule, as JSON.

    Raises:
        KeyError: if there is no such schedule.
    """
    if mode == "off":
        return {"mode": mode}
    chosen = SCHEDULES[schedule]
    return {"mode": mode, "waves": list(chosen.waves), "soak_s": chosen.soak_s}


def schedule_of(settings: RolloutSettings) -> str:
    """Name the schedule that a federation's settings follow; empty where they are its own."""
    for name, schedule in SCHEDULES.items():
        if settings.waves == schedule.waves and settings.soak_s == schedule.soak_s:
            return name
    return ""
