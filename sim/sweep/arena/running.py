"""Runs the cells of a table that no summary holds yet, each a process of its own that a kill cannot spoil."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sim.errors import SettingsError
from sim.experiment.initialization import global_model_of
from sim.results.run_directory import RunDirectory
from sim.sweep.arena.cells import ArenaCell, Declaration, open_cells, pretrained_key, with_pretrained
from sim.sweep.arena.measures import MEASURES, CellSummary, Summaries, read_summaries, summarize, write_summary
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
    folder = Path(__file__).resolve().parent
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


SAME = 1e-6
"""Scores of the same machine and versions differ by no more; those of a network's training also by the same commit."""
ELSEWHERE = 0.02
"""Other machines, and other commits' engines, order float32 sums differently: two points are not more than that."""


class ScoreDifference(NamedTuple):
    """A measure that came out otherwise than its summary says."""

    measure: str
    before: float | None
    now: float | None


def draw_cell(known: Summaries, max_seconds: float, seed: int) -> str:
    """Draw one of the cells that took no longer on a CPU, and did not start from another one; linear ones first.

    Raises:
        SettingsError: if there is none.
    """
    cheap = sorted(
        key
        for key, summary in known.items()
        if summary.device == "cpu"
        and pretrained_key(summary.arguments) is None
        and (summary.measures.get("seconds") or max_seconds) < max_seconds
    )
    if not cheap:
        raise SettingsError(f"no summary is of a run of less than {max_seconds:g} s on a CPU; raise --max-seconds")
    return random.Random(seed).choice([key for key in cheap if _is_linear(known[key].arguments)] or cheap)


def _is_linear(arguments: Sequence[str]) -> bool:
    """Whether it is a linear model on hand-made features: a network's score of new users moved six points elsewhere."""
    return "har_features" in arguments


def differences(before: CellSummary, now: CellSummary) -> list[ScoreDifference]:
    """Return the scores that differ by more than another order of additions explains."""
    is_same = (before.hardware, before.versions) == (now.hardware, now.versions)
    if not _is_linear(before.arguments):
        is_same = is_same and before.commit == now.commit
    tolerance = SAME if is_same else ELSEWHERE
    pairs = _scores(before), _scores(now)
    found = (ScoreDifference(name, pairs[0].get(name), pairs[1].get(name)) for name in pairs[0])
    return [difference for difference in found if not _close(difference.before, difference.now, tolerance)]


def _scores(summary: CellSummary) -> Mapping[str, float | None]:
    return {name: value for name, value in summary.measures.items() if name in MEASURES and MEASURES[name].is_score}


def _close(before: float | None, now: float | None, tolerance: float) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before - now) <= tolerance
