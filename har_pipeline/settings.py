"""The settings of the way from samples to windows, as one frozen value that prints, compares and hashes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError


@dataclass(frozen=True)
class PipelineSettings:
    """How samples become windows; the defaults are those of Ek et al. 2024 with a stated filter.

    The anti-alias kernel is a sinc of `cutoff_hz` under a Kaiser window of `kaiser_beta` (about 60 dB) that reaches
    `half_width_s` to either side: flat to 15 Hz, in the stop band from 29 Hz, and a delay of `half_width_s`.
    `reorder_s` is how late a sample may come and still be sorted in; `late` says what happens to later ones.
    `max_lag_s` bounds how far one sensor may run ahead of the other, hence the memory.
    """

    rate_hz: float = 50.0
    window: int = 128
    stride: int = 64
    max_gap_s: float = 0.1
    label_share: float = 0.5
    cutoff_hz: float = 22.0
    half_width_s: float = 0.13
    kaiser_beta: float = 5.65
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

    def to_json(self) -> dict[str, Any]:
        """All fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> PipelineSettings:
        """Read what to_json wrote; an unknown key raises SettingsError and names the nearest known one."""
        known = tuple(field.name for field in fields(cls))
        for key in record:
            if key not in known:
                raise SettingsError(f"unknown pipeline setting {key!r}; {did_you_mean(key, known)}")
        return cls(**record)
