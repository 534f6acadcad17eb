"""The plots of a run; each is a function from what was read to a Figure, or None without data."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gaitway.tasks import Metric
from sim.reports.figures.partition import partition_figure
from sim.reports.figures.segmentation import images
from sim.reports.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SCORE_STYLES,
    SKY,
    VERMILLION,
    axis_of,
    by_round,
    clean,
    client_dots,
    draw,
    explain,
    heading,
    line_style,
    name_clients,
    name_ticks,
    new_panels,
    rounds_figure,
)
from sim.results.run_directory import RunDirectory
from sim.scores.records import MeanStd, RoundRecord

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


def draw_run(run: RunDirectory) -> list[Path]:
    """Draw every figure that the run has data for, into DIR/plots, and return the paths."""
    builders, plots = dict(FIGURES), run.path / "plots"
    ready = run.path / "partition.png"  # drawn as the run began, of the same numbers
    if ready.is_file():
        del builders["partition"]
    paths = draw({name: builder(run) for name, builder in builders.items()}, plots)
    return [*paths, Path(shutil.copyfile(ready, plots / ready.name))] if ready.is_file() else paths


def learning_curves(run: RunDirectory) -> Figure | None:
    """Draw scores by round: mean ± std over clients of their own models, and the server's model."""
    if not run.evaluated_rounds:
        return None
    return _by_metric(run, 4.2, lambda axes, name, metric: _score_lines(axes, run, name, metric))


def _by_metric(run: RunDirectory, height_in: float, draw_scores: Callable[[Axes, str, Metric], None]) -> Figure:
    """Draw a panel for each of the task's metrics."""
    metrics = run.config.metrics
    figure, panels = new_panels(height_in, len(metrics), sharey=True)
    for axes, (name, metric) in zip(panels, metrics.items(), strict=True):
        draw_scores(axes, name, metric)
        axis_of(axes, metric)
    explain(figure, panels[0], "outside upper center", 2)
    return figure


def _score_lines(axes: Axes, run: RunDirectory, name: str, metric: Metric) -> None:
    spreads = [(record.round, record.personalization) for record in run.rounds if record.personalization]
    followed = [(number, spread[name]) for number, spread in spreads]
    _band(axes, followed, metric, "personalization (mean ± std over clients)", BLUE)
    server = [(record.round, record.global_) for record in run.rounds if record.global_]
    if server:
        values = [metric.factor * (scores[name] or np.nan) for _, scores in server]
        axes.plot([number for number, _ in server], values, "--", color=GREEN, label="global (server's model)")
    if run.summary:
        best = run.summary.best_round
        axes.axvline(best, color="#888888", linewidth=1, linestyle=":", label=f"best round by test ({best})")
    if run.summary and run.summary.generalization:
        score = run.summary.generalization[name]
        label = "generalization (best round by test)"
        mean, std = metric.factor * score.mean, metric.factor * score.std
        axes.errorbar(best, mean, std, fmt="s", color=VERMILLION, capsize=4, label=label)
    by_round(axes, heading(metric), run.rounds[-1].round)


def _band(axes: Axes, spreads: Sequence[tuple[int, MeanStd]], metric: Metric, label: str, colour: str) -> None:
    numbers = [number for number, _ in spreads]
    means = metric.factor * np.array([spread.mean for _, spread in spreads])
    stds = metric.factor * np.array([spread.std for _, spread in spreads])
    highest = np.full_like(means, metric.factor if metric.is_share else np.inf)
    marker = "o" if len(numbers) == 1 else ""
    axes.plot(numbers, means, color=colour, marker=marker, label=label)
    axes.fill_between(numbers, np.maximum(means - stds, 0), np.minimum(means + stds, highest), color=colour, alpha=0.18)


def train_loss(run: RunDirectory) -> Figure | None:
    """Draw training loss by round, the mean over clients weighted by examples."""
    if not run.rounds:
        return None
    losses = {record.round: np.nan if record.train_loss is None else record.train_loss for record in run.rounds}
    return rounds_figure({"training loss": losses}, "training loss (mean)", run.rounds[-1].round)


MEASURES = {
    "server_loss": "training loss of the server's model",
    "gradient_dissimilarity": "(1/K) Σ‖∇L_k − ∇L‖²",
    "aggregate_margin": "aggregate margin (d⁻)",
}
"""What `sim.rounds.analyses` measures by round, as axes name it."""


def measured_rounds(run: RunDirectory, measure: str) -> dict[int, float]:
    """Return one measure by round; {} where the run did not take it."""
    found = {record.round: getattr(record.analyses, measure) for record in run.rounds if record.analyses}
    return {number: value for number, value in found.items() if value is not None}


def analyses(run: RunDirectory) -> Figure | None:
    """Draw what the run analysed of its rounds, a panel for each measure; None where it analysed nothing."""
    found = {label: rounds for name, label in MEASURES.items() if (rounds := measured_rounds(run, name))}
    if not found:
        return None
    figure, panels = new_panels(3.2, len(found))
    for axes, (label, rounds) in zip(panels, found.items(), strict=True):
        axes.plot(list(rounds), list(rounds.values()), **line_style(0, len(rounds)))
        by_round(axes, label, run.rounds[-1].round)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_ylim(bottom=0)
    return figure


def score_over_bytes(run: RunDirectory) -> Figure | None:
    """Draw scores by what all clients together have moved so far; None where nothing travels."""
    moved = list(accumulate(record.moved_bytes / 1e6 for record in run.rounds))
    if not run.evaluated_rounds or not moved[-1]:
        return None

    def draw_scores(axes: Axes, name: str, metric: Metric) -> None:
        for score, (colour, marker) in SCORE_STYLES.items():
            values = [(x, record.mean(score, name)) for x, record in zip(moved, run.rounds, strict=True)]
            points = [(x, metric.factor * value) for x, value in values if value is not None]
            if points:
                axes.plot(*zip(*points, strict=True), "-", marker=marker, markersize=3, color=colour, label=score)
        clean(axes, heading(metric), "moved up and down by all clients so far (MB)")

    return _by_metric(run, 3.6, draw_scores)


def cost(run: RunDirectory) -> Figure | None:
    """Draw bytes that a client has moved so far, and seconds of each round by phase."""
    if not run.rounds:
        return None
    figure, (traffic, time) = new_panels(3.8, 2)
    _traffic(traffic, run.rounds)
    _seconds(time, run.rounds)
    return figure


def _traffic(axes: Axes, rounds: Sequence[RoundRecord]) -> None:
    numbers = [record.round for record in rounds]
    series = (("down", VERMILLION, "-", "v"), ("up", BLUE, "--", "^"))
    for direction, colour, dash, marker in series:
        moved = np.cumsum([getattr(record, f"bytes_{direction}") for record in rounds]) / 1e6
        axes.plot(numbers, moved, dash, color=colour, label=direction, marker=marker if len(numbers) == 1 else "")
    by_round(axes, "moved so far per client (MB)", numbers[-1])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="upper left")


def _seconds(axes: Axes, rounds: Sequence[RoundRecord]) -> None:
    numbers, below = np.array([record.round for record in rounds]), np.zeros(len(rounds))
    hatches = {"train": (BLUE, ""), "aggregate": (ORANGE, "//"), "evaluate": (SKY, "..")}
    if any("analyses" in record.seconds for record in rounds):
        hatches["analyses"] = (PURPLE, "xx")
    for phase, (colour, hatch) in hatches.items():
        seconds = np.array([record.seconds.get(phase, 0.0) for record in rounds])
        look: dict[str, Any] = {"hatch": hatch, "edgecolor": "white", "linewidth": 0} if len(rounds) <= 40 else {}
        axes.bar(numbers, seconds, 0.9 if look else 1.0, bottom=below, color=colour, label=phase, **look)
        below += seconds
    by_round(axes, "time of the round (s)", int(numbers[-1]))
    axes.set_ylim(0, 1.25 * max(float(below.max()), 1e-9))
    axes.legend(frameon=False, loc="upper center", ncols=len(hatches))


FIGURES: dict[str, Callable[[RunDirectory], Figure | None]] = {
    "learning_curves": learning_curves,
    "train_loss": train_loss,
    "analyses": analyses,
    "client_scores": client_scores,
    "confusion_personalization": lambda run: confusion(run, "personalization"),
    "confusion_generalization": lambda run: confusion(run, "generalization"),
    "confusion_global": lambda run: confusion(run, "global"),
    "partition": partition,
    "images": images,
    "score_over_bytes": score_over_bytes,
    "cost": cost,
}
