"""What noise on the secure sums of `analytic` costs in score, by ε, and how many devices a useful ε needs.

Each device's numbers are those that it would send, clipped to the median norm; the sum gets the noise of all devices'
shares, drawn as rounded normal numbers: from a deviation of 4 on no score tells them from the exact discrete Gaussian
of `sim run --set secure.noise_multiplier=…`. More devices than there are: as many copies of
these, whose sum is so many times as large, while the noise stays. Everything else is the server's own code.

Example: python benchmarks/noise_on_sums.py --data-root ../shared/data --cache .cache/windows
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from federation.privacy.accounting import epsilon_of_discrete, spent
from federation.privacy.discrete_gaussian import noisy_clients
from federation.records import Batch
from federation.secure_sums.summation import next_state
from federation.seeds import generator
from sim.cli.options import describe
from sim.presets import with_defaults
from sim.privacy_attacks.attacked_round import AttackedRound, attacked_round
from sim.run import load_data, resolve

SETS = {"motionsense": "motionsense", "ucihar": "uci_har"}
MULTIPLIERS = 0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0
EPSILONS = 2.0, 8.0
TIMES = 1, 10, 30, 100, 300, 1000, 3000, 10000
SUM_STEPS = 1 << 15
DELTA = 1e-5
FLOOR = 2.2
"""Of the noise's deviation times the root of G's size: a random matrix has its least eigenvalue at -2 of these."""


def devices_of(name: str, root: Path, cache: Path | None) -> AttackedRound:
    """Return all devices of a data set with the numbers that each sends."""
    given = {"data": name, "model": "har_features", "method": "analytic", "rounds": 1, "set": ["model.cosines=0"]}
    settings = describe(with_defaults(None, given, None), None, None)
    data = load_data(resolve(settings), root / SETS[name], cache, None)
    return attacked_round(settings, data, None, "start", 1 << 20, lambda _what, _done, _total: None)


def score_with(devices: AttackedRound, multiplier: float, times: int, seed: int) -> float:
    """Return the macro-F1 of the server's model on everybody's test windows, of so many times as many devices."""
    vectors = np.stack(list(devices.vectors.values()))
    hidden = devices.hidden
    norms = np.linalg.norm(vectors[:, hidden], axis=1)
    bound = float(np.median(norms))
    if multiplier:
        vectors[:, hidden] = np.trunc(vectors[:, hidden] * np.minimum(1.0, bound / norms)[:, None])
    total, count = vectors.sum(0) * times, len(vectors) * times
    deviation = multiplier * bound * (count / noisy_clients(devices.secure, count)) ** 0.5
    if deviation:
        noise = generator(seed, "noise on sums", str(multiplier), times).normal(0, deviation, int(hidden.sum()))
        total[hidden] += np.rint(noise)
    setup = devices.setup
    size = setup.training.feature_dim + 1
    method = dataclasses.replace(setup.method, floor=FLOOR * deviation / SUM_STEPS * size**0.5)
    state = method.server_init(devices.initial.params, devices.initial.buffers, setup.training)
    try:
        new = next_state(method, state, devices.layout, total.astype(np.int64), sorted(devices.vectors))
    except torch.linalg.LinAlgError:
        return float("nan")  # more noise than sums: no matrix that has a solution
    return _macro_f1(devices, new["params"])


def _macro_f1(devices: AttackedRound, params: dict[str, torch.Tensor]) -> float:
    test = devices.data.union_test()
    model = devices.start._replace(params={**devices.start.params, **params})
    statistics = devices.setup.task.statistics(
        devices.output(model, test.x), Batch(test.x, test.y, torch.ones(len(test.y)))
    )
    return 100 * devices.setup.task.metrics(statistics)["macro_f1"]


def multiplier_for(wanted: float) -> float:
    """Return the noise multiplier whose ε this is, by bisection."""
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon_of_discrete(spent(middle), DELTA) > wanted else (low, middle)
    return high


def told(scores: Sequence[float]) -> str:
    """Return mean and standard deviation over seeds."""
    if unsolved := int(np.isnan(scores).sum()):
        return f"no solution in {unsolved} of {len(scores)}"
    return f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}"


def print_tables(name: str, devices: AttackedRound, seeds: int) -> None:
    """Print ε against score, and the score against the number of devices, as Markdown."""
    count = len(devices.vectors)
    print(f"\n{name}: {count} devices\n\n| noise_multiplier | ε | macro-F1 |\n| --- | --- | --- |")
    for multiplier in MULTIPLIERS:
        scores = [score_with(devices, multiplier, 1, seed) for seed in range(seeds)]
        said = f"{epsilon_of_discrete(spent(multiplier), DELTA):,.4g}" if multiplier else "∞"
        print(f"| {multiplier:g} | {said} | {told(scores)} |", flush=True)
    print(f"\n| devices | {' | '.join(f'ε = {wanted:g}' for wanted in EPSILONS)} |")
    print("| --- |" + " --- |" * len(EPSILONS))
    for times in TIMES:
        cells = []
        for wanted in EPSILONS:
            multiplier = multiplier_for(wanted)
            cells.append(told([score_with(devices, multiplier, times, seed) for seed in range(seeds)]))
        print(f"| {count * times:,} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Read the options and print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with motionsense and uci_har")
    parser.add_argument("--cache", type=Path, help="where processed windows are kept")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3, help="of the noise")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: expected 2 or more, whose standard deviation is shown")
    torch.set_num_threads(1)
    for name in options.sets:
        print(f"reading {name}", file=sys.stderr)
        print_tables(name, devices_of(name, options.data_root, options.cache), options.seeds)


if __name__ == "__main__":
    main()
