"""The figures over clients and classes: both scores of each client, its examples, and the confusion matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sim.reports.figures.partition import partition_figure
from sim.reports.figures.style import (
    SCORE_STYLES,
    axis_of,
    clean,
    client_dots,
    explain,
    heading,
    name_clients,
    name_ticks,
    new_panels,
)
from sim.results.run_directory import RunDirectory

ANNOTATED_CLASSES, MAX_NAMED_CLASSES = 12, 30


def client_scores(run: RunDirectory) -> Figure | None:
    """Draw both scores of every client, in the order of personalization."""
    metric, kind = run.config.primary
    own = {name: s.personalization.get(metric) for name, s in run.client_scores.items() if s.personalization}
    known = {name: score for name, score in own.items() if score is not None}
    if not known:
        return None
    names = sorted(known, key=lambda name: known[name])
    figure, (axes,) = new_panels(4.2)
    for score, (colour, marker) in list(SCORE_STYLES.items())[:2]:
        scores = [run.client_scores[name].mean(score, metric) for name in names]
        values = [np.nan if value is None else kind.factor * value for value in scores]
        client_dots(axes, values, score, colour, marker)
    clean(axes, heading(kind))
    axis_of(axes, kind)
    name_clients(axes, names, "client, in the order of personalization; dotted: the means")
    explain(figure, axes, "outside upper center", 2)
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
    counts = run.confusions.score(score)
    if counts is None:
        return None
    matrix = np.array(counts, float)
    total = matrix.sum(1, keepdims=True)
    shares = np.divide(100 * matrix, total, out=np.full_like(matrix, np.nan), where=total > 0)
    figure, (axes,) = new_panels(4.9, width_in=5.6)
    colours = colormaps["Blues"].with_extremes(bad="#eeeeee")
    image = axes.imshow(np.ma.masked_invalid(shares), cmap=colours, vmin=0, vmax=100)
    name_ticks(axes.xaxis, run.config.labels, MAX_NAMED_CLASSES, 9)
    name_ticks(axes.yaxis, run.config.labels, MAX_NAMED_CLASSES, 9)
    axes.set(xlabel="predicted", ylabel="true")
    if len(matrix) <= ANNOTATED_CLASSES:
        _annotate(axes, shares)
    figure.colorbar(image, ax=axes, format=PercentFormatter(decimals=0), label="of the true class", shrink=0.85)
    axes.set_title(score, fontsize=11)
    return figure


def _annotate(axes: Axes, shares: npt.NDArray[np.float64]) -> None:
    for (row, column), share in np.ndenumerate(shares):
        if not np.isnan(share):
            # 0.4 must not read as 0: what is rare and what never happens are different findings
            text = f"{share:.0f}" if share >= 1 or share == 0 else "<1"
            colour = "white" if share > 55 else "#444444"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
