"""Writes a comparison: JSON, Markdown, one self-contained page, and its figures as PNG. Figures: scores over
rounds and over bytes, differences to the baseline, ranks over data sets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.errors import RunDirectoryError
from sim.reports.comparison import tables
from sim.reports.comparison.groups import compare_runs
from sim.reports.comparison.records import PAIRED, ROUND_SCORES, Comparison, Curve, Group, OverDatasets
from sim.reports.comparison.tables import overhead_table, significant
from sim.reports.figures.style import BLACK, BLUE, by_round, clean, heading, line_style, new_panels, plain_text
from sim.reports.page import CaptionedFigure, ReportPage, ReportSection, html, markdown
from sim.results.run_directory import RunDirectory
from sim.results.statistics import PairedTest
from sim.results.summary import CHOICES, DEFINITIONS, SELECTED, choice
from sim.scores.records import SELECTIONS, Selection
from sim.sweep.processes import FILE as SWEEP_FILE
from sim.sweep.processes import run_directories

SCORE_LABELS = {"global_per_client": "global, per client"}


def over_rounds(group: Group) -> Figure | None:
    """Draw the primary metric by round of every row, one panel a score that was followed."""

    def axis(axes: Axes) -> None:
        by_round(axes, heading(group.metrics[group.primary]), max(row.rounds for row in group.rows))

    return _overlay(group, lambda curve: curve.rounds, axis)


def over_bytes(group: Group) -> Figure | None:
    """Draw the primary metric by what all clients together have moved so far; None where nothing is moved."""

    def axis(axes: Axes) -> None:
        clean(axes, heading(group.metrics[group.primary]), "moved up and down by all clients so far (MB)")
        axes.set_xscale("log")

    federated = replace(group, rows=tuple(replace(row, curves={}) if row.reference else row for row in group.rows))
    return _overlay(federated, lambda curve: [moved / 1e6 for moved in curve.moved_bytes if moved], axis)


def _overlay(group: Group, abscissa: Callable[[Curve], Sequence[float]], axis: Callable[[Axes], None]) -> Figure | None:
    """Draw a line for every row; `abscissa` leaves out curves that have no place on its axis by returning nothing."""
    shown = {
        score: {
            index: curve for index, row in enumerate(group.rows) if (curve := row.curves.get(score)) and abscissa(curve)
        }
        for score in ROUND_SCORES
    }
    followed = [score for score, found in shown.items() if found]
    if not followed:
        return None
    figure, panels = new_panels(4.2 + 0.22 * ((len(group.rows) + 3) // 4), len(followed), sharey=True)
    handles, factor = {}, group.metrics[group.primary].factor
    for axes, score in zip(panels, followed, strict=True):
        for index, curve in shown[score].items():
            across = abscissa(curve)
            values = [factor * value for value in curve.values[-len(across) :]]
            (handles[group.rows[index].label],) = axes.plot(across, values, **line_style(index, len(values)))
        axis(axes)
        axes.set_title(score, fontsize=11)
        axes.label_outer()
    labels = [plain_text(label) for label in handles]
    figure.legend(list(handles.values()), labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def differences(group: Group) -> Figure | None:
    """Draw each row's primary metric minus the baseline's, with its interval over seeds, filled where significant.

    Below it, thin and grey, the spread over clients: one standard deviation to either side.
    """
    rows = [row for row in group.rows if row.tests]
    metric = group.metrics[group.primary]
    scores = [score for score in PAIRED if any(f"{score}.{group.primary}" in row.tests for row in rows)]
    if not scores:
        return None
    figure, panels = new_panels(1.3 + 0.3 * len(rows), len(scores), sharey=True)
    for axes, score in zip(panels, scores, strict=True):
        for place, row in enumerate(rows):
            _difference(axes, place, row.tests.get(f"{score}.{group.primary}"), metric.factor)
        axes.axvline(0, color=BLACK, linewidth=1)
        clean(axes, "", f"difference in {metric.label}" + (" (points)" if metric.is_share else ""))
        axes.set_title(SCORE_LABELS.get(score, score), fontsize=11)
        _rows(axes, [f"{row.label} − {row.baseline}" for row in rows])
    return figure


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Name places from top to bottom, whose values lie from left to right."""
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_yticks(range(len(names)), list(map(plain_text, names)), fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _difference(axes: Axes, place: int, test: PairedTest | None, factor: float) -> None:
    if test is None:
        return
    spread = [factor * (test.difference + side * test.spread.std) for side in (-1, 1)]
    axes.plot(spread, [place + 0.25] * 2, color="#777777", linewidth=0.8, marker="|", markersize=5)
    if test.low is not None and test.high is not None:
        axes.plot([factor * test.low, factor * test.high], [place, place], color=BLUE, linewidth=2.5)
    face = BLUE if significant(test) else "white"
    axes.plot(factor * test.difference, place, "o", color=BLUE, markerfacecolor=face, markersize=6)


def critical_difference(over: OverDatasets) -> Figure:
    """Average ranks, each in the middle of a bar as long as the critical difference: who overlaps is not told apart."""
    ranks = sorted(over.ranking.ranks.items(), key=lambda item: item[1])
    half = over.ranking.critical_difference / 2
    figure, (axes,) = new_panels(1.3 + 0.3 * len(ranks))
    for place, (_, rank) in enumerate(ranks):
        axes.plot([rank - half, rank + half], [place, place], color=BLUE, linewidth=2)
        axes.plot(rank, place, "o", color=BLUE, markersize=6)
    label = f"average rank (1 is best); critical difference {over.ranking.critical_difference:.2f}"
    clean(axes, "", label)
    _rows(axes, [f"{name} ({rank:.2f})" for name, rank in ranks])
    return figure


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
        "curves": (over_rounds(group), CURVES),
        "bytes": (over_bytes(group), BYTES),
        "differences": (differences(group), DIFFERENCES),
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
    figures = _captioned({"ranks": (critical_difference(over), RANKS)}, f"{over.model} {over.column}")
    title, summary = tables.ranking_title(over), tables.ranking_summary(over)
    return ReportSection("", title, summary, figures=figures, tables=[tables.ranking_table(over)])


def _captioned(figures: Mapping[str, tuple[Figure | None, str]], title: str) -> dict[str, CaptionedFigure]:
    """Name those figures that there are by their kind and what they are of."""
    tail = re.sub(r"[^\w]+", "-", title).strip("-")[:120]
    return {f"{kind}-{tail}": CaptionedFigure(figure, caption) for kind, (figure, caption) in figures.items() if figure}
