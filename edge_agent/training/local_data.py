"""A device's own windows as training and holdout sets: the same split and statistics in both of its processes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edge_agent.config.sensors import SensorsSection
from federation.plan import DataSpec
from har_pipeline import (
    ChannelStatistics,
    ClientWindows,
    PipelineSettings,
    dataset_settings,
    split_client,
)
from har_pipeline.splits import Split


class LocalData(NamedTuple):
    """Raw windows in m/s² and rad/s, cut in two, and the statistics to normalize them with (6 channels)."""

    train: ClientWindows
    holdout: ClientWindows
    mean: tuple[float, ...]
    std: tuple[float, ...]
    statistics: ChannelStatistics | None

    def normalized(self, windows: ClientWindows) -> np.ndarray:
        """Return x (n, window, 6) as the network gets it."""
        return windows.x if self.statistics is None else self.statistics.normalize(windows.x)


def pipeline_settings(sensors: SensorsSection, data: DataSpec) -> PipelineSettings:
    """Lay the plan's pipeline settings over the defaults, or over a replayed data set's preset.

    Raises har_pipeline's SettingsError.
    """
    preset = dataset_settings(sensors.dataset) if sensors.source == "recording" else PipelineSettings()
    return PipelineSettings.from_json({**preset.to_json(), **data.pipeline})


def device_split(windows: ClientWindows, data: DataSpec, settings: PipelineSettings) -> Split:
    """Divide a device's windows into training and holdout as the simulation divides a client's."""
    return split_client(windows, data.split, test_share=data.test_share, settings=settings)


def local_data(windows: ClientWindows, data: DataSpec, settings: PipelineSettings) -> LocalData:
    """Split a device's windows and measure its training part, as the simulation does for a client."""
    split = device_split(windows, data, settings)
    train, holdout = windows.select(split.train), windows.select(split.test)
    if data.normalization == "none":
        return LocalData(train, holdout, (0.0,) * 6, (1.0,) * 6, None)
    statistics = _statistics(train, data)
    mean, std = (tuple(map(float, values)) for values in (statistics.mean, statistics.std))
    return LocalData(train, holdout, mean, std, statistics)


def _statistics(train: ClientWindows, data: DataSpec) -> ChannelStatistics:
    """Take the federation's statistics, or the device's own where the plan holds none."""
    if data.normalization == "federated" and data.statistics is not None:
        return ChannelStatistics.from_json(data.statistics.model_dump())
    return ChannelStatistics.of(train.x)


def training_count(windows: ClientWindows, data: DataSpec, settings: PipelineSettings) -> int:
    """Count the windows that are for training; they need no samples for that."""
    return len(device_split(windows, data, settings).train)
