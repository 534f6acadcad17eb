"""Which federations are watched for their scores, and the bands that these must lie in.

`python -m tests.learning.bands --data ../shared/data [--only NAME …] [--seeds 5]` measures again and prints the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from federation.methods import METHODS
from sim.data import FederatedData
from sim.scaling import scaled
from sim.settings import RunSettings
from tests.learning.federations import SMALL_ALP, SMALL_HART, loaded, scores, settings_of

LEAST_WIDTH = 2.0
"""Points that a band is wider than what was measured, on each side; else three standard deviations over seeds."""


class Band(NamedTuple):
    """Macro-F1 in percent."""

    low: float
    high: float


@dataclass(frozen=True)
class Federation:
    """A short run: options of `sim run`, its first clients, and the share of their examples."""

    options: Mapping[str, Any]
    clients: int | None = 8
    scale: float = 1.0

    @property
    def method(self) -> str:
        """Name of its method."""
        return str(self.options["method"])

    @property
    def is_generated(self) -> bool:
        """Whether its recordings are generated, so that no files are needed."""
        return bool(self.options["data"] == "synthetic")

    def scores(self, seed: int, root: Path | None) -> dict[str, float]:
        """Run it."""
        settings = self._settings(seed)
        return scores(settings, self._examples(settings, root))

    def _settings(self, seed: int) -> RunSettings:
        return settings_of(**self.options, seed=seed)

    def _examples(self, settings: RunSettings, root: Path | None) -> FederatedData:
        return scaled(loaded(settings, None if self.is_generated else root, self.clients), self.scale, 0)


def _with_cnn(method: str, **data: Any) -> Federation:
    model = "cnn_alp" if METHODS[method].sends_prototypes else "cnn"
    return Federation({"method": method, "model": model, "rounds": 4, "batch": 32, **data})


_GENERATED = {"data": "synthetic", "set": ("data.subjects=3", "data.minutes=6", "data.phones=2")}

FEDERATIONS: dict[str, Federation] = {
    "MotionSense": Federation({"data": "motionsense", "method": "fedavg", "model": "cnn", "rounds": 4}, clients=None),
    "HART": Federation(
        {"data": "motionsense", "method": "fedavg", "model": "hart", "rounds": 6, "batch": 32, "set": SMALL_HART}
    ),
    "HART with ALP": Federation(
        {"data": "motionsense", "method": "fedali", "model": "hart_alp", "rounds": 6, "batch": 32, "set": SMALL_ALP}
    ),
    "MNIST, SGD": Federation(
        {
            **{"data": "mnist", "partition": "natural", "method": "fedavg", "model": "mnist_cnn", "rounds": 6},
            **{"batch": 16, "optimizer": "sgd", "lr": 0.05, "momentum": 0.5},
            "set": ("model.map_dropout=0", "model.dropout=0"),
        },
        clients=None,
        scale=0.3,
    ),
    "Fashion-MNIST, Adam": Federation(
        {
            **{"data": "fashion_mnist", "partition": "dirichlet", "method": "fedavg", "model": "celeba_cnn"},
            **{"rounds": 4, "batch": 32, "lr": 2e-3},
            "set": ("partition.clients=5", "partition.alpha=10", "model.input_shape=[1,28,28]"),
        },
        clients=None,
        scale=0.5,
    ),
    **{f"{method} on MotionSense": _with_cnn(method, data="motionsense") for method in METHODS},
    **{f"{method} on generated recordings": _with_cnn(method, **_GENERATED) for method in METHODS},
}


def band_of(values: Sequence[float]) -> Band:
    """Widen the range of several seeds' scores."""
    width = max(LEAST_WIDTH, 3 * float(np.std(values, ddof=1)))
    return Band(round(min(values) - width, 1), round(min(100.0, max(values) + width), 1))


def _measure() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="folder of recordings and pictures")
    parser.add_argument("--only", nargs="*", default=[], help="names, or parts of them; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for name, federation in FEDERATIONS.items():
        if given.only and not any(part in name for part in given.only):
            continue
        found = [federation.scores(seed, given.data) for seed in range(given.seeds)]
        for score in found[0]:
            values = [each[score] for each in found]
            band = band_of(values)
            shown = " ".join(f"{value:.1f}" for value in values)
            print(f'    ("{name}", "{score}"): Band({band.low}, {band.high}),  # {shown}', flush=True)


if __name__ == "__main__":
    _measure()
