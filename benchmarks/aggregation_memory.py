"""Peak memory and time of one aggregation in a worker, by the number of clients, with updates of the HAR CNN's size.

`python -m benchmarks.aggregation_memory --clients 100 1000`

Each run starts a worker of its own, as the server does, over a folder of real blobs, and reads the worker's peak
resident memory (VmHWM) from /proc.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from aggregator_api.federations.initial_state import build_initial_state
from aggregator_api.rounds.aggregation import StoredUpdate
from aggregator_api.rounds.aggregation_executor import WorkerProcessExecutor
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from federation import wire
from federation.methods import method_from_json
from federation.plan import Plan
from federation.records.tree import map_tree
from tests.aggregator_api.rounds.test_aggregation_executor import manifest


def plan(method: str) -> Plan:
    """A federation of the HAR CNN as it is by default."""
    return Plan.model_validate(
        {
            "labels": ["downstairs", "jogging", "sitting", "standing", "upstairs", "walking"],
            "model": {"name": "har_cnn" if method != "fedali" else "har_cnn_alp"},
            "method": {"name": method},
            "training": {"classes": 6},
        }
    )


def measured(clients: int, method: str, folder: Path) -> dict[str, float]:
    """Aggregate so many updates in a fresh worker."""
    blobs = BlobStore(folder.as_uri())
    initial = build_initial_state(plan(method), max_model_bytes=1 << 28)
    contract = Contract(plan(method), method_from_json(plan(method).method), initial.upload_schema)
    state = blobs.put(initial.state)
    broadcast = wire.decode(initial.broadcast, limit_bytes=len(initial.broadcast))
    updates, size = [], 0
    for n in range(clients):
        name = f"client-{n:06}"
        blob = blobs.put(wire.encode(map_tree(lambda value: value + torch.randn_like(value), broadcast)))
        said = manifest(name, blob.sha256, blob.size)
        updates.append(StoredUpdate(said.model_copy(update={"method": method}), 0))
        size = blob.size
    worker = WorkerProcessExecutor(folder.as_uri(), torch_threads=1, attempts=1)
    worker.aggregate(contract, state.sha256, updates[:2], is_newest=True)  # it is started, and has loaded what it needs
    before = peak(worker.pid)
    start = time.perf_counter()
    worker.aggregate(contract, state.sha256, updates, is_newest=True)
    seconds, after = time.perf_counter() - start, peak(worker.pid)
    worker.close()
    return {
        "clients": clients,
        "update_bytes": size,
        "seconds": seconds,
        "ms_per_update": 1000 * seconds / clients,
        "peak_mb_after_2": before,
        "peak_mb": after,
    }


def peak(pid: int | None) -> float:
    """Peak resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    raise RuntimeError("this system's /proc does not tell the peak memory")


def main() -> None:
    """Print one line per number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--method", default="fedavg")
    given = parser.parse_args()
    for clients in given.clients:
        with tempfile.TemporaryDirectory() as folder:
            row = measured(clients, given.method, Path(folder))
        print(given.method, "  ".join(f"{key} {value:,.1f}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
