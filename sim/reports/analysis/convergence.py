"""How far the server's prototypes move from round to round, per block, from the rounds' diagnostics."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.diagnostics import Movement
from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.style import by_round, explain, line_style, new_panels
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of

TEXT = """How far prototypes went in each round, ‖p(t+1) − p(t)‖, relative to their mean length, so that blocks and runs
compare. Prototypes that have converged move little; a curve that stays high says that they still follow the network."""
CAPTION = "Mean (left) and largest (right) movement of a prototype in a round, in percent of the mean length."

Curves = dict[str, list[tuple[int, Movement]]]


def convergence(run: FinishedRun) -> ReportSection:
    """Draw each block's movement by round.

    Raises:
        AnalysisError: if the run recorded no movement.
    """
    curves: Curves = {}
    for number, each in run.diagnostics.items():
        for block, moved in each.movement.items():
            curves.setdefault(block, []).append((number, moved))
    if not curves:
        raise AnalysisError(_missing(run))
    last = {block: _relative(each[-1][1], "mean") for block, each in curves.items()}
    told = [(f"{block}, last round", f"{100 * value:.3g} % of the mean length") for block, value in last.items()]
    figures = {"rounds": CaptionedFigure(_figure(curves), CAPTION)}
    values, title = {"last_relative": last}, "Convergence of prototypes"
    return ReportSection("convergence", title, TEXT, values, figures, [table_of((), told)])


def _missing(run: FinishedRun) -> str:
    """Say why no round has recorded a movement."""
    if not run.keeps_prototypes:
        return f"no prototypes on the server in a run of {run.method}"
    if not run.diagnostics:
        return run.without_diagnostics
    count = len(run.diagnostics)
    return f"prototypes move from one round to the next, and this run has {count} round{'s' * (count > 1)}; run more"


def _relative(moved: Movement, which: str) -> float:
    return float(getattr(moved, which) / moved.length) if moved.length else 0.0


def _figure(curves: Curves) -> Figure:
    figure, panels = new_panels(3.8, 2, sharey=True)
    for axes, which in zip(panels, ("mean", "largest"), strict=True):
        _lines(axes, curves, which)
        axes.set_title(which, fontsize=11)
    panels[1].set_ylabel("")
    explain(figure, panels[0], "outside lower center", 6)
    return figure


def _lines(axes: Axes, curves: Curves, which: str) -> None:
    for index, (block, each) in enumerate(curves.items()):
        rounds = [number for number, _ in each]
        values = [100 * _relative(moved, which) for _, moved in each]
        axes.plot(rounds, values, label=block, **line_style(index, len(rounds)))
    by_round(axes, "movement (% of the mean length)", max(number for each in curves.values() for number, _ in each))
    axes.set_ylim(bottom=0)
