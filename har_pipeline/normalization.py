"""Channel-wise z-normalization from additive statistics, so that clients needn't share their windows.

Three kinds: `client` (each client's own training windows: what a device can do alone), `federated` (count, sum and
square sum of the training clients, added) and `pooled` (one pass over all training windows; equal to `federated` up to
rounding, which it exists to show).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np

from gaitway.errors import did_you_mean
from gaitway.input_spec import MIN_STD
from har_pipeline.errors import SettingsError
from har_pipeline.splits import Split
from har_pipeline.streaming.windows import ClientWindows

KINDS = ("client", "federated", "pooled")
Kind = Literal["client", "federated", "pooled"]


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Count of samples, sum (C,) and square sum (C,) of each channel, float64; `+` joins two."""

    count: int
    total: np.ndarray
    square: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> ChannelStatistics:
        """Count x (..., C)."""
        rows = np.asarray(x).reshape(-1, x.shape[-1])
        square = np.einsum("nc,nc->c", rows, rows, dtype=np.float64)
        return cls(len(rows), rows.sum(axis=0, dtype=np.float64), square)

    def __add__(self, other: ChannelStatistics) -> ChannelStatistics:
        return ChannelStatistics(self.count + other.count, self.total + other.total, self.square + other.square)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChannelStatistics):
            return NotImplemented
        return self.to_json() == other.to_json()

    @property
    def mean(self) -> np.ndarray:
        """Mean of each channel (C,); zeros where nothing was counted."""
        mean: np.ndarray = self.total / max(self.count, 1)
        return mean

    @property
    def std(self) -> np.ndarray:
        """Standard deviation (C,), at least MIN_STD; ones where nothing was counted."""
        if not self.count:
            return np.ones_like(self.total)
        variance = np.maximum(self.square / self.count - self.mean**2, 0.0)
        std: np.ndarray = np.maximum(np.sqrt(variance), MIN_STD)
        return std

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """Return (x − mean) / std of x (..., C) as float32."""
        scaled: np.ndarray = ((x - self.mean.astype(np.float32)) / self.std.astype(np.float32)).astype(np.float32)
        return scaled

    def to_json(self) -> dict[str, Any]:
        """Return {"count", "total", "square"}; numbers survive the way through JSON exactly."""
        return {"count": int(self.count), "total": self.total.tolist(), "square": self.square.tolist()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ChannelStatistics:
        """Read what to_json wrote; raises SettingsError where a key is missing."""
        try:
            total, square = (np.array(record[key], dtype=np.float64) for key in ("total", "square"))
            return cls(int(record["count"]), total, square)
        except KeyError as error:
            raise SettingsError(f"channel statistics lack {error}; expected count, total and square") from error


def channel_statistics(
    clients: Mapping[str, ClientWindows],
    splits: Mapping[str, Split],
    kind: Kind = "federated",
    *,
    training_clients: Collection[str] | None = None,
) -> dict[str, ChannelStatistics]:
    """Return each client's statistics for normalization, from training windows only.

    `training_clients` (default: all) contribute to `federated` and `pooled`; under `client` each counts for itself.
    Raises SettingsError for an unknown kind or if no client contributes.
    """
    if kind not in KINDS:
        raise SettingsError(f"normalization {kind!r}; {did_you_mean(kind, KINDS)}")
    chosen = [name for name in clients if training_clients is None or name in training_clients]
    if not chosen:
        raise SettingsError("no client contributes to the normalization; training_clients names none of the clients")
    if kind == "pooled":
        shared = ChannelStatistics.of(np.concatenate([clients[name].x[splits[name].train] for name in chosen]))
        return dict.fromkeys(clients, shared)
    if kind == "federated":
        shared = reduce(add, (ChannelStatistics.of(clients[name].x[splits[name].train]) for name in chosen))
        return dict.fromkeys(clients, shared)
    return {name: ChannelStatistics.of(data.x[splits[name].train]) for name, data in clients.items()}


def normalize_clients(
    clients: Mapping[str, ClientWindows],
    splits: Mapping[str, Split],
    kind: Kind = "federated",
    *,
    training_clients: Collection[str] | None = None,
) -> tuple[dict[str, ClientWindows], dict[str, ChannelStatistics]]:
    """Normalize every window of every client; return the clients and the statistics used for each."""
    statistics = channel_statistics(clients, splits, kind, training_clients=training_clients)
    return {name: replace(data, x=statistics[name].normalize(data.x)) for name, data in clients.items()}, statistics
