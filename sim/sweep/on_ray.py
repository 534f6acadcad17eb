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
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sim.engines.choice import usable_cores
from sim.engines.ray_cluster import RETRIES, joined_cluster
from sim.experiment.initialization import global_model_of
from sim.results.run_directory import CHECKPOINT
from sim.sweep.grid import Cell
from sim.sweep.processes import (
    ONE_THREAD,
    PLAIN_OUTPUT,
    CellPhase,
    CellStatus,
    command,
    is_finished,
    locked,
    log_path,
    reason_of,
    run_cells,
    share_of,
    skipped,
)

READ_THERE = ("--data-root", "--cache")
"""Options of `sim run` that name folders of the host on which it runs."""
SENT_ALONG = ("--plan", "--init", "--describe")
"""Options of `sim run` that name files which go along with it."""


class SentFile(NamedTuple):
    """A file that goes along."""

    name: str
    content: bytes


def packed_arguments(arguments: Sequence[str]) -> tuple[tuple[str, ...], dict[int, SentFile]]:
    """Return a run's arguments as another host takes them, and by their place in them the files that go along."""
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        words += [option, value] if equals and option in (*READ_THERE, *SENT_ALONG) else [word]
    files: dict[int, SentFile] = {}
    for place, (option, value) in enumerate(pairwise(tuple(words)), start=1):
        path = Path(value).absolute()
        if option in (*READ_THERE, *SENT_ALONG):
            words[place] = str(path)
        if option in SENT_ALONG and (file := global_model_of(path) if path.is_dir() else path).is_file():
            files[place] = SentFile(file.name, file.read_bytes())
    return tuple(words), files


class RemoteResult(NamedTuple):
    """What comes back: how the run's process ended, what it said, and its directory as a zip without the checkpoint."""

    code: int
    log: bytes
    directory: bytes


def run_elsewhere(name: str, arguments: Sequence[str], places: Sequence[int], *files: SentFile) -> RemoteResult:
    """Run a cell in a temporary folder of this host, with the files that came along for these of its arguments."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, given = Path(temporary), list(arguments)
        for place, file in zip(places, files, strict=True):
            path = folder / "given" / str(place) / file.name
            path.parent.mkdir(parents=True)
            path.write_bytes(file.content)
            given[place] = str(path)
        cell = Cell(name, {}, tuple(given))
        words = [sys.executable, *command(cell, folder / "runs"), *share_of(cell, usable_cores())]
        environment = {**os.environ, **ONE_THREAD, **PLAIN_OUTPUT}
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        return RemoteResult(ended.returncode, ended.stdout, _packed(folder / "runs" / name))


def _packed(directory: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != CHECKPOINT:
                archive.write(path, path.relative_to(directory))
    return packed.getvalue()


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
                waiting[task.remote(cell.name, words, tuple(files), *(stored[path] for path in files.values()))] = cell
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
