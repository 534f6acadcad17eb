"""Gradient dissimilarity at the server's last model, and by round where the run measured it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from federation.training.forward import functional, initial_client
from models.model import Model
from sim.evaluation import dissimilarity, mean_gradient
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.run_figures import gradient_dissimilarity
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.report import CAPTIONS
from sim.reports.table import table_of

TEXT = """(1/K) Σ‖∇L_k − ∇L‖² at the server's model of the last round: L_k is the mean cross-entropy over client k's
training examples, dropout off, and ∇L = Σ n_k ∇L_k / Σ n_k. At 0 all clients would step alike; ‖∇L‖² beside it gives
the scale."""


def gradients(run: FinishedRun) -> ReportSection:
    """Measure it over the clients that left a model.

    Raises:
        AnalysisError: if the method has no global model.
    """
    model = run.server
    found = dissimilarity(_gradients(run, model))
    values = {"dissimilarity": found.value, "overall_square": found.overall, "client_squares": dict(found.clients)}
    told = (
        ("(1/K) Σ‖∇L_k − ∇L‖²", f"{found.value:.4g}"),
        ("‖∇L‖²", f"{found.overall:.4g}"),
        ("clients", str(len(found.clients))),
    )
    by_round = gradient_dissimilarity(run.directory)
    figures = {"rounds": CaptionedFigure(by_round, CAPTIONS["gradient_dissimilarity"])} if by_round else {}
    return ReportSection("gradients", "Gradient dissimilarity", TEXT, values, figures, [table_of((), told)])


def _gradients(run: FinishedRun, model: Model) -> Iterable[tuple[str, int, Tensor]]:
    evaluate, server = functional(model, training=False), initial_client(model)
    names = run.trained
    for done, name in enumerate(names):
        run.progress(f"gradient of client {name}", done, len(names))
        train, batch = run.data.clients[name].train, run.settings.eval_batch
        yield name, len(train.y), mean_gradient(run.task, evaluate, server, train, batch, run.data.moments)
