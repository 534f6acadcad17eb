"""What `--analyses` has recorded of a run's rounds, and which classes its clients have.

Michieli and Ozay 2021 (arXiv 2105.08982), figures 2, 3 and S1.
"""

from __future__ import annotations

import numpy as np

from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.partition import class_figure
from sim.reports.figures.run_figures import MEASURES, analyses, measured_rounds
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.report import CAPTIONS
from sim.reports.table import table_of

TEXT = """What the run measured after each evaluated round. Loss and gradients are the server's model's."""
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
    return ReportSection("analyses", "Measures by round", TEXT, values, figures, [table_of((), facts)])


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
