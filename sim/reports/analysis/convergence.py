"""A run's recordings from `--analyses`, and its clients' classes.

Michieli and Ozay 2021 (arXiv 2105.08982), figures 2, 3 and S1.

How far prototypes move from round to round, per block, from the rounds' diagnostics.
They are the server's, or where no server sets them, as in a `local` run of a network with ALP layers, the clients' own
local prototypes: figure 5 and appendix G of Ek et al. 2024 (arXiv 2411.10595), with rounds of one epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.partition import class_figure
from sim.reports.figures.run_figures import MEASURES, analyses, measured_rounds
from sim.reports.figures.style import by_round, explain, line_style, new_panels
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.report import CAPTIONS
from sim.reports.table import table_of
from sim.scores.diagnostics import Movement

ROUNDS_TEXT = """What the run measured after each evaluated round. Loss and gradients are the server's model's."""
CLASSES_TEXT = """Training and test examples together. In the panel on the right each class has a color, in the order of
the panel on the left."""
CLASSES_CAPTION = "Clients by class, by number of classes and by size, and the classes of some of them."


def rounds(run: FinishedRun) -> ReportSection:
    """Draw the measures by round.

    Raises:
        AnalysisError: if the run took none.
    """
    drawn = analyses(run.directory)
    if drawn is None:
        raise AnalysisError("the rounds were not analysed; run it with --analyses michieli")
    found = {name: measured_rounds(run.directory, name) for name in (*MEASURES, "gradient_square", "clients")}
    last = {name: curve[max(curve)] for name, curve in found.items() if curve}
    facts = [(f"{label}, last round", f"{last[name]:.4g}") for name, label in MEASURES.items() if name in last]
    facts.append(("clients that loss and gradients are of", f"{last['clients']}"))
    figures = {"rounds": CaptionedFigure(drawn, CAPTIONS["analyses"])}
    values = {name: {str(number): value for number, value in curve.items()} for name, curve in found.items() if curve}
    return ReportSection("analyses", "Measures by round", ROUNDS_TEXT, values, figures, [table_of((), facts)])


def classes(run: FinishedRun) -> ReportSection:
    """Draw which classes clients have, and how many examples.

    Raises:
        AnalysisError: if examples have no classes.
    """
    config, clients = run.directory.config, run.directory.clients.values()
    counts = np.array([np.add(client.train_per_class, client.test_per_class) for client in clients])
    if not counts.sum():
        raise AnalysisError(f"the task {run.task.name} has no classes that clients could differ in")
    drawn = class_figure(counts[counts.sum(1) > 0], config.partition_labels)
    sizes = counts.sum(1)
    values = {"examples": int(sizes.sum()), "mean": float(sizes.mean()), "std": float(sizes.std())}
    facts = [("examples", f"{sizes.sum():,}"), ("a client", f"{sizes.mean():.1f} ± {sizes.std():.1f}")]
    figures = {"clients": CaptionedFigure(drawn, CLASSES_CAPTION)}
    return ReportSection("classes", "Classes of clients", CLASSES_TEXT, values, figures, [table_of((), facts)])


TEXT = """How far prototypes went in each round, ‖p(t+1) − p(t)‖: as it is, and relative to their mean length, so that
blocks and runs compare. They are the server's, or where no server sets them the clients' own, averaged over clients.
Prototypes that have converged move little. A curve that stays high says that they still follow the network."""
CAPTION = "Mean distance that a prototype went in a round; and mean and largest in percent of the mean length."

Curves = dict[str, list[tuple[int, Movement]]]


def convergence(run: FinishedRun) -> ReportSection:
    """Draw each block's movement by round.

    Raises:
        AnalysisError: if the run recorded no movement.
    """
    curves: Curves = {}
    for number, record in run.diagnostics.items():
        for block, moved in record.movement.items():
            curves.setdefault(block, []).append((number, moved))
    if not curves:
        raise AnalysisError(_missing(run))
    last = {block: _relative(curve[-1][1], "mean") for block, curve in curves.items()}
    facts = [(f"{block}, last round", f"{100 * value:.3g} % of the mean length") for block, value in last.items()]
    figures = {"rounds": CaptionedFigure(_figure(curves), CAPTION)}
    means = {block: [[number, moved.mean] for number, moved in curve] for block, curve in curves.items()}
    values, title = {"last_relative": last, "mean": means}, "Convergence of prototypes"
    return ReportSection("convergence", title, TEXT, values, figures, [table_of((), facts)])


def _missing(run: FinishedRun) -> str:
    """Say why no round has recorded a movement."""
    if not run.keeps_prototypes and not run.has_alp:
        return f"no prototypes in a run of {run.method} with {run.directory.config.model_name}"
    if not run.diagnostics:
        return run.without_diagnostics
    count = len(run.diagnostics)
    return f"prototypes move from one round to the next, and this run has {count} round{'s' * (count > 1)}; run more"


def _relative(moved: Movement, which: str) -> float:
    return float(getattr(moved, which) / moved.length) if moved.length else 0.0


def _figure(curves: Curves) -> Figure:
    figure, panels = new_panels(3.8, 3)
    _lines(panels[0], curves, "mean distance", lambda moved: moved.mean)
    for axes, which in zip(panels[1:], ("mean", "largest"), strict=True):
        _lines(axes, curves, f"{which} (% of the length)", partial(_percent, which))
    explain(figure, panels[0], "outside lower center", 6)
    return figure


def _percent(which: str, moved: Movement) -> float:
    return 100 * _relative(moved, which)


def _lines(axes: Axes, curves: Curves, label: str, value: Callable[[Movement], float]) -> None:
    for index, (block, curve) in enumerate(curves.items()):
        rounds = [number for number, _ in curve]
        axes.plot(rounds, [value(moved) for _, moved in curve], label=block, **line_style(index, len(rounds)))
    by_round(axes, label, max(number for curve in curves.values() for number, _ in curve))
    axes.set_ylim(bottom=0)
