"""When a device trains, with what, and which keys it trusts: sections of `edge_agent.config.settings`."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from edge_agent.config.section import Section
from federation.protocol.messages import Runtime
from federation.rounds.serving import Prefer
from gaitway.python310 import Self
from gaitway.tasks.soundness import MIN_EXAMPLES

TrainingDevice = Literal["auto", "cpu", "cuda"]

Condition = Literal["charging", "idle", "network", "battery", "temperature", "memory", "disk", "quiet_hours"]

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


def minutes_of(hours: str) -> tuple[int, int]:
    """Read "22:00-06:30" as minutes of the day: begin and end.

    Raises:
        ValueError: for any other text, and for an empty span.
    """
    found = _HOURS.fullmatch(hours)
    if found is None:
        raise ValueError(f'{hours!r} is no span of hours; expected one such as "22:00-06:30"')
    h0, m0, h1, m1 = map(int, found.groups())
    begin, end = 60 * h0 + m0, 60 * h1 + m1
    if begin == end:
        raise ValueError(f"{hours!r} begins when it ends; to train never, do not run the agent")
    return begin, end


def _checked(hours: str) -> str:
    minutes_of(hours)
    return hours


def resolve_runtime(wanted: Literal["auto", "torch", "onnx"]) -> Runtime:
    """Say which runtime `[training] runtime` means on this machine: torch where it is installed."""
    if wanted != "auto":
        return wanted
    return "torch" if is_installed("torch") else "onnx"


def is_installed(name: str) -> bool:
    """Whether a package could be imported; it is not."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class TrainingSection(Section):
    """What the training process may use."""

    runtime: Literal["auto", "torch", "onnx"] = Field(
        default="auto",
        description="what trains: torch, or ONNX Runtime with the program that the federation's server makes; "
        "auto: torch where it is installed",
    )
    device: TrainingDevice = Field(
        default="auto",
        description="where it computes: cpu, or cuda, an NVIDIA GPU; auto: the GPU, where the runtime can use one",
    )
    threads: int = Field(default=1, ge=1, le=1024)
    memory_mb: int = Field(default=1024, ge=0, description="cap of its memory, on a GPU of the GPU's; 0: no cap")
    nice: int = Field(default=10, ge=0, le=19)
    max_round_s: float = Field(
        default=600.0, gt=0, description="a round's training ends after so long; what was done is partial work"
    )
    timeout_s: float = Field(default=900.0, gt=0, description="a process that runs longer, export included, is ended")
    attempts: int = Field(default=3, ge=1, description="tries at one round before it is left out")
    retry_s: float = Field(default=2.0, gt=0, description="wait before the second try; doubles each time")


class ConditionsSection(Section):
    """When the device may train; what cannot be read does not block training."""

    ignore: tuple[Condition | Literal["all"], ...] = Field(
        default=(),
        description='conditions to do without: "charging", "idle", "network", "battery", "temperature", "memory", '
        '"disk", "quiet_hours"; or "all"',
    )
    min_battery_percent: float = Field(default=50.0, ge=0, le=100, description="the battery must hold as much")
    max_busy_percent: float = Field(
        default=50.0, ge=0, le=100, description="idle: other programs use no more of the processor"
    )
    metered: Literal["auto", "yes", "no"] = Field(
        default="auto", description="auto: as NetworkManager says, if it runs"
    )
    start_below_c: float = Field(default=75.0, description="hottest at which training begins, in °C")
    abort_above_c: float = Field(default=85.0, description="training that runs is stopped from here on, in °C")
    min_free_memory_mb: int = Field(default=600, ge=0)
    min_free_disk_mb: int = Field(default=1000, ge=0)
    quiet_hours: tuple[Annotated[str, AfterValidator(_checked)], ...] = Field(
        default=(), description='no training in them, local time, such as ["22:00-06:30"]'
    )
    phone: bool = Field(default=True, description="a phone that sends samples speaks for its battery and network")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.abort_above_c < self.start_below_c:
            raise ValueError("abort_above_c is below start_below_c: training would be stopped as soon as it began")
        return self


class ModelSection(Section):
    """Which model serves."""

    prefer: Prefer = Field(
        default="likelier",
        description="likelier: the model that is expected to be the best on this device; personal: its own; shared: "
        "the federation's",
    )
    adopt_margin: float = Field(
        default=0.0, ge=0, le=1, description="what a model must be expected to gain over the shared one to serve"
    )
    refresh_s: float = Field(
        default=900.0,
        ge=0,
        description="a continuous federation's newer version is taken up after so long, or when its number is half as "
        "much again",
    )
    network_dir: Path | None = Field(
        default=None,
        description="in a continuous federation: data folder of another agent of this device, whose federation trains "
        "a network; its model in use is compared with the heads",
    )
    holdout_windows: int = Field(default=1024, ge=MIN_EXAMPLES, description="at most so many windows judge a model")
