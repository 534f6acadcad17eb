"""The figures of a comparison: scores over rounds and over bytes, differences to the baseline, ranks over data sets.

What a method costs a client against the baseline: local training time, memory and bytes.
Table 3 of Ek et al. 2024 is the model: the baseline's own figures, and every other row in multiples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.reports.comparison.records import PAIRED, ROUND_SCORES, Curve, Group, OverDatasets
from sim.reports.comparison.tables import significant
from sim.reports.figures.style import BLACK, BLUE, by_round, clean, heading, line_style, new_panels, plain_text
from sim.results.statistics import PairedTest

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
