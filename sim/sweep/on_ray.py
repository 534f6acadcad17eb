"""Runs the cells of a sweep on a Ray cluster, each a process on whichever host has a core for it.

A cell's directory comes back whole when it is done, so that a killed sweep loses the cells that were at work and no
others. Data and windows are read where the run is: what `--data-root` names lies at the same path on every host, and a
table's summaries hold the hash of what was read. A host that dies is Ray's to miss; its cells are run again elsewhere.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sim.engines.choice import usable_cores
from sim.engines.ray_cluster import RETRIES, joined_cluster
from sim.results.writing import CHECKPOINT
from sim.sweep.grid import Cell
from sim.sweep.processes import (
    ONE_THREAD,
    PLAIN_OUTPUT,
    CellPhase,
    CellStatus,
    command,
    is_finished,
    log_path,
    reason_of,
    run_cells,
    share_of,
)

PATHS = ("--data-root", "--cache", "--plan", "--init", "--describe")
"""Options of `sim run` that name files."""


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
    try:
        for cell in cells:
            if is_finished(folder / cell.name):
                yield cell, CellStatus(CellPhase.SKIPPED)
                continue
            gpus = int(any(word.startswith(("cuda", "--device=cuda")) for word in cell.arguments))
            task = ray.remote(_run).options(num_cpus=1 - gpus, num_gpus=gpus, max_retries=RETRIES)
            waiting[task.remote(replace(cell, arguments=_absolute(cell.arguments)))] = cell
        while waiting:
            done, _ = ray.wait(list(waiting))
            cell = waiting.pop(done[0])
            status = _received(ray, done[0], cell, folder)
            yield cell, status._replace(seconds=round(time.monotonic() - begun, 1))
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


def _absolute(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments of a run whose paths do not depend on the folder in which it is started."""
    found: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if equals and option in PATHS:
            found.append(f"{option}={Path(value).absolute()}")
        else:
            found.append(str(Path(word).absolute()) if found and found[-1] in PATHS else word)
    return tuple(found)


class _Finished(NamedTuple):
    """What comes back: how the run's process ended, what it said, and its directory as a zip without the checkpoint."""

    code: int
    log: bytes
    directory: bytes


def _run(cell: Cell) -> _Finished:
    """Run a cell in a folder of the worker's host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [sys.executable, *command(cell, folder), *share_of(cell, usable_cores())]
        environment = {**os.environ, **ONE_THREAD, **PLAIN_OUTPUT}
        said = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        return _Finished(said.returncode, said.stdout, _packed(folder / cell.name))


def _packed(directory: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != CHECKPOINT:
                archive.write(path, path.relative_to(directory))
    return packed.getvalue()


def _received(ray: Any, reference: Any, cell: Cell, folder: Path) -> CellStatus:
    """Unpack a run's directory, and say how it ended."""
    try:
        found: _Finished = ray.get(reference)
    except ray.exceptions.RayError as error:
        return CellStatus(CellPhase.FAILED, reason=f"its worker died {RETRIES + 1} times: {error}")
    log = log_path(cell, folder)
    log.write_bytes(found.log)
    if found.code:
        return CellStatus(CellPhase.FAILED, reason=reason_of(found.code, log))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        whole = Path(name) / "run"
        with zipfile.ZipFile(io.BytesIO(found.directory)) as archive:
            archive.extractall(whole)
        unfinished = folder / cell.name  # of a run on this machine that was killed
        if unfinished.exists():
            shutil.rmtree(unfinished)
        whole.rename(unfinished)
    return CellStatus(CellPhase.FINISHED)
