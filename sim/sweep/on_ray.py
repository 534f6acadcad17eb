"""Runs the cells of a sweep on a Ray cluster, each a process on whichever host has a core for it.

A cell's directory comes back whole when it is done, so that a killed sweep loses the cells that were at work and no
others. Data and windows are read where the run is: what `--data-root` names lies at the same path on every host, and a
table's summaries hold the hash of what was read. Weights, plans and descriptions that a run starts from go along with
it. A host that dies is Ray's to miss; its cells are run again elsewhere. A cell at which a run on this machine is at
work is left to that run, and waited for last.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from sim.engines.ray_cluster import RETRIES, joined_cluster
from sim.sweep.grid import Cell
from sim.sweep.processes import (
    CellPhase,
    CellStatus,
    is_finished,
    locked,
    log_path,
    reason_of,
    run_cells,
    skipped,
)
from sim.sweep.remote_run import RemoteResult, SentFile, packed_arguments, run_elsewhere


def run_anywhere(cells: Sequence[Cell], folder: Path, jobs: int) -> Generator[tuple[Cell, CellStatus]]:
    """Run cells on the cluster at RAY_ADDRESS where that is set, else on this machine, `jobs` at a time."""
    return run_on_ray(cells, folder) if os.environ.get("RAY_ADDRESS") else run_cells(cells, folder, jobs)


def run_on_ray(cells: Sequence[Cell], folder: Path) -> Generator[tuple[Cell, CellStatus]]:
    """Run what is not finished, as many at a time as the cluster has cores, or GPUs for runs on CUDA.

    Yields each cell when it is over. Closing the iterator early ends the runs.

    Raises:
        EngineError: if there is no Ray or no cluster.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    ray, begun, waiting = joined_cluster(None), time.monotonic(), dict[Any, Cell]()
    at_work_here, stored = list[Cell](), dict[SentFile, Any]()
    try:
        for cell in cells:
            if is_finished(folder / cell.name):
                yield cell, skipped(cell, folder)
            elif _is_at_work(cell, folder):
                at_work_here.append(cell)
            else:
                gpus = int(any(word.startswith(("cuda", "--device=cuda")) for word in cell.arguments))
                task = ray.remote(run_elsewhere).options(num_cpus=1 - gpus, num_gpus=gpus, max_retries=RETRIES)
                words, files = packed_arguments(cell.arguments)
                for file in files.values():
                    if file not in stored:  # many runs start from the same weights: once in the cluster's memory
                        stored[file] = ray.put(file)
                waiting[task.remote(cell.name, words, tuple(files), *(stored[each] for each in files.values()))] = cell
        while waiting:
            done, _ = ray.wait(list(waiting))
            cell = waiting.pop(done[0])
            status = _received(ray, done[0], cell, folder)
            if status is None:
                at_work_here.append(cell)
            else:
                yield cell, status._replace(seconds=round(time.monotonic() - begun, 1))
        yield from run_cells(at_work_here, folder, 1)
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


def _is_at_work(cell: Cell, folder: Path) -> bool:
    with log_path(cell, folder).open("ab") as log:
        return not locked(log.fileno())


def _received(ray: Any, reference: Any, cell: Cell, folder: Path) -> CellStatus | None:
    """Unpack a run's directory, and say how it ended; None where a run on this machine has begun in the meantime."""
    try:
        found: RemoteResult = ray.get(reference)
    except ray.exceptions.RayError as error:
        return CellStatus(CellPhase.FAILED, reason=f"its worker died {RETRIES + 1} times: {error}")
    directory = folder / cell.name
    with log_path(cell, folder).open("ab") as log:
        if not locked(log.fileno()):
            return None
        if is_finished(directory):
            return skipped(cell, folder)
        log.truncate(0)
        log.write(found.log)
        log.flush()
        if found.code:
            return CellStatus(CellPhase.FAILED, reason=reason_of(found.code, log_path(cell, folder)))
        with tempfile.TemporaryDirectory(dir=folder) as name:
            whole = Path(name) / "run"
            with zipfile.ZipFile(io.BytesIO(found.directory)) as archive:
                archive.extractall(whole)
            if directory.exists():  # of a run on this machine that was killed
                shutil.rmtree(directory)
            whole.rename(directory)
    return CellStatus(CellPhase.FINISHED)
