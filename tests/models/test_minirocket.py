"""MiniRocket against numpy, written from the paper with whole numbers: equal, since nothing in it may round."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import isqrt, sqrt

import numpy as np
import pytest
import torch

from export.gates import generated_windows
from models.har_feature_scale import BIASES
from models.minirocket import MAX_FEATURES, MiniRocket, channels_of, kernel, position, quantile

SAMPLES = 128


def rounded_root(square: int, scale: int) -> int:
    """√square / scale, rounded to the nearest whole number, by whole numbers alone."""
    low = isqrt(4 * square) // (2 * scale)
    return max(range(low - 1, low + 3), key=lambda whole: (whole >= 0, -abs(square - (scale * whole) ** 2)))


def channels(window: np.ndarray) -> np.ndarray:
    """The twelve channels (12, 128) of one window (128, 6), in whole steps of 2⁻¹⁰."""
    steps = [[round(Fraction(float(value)) * 1024) for value in row] for row in np.clip(window, -128, 128)]
    gravity = [sum(row[axis] for row in steps) for axis in range(3)]
    length = max(1.0, sqrt(sum(part**2 for part in gravity)))
    found = []
    for sensor in (0, 3):
        signals = [row[sensor : sensor + 3] for row in steps]
        along = [round(sum(a * g for a, g in zip(row, gravity, strict=True)) / length * 256) for row in signals]
        squares = [sum(part**2 for part in row) for row in signals]
        across = [max(0, square * 65536 - part**2) for square, part in zip(squares, along, strict=True)]
        found += [
            [rounded_root(square, 1) for square in squares], [round(part / 256) for part in along],
            [rounded_root(square, 256) for square in across],
        ]  # fmt: skip
    return np.array([*found, *zip(*steps, strict=True)], dtype=np.int64)


def share_above(signal: np.ndarray, places: tuple[int, int, int], dilation: int, bias: int) -> float:
    """PPV of the convolution of a signal (128,), padded with zeros, with the kernel that has 2 at these places."""
    weights = np.full(9, -1)
    weights[list(places)] = 2
    padded = np.concatenate([np.zeros(4 * dilation, int), signal, np.zeros(4 * dilation, int)])
    convolved = [int(weights @ padded[start : start + 9 * dilation : dilation]) for start in range(SAMPLES)]
    return float(np.mean([value > bias + 0.5 for value in convolved]))


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    """Generated ones, one that lies still on a table, one without a gyroscope, and one beyond every range."""
    x = generated_windows(8, seed=5)
    x[0] = [0, 0, 9.80665, 0, 0, 0]
    x[1, :, 3:] = 0
    x[2] *= 1e6
    x[3] = 0
    return x


def test_channels_are_those_of_whole_numbers(windows: np.ndarray) -> None:
    found = channels_of(torch.from_numpy(windows))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), np.stack([channels(window) for window in windows]))


@pytest.mark.parametrize("features", [60, 600])
def test_features_are_those_of_the_paper(windows: np.ndarray, features: int) -> None:
    found = MiniRocket(features)(torch.from_numpy(windows)).numpy()
    half = features // 2
    numbers = [*range(half), *range(MAX_FEATURES // 2, MAX_FEATURES // 2 + half)]
    for window, row in zip(windows[:6], found, strict=False):
        signals = channels(window)
        shares = []
        for number in numbers:
            channel, dilation, _ = position(number)
            shares.append(share_above(signals[channel], kernel(number), (1, 2, 4, 8, 15)[dilation], BIASES[number]))
        np.testing.assert_array_equal(row, 8 * np.array(shares, np.float32) - 4)


def test_every_channel_and_dilation_has_other_kernels() -> None:
    groups: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for number in range(MAX_FEATURES):
        groups.setdefault(position(number)[:2], []).append(kernel(number))
    assert len(groups) == 60
    assert all(len(set(kernels)) == len(kernels) for kernels in groups.values())
    assert set().union(*groups.values()) == set(combinations(range(9), 3))
    assert all(0 < quantile(number) < 1 for number in range(MAX_FEATURES))


def test_half_of_the_features_are_the_same_however_a_phone_is_turned_by_right_angles(windows: np.ndarray) -> None:
    turned = np.concatenate([-windows[..., [1]], windows[..., [0, 2]], -windows[..., [4]], windows[..., [3, 5]]], 2)
    straight, otherwise = (MiniRocket(600)(torch.from_numpy(x)) for x in (windows, turned))
    assert torch.equal(straight[:, :300], otherwise[:, :300])
    assert not torch.equal(straight[:, 300:], otherwise[:, 300:])


def test_a_window_has_the_same_features_alone_and_among_others(windows: np.ndarray) -> None:
    module, x = MiniRocket(600), torch.from_numpy(windows)
    assert torch.equal(module(x), torch.cat([module(window[None]) for window in x]))
    assert torch.equal(module(x), torch.func.vmap(lambda window: module(window[None])[0])(x))
