"""How much memory a federation of images takes, as bytes and as float32 numbers: the peak of one process each.

    python benchmarks/image_memory.py --images 10000 --side 128

Generated images, 20 clients, of which two train in the one round (`serial`), and the server's model is scored on
every test set. With `--kind read` the images are only dealt, and nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from typing import Any

KINDS = ("read", "bytes", "numbers")


def main() -> None:
    """Run each kind in a process of its own, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="images in all (default: 10000)")
    parser.add_argument("--side", type=int, default=128, help="pixels of a side (default: 128)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all of them")
    given = parser.parse_args()
    for kind in given.kind or KINDS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(json.dumps(pool.apply(measured, (kind, given.images, given.side))), flush=True)


def measured(kind: str, count: int, side: int) -> dict[str, Any]:
    """Return the peaks of this process in MB: before the images, once they are dealt, at the end."""
    import numpy as np

    from federation.plan import ModelSpec, RoundSettings, TrainingConfig
    from federation.tasks.classification import Classification
    from sim.data.images.reader import COLOUR_TO_ONE, LabelledImages
    from sim.data.partitions import Dirichlet
    from sim.data.sources.images import image_federation
    from sim.experiment.settings import Experiment
    from sim.run import build_simulation, resolve

    settings = Experiment(
        labels=tuple("abcd"),
        model=ModelSpec(name="celeba_cnn", options={"input_shape": [3, side, side]}),
        method={"name": "fedavg"},
        training=TrainingConfig(classes=4, feature_dim=32, batch_size=16),
        rounds=RoundSettings(rounds=1, clients_per_round=2),
        engine="serial",
        client_store="none",
        eval_batch=16,
    )
    begun, before = time.monotonic(), _peak_mb()
    random = np.random.default_rng(0)
    x = np.empty((count, 3, side, side), np.uint8)
    for start in range(0, count, 256):
        x[start : start + 256] = random.integers(0, 256, x[start : start + 256].shape, np.uint8)
    images = LabelledImages(x, random.integers(0, 4, count), tuple("abcd"), random.random(count) < 0.9)
    shares = Dirichlet(clients=20, alpha=1.0).divide(images.pool(Classification()), 0)
    data = image_federation(images, shares, COLOUR_TO_ONE)
    del x, images
    dealt = _peak_mb()
    if kind == "numbers":
        data = _as_numbers(data)
    if kind != "read":
        list(build_simulation(resolve(settings), data).run_rounds())
    return {"kind": kind, "before": before, "dealt": dealt, "end": _peak_mb(), "s": round(time.monotonic() - begun, 1)}


def _as_numbers(data: Any) -> Any:
    """Normalize everything beforehand, as it was until 2026-11-23."""
    from dataclasses import replace

    from federation.records import Examples

    def each(examples: Examples) -> Examples:
        return Examples(data.moments.normalized(examples.x), examples.y)

    clients = {
        name: replace(client, train=each(client.train), test=each(client.test), validation=None)
        for name, client in data.clients.items()
    }
    return replace(data, clients=clients, moments=None)


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


if __name__ == "__main__":
    main()
