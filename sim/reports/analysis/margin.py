"""The aggregate margin: how far apart the aggregate prototypes of different classes lie.

Michieli and Ozay 2021 (arXiv 2105.08982), section 5.1, 'aggregate mean margin', eq. 15 and figure 3, repaired.
"""

from __future__ import annotations

from collections.abc import Mapping

from federation.aggregation.prototypes import uploaded
from federation.records import ClassStats
from federation.records.tree import total
from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.run_figures import measured_rounds
from sim.reports.figures.style import rounds_figure
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of
from sim.scores.diagnostics import aggregate_margin

TEXT = """The mean distance d⁻ between aggregate prototypes of different classes. Prototypes are means of training
features; each client's is scaled to [0, 1] over its channels, and their mean is weighted by n_k[c]. Where one model is
trained on all examples, they count as one client's. This is not the
formula that the paper prints (eq. 15): that one takes the margin of a set of prototypes against itself, whose distance
d⁺ is 0, so that it is 1 for every model; and the values that the paper reports (0.34 to 8.68) lie outside the range of
a margin, [−1, 1]."""
CAPTION = "The aggregate margin of the prototypes of each round's clients, under their own models."


def margin(run: FinishedRun) -> ReportSection:
    """Measure the margin under the clients' own models, under the server's, and by round where it was recorded.

    Raises:
        AnalysisError: if the clients have examples of fewer than two classes.
    """
    values = {} if run.pools_data else {"clients": margin_of(run.own_stats)}
    if run.has_server_model:
        values["server"] = margin_of({"": total(run.server_stats.values())} if run.pools_data else run.server_stats)
    if None in values.values():
        raise AnalysisError("aggregate_margin needs training examples of at least two classes")
    sent = {n: record.aggregate_margin for n, record in run.diagnostics.items() if record.aggregate_margin is not None}
    rounds = measured_rounds(run.directory, "aggregate_margin") or sent
    figures = {}
    if rounds:
        drawn = rounds_figure({"aggregate margin": rounds}, "aggregate_margin (d⁻)", max(rounds))
        figures["rounds"] = CaptionedFigure(drawn, CAPTION)
    facts = [(f"aggregate_margin, prototypes by {MODEL_NAMES[who]}", f"{value:.4f}") for who, value in values.items()]
    found = {**values, "rounds": {str(number): value for number, value in rounds.items()}}
    return ReportSection("aggregate_margin", "Aggregate margin", TEXT, found, figures, [table_of((), facts)])


MODEL_NAMES = {"clients": "the clients' own models (best round)", "server": "the server's model (last round)"}


def margin_of(stats: Mapping[str, ClassStats]) -> float | None:
    """Return d⁻ of measured prototypes; None with fewer than two classes."""
    return aggregate_margin(uploaded(class_stats) for class_stats in stats.values())
