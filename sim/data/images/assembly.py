"""From labelled images and a partition to each client's normalized examples, as tensors.

Memory: one float32 tensor of the images that were dealt, 4·C·H·W bytes each, laid out client by client; every client's
`Examples` are views of it. Whatever the number of clients, MNIST's 70,000 digits take 220 MB, beside the 55 MB of
uint8 that were read and as much again while they are put in order; CIFAR's 60,000 take 737 MB. `union_test` of the
result copies the test part once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from federation.records import Examples
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData
from sim.data.images.labelled import LabelledImages
from sim.data.images.moments import Moments, normalized
from sim.data.partitions import Share


def image_federation(
    images: LabelledImages, shares: Mapping[str, Share], moments: Moments, device: str = "cpu"
) -> FederatedData:
    """Give each client its images, x (n, C, H, W) float32 normalized by `moments`, y (n,) int64.

    `shares` is what a partition's `divide(images.pool, seed)` returns.
    """
    dealt = [part for share in shares.values() for part in share]
    rows, sizes = np.concatenate(dealt), [len(part) for part in dealt]
    x = torch.from_numpy(normalized(images.x[rows], moments)).to(device)
    y = torch.from_numpy(images.y[rows]).to(device)
    parts = map(Examples, torch.split_with_sizes(x, sizes), torch.split_with_sizes(y, sizes))
    clients = {name: ClientData(train=next(parts), test=next(parts), validation=next(parts)) for name in shares}
    statistics = as_statistics(moments)
    return FederatedData(images.labels, clients, dict.fromkeys(shares, statistics), split_leaks=False)


def as_statistics(moments: Moments) -> ChannelStatistics:
    """Write constants as statistics of one sample, whose mean and standard deviation they are."""
    mean, std = np.array(moments.mean), np.array(moments.std)
    return ChannelStatistics(1, mean, std**2 + mean**2)
