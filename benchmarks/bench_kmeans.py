"""FedAli's k-means against scikit-learn's and faiss's from the same start: seconds, iterations, inertia.

    python benchmarks/bench_kmeans.py --clients 141 --centres 2048 --out kmeans.json

Two kinds of points: `prototypes` are what a server gets, each client's centres after a round of drift; `spread` is a
Gaussian without clusters, where no shortcut finds anything in the first iterations. The paper's largest block is 141
clients × 2048 prototypes × 192. scikit-learn and ours stop by the same rule; faiss knows none, so it is given as many
iterations as ours took, and its own start rule is replaced by the same centres. `--iterations` cuts a long run short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import matmul_rate, report
from peers import python_of
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from federation.aggregation.kmeans import begin_stream, kmeans, take_points

FAISS = """
import faiss, json, numpy as np, sys, time
folder, iterations, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
faiss.omp_set_num_threads(threads)
points, start = np.load(folder + "/points.npy"), np.load(folder + "/start.npy")
found = faiss.Kmeans(points.shape[1], len(start), niter=iterations, nredo=1, max_points_per_centroid=len(points))
begun = time.perf_counter()
found.train(points, init_centroids=start)
seconds = time.perf_counter() - begun
distances, _ = found.index.search(points, 1)
print(json.dumps({"seconds": seconds, "inertia": float(distances.astype(np.float64).sum())}))
"""


def points_of(
    kind: str, clients: int, centres: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the points (clients · centres, dim), the start (centres, dim), and FedAli's hint if there is one."""
    draw = torch.Generator().manual_seed(11)
    if kind == "spread":
        points = torch.randn(clients * centres, dim, generator=draw)
        return points, points[:centres].clone(), None
    before = torch.randn(centres, dim, generator=draw)
    own = 0.2 * torch.randn(clients, 1, dim, generator=draw)  # what a client's own data do to all of them
    points = before + own + 0.3 * torch.randn(clients, centres, dim, generator=draw)
    examples = torch.rand(clients, 1, 1, generator=draw) + 0.5
    start = (points * examples).sum(0) / examples.sum()
    return points.reshape(-1, dim), start, torch.arange(centres).repeat(clients)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall time of a call, and its result."""
    begun = time.perf_counter()
    result = function()
    return time.perf_counter() - begun, result


def by_faiss(points: torch.Tensor, start: torch.Tensor, iterations: int, threads: int) -> dict[str, float]:
    """Run faiss in its own virtual environment."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/points.npy", points.numpy())
        np.save(f"{folder}/start.npy", start.numpy())
        command = [str(python_of("faiss")), "-c", FAISS, folder, str(iterations), str(threads)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found: dict[str, float] = json.loads(told.splitlines()[-1])
        return found


def streamed(points: torch.Tensor, start: torch.Tensor, clients: int) -> tuple[float, float]:
    """Cluster in one pass, a client at a time; return seconds and the inertia of its centres."""
    begun = time.perf_counter()
    stream = begin_stream(start)
    for piece in points.view(clients, -1, points.shape[1]):
        stream = take_points(stream, piece)
    seconds = time.perf_counter() - begun
    return seconds, kmeans(points, stream.centres.float(), max_iterations=1).inertia


def rows_of(kind: str, wanted: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Run everybody on one kind of points, in turn, as often as asked."""
    points, start, hint = points_of(kind, wanted.clients, wanted.centres, wanted.dim)
    rows: list[dict[str, Any]] = []
    for turn in range(wanted.repeats):
        seconds, ours = timed(lambda: kmeans(points, start, hint=hint, max_iterations=wanted.iterations))
        model = KMeans(wanted.centres, init=start.numpy(), n_init=1, max_iter=wanted.iterations, algorithm="lloyd")
        with threadpool_limits(threads):
            theirs, fitted = timed(partial(model.fit, points.numpy()))
        found: list[tuple[str, float, float, int]] = [
            ("ours", seconds, ours.inertia, ours.iterations),
            ("scikit-learn", theirs, float(fitted.inertia_), int(fitted.n_iter_)),
        ]
        if "faiss" not in wanted.without:
            told = by_faiss(points, start, ours.iterations, threads)
            found.append(("faiss", told["seconds"], told["inertia"], ours.iterations))
        passed, inertia = streamed(points, start, wanted.clients)
        found.append(("ours, one pass", passed, inertia, 1))
        work = 2.0 * len(points) * wanted.centres * wanted.dim * ours.iterations
        for name, spent, lost, iterations in found:
            rows.append(
                {
                    "points": kind, "turn": turn + 1, "who": name, "seconds": spent, "times ours": spent / seconds,
                    "iterations": iterations, "inertia / ours": lost / ours.inertia,
                    "GFLOP/s if all distances": work / spent / 1e9 if iterations > 1 else "",
                }
            )  # fmt: skip
            print(f"{kind} {turn + 1}/{wanted.repeats} {name}: {spent:.2f} s", file=sys.stderr)
    return rows


def main() -> None:
    """Read the command line, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=141)
    parser.add_argument("--centres", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--iterations", type=int, default=300, help="at most so many")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=("prototypes", "spread"), default=["prototypes", "spread"])
    parser.add_argument("--without", action="append", default=[], choices=("faiss",), help="leave a peer out")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    wanted = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    rows = [row for kind in wanted.kinds for row in rows_of(kind, wanted, threads)]
    report(
        f"k-means: {wanted.clients} × {wanted.centres} points × {wanted.dim}, {threads} threads",
        rows, out=wanted.out, packages=("torch", "scikit-learn", "numpy"),
        more={"GFLOP/s of float32 matmul, all threads": matmul_rate(threads) / 1e9},
    )  # fmt: skip


if __name__ == "__main__":
    main()
