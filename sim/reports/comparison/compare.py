"""Writes a comparison: JSON, Markdown, one self-contained page, and its figures as PNG."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sim.errors import RunDirectoryError
from sim.reports.comparison import plots, tables
from sim.reports.comparison.groups import compare_runs
from sim.reports.comparison.printed import group_tables, markdown
from sim.reports.comparison.records import Comparison, Group, OverDatasets
from sim.reports.figures.style import draw
from sim.reports.report import data_uri, render
from sim.results.records import SELECTIONS, Selection
from sim.results.run_directory import RunDirectory
from sim.results.tables import CHOICES, DEFINITIONS, SELECTED, choice
from sim.sweep.record import FILE as SWEEP_FILE
from sim.sweep.record import run_directories

FIGURES = {
    "curves": "The primary metric by round; several seeds are averaged.",
    "bytes": "The same scores over what all clients together have moved so far, up and down (logarithmic).",
    "differences": "The primary metric minus the baseline's, mean over seeds, with its 95 % interval by Student's t "
    "over seeds (thick; none for a single seed). Filled: p below 0.05 by Holm. Thin and grey: one standard deviation "
    "over clients to either side, which says who gains and not how sure the difference is.",
}
NOTES = (tables.RANKS_NOTE, tables.REFERENCE_NOTE, tables.SEEDS_NOTE, tables.TESTS_NOTE)


def compare(
    paths: Sequence[Path], out: Path, baseline: str | None = None, select: Selection | None = None
) -> Comparison:
    """Compare runs, or all runs of a sweep, and write comparison.{json,md,html} and the figures into `out`.

    Raises:
        RunDirectoryError: if a path is not a run's directory, or no run among them is finished.
    """
    unique = {path.resolve(): RunDirectory(path) for path in _runs_of(paths)}
    comparison = compare_runs(list(unique.values()), baseline, select)
    if not comparison.groups:
        came = "; ".join(comparison.warnings) or "no directory was given"
        raise RunDirectoryError(f"nothing to compare: {came}; expected at least one finished run")
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.json").write_text(json.dumps(asdict(comparison), indent=1) + "\n", "utf-8")
    (out / "comparison.md").write_text(markdown(comparison), "utf-8")
    (out / "comparison.html").write_text(_html(comparison, out), "utf-8")
    return comparison


def _runs_of(paths: Sequence[Path]) -> Iterator[Path]:
    """Put the runs of a sweep in the place of its folder."""
    for path in paths:
        if (path / SWEEP_FILE).is_file():
            yield from run_directories(path)
        else:
            yield path


def _html(comparison: Comparison, out: Path) -> str:
    return render(
        "comparison.html",
        comparison=comparison,
        groups=[_group(group, out) for group in comparison.groups],
        rankings=[_ranking(over, out) for over in comparison.over_datasets],
        captions=FIGURES,
        definitions=DEFINITIONS,
        choice=choice(comparison.selection),
        choices={SELECTED[selection]: CHOICES[selection] for selection in SELECTIONS},
        notes=NOTES,
        ranking_note=tables.RANKING_NOTE,
        starts=_starts(comparison),
    )


def _starts(comparison: Comparison) -> set[str]:
    """Name the columns that begin a block of a table."""
    metrics = {metric.short for group in comparison.groups for metric in group.metrics.values()}
    return {*(f"pers. {name}" for name in metrics), "up", "rounds", "seeds"}


def _group(group: Group, out: Path) -> Mapping[str, Any]:
    figures = {
        "curves": plots.over_rounds(group),
        "bytes": plots.over_bytes(group),
        "differences": plots.differences(group),
    }
    return {"group": group, "tables": group_tables(group), "figures": _images(figures, group.title, out)}


def _ranking(over: OverDatasets, out: Path) -> Mapping[str, Any]:
    title = tables.ranking_title(over)
    images = _images({"ranks": plots.critical_difference(over)}, f"{over.model} {over.column}", out)
    return {"title": title, "summary": tables.ranking_summary(over), "image": images["ranks"]}


def _images(figures: Mapping[str, Figure | None], title: str, out: Path) -> dict[str, str]:
    """Draw figures into `out`, and return those that there are as addresses by kind."""
    tail = re.sub(r"[^\w]+", "-", title).strip("-")[:120]
    drawn = {f"{kind}-{tail}": figure for kind, figure in figures.items()}
    return {path.stem.removesuffix(f"-{tail}"): data_uri(path) for path in draw(drawn, out)}
