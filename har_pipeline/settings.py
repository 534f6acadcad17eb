"""The pipeline's settings from samples to windows, as one frozen value that prints, compares and hashes as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gaitway.errors import did_you_mean
from gaitway.input_spec import SLOWER, AntiAlias, InputSpec, LowPass
from har_pipeline.errors import SettingsError


@dataclass(frozen=True)
class PipelineSettings:
    """How samples become windows; the defaults are those of Ek et al. 2024 with a stated filter.

    The anti-alias kernel is a sinc of `cutoff_hz` under a Kaiser window of `kaiser_beta` (about 60 dB) that reaches
    `half_width_s` to either side: flat to 15 Hz, in the stop band from 29 Hz, and a delay of `half_width_s`. A sensor
    slower than 0.9 × `rate_hz` is interpolated instead in 0.42 × its own rate, with a delay of 10 of its steps, and
    bridges gaps of five of them where that is more than `max_gap_s`. `anti_alias="downsampling"` low-passes only where
    the rate falls: sensors below 1.1 × `rate_hz` are interpolated, so that one of 50 Hz keeps tones up to 20 Hz.
    `reorder_s` is how late a sample may come and still be sorted in; `late` says what happens to later ones.
    `max_lag_s` bounds how many seconds of samples one sensor may be ahead of the other, hence the memory; pauses do not
    count.
    """

    rate_hz: float = 50.0
    window: int = 128
    stride: int = 64
    max_gap_s: float = LowPass.max_gap_s
    label_share: float = 0.5
    cutoff_hz: float = LowPass.cutoff_hz
    half_width_s: float = LowPass.half_width_s
    kaiser_beta: float = LowPass.kaiser_beta
    anti_alias: AntiAlias = LowPass.anti_alias
    reorder_s: float = 0.1
    late: Literal["refuse", "drop"] = "refuse"
    keep_unlabelled: bool = False
    max_lag_s: float = 14_400.0

    def __post_init__(self) -> None:
        """Refuse what cannot work; raises SettingsError."""
        positive = ("rate_hz", "window", "stride", "max_gap_s", "cutoff_hz", "half_width_s", "max_lag_s")
        for name in positive:
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be above 0")
        if not 0 <= self.label_share <= 1:
            raise SettingsError(f"label_share is {self.label_share}; it is a share between 0 and 1")
        if self.reorder_s < 0:
            raise SettingsError(f"reorder_s is {self.reorder_s}; it must not be negative")
        if self.anti_alias not in SLOWER:
            raise SettingsError(f"anti_alias is {self.anti_alias!r}; expected 'always' or 'downsampling'")
        if self.late not in ("refuse", "drop"):
            raise SettingsError(f"late is {self.late!r}; expected 'refuse' or 'drop'")
        # Inside a gap the kernel must still reach a sample on either side.
        if self.half_width_s <= self.max_gap_s:
            raise SettingsError(
                f"half_width_s ({self.half_width_s}) must exceed max_gap_s ({self.max_gap_s}): "
                "widen the kernel or split at shorter gaps"
            )

    @property
    def window_s(self) -> float:
        """Length of a window in seconds."""
        return self.window / self.rate_hz

    def input_spec(self, mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Describe the windows that these settings make, for a model that is trained on them."""
        low_pass = LowPass(
            cutoff_hz=self.cutoff_hz,
            half_width_s=self.half_width_s,
            kaiser_beta=self.kaiser_beta,
            max_gap_s=self.max_gap_s,
            anti_alias=self.anti_alias,
            slower=SLOWER[self.anti_alias],
        )
        return InputSpec.windows(
            mean, std, window=self.window, rate_hz=self.rate_hz, stride=self.stride, low_pass=low_pass
        )

    @classmethod
    def of(cls, spec: InputSpec) -> PipelineSettings:
        """Return the settings that make the windows which a model takes; SettingsError where it takes none."""
        if spec.kind != "window" or spec.rate_hz is None or spec.stride is None or spec.filter is None:
            raise SettingsError(f"the model takes {spec.kind}s; expected one that takes windows of motion sensors")
        return cls(
            rate_hz=spec.rate_hz,
            window=spec.shape[0],
            stride=spec.stride,
            max_gap_s=spec.filter.max_gap_s,
            cutoff_hz=spec.filter.cutoff_hz,
            half_width_s=spec.filter.half_width_s,
            kaiser_beta=spec.filter.kaiser_beta,
            anti_alias=spec.filter.anti_alias,
        )

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> PipelineSettings:
        """Read what to_json wrote; an unknown key raises SettingsError and names the nearest known one."""
        known = tuple(field.name for field in fields(cls))
        for key in record:
            if key not in known:
                raise SettingsError(f"unknown pipeline setting {key!r}; {did_you_mean(key, known)}")
        return cls(**record)
