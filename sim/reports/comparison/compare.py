"""Writes a comparison: JSON, Markdown, one self-contained page, and its figures as PNG."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from sim.errors import RunDirectoryError
from sim.reports.comparison import plots, tables
from sim.reports.comparison.groups import compare_runs
from sim.reports.comparison.records import Comparison, Group, OverDatasets
from sim.reports.comparison.tables import overhead_table
from sim.reports.page import CaptionedFigure, ReportPage, ReportSection, html, markdown
from sim.results.run_directory import RunDirectory
from sim.results.summary import CHOICES, DEFINITIONS, SELECTED, choice
from sim.scores.records import SELECTIONS, Selection
from sim.sweep.processes import FILE as SWEEP_FILE
from sim.sweep.processes import run_directories

CURVES = "The primary metric by round; several seeds are averaged."
BYTES = "The same scores over what all clients together have moved so far, up and down (logarithmic)."
DIFFERENCES = (
    "The primary metric minus the baseline's, mean over seeds, with its 95 % interval by Student's t over seeds "
    "(thick; none for a single seed). Filled: p below 0.05 by Holm. Thin and grey: one standard deviation over clients "
    "to either side, which says who gains and not how sure the difference is."
)
RANKS = "Average ranks, each in the middle of a bar as long as the critical difference."
TERMS = {
    **DEFINITIONS,
    "global p. c.": "per client, the server's model on each client's own test set",
    "new users": "clients that took no part in the federation, after the first k examples of each class of their own",
    **{SELECTED[selection]: CHOICES[selection] for selection in SELECTIONS},
    "up, down": "bytes per client and round",
    "time": "of the whole run, all clients on one machine",
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
        problems = "; ".join(comparison.warnings) or "no directory was given"
        raise RunDirectoryError(f"nothing to compare: {problems}; expected at least one finished run")
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.json").write_text(json.dumps(asdict(comparison), indent=1) + "\n", "utf-8")
    page = page_of(comparison)
    (out / "comparison.md").write_text(markdown(page), "utf-8")
    (out / "comparison.html").write_text(html(page, out), "utf-8")
    return comparison


def _runs_of(paths: Sequence[Path]) -> Iterator[Path]:
    """Put the runs of a sweep in the place of its folder."""
    for path in paths:
        if (path / SWEEP_FILE).is_file():
            yield from run_directories(path)
        else:
            yield path


def page_of(comparison: Comparison) -> ReportPage:
    """Lay a comparison out: a section for each group, and one for each ranking over data sets."""
    sections = [_of_group(group, comparison.selection) for group in comparison.groups]
    sections += map(_of_ranking, comparison.over_datasets)
    metrics = {metric.short for group in comparison.groups for metric in group.metrics.values()}
    starts = frozenset({*(f"pers. {name}" for name in metrics), "up", "rounds", "seeds"})
    return ReportPage("Comparison of runs", sections, "What the columns say", TERMS, comparison.warnings, NOTES, starts)


def _of_group(group: Group, selection: Selection) -> ReportSection:
    figures = {
        "curves": (plots.over_rounds(group), CURVES),
        "bytes": (plots.over_bytes(group), BYTES),
        "differences": (plots.differences(group), DIFFERENCES),
    }
    shown = (tables.scores_table, tables.paired_table, tables.selected_table, overhead_table)
    return ReportSection(
        "",
        group.title,
        choice(selection),
        figures=_captioned(figures, group.title),
        tables=[table for make in shown if (table := make(group))],
        warnings=tables.group_notes(group),
    )


def _of_ranking(over: OverDatasets) -> ReportSection:
    figures = _captioned({"ranks": (plots.critical_difference(over), RANKS)}, f"{over.model} {over.column}")
    title, summary = tables.ranking_title(over), tables.ranking_summary(over)
    return ReportSection("", title, summary, figures=figures, tables=[tables.ranking_table(over)])


def _captioned(figures: Mapping[str, tuple[Figure | None, str]], title: str) -> dict[str, CaptionedFigure]:
    """Name those figures that there are by their kind and what they are of."""
    tail = re.sub(r"[^\w]+", "-", title).strip("-")[:120]
    return {f"{kind}-{tail}": CaptionedFigure(figure, caption) for kind, (figure, caption) in figures.items() if figure}
