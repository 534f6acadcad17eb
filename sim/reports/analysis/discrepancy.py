"""Distances of features: MMD to a centralized model's, the federated feature discrepancy, and the aggregate margin.

U. Michieli, M. Ozay 2021, arXiv 2105.08982, eq. 16 and 17.
A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schölkopf, A. Smola: A Kernel Two-Sample Test, JMLR 13, 2012, eq. 5.

The features of M_A are read as those of the server's model, on the round's clients. Differs from the paper: it names no
kernel; here it is the RBF kernel whose width is the median distance between the centralized features.

The aggregate margin: how far apart the aggregate prototypes of different classes lie.
Michieli and Ozay 2021 (arXiv 2105.08982), section 5.1, 'aggregate mean margin', eq. 15 and figure 3, repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from federation.aggregation.prototypes import uploaded
from federation.records import ClassStats, Examples
from federation.records.tree import total
from models.model import Model
from sim.errors import AnalysisError
from sim.reports.analysis.dots import subsample
from sim.reports.analysis.finished import FinishedRun
from sim.reports.comparison.records import tested_on
from sim.reports.figures.run_figures import measured_rounds
from sim.reports.figures.style import BLUE, ORANGE, clean, client_dots, explain, name_clients, new_panels, rounds_figure
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of
from sim.scores.diagnostics import aggregate_margin

TEXT = """MMD^t is the mean over round t's clients k of the maximum mean discrepancy MMD(P_k, Q). P_k are the features
of client k's test examples under the server's model after the round; Q are those of all clients' test examples under a
centralized model. The kernel is exp(−‖x − y‖²/2σ²), σ the median distance between centralized features; the estimate is
the biased one, which is never negative. Smaller is closer to centralized training.
FFD(A, B) = 100·(MMD_B − MMD_A)/MMD_B at the last round is positive where A, this run, is closer than B. Each client
holds its own mix of classes, so no value reaches 0. Networks that were initialized differently have different feature
spaces. Rounds before the last need a run with --analyses michieli."""
MAX_VECTORS = 2000
"""So many features of either side at most: kernel matrices grow with the square."""

ByRound = dict[int, dict[str, float]]
"""MMD(P_k, Q) by round t and client k."""


class Reference(NamedTuple):
    """Features of a centralized model (m, D), the kernel's width, and the mean of the kernel between them."""

    features: Tensor
    width: float
    within: Tensor


def discrepancy(run: FinishedRun, centralized: FinishedRun, against: FinishedRun | None) -> ReportSection:
    """Measure the run's MMD, and FFD if there is a run to compare with.

    Raises:
        AnalysisError: if the runs were tested on different examples, their features have different sizes, or one of
            them has no server's model.
    """
    _check_comparable(run, centralized)  # which says more than that a run is not centralized
    reference = reference_of(centralized)
    found = {label: discrepancies(checked, centralized, reference) for label, checked in _runs(run, against).items()}
    means = {label: mean_by_round(rounds) for label, rounds in found.items()}
    last = {label: rounds[max(rounds)] for label, rounds in means.items()}
    clients = {label: rounds[max(rounds)] for label, rounds in found.items()}
    facts = [(f"MMD, last round, {label}", f"{value:.4g}") for label, value in last.items()]
    values: dict[str, Any] = {"bandwidth": reference.width, "mmd": means, "clients": clients}
    networks = sorted({checked.directory.config.model_name for checked in (run, centralized, against or run)})
    facts.append(("models", ", ".join(networks) + _caution(networks)))
    if against:
        values["ffd"] = ffd(*last.values())
        facts.append(("FFD(A, B)", f"{values['ffd']:.1f} %"))
    drawn = rounds_figure(means, "MMD", max(max(rounds) for rounds in means.values()))
    figures = {
        "rounds": CaptionedFigure(drawn, "Mean MMD over each round's clients."),
        "clients": CaptionedFigure(_figure(clients), "MMD of each client of the last round, in ascending order."),
    }
    title = "Discrepancy from centralized features"
    return ReportSection("discrepancy", title, TEXT, values, figures, [table_of((), facts)])


def reference_of(centralized: FinishedRun) -> Reference:
    """Return the features of the union of test examples under a centralized run's model."""
    features = _reference(centralized)
    width = median_distance(features)
    return Reference(features, width, kernel(features, features, width).mean())


def discrepancies(run: FinishedRun, centralized: FinishedRun, reference: Reference) -> ByRound:
    """Return MMD(P_k, Q) of each kept round and each of its clients; of all clients where data are pooled."""
    _check_comparable(run, centralized)
    found: ByRound = {}
    for record, model in run.server_models():
        run.progress(f"MMD of round {record.round}", record.round, run.directory.rounds[-1].round)
        names = run.data.clients if run.pools_data else record.cohort
        tests = {name: run.data.clients[name].test for name in names}
        found[record.round] = {
            n: _of_client(run, model, n, test, reference) for n, test in tests.items() if len(test.y)
        }
    return {number: clients for number, clients in found.items() if clients}


def _of_client(run: FinishedRun, model: Model, name: str, test: Examples, reference: Reference) -> float:
    features = run.rows(model, test, MAX_VECTORS, name)[0]
    some = features[subsample(len(features), MAX_VECTORS, run.settings.training.seed, "mmd", name)]
    return float(mean_discrepancy(some, reference.features, reference.width, reference.within).clamp(min=0).sqrt())


def mean_by_round(found: ByRound) -> dict[int, float]:
    """Return MMD^t (eq. 16): the mean over the round's clients."""
    return {number: float(np.mean(list(clients.values()))) for number, clients in found.items()}


def _caution(models: Sequence[str]) -> str:
    """Say that features of different networks differ by more than training."""
    return ": different networks; their features differ by more than how they were trained" if len(models) > 1 else ""


def _runs(run: FinishedRun, against: FinishedRun | None) -> dict[str, FinishedRun]:
    runs = {f"A: {run.method} ({run.directory.path.name})": run}
    return runs if against is None else {**runs, f"B: {against.method} ({against.directory.path.name})": against}


def _check_comparable(run: FinishedRun, other: FinishedRun) -> None:
    own, theirs = ({"data": checked.settings.dataset, **tested_on(checked.directory)} for checked in (run, other))
    for key in sorted(own.keys() | theirs.keys()):
        if own.get(key) != theirs.get(key):
            raise AnalysisError(
                f"{other.directory.path} was tested on other examples than {run.directory.path}: "
                f"{key} = {theirs.get(key)!r}, not {own.get(key)!r}"
            )
    if not torch.equal(run.data.union_test().y, other.data.union_test().y):
        raise AnalysisError(f"{other.directory.path} has other test examples than {run.directory.path}; use one seed")
    sizes = [checked.settings.training.feature_dim for checked in (run, other)]
    if sizes[0] != sizes[1]:
        raise AnalysisError(f"features have {sizes[0]} and {sizes[1]} dimensions; MMD needs models with the same")
    places = [{spec.options.get("features_at", "head") for spec in checked.settings.models} for checked in (run, other)]
    if places[0] != places[1]:
        named = " and ".join(", ".join(sorted(place)) for place in places)
        raise AnalysisError(f"features are taken at {named} (the model's option features_at); MMD needs the same place")


def _reference(centralized: FinishedRun) -> Tensor:
    """Features (m, D) of the union of test examples under the centralized run's server model."""
    if centralized.method != "centralized":
        raise AnalysisError(
            f"{centralized.directory.path} is a run of {centralized.method}; expected one of centralized"
        )
    union = centralized.data.union_test()
    rows = subsample(len(union.y), MAX_VECTORS, centralized.settings.training.seed, "reference")
    some = Examples(union.x[rows], union.y[rows])
    return centralized.rows(centralized.server, some, MAX_VECTORS, "reference")[0]


def kernel(x: Tensor, y: Tensor, width: float) -> Tensor:
    """Return exp(−‖x_i − y_j‖²/2σ²) (n, m) of x (n, D) and y (m, D), in float64."""
    # not by ‖x‖² + ‖y‖² − 2xy, whose rounding would show where features nearly agree
    distance = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-(distance**2) / (2 * width**2))


def mean_discrepancy(x: Tensor, y: Tensor, width: float, within_y: Tensor) -> Tensor:
    """Return MMD², mean k(x, x′) + mean k(y, y′) − 2 mean k(x, y), each vector with itself; `within_y`: the second."""
    return kernel(x, x, width).mean() + within_y - 2 * kernel(x, y, width).mean()


def median_distance(features: Tensor) -> float:
    """Median of ‖x_i − x_j‖ over pairs i < j of features (m, D); raises AnalysisError where it is 0."""
    width = float(np.median(torch.pdist(features.double()).numpy())) if len(features) > 1 else 0.0
    if not width > 0:
        raise AnalysisError("the centralized features coincide, so that no bandwidth fits them; did the model learn?")
    return width


def ffd(own: float, theirs: float) -> float:
    """Return FFD(A, B) = 100·(MMD_B − MMD_A)/MMD_B in percent."""
    if not theirs > 0:
        raise AnalysisError(f"FFD(A, B) divides by MMD_B, which is {theirs}")
    return 100 * (theirs - own) / theirs


def _figure(found: Mapping[str, Mapping[str, float]]) -> Figure:
    first = next(iter(found.values()))
    names = sorted(first, key=lambda name: first[name])
    figure, (axes,) = new_panels(3.6)
    for (label, by_client), (colour, marker) in zip(found.items(), ((BLUE, "o"), (ORANGE, "s")), strict=False):
        client_dots(axes, [by_client.get(name, np.nan) for name in names], label, colour, marker)
    clean(axes, "MMD")
    axes.set_ylim(bottom=0)
    name_clients(axes, names, "client; dotted: the means")
    explain(figure, axes, "outside upper center", 2)
    return figure


MARGIN_TEXT = """\
The mean distance d⁻ between aggregate prototypes of different classes. Prototypes are means of training
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
    return ReportSection("aggregate_margin", "Aggregate margin", MARGIN_TEXT, found, figures, [table_of((), facts)])


MODEL_NAMES = {"clients": "the clients' own models (best round)", "server": "the server's model (last round)"}


def margin_of(stats: Mapping[str, ClassStats]) -> float | None:
    """Return d⁻ of measured prototypes; None with fewer than two classes."""
    return aggregate_margin(uploaded(class_stats) for class_stats in stats.values())
