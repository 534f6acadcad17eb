"""A round of 1,000 to 10,000 clients: time per client, and memory beyond the data, which must not grow with them.

    python benchmarks/bench_clients.py --clients 1000 2000 5000 10000 --out clients.json

FedAvg over the HAR CNN, everybody in the round: training, aggregation, scores of every client, a checkpoint. Each
number of clients has a process of its own, whose memory that cannot be evicted (anonymous and shared, its forks'
included, pages that they share counted once) is looked at five times a second. `beyond MB` is the most of it in the
round, less the examples' bytes; `saving MB` the same while the checkpoint is written. Ends with an error if
processor time a client or one of these, largest by smallest number, grow by more than --limit. That is 1.3 by default:
what is super-linear, or kept for every client, grows up to tenfold here, and a shared machine's clock swings by 20 %.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import report

INTERVAL_S = 0.2
KINDS = ("Pss_Anon:", "Pss_Shmem:")
BASELINE = 32
"""Clients that are trained before anything is counted, so that libraries have what they keep."""


def held_bytes(pid: int) -> int:
    """Memory of a process and its children that the kernel cannot evict without swap; 0 once it has ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (OSError, ValueError):
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(KINDS))
    return own + sum(held_bytes(int(child)) for child in children)


def measured(clients: int, given: argparse.Namespace) -> dict[str, Any]:
    """Play the round in a process of its own, and return its row."""
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        command = [sys.executable, __file__, "--play", str(clients), "--folder", folder, "--engine", given.engine]
        command += [
            "--client-store",
            given.client_store,
            "--windows",
            *map(str, given.windows),
            "--tests",
            str(given.tests),
        ]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            marks, peaks = _followed(process)
    if process.returncode:
        raise SystemExit(f"{clients} clients: the process left with exit code {process.returncode}")
    data = marks["loaded"]["data"]
    done, round_begun = marks["played"], marks["loaded"]
    return {
        "clients": clients,
        "wall s": done["wall"] - round_begun["wall"],
        "wall ms each": 1000 * (done["wall"] - round_begun["wall"]) / clients,
        "cpu ms each": 1000 * (done["processor"] - round_begun["processor"]) / clients,
        "data MB": data / 1e6,
        "models MB": marks["saved"]["models"] / 1e6,
        "beyond MB": (peaks["played"] - data) / 1e6,
        "saving s": marks["saved"]["wall"] - done["wall"],
        "saving MB": (peaks["saved"] - data) / 1e6,
    }


def _followed(process: subprocess.Popen[str]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Read the marks that a process sets, and the most that it held before each."""
    marks: dict[str, dict[str, float]] = {}
    peaks: dict[str, int] = {}
    peak = 0
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None or len(marks) < 3:
        peak = max(peak, held_bytes(process.pid))
        for line in process.stdout:
            mark = json.loads(line)
            marks[mark["mark"]], peaks[mark["mark"]] = mark, max(peak, mark["held"])
            peak = mark["held"]
        if process.poll():
            break
        time.sleep(INTERVAL_S)
    return marks, peaks


# ---- in the process of its own


def play(clients: int, given: argparse.Namespace) -> None:
    """Draw the data, play the round and write a checkpoint, setting a mark after each."""
    import torch

    from federation.plan import ModelSpec, RoundSettings, TrainingConfig
    from sim.engines.client_store import DiskStore, MemoryStore
    from sim.experiment.settings import Experiment
    from sim.rounds import checkpoint
    from sim.run import build_simulation, resolve

    torch.set_num_threads(1)
    settings = Experiment(
        labels=tuple("abcdef"),
        dataset="generated",
        validation_share=0.0,
        model=ModelSpec(name="har_cnn"),
        method={"name": "fedavg"},
        training=TrainingConfig(classes=6, feature_dim=_feature_dim(), batch_size=16, lr=1e-3),
        rounds=RoundSettings(rounds=1),
        engine=given.engine,
    )
    folder = Path(given.folder)
    for _ in build_simulation(resolve(settings), _drawn(BASELINE, given)).run_rounds():
        pass
    data = _drawn(clients, given)
    store = DiskStore(folder) if given.client_store == "disk" else MemoryStore()
    simulation = build_simulation(resolve(settings), data, store=store)
    _mark("loaded", data=_bytes_of(data))
    for _ in simulation.run_rounds():
        pass
    _mark("played")
    checkpoint.save(folder / "checkpoint.bin", simulation.checkpoint())
    each = sum(value.nbytes for value in simulation.initial.params.values())
    _mark("saved", models=each * len(simulation.clients))


def _feature_dim() -> int:
    import models

    return int(models.build("har_cnn", classes=6).feature_dim)


def _drawn(clients: int, given: argparse.Namespace) -> Any:
    import torch

    from federation.records import Examples
    from sim.data.federated_data import ClientData, FederatedData

    draw = torch.Generator().manual_seed(1)
    least, most = given.windows

    def examples(count: int) -> Examples:
        return Examples(torch.randn(count, 128, 6, generator=draw), torch.randint(6, (count,), generator=draw))

    def sizes() -> Iterator[int]:
        yield from torch.randint(least, most + 1, (clients,), generator=draw).tolist()

    drawn = {f"client-{k:05}": ClientData(examples(n), examples(given.tests)) for k, n in enumerate(sizes())}
    return FederatedData(tuple("abcdef"), drawn, {}, split_leaks=False)


def _bytes_of(data: Any) -> int:
    parts = [part for client in data.clients.values() for part in (client.train, client.test)]
    return sum(part.x.nbytes + part.y.nbytes for part in parts)


def _mark(name: str, **more: float) -> None:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    processor = sum(each.ru_utime + each.ru_stime for each in used)
    now = {"mark": name, "wall": time.perf_counter(), "processor": processor, "held": held_bytes(os.getpid())}
    print(json.dumps(now | more), flush=True)


# ----


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How much the figures that must not grow do so, from the fewest to the most clients."""
    ordered = sorted(rows, key=lambda row: row["clients"])
    names = ("cpu ms each", "beyond MB", "saving MB")
    return {name: ordered[-1][name] / ordered[0][name] for name in names}


def main() -> None:
    """Read the command line, run, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 2000, 5000, 10_000])
    parser.add_argument("--windows", type=int, nargs=2, default=[16, 32], metavar=("MIN", "MAX"), help="of a client")
    parser.add_argument("--tests", type=int, default=4, help="windows that a client is scored on")
    parser.add_argument("--engine", default="auto", choices=("auto", "serial", "processes", "stacked"))
    parser.add_argument("--client-store", default="disk", choices=("disk", "memory"), help="memory: what grows without")
    parser.add_argument("--folder", type=Path, help="of models and checkpoint; by default the system's")
    parser.add_argument("--limit", type=float, default=1.3, help="growth that is an error")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--play", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        play(given.play, given)
        return
    rows = []
    for clients in given.clients:
        rows.append(measured(clients, given))
        print(f"{clients} clients: {rows[-1]['wall s']:.1f} s", file=sys.stderr)
    grown = ratios(rows)
    more = {f"growth of {name}": value for name, value in grown.items()}
    report(f"One round, models in {given.client_store}, engine {given.engine}", rows, out=given.out, more=more)
    worse = {name: round(value, 2) for name, value in grown.items() if value > given.limit}
    if worse:
        raise SystemExit(f"grew by more than {given.limit} with the number of clients: {worse}")


if __name__ == "__main__":
    main()
