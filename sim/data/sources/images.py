"""Images as a source: read as published, then dealt to clients by a partition, normalized, as tensors.

Memory: one tensor of the bytes of the images that were dealt, C·H·W each, laid out client by client; every client's
`Examples` are views of it, and a batch is normalized when it is looked at (`federation.training.forward`). Whatever the
number of clients, MNIST's 70,000 digits take 55 MB and CIFAR's 60,000 184 MB, and what was read as much again while
they are put in order. Masks are bytes, too. `union_test` of the result copies the test part once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from federation.records import Examples
from federation.tasks import task_from_json
from federation.tasks.segmentation import Segmentation
from federation.tasks.task import Task
from federation.training.forward import Moments
from gaitway.input_spec import InputSpec
from gaitway.tasks import TargetKind
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData, PartitionClasses
from sim.data.images import ImageReader, LabelledImages
from sim.data.images.image_files import VOID
from sim.data.images.reader import PartitionTargets
from sim.data.partitions import PARTITIONS, Natural, Share, partition_from_json, with_validation
from sim.data.sources.source import Progress, check_target
from sim.errors import SettingsError
from sim.experiment.settings import Experiment


class Images:
    """One set of images."""

    def __init__(self, reader: ImageReader) -> None:
        self._reader = reader

    @property
    def targets(self) -> tuple[TargetKind, ...]:
        """As the reader says."""
        return (TargetKind(self._reader.target),)

    def number(self, options: Mapping[str, Any]) -> str:
        """Return nothing: images have no numbers."""
        return ""

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the classes."""
        return self._reader.labels(self._reader.options(options))

    def input_spec(self, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> InputSpec:
        """Describe an image."""
        shape = self._reader.shape(self._reader.options(options))
        fit = self._reader.fit(self._reader.options(options))
        return InputSpec.images(shape, (0.0,) * shape[0], (1.0,) * shape[0], fit)

    def default_partition(self, options: Mapping[str, Any]) -> str | None:
        """Return `natural` where the set says whose an image is."""
        return Natural.kind if self._reader.has_clients(self._reader.options(options)) else None

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Read all images and deal them.

        Raises:
            SettingsError: without a partition, or for a task that cannot learn such targets.
        """
        if settings.partition is None:
            raise SettingsError(f"{self._reader.name} has no natural clients; give --partition {'|'.join(PARTITIONS)}")
        task = task_from_json(settings.task)
        self._check_task(task)
        self._check_plan(settings)
        images = learnt_by(task, self._reader.read(root, settings.dataset_options, progress))
        shares = partition_images(images, task, settings)
        data = image_federation(images, shares, self._reader.moments, settings.device)
        return replace(data, fit=self._reader.fit(self._reader.options(settings.dataset_options)))

    def _check_plan(self, settings: Experiment) -> None:
        """Refuse a plan for images of another shape, or that are fitted to it in another way."""
        planned, options = settings.data.input, self._reader.options(settings.dataset_options)
        shape, fit = self._reader.shape(options), self._reader.fit(options)
        if planned is not None and (planned.shape, planned.fit) != (shape, fit):
            raise SettingsError(
                f"the plan is for images of {planned.shape} (channels, height, width), fit {planned.fit}; "
                f"{self._reader.name} gives {shape}, fit {fit}; set the data set's options with --set data.KEY, or "
                f"the plan's with data.input"
            )

    def _check_task(self, task: Task) -> None:
        """Refuse a task that learns other targets than these, before any file is read."""
        check_target(self._reader.name, self, task, {})
        if task.outside not in (None, VOID):
            raise SettingsError(
                f"task.ignore_index is {task.outside}; masks are read with {VOID} where a pixel has no class"
            )


def learnt_by(task: Task, images: LabelledImages) -> LabelledImages:
    """Note what partitions deal by; a task without classes has that in place of masks, which it does not look at."""
    if not images.has_masks:
        return images
    by = images.targets_for_partition(task if task.has_classes else Segmentation())
    return replace(images, partition_targets=by, y=images.y if task.has_classes else by.y)


def partition_images(images: LabelledImages, task: Task, settings: Experiment) -> dict[str, Share]:
    """Give each client its images by the experiment's partition, and some of those to train on for validation.

    For validation is what was published for it, where the published test part is taken too; else a tail of each class.
    """
    partition, pool = partition_from_json(settings.partition or {}), images.pool(task)
    dealt = partition.divide(pool, settings.training.seed)
    published = images.validation if partition.test == "published" else None
    if published is None or not settings.validation_share:
        return with_validation(dealt, pool.y, settings.validation_share)
    return {name: Share(rows[~published[rows]], test, rows[published[rows]]) for name, (rows, test, _) in dealt.items()}


def image_federation(
    images: LabelledImages, shares: Mapping[str, Share], moments: Moments, device: str = "cpu"
) -> FederatedData:
    """Give each client its images, x (n, C, H, W) bytes that `moments` normalize, and their targets.

    These are classes y (n,) int64, or masks (n, H, W) uint8. `shares` is what a partition's
    `divide(images.pool(task), seed)` returns.
    """
    dealt = [part for share in shares.values() for part in share]
    rows, sizes = np.concatenate(dealt), [len(part) for part in dealt]
    x = torch.from_numpy(images.x[rows]).to(device)
    y = torch.from_numpy(images.y[rows]).to(device)
    parts = map(Examples, torch.split_with_sizes(x, sizes), torch.split_with_sizes(y, sizes))
    clients = {name: ClientData(train=next(parts), test=next(parts), validation=next(parts)) for name in shares}
    statistics = dict.fromkeys(shares, _as_statistics(moments))
    data = FederatedData(images.labels, clients, statistics, split_leaks=False, moments=moments)
    return (
        data if images.partition_targets is None else _with_dealt_classes(data, images.partition_targets, rows, sizes)
    )


def _with_dealt_classes(data: FederatedData, by: PartitionTargets, rows: np.ndarray, sizes: list[int]) -> FederatedData:
    """Note by which class each example of `rows` was dealt, client by client and part by part."""
    classes = iter(torch.split_with_sizes(torch.from_numpy(by.y[rows]), sizes))
    clients = {
        name: replace(client, partition_classes=PartitionClasses(next(classes), next(classes), next(classes)))
        for name, client in data.clients.items()
    }
    return replace(data, clients=clients, partition_class_names=None if by.labels == data.labels else by.labels)


def _as_statistics(moments: Moments) -> ChannelStatistics:
    """Write constants as statistics of one sample, whose mean and standard deviation they are."""
    mean, std = np.array(moments.mean), np.array(moments.std)
    return ChannelStatistics(1, mean, std**2 + mean**2)
