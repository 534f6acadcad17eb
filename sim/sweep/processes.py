"""Runs the cells of a sweep, each one a process of its own, some at a time.

A cell's log file is also its lock: the run inherits it as its output, so the lock is held exactly as long as the run
lives, whatever became of the sweep that started it. A sweep that finds a cell locked waits for the run that an earlier,
killed sweep left, and so no directory ever has two writers. Windows has no lock that a child inherits:
there a sweep must not be started again before the runs of a killed one have ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from gaitway.errors import GaitwayError, first_problem
from gaitway.files import write_file
from gaitway.window_cache import default_cache_dir
from sim.engines.choice import usable_cores
from sim.errors import RunDirectoryError
from sim.experiment.settings import ENVIRONMENT
from sim.sweep.grid import Cell

POLL_S = 0.25
EXIT_TIMEOUT_S = 60.0  # between asking a run to end, which saves its round first, and ending it
REASON_BYTES = 8192
# One thread each: several runs at a time share the cores better than several threads of one run.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PLAIN_OUTPUT = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


class CellPhase(StrEnum):
    """Where a cell stands; `SKIPPED` was finished before this sweep began."""

    WAITING = "waiting"
    RUNNING = "running"
    SKIPPED = "skipped"
    FINISHED = "finished"
    FAILED = "failed"


class CellStatus(NamedTuple):
    """A cell's phase, how far its run is, and why it failed."""

    phase: CellPhase
    rounds: int = 0
    of: int | None = None
    seconds: float = 0.0
    reason: str = ""


@dataclass
class _Job:
    cell: Cell
    begun: float
    process: subprocess.Popen[bytes] | None = None  # None while a run that another sweep started holds the lock


def command(cell: Cell, folder: Path) -> list[str]:
    """Return the arguments of Python that run a cell into its directory."""
    return ["-m", "sim", "run", *cell.arguments, "--out", str(folder / cell.name)]


def log_path(cell: Cell, folder: Path) -> Path:
    """Return where a run's output goes."""
    return folder / "logs" / f"{cell.name}.log"


def is_finished(directory: Path) -> bool:
    """Whether a run is complete: the summary says that its rounds are, the report is the last file that it writes."""
    return (directory / "summary.json").is_file() and (directory / "report.html").is_file()


def skipped(cell: Cell, folder: Path) -> CellStatus:
    """Return the standing of a cell that is finished: it failed if its data or code have changed since."""
    from sim.run import check_finished  # reads data, which few sweeps' processes do

    root, cache = (option_value(cell.arguments, option) for option in ("--data-root", "--cache"))
    try:
        check_finished(folder / cell.name, root, cache or default_cache_dir())
    except (GaitwayError, OSError) as error:
        return CellStatus(CellPhase.FAILED, reason=f"it was finished before, but {error}")
    return CellStatus(CellPhase.SKIPPED)


def option_value(arguments: Sequence[str], option: str) -> Path | None:
    """Return the path that an option of `sim run` has, the last one where it is given twice."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            found = Path(value if equals else following)
    return found


def run_cells(cells: Sequence[Cell], folder: Path, jobs: int) -> Generator[tuple[Cell, CellStatus]]:
    """Run what is not finished, `jobs` at a time, and yield where a cell stands whenever that changes.

    Closing the iterator early ends the runs; the same sweep resumes them later.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    waiting, running = deque(cells), dict[str, _Job]()
    last: dict[str, CellStatus] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.popleft()
                running[cell.name] = _Job(cell, time.monotonic())
            for name, job in list(running.items()):
                now = _advance(job, folder, jobs)
                if now.phase is not CellPhase.RUNNING:
                    del running[name]
                if now._replace(seconds=0.0) != last.get(name):
                    last[name] = now._replace(seconds=0.0)
                    yield job.cell, now
            if len(running) == jobs or not waiting:
                time.sleep(POLL_S if running else 0)
    finally:
        _end([job.process for job in running.values() if job.process])


def _advance(job: _Job, folder: Path, jobs: int) -> CellStatus:
    """Start a job as soon as its lock is free, and say where it stands."""
    directory = folder / job.cell.name
    if job.process is None:
        with log_path(job.cell, folder).open("ab") as log:
            if not locked(log.fileno()):
                return _status(job, directory, CellPhase.RUNNING, "a run that an earlier sweep left is at work")
            if is_finished(directory):
                return skipped(job.cell, folder)
            log.truncate(0)
            arguments = [sys.executable, *command(job.cell, folder), *share_of(job.cell, jobs)]
            environment = {**os.environ, **ONE_THREAD, **PLAIN_OUTPUT}
            job.process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
    code = job.process.poll()
    if code is None:
        return _status(job, directory, CellPhase.RUNNING)
    if code == 0:
        return _status(job, directory, CellPhase.FINISHED)
    return _status(job, directory, CellPhase.FAILED, reason_of(code, log_path(job.cell, folder)))


def share_of(cell: Cell, jobs: int) -> list[str]:
    """Give a run its part of the cores, unless it says how many processes it wants."""
    if any(word.split("=")[0] == "--workers" for word in cell.arguments):
        return []
    return [f"--workers={max(1, usable_cores() // jobs)}"]


def locked(descriptor: int) -> bool:
    """Take the lock of an open file, or say that another process has it; without locks it is always free."""
    try:
        import fcntl  # of Unix
    except ModuleNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _status(job: _Job, directory: Path, phase: CellPhase, reason: str = "") -> CellStatus:
    return CellStatus(phase, *_rounds(directory), round(time.monotonic() - job.begun, 1), reason)


def _rounds(directory: Path) -> tuple[int, int | None]:
    """Count the rounds that are done, and those planned, None before the run has said so."""
    lines, config = directory / "rounds.jsonl", directory / "config.json"
    done = lines.read_bytes().count(b"\n") if lines.is_file() else 0
    # written by rename, so it is whole if it is there
    return done, int(json.loads(config.read_bytes())["rounds"]["rounds"]) if config.is_file() else None


def reason_of(code: int, log: Path) -> str:
    """Say why a run ended: its own words, else its last line, else the signal."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - REASON_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name
        return f"ended by {name}" + (": was the memory short?" if name == "SIGKILL" else "")
    own = [line for line in lines if line.lower().startswith("error")]
    return (own or lines or [f"exit code {code}, and no word"])[-1]


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    until = time.monotonic() + EXIT_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


FILE = "sweep.json"
# Where and how fast a cell runs may change from one sweep to the next; what it computes may not.
ENVIRONMENT_OPTIONS = ENVIRONMENT | {"cache", "checkpoint_every", "client_store_dir", "data_root", "out"}

Parse = Callable[[Sequence[str]], Mapping[str, Any]]


class SavedCell(BaseModel):
    """One cell of the file."""

    name: str
    options: dict[str, str]
    arguments: tuple[str, ...]
    phase: CellPhase = CellPhase.WAITING
    seconds: float = 0.0
    reason: str = ""


class SavedSweep(BaseModel):
    """The file."""

    version: int = 1
    cells: tuple[SavedCell, ...]


@dataclass
class SweepRecord:
    """The cells of a sweep in its folder, and where each one stands."""

    folder: Path
    cells: Sequence[Cell]
    earlier: Sequence[SavedCell] = ()  # cells that an earlier sweep made here and this one has not
    statuses: dict[str, CellStatus] = field(default_factory=dict)

    def note(self, cell: Cell, status: CellStatus) -> None:
        """Take down where a cell stands, on the disk too."""
        before = self.statuses.get(cell.name)
        self.statuses[cell.name] = status
        if before is None or before.phase != status.phase:
            self.write()

    def write(self) -> None:
        """Write the file whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        saved = SavedSweep(cells=(*self.earlier, *map(self._saved, self.cells)))
        write_file(self.folder / FILE, (saved.model_dump_json(indent=1) + "\n").encode())

    def _saved(self, cell: Cell) -> SavedCell:
        status = self.statuses.get(cell.name, CellStatus(CellPhase.WAITING))
        return SavedCell(
            name=cell.name,
            options=dict(cell.options),
            arguments=cell.arguments,
            phase=status.phase,
            seconds=status.seconds,
            reason=status.reason,
        )

    def in_phase(self, *phases: CellPhase) -> list[Cell]:
        """Return the cells that stand so."""
        return [
            cell for cell in self.cells if self.statuses.get(cell.name, CellStatus(CellPhase.WAITING)).phase in phases
        ]


def open_sweep(folder: Path, cells: Sequence[Cell], parse: Parse) -> SweepRecord:
    """Begin a sweep's record, or take up the one in `folder`, to which cells may be added.

    Raises:
        RunDirectoryError: if the folder has a cell of the same name that computes something else.
    """
    known = {cell.name: cell for cell in saved_cells(folder)}
    for cell in cells:
        if cell.name in known and (why := _difference(known.pop(cell.name).arguments, cell.arguments, parse)):
            raise RunDirectoryError(f"{folder} holds a sweep whose cell {cell.name} has {why}; choose another --out")
    return SweepRecord(folder, cells, tuple(known.values()))


def saved_cells(folder: Path) -> tuple[SavedCell, ...]:
    """Read the cells of a sweep; none where there is no sweep yet.

    Raises:
        RunDirectoryError: if the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return ()
    try:
        return SavedSweep.model_validate_json(path.read_bytes()).cells
    except ValidationError as error:
        raise RunDirectoryError(f"{path} is damaged: {first_problem(error)}; delete it to begin again") from error


def run_directories(folder: Path) -> list[Path]:
    """Return the directories of a sweep's cells that have begun."""
    return [folder / cell.name for cell in saved_cells(folder) if (folder / cell.name / "config.json").is_file()]


def _difference(old: Sequence[str], new: Sequence[str], parse: Parse) -> str:
    """Name the first option that differs between two runs' arguments, apart from where and how fast they run."""
    return next(_differences(parse(old), parse(new)), "") if tuple(old) != tuple(new) else ""


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *after} - ENVIRONMENT_OPTIONS):
        if before.get(name) != after.get(name):
            yield f"{name.rstrip('_')} = {before.get(name)!r}, this one {after.get(name)!r}"
