"""Write models/har_feature_scale.py: the constants of `har_features`.

python benchmarks/har_feature_scale.py ../shared/data > models/har_feature_scale.py

Its 183 numbers are standardized by public recordings. Its MiniRocket features have biases from generated windows, so
that no recording is in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import torch

import har_pipeline
from export.gates import generated_windows
from models.har_features import FEATURES, HarFeatures
from models.minirocket import DILATIONS, LENGTH, MAX_FEATURES, WINDOW, channels_of, kernel, position, quantile

SETS = ("motionsense", "ucihar", "spsw")
BATCH = 1024
GENERATED, SEED = 900, 1


def moments(name: str, root: str) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and mean square (183,) of a set's raw features, every window alike."""
    module, found = HarFeatures(2, cosines=0), []
    with torch.no_grad():
        for windows in har_pipeline.prepare(name, root).clients.values():
            found += [module.raw_features(part) for part in torch.from_numpy(windows.x).split(BATCH)]
    features = torch.cat(found).double().numpy()
    return features.mean(0), (features**2).mean(0)


def biases() -> list[int]:
    """Return for each MiniRocket feature a quantile of its convolution's output, rounded down to whole steps."""
    channels = channels_of(torch.from_numpy(generated_windows(GENERATED, seed=SEED))).numpy().astype(np.int64)
    reach = LENGTH // 2 * max(DILATIONS)
    padded = np.pad(channels, ((0, 0), (0, 0), (reach, reach)))
    found = []
    for number in range(MAX_FEATURES):
        channel, dilation, _ = position(number)
        starts = [reach + (tap - LENGTH // 2) * DILATIONS[dilation] for tap in range(LENGTH)]
        weights = [2 if tap in kernel(number) else -1 for tap in range(LENGTH)]
        parts = [padded[:, channel, start : start + WINDOW] for start in starts]
        convolved = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        found.append(int(np.floor(np.quantile(convolved, quantile(number)))))
    return found


def write(title: str, values: Iterable[float], width: int) -> None:
    """Print a tuple, `width` values in a line."""
    listed = list(values)
    print(f"\n{title} = (")
    for low in range(0, len(listed), width):
        print("    " + " ".join(f"{value:.5g}," if width == 8 else f"{value}," for value in listed[low : low + width]))
    print(")  # fmt: skip")


def main(root: str) -> None:
    """Print the module; each set counts alike, however many windows it has."""
    means, squares = zip(*(moments(name, root) for name in SETS), strict=True)
    mean = np.mean(means, axis=0)
    std = np.sqrt(np.mean(squares, axis=0) - mean**2) + 1e-6
    assert mean.shape == (FEATURES,)
    print('"""Constants of `models.har_features`: mean and deviation of its 183 numbers, and biases of MiniRocket.')
    print()
    print(f"Of all windows of {', '.join(SETS)}, each set alike; biases are whole steps, a half to be added, of")
    print("generated windows. benchmarks/har_feature_scale.py writes this file.")
    print('"""')
    write("MEAN", mean, 8)
    write("STD", std, 8)
    write("BIASES", biases(), 14)


if __name__ == "__main__":
    main(sys.argv[1])
