"""A device's training and holdout sets, with the same split and statistics in both of its processes."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from edge_agent.config.sensors import SensorsSection
from edge_agent.storage.images import ImagePreparation, Preparation
from edge_agent.storage.window_store import WindowStore
from federation.plan import DataSpec, Plan
from gaitway.tasks import TargetKind, task_of
from har_pipeline import (
    ChannelStatistics,
    ClientWindows,
    PipelineSettings,
    dataset_settings,
    split_client,
)
from har_pipeline.splits import Split

MIN_MEASURED = 20
"""Half a minute of any motion: of fewer windows, mean and deviation say nothing of a device's sensors."""
MEASURED = 1024
IMAGE_SPACING_S = 1e3
"""Images share no time, so that a split in time takes none away."""


class LocalData(NamedTuple):
    """Raw examples in their own units, cut in two, and the statistics of their channels to normalize them with.

    Windows are (n, window, 6) as har_pipeline has them, images (n, channels, height, width) from 0 to 1; masks, which
    are targets, (n, height, width).
    """

    train: ClientWindows
    holdout: ClientWindows
    mean: tuple[float, ...]
    std: tuple[float, ...]
    statistics: ChannelStatistics | None
    channel_axis: int = -1
    is_labelled: bool = True

    def normalized(self, windows: ClientWindows) -> np.ndarray:
        """Return x (n, ...) as the network gets it."""
        if self.statistics is None:
            return windows.x
        x = self.statistics.normalize(np.moveaxis(windows.x, self.channel_axis, -1))
        return np.ascontiguousarray(np.moveaxis(x, -1, self.channel_axis))

    def evenly_held_out(self, count: int) -> LocalData:
        """Return the same with at most `count` windows held out."""
        return self._replace(holdout=evenly(self.holdout, count))


def evenly(windows: ClientWindows, count: int) -> ClientWindows:
    """Thin windows out to at most `count`, over all of the time that they cover, so that no class goes missing."""
    if len(windows) <= count:
        return windows
    return windows.select(np.linspace(0, len(windows) - 1, count).astype(np.int64))


def pipeline_settings(sensors: SensorsSection, data: DataSpec) -> PipelineSettings:
    """Lay the plan's pipeline settings over the defaults, or over a replayed data set's preset.

    Raises har_pipeline's SettingsError.
    """
    preset = dataset_settings(sensors.dataset) if sensors.source == "recording" else PipelineSettings()
    return PipelineSettings.from_json({**preset.to_json(), **data.pipeline})


def preparation(sensors: SensorsSection, plan: Plan) -> Preparation:
    """Say how a device's raw data become the examples of a plan; raises har_pipeline's SettingsError."""
    if plan.data.input is not None:
        masks = task_of(plan.task).target is TargetKind.MASK
        return ImagePreparation(plan.data.input.shape, masks, plan.data.input.fit)
    return pipeline_settings(sensors, plan.data)


def noun(settings: Preparation) -> str:
    """Call the examples by their name, for people."""
    return "images" if isinstance(settings, ImagePreparation) else "windows"


def device_split(windows: ClientWindows, data: DataSpec, settings: Preparation) -> Split:
    """Divide a device's examples into training and holdout as the simulation divides a client's.

    Of each class of images the last ones are held out.
    """
    if isinstance(settings, ImagePreparation):
        windows = replace(windows, start_s=IMAGE_SPACING_S * np.arange(len(windows)))
        settings = PipelineSettings()
    return split_client(windows, data.split, test_share=data.test_share, settings=settings)


def stored_examples(
    store: WindowStore, client: str, settings: Preparation, plan: Plan, *, samples: bool = True
) -> ClientWindows:
    """Read which of a device's examples a plan's task learns from: labelled ones, or all where it needs no labels.

    Those without one of the plan's labels have the class after the last one then. Their `targets` are what the task
    learns: classes, masks, or the numbers of those that have one. Without `samples` x is (n, 0, 6), and there are no
    masks: enough to split and to count.
    """
    task = task_of(plan.task)
    read = store.read if samples else store.outline
    windows = read(client, settings, plan.labels, unlabelled=not task.has_classes)
    if task.target is TargetKind.NUMBER:
        return windows.learning_numbers()
    if samples and isinstance(settings, ImagePreparation) and settings.masks:
        return replace(windows, target=store.masks(settings, plan.labels))
    return windows


def read_local_data(store: WindowStore, client: str, settings: Preparation, plan: Plan) -> LocalData:
    """Read a device's examples and split them."""
    return local_data(stored_examples(store, client, settings, plan), plan.data, settings)


class SplitWindows(NamedTuple):
    """A device's labelled examples: all of them, and those that are its holdout."""

    labelled: ClientWindows
    holdout: ClientWindows


def read_split(store: WindowStore, client: str, settings: Preparation, plan: Plan) -> SplitWindows:
    """Read a device's examples and their split; there may be none to train on."""
    windows = stored_examples(store, client, settings, plan)
    return SplitWindows(windows, windows.select(device_split(windows, plan.data, settings).test))


def read_unlabelled_data(store: WindowStore, client: str, settings: Preparation, plan: Plan) -> LocalData:
    """Read what a device without labelled examples has, as examples of some class: to be measured, not learnt from.

    A model that comes from elsewhere is exported with the statistics of these, and its parity is checked by them.
    """
    windows = store.read(client, settings, plan.labels, unlabelled=True)
    some = windows.select(np.linspace(0, len(windows) - 1, min(len(windows), MEASURED)).astype(np.int64))
    nothing = np.zeros(0, np.int64)
    every = Split(np.arange(len(some)), nothing, leaks=False)
    nought = np.zeros(len(some), np.int64)
    target = nought.astype(np.float64) if task_of(plan.task).target is TargetKind.NUMBER else None
    return divided(replace(some, y=nought, target=target), every, plan.data, settings)._replace(is_labelled=False)


def local_data(windows: ClientWindows, data: DataSpec, settings: Preparation) -> LocalData:
    """Split a device's examples and measure its training part, as the simulation does for a client."""
    return divided(windows, device_split(windows, data, settings), data, settings)


def divided(windows: ClientWindows, split: Split, data: DataSpec, settings: Preparation) -> LocalData:
    """Divide examples by a split, and measure the training part."""
    train, holdout = windows.select(split.train), windows.select(split.test)
    axis = 1 if isinstance(settings, ImagePreparation) else -1
    if data.normalization == "none":
        channels = windows.x.shape[axis]
        return LocalData(train, holdout, (0.0,) * channels, (1.0,) * channels, None, axis)
    statistics = _statistics(np.moveaxis(train.x, axis, -1), data)
    mean, std = (tuple(map(float, values)) for values in (statistics.mean, statistics.std))
    return LocalData(train, holdout, mean, std, statistics, axis)


def _statistics(x: np.ndarray, data: DataSpec) -> ChannelStatistics:
    """Take the federation's statistics, or those of the device's own x (n, ..., C) where the plan holds none."""
    if data.normalization == "federated" and data.statistics is not None:
        return ChannelStatistics.from_json(data.statistics.model_dump())
    return ChannelStatistics.of(x)


def window_keys(windows: ClientWindows) -> frozenset[int]:
    """Return a number for each window, of its session, begin and class: who has the same ones has the same windows.

    Relabelling a window changes its number.
    """
    rows = zip(windows.session.tolist(), windows.start_s.tolist(), windows.y.tolist(), strict=True)
    packed = (struct.pack("<qdd", session, begin, y) for session, begin, y in rows)
    return frozenset(int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "big") >> 1 for row in packed)


def training_windows(windows: ClientWindows, data: DataSpec, settings: Preparation) -> ClientWindows:
    """Return the examples that are for training; they need no samples for that."""
    return windows.select(device_split(windows, data, settings).train)
