"""Write models/har_feature_scale.py: by what `har_features` standardizes its features, from public recordings.

python benchmarks/har_feature_scale.py ../shared/data > models/har_feature_scale.py
"""

from __future__ import annotations

import sys

import numpy as np
import torch

import har_pipeline
from models.har_features import FEATURES, HarFeatures

SETS = ("motionsense", "ucihar", "spsw")
BATCH = 1024


def moments(name: str, root: str) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and mean square (183,) of a set's raw features, every window alike."""
    module, found = HarFeatures(2, cosines=0), []
    with torch.no_grad():
        for windows in har_pipeline.prepare(name, root).clients.values():
            found += [module.raw_features(part) for part in torch.from_numpy(windows.x).split(BATCH)]
    features = torch.cat(found).double().numpy()
    return features.mean(0), (features**2).mean(0)


def main(root: str) -> None:
    """Print the module; each set counts alike, however many windows it has."""
    means, squares = zip(*(moments(name, root) for name in SETS), strict=True)
    mean = np.mean(means, axis=0)
    std = np.sqrt(np.mean(squares, axis=0) - mean**2) + 1e-6
    assert mean.shape == (FEATURES,)
    print('"""Mean and standard deviation of the 183 raw features of `models.har_features`.')
    print()
    print(f"Of all windows of {', '.join(SETS)}, each set alike; benchmarks/har_feature_scale.py writes this file.")
    print('"""')
    for title, values in (("MEAN", mean), ("STD", std)):
        print(f"\n{title} = (")
        for low in range(0, FEATURES, 8):
            print("    " + " ".join(f"{each:.5g}," for each in values[low : low + 8]))
        print(")  # fmt: skip")


if __name__ == "__main__":
    main(sys.argv[1])
