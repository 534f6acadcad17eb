"""Runs the cells of a table that no summary holds yet, each a process of its own that a kill cannot spoil."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sim.experiment.initialization import global_model_of
from sim.results.run_directory import RunDirectory
from sim.sweep.arena.cells import ArenaCell, open_cells, with_pretrained
from sim.sweep.arena.declaration import Declaration
from sim.sweep.arena.summary import read_summaries, summarize, write_summary
from sim.sweep.grid import Cell
from sim.sweep.on_ray import run_anywhere
from sim.sweep.processes import CellPhase, CellStatus

Show = Callable[[Cell, CellStatus], None]


class Places(NamedTuple):
    """Where a table's runs read, compute and write."""

    runs: Path
    summaries: Path
    data_root: Path | None
    cache: Path
    device: str = "cpu"


def run_table(
    declaration: Declaration,
    places: Places,
    jobs: int,
    *,
    only: Callable[[ArenaCell], bool] = lambda _cell: True,
    show: Show = lambda _cell, _status: None,
) -> Mapping[str, str]:
    """Run what is missing, `jobs` at a time, until nothing more can be; return why cells failed, by their keys.

    First the runs that decide how long the others are, then those that choose rates, then the table's own; before each
    of them the pretraining that it starts from.
    """
    failed: dict[str, str] = {}
    while cells := _unique(
        cell
        for cell in open_cells(declaration, read_summaries(places.summaries))
        if only(cell) and cell.key not in failed
    ):
        failed |= _run(_pretrainings(cells, places), places, jobs, show)
        failed |= _run(cells, places, jobs, show)
    return failed


def _pretrainings(cells: Iterable[ArenaCell], places: Places) -> list[ArenaCell]:
    """Return the runs that cells start from and that do not lie here, whether or not a summary of them does."""
    needed = _unique(cell.pretrained for cell in cells if cell.pretrained)
    return [cell for cell in needed if not global_model_of(places.runs / cell.key).is_file()]


def _unique(cells: Iterable[ArenaCell]) -> list[ArenaCell]:
    return list({cell.key: cell for cell in cells}.values())


def _run(cells: Sequence[ArenaCell], places: Places, jobs: int, show: Show) -> dict[str, str]:
    by_name = {cell.key: cell for cell in cells}
    commit, failed = commit_name(), dict[str, str]()
    with closing(run_anywhere([as_run(cell, places) for cell in cells], places.runs, jobs)) as changes:
        for run, status in changes:
            if status.phase in (CellPhase.FINISHED, CellPhase.SKIPPED):
                finished = RunDirectory(places.runs / run.name)
                write_summary(places.summaries, run.name, summarize(finished, by_name[run.name].arguments, commit))
            elif status.phase is CellPhase.FAILED:
                failed[run.name] = status.reason
            show(run, status)
    return failed


def as_run(cell: ArenaCell, places: Places) -> Cell:
    """Return a cell as the sweep's processes take it."""
    where = ["--cache", str(places.cache), *(["--device", places.device] if places.device != "cpu" else [])]
    if places.data_root is not None and cell.options["data"] != "synthetic":
        where += ["--data-root", str(places.data_root)]
    less = ["--no-figures", *(["--no-new-users"] if cell.only_decides else [])]
    return Cell(cell.key, {}, (*with_pretrained(cell.arguments, places.runs), *where, *less))


def commit_name() -> str:
    """Return the commit of the code that runs, with a plus where files differ from it; "unknown" outside of git."""
    try:
        commit, changed = _git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _git(*words: str) -> str:
    here = Path(__file__).resolve().parent
    return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
