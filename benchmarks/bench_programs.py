"""A local round's step with a program on ONNX Runtime against torch's `local_round`, one thread each, in one process.

    python benchmarks/bench_programs.py --repeats 5 --data ../shared/data --out programs.json

Each row is a network and a method: how far a round ends from torch's (`export.program.parity`), how large the program
is, how long its export takes, and processor time a step of both, whose ratio is the median of each turn's. Without
--data on generated windows. Fails where a step takes more than 1.2 times torch's with fused Adam, or an export more
than ten seconds of processor time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from measure import interleaved, report, torch_threads

NETWORKS = ("har_cnn", "har_cnn_alp", "hart", "hart_alp")
METHODS = ("fedavg", "fedprox", "fedproto", "fedali")
PAIRS = [
    (network, method) for network in NETWORKS for method in METHODS if method != "fedali" or network.endswith("_alp")
]
MAX_RATIO, MAX_EXPORT_S = 1.2, 10.0


def plan_of(network: str, method: str) -> Any:
    """Return a plan for six activities."""
    from federation.plan import Plan

    training = {"classes": 6, "epochs": 3, "batch_size": 64}
    labels = ("sit", "stand", "walk", "stairsup", "stairsdown", "jog")
    return Plan(labels=labels, model={"name": network}, method={"name": method}, training=training)


def windows(federation: Any, data: Path | None, count: int) -> Any:
    """Return MotionSense's first client's windows, normalized, or generated ones."""
    from export.program.parity import generated_examples

    if data is None:
        return generated_examples(federation, count)
    from har_pipeline.preparation import dataset_labels
    from sim.experiment.settings import Experiment
    from sim.run import load_data, resolve

    training = federation.setup.training
    described = {"model": {"name": "har_cnn"}, "method": {"name": "fedavg"}, "training": training}
    labels = list(dataset_labels("motionsense"))
    found = load_data(resolve(Experiment(dataset="motionsense", labels=labels, **described)), data, Path("runs"), None)
    return next(iter(found.clients.values())).train


def row_of(network: str, method: str, repeats: int, data: Path | None, count: int) -> dict[str, Any]:
    """Export, compare a whole round, and time rounds in turn."""
    from export.program.exporter import export_program, federation_of
    from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, train
    from export.program.parity import DEVICE, after_one_round, as_arrays, compare_round
    from export.program.runtime import TrainingProgram
    from federation.training.client_round import train_one

    begun = time.process_time()
    federation = federation_of(plan_of(network, method))
    content = export_program(federation)
    export_s = time.process_time() - begun
    program, examples = TrainingProgram.load(content), windows(federation, data, count)
    federation = after_one_round(federation, examples)
    parity = compare_round(federation, program, examples)
    mine = DeviceExamples(examples.x.numpy(), examples.y.numpy())
    broadcast = as_arrays({"broadcast": federation.broadcast})

    def with_torch() -> None:
        train_one(
            federation.setup, federation.initial, federation.broadcast, examples, client_id=DEVICE, round_number=2
        )

    def with_program() -> None:
        train(ProgramRound(program, {}, broadcast, mine, RoundIdentity(DEVICE, 2)))

    times = interleaved({"torch": with_torch, "ort": with_program}, repeats)
    ours, theirs = (times[name].median_s / parity.steps * 1e3 for name in ("ort", "torch"))
    ratio = median(a / b for a, b in zip(times["ort"].seconds, times["torch"].seconds, strict=True))
    return {
        "network": network,
        "method": method,
        "step nodes": program.manifest.graphs["step"].nodes,
        "kB": round(len(content) / 1e3, 1),
        "export s": round(export_s, 1),
        "steps": parity.steps,
        "from torch": f"{parity.difference:.1e}",
        "torch from torch": f"{parity.rounding:.1e}",
        "worst tensor": round(parity.ratio, 1),
        "scores": "equal" if parity.scores == parity.torch_scores else f"{parity.scores} {parity.torch_scores}",
        "ms ORT": round(ours, 1),
        "ms torch": round(theirs, 1),
        "ratio": round(ratio, 2),
    }


def main() -> None:
    """Measure, print and hold against the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--windows", type=int, default=443, help="generated ones, where there is no --data")
    parser.add_argument("--data", type=Path, help="a folder with MotionSense")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with torch_threads(1):
        rows = [
            row_of(network, method, options.repeats, options.data, options.windows)
            for network, method in PAIRS
            if network in options.networks and method in options.methods
        ]
    report("programs", rows, out=options.out, packages=("numpy", "torch", "onnxruntime"))
    slow = [row for row in rows if row["ratio"] > MAX_RATIO or row["export s"] > MAX_EXPORT_S]
    if slow:
        sys.exit(f"over {MAX_RATIO} × torch's step, or {MAX_EXPORT_S:g} s of export: {slow}")


if __name__ == "__main__":
    main()
