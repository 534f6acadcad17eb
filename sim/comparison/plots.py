"""The figures of a comparison: scores over rounds and over bytes, differences to the baseline, ranks over data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.comparison.records import FOLLOWED, PAIRED, Curve, Group, OverDatasets, Row
from sim.comparison.tables import SIGNIFICANT, ranking_title
from sim.figures import BLACK, BLUE, COLOURS, DASHES, MEASURES, by_round, clean, new_figure, plain_text
from sim.statistics import cliques

SHOWN = {"global_per_client": "global, per client"}


def over_rounds(group: Group) -> Figure | None:
    """Macro-F1 by round of every row, one panel a score that was followed."""

    def axis(axes: Axes) -> None:
        by_round(axes, MEASURES["macro_f1"], max(row.rounds for row in group.rows))

    return _overlay(group, lambda curve: curve.rounds, axis)


def over_bytes(group: Group) -> Figure | None:
    """Macro-F1 by what all clients together have moved so far, up and down; None where nothing is moved."""
    if not any(any(curve.moved_bytes) for row in group.rows for curve in row.curves.values()):
        return None

    def axis(axes: Axes) -> None:
        clean(axes, MEASURES["macro_f1"], "moved up and down by all clients so far (MB)")
        axes.set_xscale("log")

    return _overlay(group, lambda curve: [moved / 1e6 if moved else np.nan for moved in curve.moved_bytes], axis)


def _overlay(group: Group, abscissa: Callable[[Curve], Sequence[float]], axis: Callable[[Axes], None]) -> Figure | None:
    followed = [score for score in FOLLOWED if any(score in row.curves for row in group.rows)]
    if not followed:
        return None
    figure = new_figure(4.2 + 0.22 * ((len(group.rows) + 3) // 4))
    panels = figure.subplots(1, len(followed), squeeze=False, sharey=True)[0]
    handles = {}
    for axes, score in zip(panels, followed, strict=True):
        for index, row in enumerate(group.rows):
            if curve := row.curves.get(score):
                values = [100 * value for value in curve.values]
                (handles[row.label],) = axes.plot(abscissa(curve), values, **_look(index, len(values)))
        axis(axes)
        axes.set_title(score, fontsize=11)
        axes.label_outer()
    labels = [plain_text(label) for label in handles]
    figure.legend(list(handles.values()), labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _look(index: int, points: int) -> dict[str, Any]:
    """Tell up to 28 rows apart: 7 colours and 4 dashes have no common divisor."""
    dash = DASHES[index % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dash, "marker": "o" if points == 1 else ""}


def differences(group: Group) -> Figure | None:
    """Each row's macro-F1 minus the baseline's with its interval, filled where it is significant."""
    rows = [row for row in group.rows if row.tests]
    scores = [score for score in PAIRED if any(f"{score}.macro_f1" in row.tests for row in rows)]
    if not scores:
        return None
    figure = new_figure(1.3 + 0.3 * len(rows))
    panels = figure.subplots(1, len(scores), squeeze=False, sharey=True)[0]
    for axes, score in zip(panels, scores, strict=True):
        for place, row in enumerate(rows):
            _difference(axes, place, row, f"{score}.macro_f1")
        axes.axvline(0, color=BLACK, linewidth=1)
        clean(axes, "", "difference in macro-F1 (points)")
        axes.grid(axis="x", color="#dddddd", linewidth=0.8)
        axes.set_title(SHOWN.get(score, score), fontsize=11)
    panels[0].set_yticks(range(len(rows)), [plain_text(f"{row.label} − {row.baseline}") for row in rows], fontsize=9)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _difference(axes: Axes, place: int, row: Row, column: str) -> None:
    test = row.tests.get(column)
    if test is None:
        return
    if test.low is not None and test.high is not None:
        axes.plot([100 * test.low, 100 * test.high], [place, place], color=BLUE, linewidth=2)
    face = BLUE if test.p_holm < SIGNIFICANT else "white"
    axes.plot(100 * test.difference, place, "o", color=BLUE, markerfacecolor=face, markersize=6)


def critical_difference(over: OverDatasets) -> Figure:
    """Average ranks on one axis, and a bar over each group that Nemenyi's test does not tell apart."""
    ranks = sorted(over.ranking.ranks.items(), key=lambda item: item[1])
    groups = cliques(over.ranking)
    figure = new_figure(1.6 + 0.26 * (len(ranks) + len(groups)))
    axes = figure.subplots()
    for place, (name, rank) in enumerate(ranks):
        y = len(groups) + 1.5 + place
        axes.plot([rank, rank], [0, y], color="#999999", linewidth=0.8)
        axes.plot(rank, y, "o", color=BLUE)
        axes.annotate(f"{plain_text(name)} ({rank:.2f})", (rank, y), (7, 0), textcoords="offset points", va="center")
    for place, group in enumerate(groups):
        ends = [over.ranking.ranks[group[0]], over.ranking.ranks[group[-1]]]
        axes.plot(ends, [place + 0.8] * 2, color=BLACK, linewidth=4, solid_capstyle="butt")
    axes.set(xlim=(0.8, len(ranks) + 0.8), ylim=(len(groups) + len(ranks) + 1.5, 0), yticks=[])
    axes.set_xticks(range(1, len(ranks) + 1))
    axes.set_xlabel(f"average rank (1 is best); critical difference {over.ranking.critical_difference:.2f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(plain_text(ranking_title(over)), fontsize=11)
    return figure
