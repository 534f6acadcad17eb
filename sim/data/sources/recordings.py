"""Recordings of motion sensors as a source: windows of natural clients, which can be grouped or dealt again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from federation.records import Examples
from har_pipeline import (
    CHANNELS,
    ClientWindows,
    PipelineSettings,
    WindowedDataset,
    cut_validation,
    dataset_labels,
    dataset_settings,
    normalize_clients,
    prepare,
    split_client,
)
from har_pipeline.origin import Key
from sim.data.federated_data import ClientData, FederatedData
from sim.data.holdout import leave_out
from sim.data.partitions import partition_from_json
from sim.data.repartition import grouped, repartition
from sim.data.sources.source import Progress
from sim.errors import SettingsError
from sim.experiment import RunSettings


class Recordings:
    """One data set of recordings, or several as one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the activities."""
        return dataset_labels(self._name, dict(options) or None)

    def shape(self, options: Mapping[str, Any]) -> tuple[int, ...]:
        """Return a window's samples and channels."""
        return dataset_settings(self._name).window, len(CHANNELS)

    def load(
        self, settings: RunSettings, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Prepare the windows (or take them from the cache), split and normalize them, group or deal them again."""
        pipeline = PipelineSettings.from_json({**dataset_settings(self._name).to_json(), **settings.pipeline})
        options = settings.data_options or None
        dataset = prepare(self._name, root, pipeline, cache_dir=cache, progress=progress, options=options)
        data = federated_data(dataset, settings)
        if settings.clients_by != "client":
            data = grouped(data, _groups(dataset, settings.clients_by, data))
        if settings.partition is not None:
            partition = partition_from_json(settings.partition)
            data = repartition(data, partition, settings.task.seed, settings.validation_share)
        return data


def federated_data(dataset: WindowedDataset, settings: RunSettings) -> FederatedData:
    """Split and normalize every client's windows; clients without training windows are left out.

    Validation windows are cut off in time, unless a partition that mixes training and test cuts its own.
    Those whom `settings.holdout` leaves out become new clients, and add nothing to the statistics.

    Raises:
        SettingsError: if no client has a training window.
    """
    seed = settings.task.seed
    mixed = settings.partition is not None and partition_from_json(settings.partition).test == "split"
    share = 0.0 if mixed else settings.validation_share
    splits, validation = {}, {}
    for name, windows in dataset.clients.items():
        split = split_client(windows, settings.split, seed=seed, settings=dataset.settings)
        train, validation[name] = cut_validation(windows, split.train, share, dataset.settings)
        splits[name] = split._replace(train=train)
    usable = {name: windows for name, windows in dataset.clients.items() if len(splits[name].train)}
    staying = [name for name in leave_out(dataset, settings.holdout, seed) if name in usable]
    if not staying:
        raise SettingsError(f"no client of {dataset.name} has a training window; are the recordings long enough?")
    normalized, statistics = normalize_clients(usable, splits, settings.normalization, training_clients=staying)
    clients = {
        name: ClientData(*(_examples(windows, rows, settings.device) for rows in (*splits[name][:2], validation[name])))
        for name, windows in normalized.items()
    }
    return FederatedData(
        dataset.labels,
        {name: clients[name] for name in staying},
        {name: statistics[name] for name in staying},
        any(splits[name].leaks for name in usable),
        {name: clients[name] for name in clients if name not in staying},
    )


def _groups(dataset: WindowedDataset, key: Key, data: FederatedData) -> dict[str, list[str]]:
    """Name the clients that are left of each data set, user, device or place."""
    groups = dataset.clients_by(key)
    if "" in groups:
        raise SettingsError(f"{dataset.name} does not say the {key} of {groups[''][0]}; group its clients otherwise")
    left = {name: [client for client in members if client in data.clients] for name, members in groups.items()}
    return {name: members for name, members in left.items() if members}


def _examples(windows: ClientWindows, rows: np.ndarray, device: str) -> Examples:
    return Examples(torch.from_numpy(windows.x[rows]).to(device), torch.from_numpy(windows.y[rows]).to(device))
