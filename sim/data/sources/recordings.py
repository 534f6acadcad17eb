"""Recordings of motion sensors as a source: windows of natural clients, which can be grouped or dealt again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federation.plan import DataSpec
from federation.records import Examples
from gaitway.input_spec import SENSOR_CHANNELS, InputSpec
from gaitway.tasks import TargetKind, task_of
from har_pipeline import (
    CHANNELS,
    ChannelStatistics,
    ClientWindows,
    PipelineSettings,
    WindowedDataset,
    cut_validation,
    dataset_labels,
    dataset_number,
    dataset_settings,
    normalize_clients,
    prepare,
    split_client,
)
from har_pipeline.recording import Key
from har_pipeline.signals.checks import grouped as grouped_findings
from har_pipeline.splits import Split
from sim.data.federated_data import ClientData, FederatedData, PartitionClasses
from sim.data.partitions import partition_from_json
from sim.data.repartition import grouped, repartition
from sim.data.selection import leave_out
from sim.data.sources.source import Progress
from sim.errors import SettingsError
from sim.experiment.settings import Experiment

UNLABELLED = "no activity"


class Recordings:
    """One data set of recordings, or several as one."""

    targets = (TargetKind.CLASS, TargetKind.NUMBER)

    def __init__(self, name: str) -> None:
        self._name = name

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the activities."""
        return dataset_labels(self._name, dict(options) or None)

    def number(self, options: Mapping[str, Any]) -> str:
        """Name the number that recordings have, with its unit."""
        return dataset_number(self._name, dict(options) or None)

    def input_spec(self, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> InputSpec:
        """Describe a window of the data set's own pipeline with these changes."""
        cut = PipelineSettings.from_json({**dataset_settings(self._name).to_json(), **pipeline})
        zeros, ones = (0.0,) * len(SENSOR_CHANNELS), (1.0,) * len(SENSOR_CHANNELS)
        return cut.input_spec(zeros, ones)

    def default_partition(self, options: Mapping[str, Any]) -> str | None:
        """Return nothing: recordings come by person."""
        return None

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Prepare the windows (or take them from the cache), split and normalize them, group or deal them again."""
        pipeline = PipelineSettings.from_json({**dataset_settings(self._name).to_json(), **settings.data.pipeline})
        options, learnt = settings.dataset_options or None, task_of(settings.task)
        if learnt.target is TargetKind.NUMBER:
            pipeline = replace(pipeline, keep_unlabelled=True)
        dataset = prepare(self._name, root, pipeline, cache_dir=cache, progress=progress, options=options)
        odd = tuple(": ".join(row) for row in grouped_findings(dataset.findings, len(dataset.clients)))
        data = federated_data(dataset, settings)
        advice = learnt.advice(np.concatenate([client.train.y.cpu().numpy() for client in data.clients.values()]))
        data = replace(data, findings=(*odd, *([advice] if advice else [])))
        if settings.clients_by != "client":
            data = grouped(data, _groups(dataset, settings.clients_by, data))
        if settings.partition is not None:
            partition = partition_from_json(settings.partition)
            data = repartition(data, partition, settings.training.seed, settings.validation_share)
        return data


def federated_data(dataset: WindowedDataset, settings: Experiment) -> FederatedData:
    """Split and normalize every client's windows; clients without training windows are left out.

    Validation windows are cut off in time, unless a partition that mixes training and test cuts its own.
    Those whom `settings.holdout` leaves out become new clients, and add nothing to the statistics.

    Raises:
        SettingsError: if no client has a training window.
    """
    seed, learnt = settings.training.seed, task_of(settings.task)
    classes, numbers = dataset, learnt.target is TargetKind.NUMBER
    if numbers:  # devices that learn a number know no activities: stretches of recording are divided, not classes
        classes = dataset.numbered()
        dataset = dataset.learning_numbers()
    mixed = settings.partition is not None and partition_from_json(settings.partition).test == "split"
    share = 0.0 if mixed else settings.validation_share
    splits, validation = {}, {}
    for name, windows in dataset.clients.items():
        split = split_client(
            windows, settings.data.split, test_share=settings.data.test_share, seed=seed, settings=dataset.settings
        )
        train, validation[name] = cut_validation(windows, split.train, share, dataset.settings)
        splits[name] = split._replace(train=train)
    usable = {name: windows for name, windows in dataset.clients.items() if len(splits[name].train)}
    staying = [name for name in leave_out(dataset, settings.holdout, seed) if name in usable]
    if not staying:
        raise SettingsError(f"no client of {dataset.name} has a training window; are the recordings long enough?")
    normalized, statistics = _normalized(usable, splits, settings.data, staying)
    clients = {}
    unlabelled = any((windows.y < 0).any() for windows in classes.clients.values())
    for name, windows in normalized.items():
        parts = (*splits[name][:2], validation[name])
        dealt = PartitionClasses(*(_activities(classes.clients[name].y[rows], dataset) for rows in parts))
        # what a task without classes learns has none either: its y only says how windows are dealt
        targets = windows.targets if learnt.has_classes or numbers else _activities(windows.y, dataset).numpy()
        clients[name] = ClientData(
            *(_examples(windows.x, targets, rows, settings.device) for rows in parts),
            partition_classes=dealt if numbers else None,
        )
    return FederatedData(
        learnt.labels(dataset.labels, dataset.number),
        {name: clients[name] for name in staying},
        {name: statistics[name] for name in staying},
        any(splits[name].leaks for name in usable),
        {name: clients[name] for name in clients if name not in staying},
        {name: statistics[name] for name in clients if name not in staying},
        partition_class_names=(*dataset.labels, *([UNLABELLED] if unlabelled else []))
        if numbers or (unlabelled and not learnt.has_classes)
        else None,
    )


def _normalized(
    clients: Mapping[str, ClientWindows], splits: Mapping[str, Split], data: DataSpec, staying: Sequence[str]
) -> tuple[Mapping[str, ClientWindows], Mapping[str, ChannelStatistics]]:
    """Normalize windows as a device does that has the plan, whose federated statistics may be missing here."""
    if data.normalization == "none":
        nothing = ChannelStatistics(0, np.zeros(len(CHANNELS)), np.zeros(len(CHANNELS)))  # mean 0, deviation 1
        return clients, dict.fromkeys(clients, nothing)
    if data.normalization == "federated" and data.statistics is not None:
        given = ChannelStatistics.from_json(data.statistics.model_dump())
        normalized = {name: replace(windows, x=given.normalize(windows.x)) for name, windows in clients.items()}
        return normalized, dict.fromkeys(clients, given)
    return normalize_clients(clients, splits, data.normalization, training_clients=staying)


def _groups(dataset: WindowedDataset, key: Key, data: FederatedData) -> dict[str, list[str]]:
    """Name the clients that are left of each data set, user, device or place."""
    groups = dataset.clients_by(key)
    if "" in groups:
        raise SettingsError(f"{dataset.name} does not say the {key} of {groups[''][0]}; group its clients otherwise")
    left = {name: [client for client in members if client in data.clients] for name, members in groups.items()}
    return {name: members for name, members in left.items() if members}


def _activities(classes: np.ndarray, dataset: WindowedDataset) -> Tensor:
    """Return the class of windows (n,), that of UNLABELLED for those without one."""
    return torch.from_numpy(np.where(classes >= 0, classes, len(dataset.labels)))


def _examples(x: np.ndarray, targets: np.ndarray, rows: np.ndarray, device: str) -> Examples:
    return Examples(torch.from_numpy(x[rows]).to(device), torch.from_numpy(targets[rows]).to(device))
