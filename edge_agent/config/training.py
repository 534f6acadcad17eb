"""When and with what a device trains, and which model serves: sections of `edge_agent.config.settings`."""

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
    """Parse "22:00-06:30" into minutes of the day: begin and end.

    Raises:
        ValueError: for any other text, and for an empty span.
    """
    found = _HOURS.fullmatch(hours)
    if found is None:
        raise ValueError(f'{hours!r} isn\'t a span of hours; expected one such as "22:00-06:30"')
    h0, m0, h1, m1 = map(int, found.groups())
    begin, end = 60 * h0 + m0, 60 * h1 + m1
    if begin == end:
        raise ValueError(f"{hours!r} is empty; to never train, don't run the agent")
    return begin, end


def _checked(hours: str) -> str:
    minutes_of(hours)
    return hours


def resolve_runtime(wanted: Literal["auto", "torch", "onnx"]) -> Runtime:
    """Return the runtime that `[training] runtime` means on this machine: torch if it is installed."""
    if wanted != "auto":
        return wanted
    return "torch" if is_installed("torch") else "onnx"


def is_installed(name: str) -> bool:
    """Whether a package could be imported, without importing it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class TrainingSection(Section):
    """What the training process may use."""

    runtime: Literal["auto", "torch", "onnx"] = Field(
        default="auto",
        description="torch, or ONNX Runtime with the program from the federation's server; auto: torch if it is "
        "installed",
    )
    device: TrainingDevice = Field(
        default="auto",
        description="cpu, or cuda for an NVIDIA GPU; auto: the GPU if the runtime can use one",
    )
    threads: int = Field(default=1, ge=1, le=1024)
    memory_mb: int = Field(default=1024, ge=0, description="memory limit, of the GPU's memory on a GPU; 0: no limit")
    nice: int = Field(default=10, ge=0, le=19)
    max_round_s: float = Field(
        default=600.0, gt=0, description="time limit of a round's training; unfinished training is sent as partial work"
    )
    timeout_s: float = Field(default=900.0, gt=0, description="time limit of the process, including the export")
    attempts: int = Field(default=3, ge=1, description="attempts at a round before it is skipped")
    retry_s: float = Field(default=2.0, gt=0, description="wait before the second attempt; doubles each time")


class ConditionsSection(Section):
    """When the device may train; unreadable conditions don't block training."""

    ignore: tuple[Condition | Literal["all"], ...] = Field(
        default=(),
        description='conditions to do without: "charging", "idle", "network", "battery", "temperature", "memory", '
        '"disk", "quiet_hours"; or "all"',
    )
    min_battery_percent: float = Field(default=50.0, ge=0, le=100, description="minimum battery charge")
    max_busy_percent: float = Field(default=50.0, ge=0, le=100, description="idle: maximum CPU use of other programs")
    metered: Literal["auto", "yes", "no"] = Field(
        default="auto", description="auto: as reported by NetworkManager, if it runs"
    )
    start_below_c: float = Field(default=75.0, description="maximum temperature for starting training, in °C")
    abort_above_c: float = Field(default=85.0, description="temperature at which running training stops, in °C")
    min_free_memory_mb: int = Field(default=600, ge=0)
    min_free_disk_mb: int = Field(default=1000, ge=0)
    quiet_hours: tuple[Annotated[str, AfterValidator(_checked)], ...] = Field(
        default=(), description='hours without training, local time, such as ["22:00-06:30"]'
    )
    phone: bool = Field(default=True, description="use the battery and network state of the phone that sends samples")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.abort_above_c < self.start_below_c:
            raise ValueError("abort_above_c is below start_below_c: training would be stopped as soon as it began")
        return self


class ModelSection(Section):
    """Which model serves."""

    prefer: Prefer = Field(
        default="likelier",
        description="likelier: the model expected to be best on this device; personal: its own; shared: the "
        "federation's",
    )
    adopt_margin: float = Field(default=0.0, ge=0, le=1, description="minimum expected gain over the shared model")
    refresh_s: float = Field(
        default=900.0,
        ge=0,
        description="a continuous federation's newer version is used after this time, or when its number has grown by "
        "half",
    )
    network_dir: Path | None = Field(
        default=None,
        description="in a continuous federation: data folder of another agent of this device, whose federation trains "
        "a network; its model in use is compared with the heads",
    )
    holdout_windows: int = Field(
        default=1024, ge=MIN_EXAMPLES, description="maximum number of windows for evaluating a model"
    )
