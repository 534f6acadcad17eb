"""The figures over clients and classes: both scores of each client, its examples, and the confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sim.reports.figures.partition import partition_figure
from sim.reports.figures.style import SCORE_STYLES, axis_of, clean, heading, name_clients, new_figure, plain_text
from sim.results.records import Counts
from sim.results.run_directory import RunDirectory

ANNOTATED_CLASSES = 12


def client_scores(run: RunDirectory) -> Figure | None:
    """Draw both scores of every client, in the order of personalization."""
    metric, kind = run.config.primary
    own = {name: s.personalization.get(metric) for name, s in run.client_scores.items() if s.personalization}
    known = {name: score for name, score in own.items() if score is not None}
    if not known:
        return None
    names = sorted(known, key=lambda name: known[name])
    figure = new_figure(4.2)
    axes = figure.subplots()
    for score, (colour, marker) in list(SCORE_STYLES.items())[:2]:
        parts = [getattr(run.client_scores[name], score) for name in names]
        scores = [part.get(metric) if part else None for part in parts]
        values = [np.nan if value is None else kind.factor * value for value in scores]
        axes.plot(range(len(names)), values, marker, color=colour, label=score, markersize=5)
        axes.axhline(float(np.nanmean(values)), color=colour, linewidth=1, linestyle=":")
    clean(axes, heading(kind))
    axis_of(axes, kind)
    name_clients(axes, names, "client, in the order of personalization; dotted: the means")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


def partition(run: RunDirectory) -> Figure | None:
    """Draw examples of each client by part, and of each client and class (training)."""
    if not run.clients:
        return None
    train, test = (
        np.array([getattr(client, part) for client in run.clients.values()])
        for part in ("train_per_class", "test_per_class")
    )
    return partition_figure(list(run.clients), train, test, run.config.partition_labels)


def confusion(run: RunDirectory, score: str) -> Figure | None:
    """Draw confusion matrix of one score, each row in percent of its true class."""
    counts: Counts | None = getattr(run.confusions, "global_" if score == "global" else score)
    if counts is None:
        return None
    matrix = np.array(counts, float)
    total = matrix.sum(1, keepdims=True)
    shares = np.divide(100 * matrix, total, out=np.full_like(matrix, np.nan), where=total > 0)
    figure = new_figure(4.9, 5.6)
    axes = figure.subplots()
    colours = colormaps["Blues"].with_extremes(bad="#eeeeee")
    image = axes.imshow(np.ma.masked_invalid(shares), cmap=colours, vmin=0, vmax=100)
    _name_classes(axes, run.config.labels)
    if len(matrix) <= ANNOTATED_CLASSES:
        _annotate(axes, shares)
    figure.colorbar(image, ax=axes, format=PercentFormatter(decimals=0), label="of the true class", shrink=0.85)
    axes.set_title(score, fontsize=11)
    return figure


def _name_classes(axes: Axes, labels: Sequence[str]) -> None:
    step = -(-len(labels) // 30)
    shown = [plain_text(label) for label in labels[::step]]
    axes.set_xticks(range(0, len(labels), step), shown, rotation=90, fontsize=9)
    axes.set_yticks(range(0, len(labels), step), shown, fontsize=9)
    axes.set(xlabel="predicted", ylabel="true")


def _annotate(axes: Axes, shares: npt.NDArray[np.float64]) -> None:
    for (row, column), share in np.ndenumerate(shares):
        if not np.isnan(share):
            # 0.4 must not read as 0: what is rare and what never happens are different findings
            text = f"{share:.0f}" if share >= 1 or share == 0 else "<1"
            colour = "white" if share > 55 else "#444444"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
