"""Phones that are carried otherwise: a client's windows turned, in the units in which they were measured.

Upside down is a rotation by 180° about the axis through the screen (z): the phone lies in its pocket or holder as
before, screen to the same side, head to toe. So x and y change their signs, of both sensors. It is what a pocket allows
whichever way the phone is turned to begin with, and it turns gravity round whether a set's phones stood upright
(MotionSense) or lay across (UCI HAR). At random means any rotation, one for all of a client's windows.

The client is turned from the beginning: statistics of its own that it is normalized by are of turned windows, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from federation.records import Examples
from federation.seeds import generator
from federation.training.rotation import CHANNELS, rotated, rotations
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData

UPSIDE_DOWN = np.diag(np.array([-1, -1, 1], np.float32))
RANDOM_DRAWS = 3
"""Rotations at random of each client, over whose scores the mean is taken."""
Rotation = npt.NDArray[np.float32]


def can_be_turned(data: FederatedData) -> bool:
    """Whether the new clients' examples are windows of motion sensors, of which it is known how they were measured."""
    some = next(iter(data.new_clients.values()), None)
    known = data.new_clients.keys() <= data.new_statistics.keys()
    return some is not None and known and some.test.x.dim() == 3 and some.test.x.shape[-1] == CHANNELS


def ways_to_turn(clients: Mapping[str, ClientData], seed: int) -> dict[str, list[dict[str, Rotation]]]:
    """Return by name the ways in which all clients are carried otherwise, each a rotation for each client."""
    drawn = {
        name: rotations(generator(seed, "turned phones", name).random((RANDOM_DRAWS, 3), np.float32))
        for name in clients
    }
    return {
        "upside_down": [dict.fromkeys(clients, UPSIDE_DOWN)],
        "rotated": [{name: each[k] for name, each in drawn.items()} for k in range(RANDOM_DRAWS)],
    }


def turned(client: ClientData, rotation: Rotation, was: ChannelStatistics, by_own_statistics: bool) -> ClientData:
    """Turn windows that were normalized by `was`, and normalize them by it, or by their own statistics, again."""
    raw = {part: _raw(getattr(client, part), rotation, was) for part in ("train", "test")}
    now = ChannelStatistics.of(raw["train"].x.numpy()) if by_own_statistics else was

    def normalized(part: Examples) -> Examples:
        return part._replace(x=torch.from_numpy(now.normalize(part.x.numpy())).to(client.test.x.device))

    return replace(client, train=normalized(raw["train"]), test=normalized(raw["test"]))


def raw_windows(examples: Examples, was: ChannelStatistics) -> torch.Tensor:
    """Return windows (n, T, 6) in m/s² and rad/s."""
    x = examples.x.cpu()
    return x * torch.from_numpy(was.std).to(x.dtype) + torch.from_numpy(was.mean).to(x.dtype)


def _raw(examples: Examples, rotation: Rotation, was: ChannelStatistics) -> Examples:
    return examples._replace(x=rotated(raw_windows(examples, was), torch.from_numpy(rotation)))
