"""New users who carry their phones differently or have worse sensors: their raw windows, changed accordingly.

Upside down is a rotation by 180° about the axis through the screen (z): the phone lies in its pocket or holder as
before, screen to the same side, head to toe. So x and y change their signs, of both sensors. It is what a pocket allows
whichever way the phone is turned to begin with, and it turns gravity round whether a set's phones stood upright
(MotionSense) or lay across (UCI HAR). At random means any rotation, one for all of a client's windows.

Worse sensors: one at 25 Hz, whose windows have no more than 12.5 Hz once they are resampled (a faster one than 50 Hz is
no change at all: the pipeline takes it down to 50 Hz); no gyroscope, for which the pipeline puts zeros; ranges of ±2 g
and ±250 °/s, the smallest that motion sensors have; white noise of 0.2 m/s² and 0.02 rad/s, some ten times that of a
cheap sensor.

The client's phone is so from the beginning: statistics of its own that it is normalized by are of such windows, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from federation.records import Examples
from federation.seeds import generator
from federation.training.window_changes import CHANNELS, rotated, rotations, without_gyroscope
from har_pipeline import ChannelStatistics
from har_pipeline.recording import STANDARD_GRAVITY
from sim.data.federated_data import ClientData, FederatedData

UPSIDE_DOWN = np.diag(np.array([-1, -1, 1], np.float32))
RANDOM_DRAWS = 3
"""Rotations at random of each client, over whose scores the mean is taken."""
RANGES = torch.tensor([2 * STANDARD_GRAVITY] * 3 + [np.deg2rad(250.0)] * 3, dtype=torch.float32)
"""Of the channels, ±: m/s², rad/s."""
NOISE = np.array([0.2] * 3 + [0.02] * 3, np.float32)
"""Standard deviation, in m/s² and rad/s."""

Change = Callable[[Tensor], Tensor]
"""What another phone does to raw windows (n, T, 6) in m/s² and rad/s; the same for all windows of a client."""


def can_be_changed(data: FederatedData) -> bool:
    """Whether the new clients' examples are windows of motion sensors, of which it is known how they were measured."""
    some = next(iter(data.new_clients.values()), None)
    known = data.new_clients.keys() <= data.new_statistics.keys()
    return some is not None and known and some.test.x.dim() == 3 and some.test.x.shape[-1] == CHANNELS


def ways_to_carry(clients: Mapping[str, ClientData], seed: int) -> dict[str, list[dict[str, Change]]]:
    """Return by name the ways in which all clients carry their phones otherwise, each a change for each client."""
    drawn = {
        name: rotations(generator(seed, "turned phones", name).random((RANDOM_DRAWS, 3), np.float32))
        for name in clients
    }
    return {
        "upside_down": [dict.fromkeys(clients, _turned_by(UPSIDE_DOWN))],
        "rotated": [{name: _turned_by(turns[k]) for name, turns in drawn.items()} for k in range(RANDOM_DRAWS)],
    }


def worse_sensors(clients: Mapping[str, ClientData], seed: int) -> dict[str, list[dict[str, Change]]]:
    """Return by name how the sensors of all clients are worse, each a change for each client."""
    return {
        "slow": [dict.fromkeys(clients, _at_25_hz)],
        "no_gyroscope": [dict.fromkeys(clients, without_gyroscope)],
        "clipped": [dict.fromkeys(clients, _clipped)],
        "noisy": [{name: partial(_noisy, seed=seed, name=name) for name in clients}],
    }


def with_phone(client: ClientData, change: Change, was: ChannelStatistics, by_own_statistics: bool) -> ClientData:
    """Change windows that were normalized by `was`, and normalize them by it, or by their own statistics, again."""
    raw = {
        part: examples._replace(x=change(raw_windows(examples, was)))
        for part, examples in (("train", client.train), ("test", client.test))
    }
    now = ChannelStatistics.of(raw["train"].x.numpy()) if by_own_statistics else was

    def normalized(part: Examples) -> Examples:
        return part._replace(x=torch.from_numpy(now.normalize(part.x.numpy())).to(client.test.x.device))

    return replace(client, train=normalized(raw["train"]), test=normalized(raw["test"]))


def raw_windows(examples: Examples, was: ChannelStatistics) -> Tensor:
    """Return windows (n, T, 6) in m/s² and rad/s."""
    x = examples.x.cpu()
    return x * torch.from_numpy(was.std).to(x.dtype) + torch.from_numpy(was.mean).to(x.dtype)


def _turned_by(rotation: npt.NDArray[np.float32]) -> Change:
    return lambda raw: rotated(raw, torch.from_numpy(rotation))


def _at_25_hz(raw: Tensor) -> Tensor:
    from scipy.signal import resample_poly  # a second that most runs do without

    if not len(raw):
        return raw
    halved = resample_poly(raw.numpy(), 1, 2, axis=1, padtype="line")
    return torch.from_numpy(resample_poly(halved, 2, 1, axis=1, padtype="line").astype(np.float32))


def _clipped(raw: Tensor) -> Tensor:
    return torch.clamp(raw, -RANGES, RANGES)


def _noisy(raw: Tensor, seed: int, name: str) -> Tensor:
    drawn = generator(seed, "noisy sensors", name, len(raw)).normal(size=tuple(raw.shape)).astype(np.float32)
    return raw + torch.from_numpy(drawn * NOISE)
