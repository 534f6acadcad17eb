"""MMD between clients' features and a centralized model's, and the federated feature discrepancy of two methods.

U. Michieli, M. Ozay 2021, arXiv 2105.08982, eq. 16 and 17.
A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schölkopf, A. Smola: A Kernel Two-Sample Test, JMLR 13, 2012, eq. 5.

Differs from the paper: it names no kernel; here it is the RBF kernel whose width is the median distance between the
centralized features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from federation.records import Examples
from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.analysis.tsne import subsample
from sim.reports.comparison.comparability import tested_on
from sim.reports.figures.style import BLUE, ORANGE, clean, client_dots, explain, name_clients, new_panels
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of

TEXT = """Squared maximum mean discrepancy between the features of client k's test examples under its own model (best
round) and the centralized model's features of all clients' test examples. Kernel exp(−‖x − y‖²/2σ²), σ the median
distance between centralized features; the biased estimate, which is never negative. Smaller is closer to centralized
training. FFD(A, B) = 100·(MMD_B − MMD_A)/MMD_B: positive where A, this run, is closer than B. Each client holds its own
mix of classes, so that no value reaches 0; networks that were initialised differently have different feature spaces."""
MAX_VECTORS = 2000
"""So many features of either side at most: kernel matrices grow with the square."""


def discrepancy(run: FinishedRun, centralized: FinishedRun, against: FinishedRun | None) -> ReportSection:
    """Measure the run's MMD, and FFD if there is a run to compare with.

    Raises:
        AnalysisError: if the runs were tested on different examples, or their features have different sizes.
    """
    for other in (centralized, *([against] if against else [])):
        _check_comparable(run, other)
    reference = _reference(centralized)
    width = median_distance(reference)
    found = {label: _per_client(each, reference, width) for label, each in _runs(run, against).items()}
    means = {label: float(np.mean(list(each.values()))) for label, each in found.items()}
    told = [(f"mean MMD², {label}", f"{value:.4g}") for label, value in means.items()]
    values = {"bandwidth": width, "mmd2": means, "clients": found}
    networks = sorted({each.directory.config.model_name for each in (run, centralized, against or run)})
    told.append(("models", ", ".join(networks) + _caution(networks)))
    if against:
        mine, theirs = means.values()
        values["ffd"] = ffd(mine, theirs)
        told.append(("FFD(A, B)", f"{values['ffd']:.1f} %"))
    figures = {"clients": CaptionedFigure(_figure(found), "MMD² of each client, in the order of this run's.")}
    title = "Discrepancy from centralized features"
    return ReportSection("discrepancy", title, TEXT, values, figures, [table_of((), told)])


def _caution(models: Sequence[str]) -> str:
    """Say that features of different networks differ by more than training."""
    return ": different networks; their features differ by more than how they were trained" if len(models) > 1 else ""


def _runs(run: FinishedRun, against: FinishedRun | None) -> dict[str, FinishedRun]:
    runs = {f"A: {run.method} ({run.directory.path.name})": run}
    return runs if against is None else {**runs, f"B: {against.method} ({against.directory.path.name})": against}


def _check_comparable(run: FinishedRun, other: FinishedRun) -> None:
    mine, theirs = ({"data": each.settings.dataset, **tested_on(each.directory)} for each in (run, other))
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            raise AnalysisError(
                f"{other.directory.path} was tested on other examples than {run.directory.path}: "
                f"{key} = {theirs.get(key)!r}, not {mine.get(key)!r}"
            )
    if not torch.equal(run.data.union_test().y, other.data.union_test().y):
        raise AnalysisError(f"{other.directory.path} has other test examples than {run.directory.path}; use one seed")
    sizes = [each.settings.training.feature_dim for each in (run, other)]
    if sizes[0] != sizes[1]:
        raise AnalysisError(f"features have {sizes[0]} and {sizes[1]} dimensions; MMD needs models with the same")
    places = [{spec.options.get("features_at", "head") for spec in each.settings.models} for each in (run, other)]
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


def _per_client(run: FinishedRun, reference: Tensor, width: float) -> dict[str, float]:
    found, seed = {}, run.settings.training.seed
    within = kernel(reference, reference, width).mean()
    for done, (name, features) in enumerate(run.own_features.items()):
        run.progress(f"MMD of client {name}", done, len(run.own_features))
        rows = subsample(len(features), MAX_VECTORS, seed, "mmd", name)
        found[name] = float(mean_discrepancy(features[rows], reference, width, within))
    return found


def kernel(x: Tensor, y: Tensor, width: float) -> Tensor:
    """Return exp(−‖x_i − y_j‖²/2σ²) (n, m) of x (n, D) and y (m, D), in float64."""
    # not by ‖x‖² + ‖y‖² − 2xy, whose rounding would show where features nearly agree
    distance = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-(distance**2) / (2 * width**2))


def mean_discrepancy(x: Tensor, y: Tensor, width: float, within_y: Tensor) -> Tensor:
    """Return mean k(x, x′) + mean k(y, y′) − 2 mean k(x, y), a vector with itself included; `within_y`: the second."""
    return kernel(x, x, width).mean() + within_y - 2 * kernel(x, y, width).mean()


def median_distance(features: Tensor) -> float:
    """Median of ‖x_i − x_j‖ over pairs i < j of features (m, D); raises AnalysisError where it is 0."""
    width = float(np.median(torch.pdist(features.double()).numpy())) if len(features) > 1 else 0.0
    if not width > 0:
        raise AnalysisError("the centralized features coincide, so that no bandwidth fits them; did the model learn?")
    return width


def ffd(mine: float, theirs: float) -> float:
    """Return FFD(A, B) = 100·(MMD_B − MMD_A)/MMD_B in percent."""
    if not theirs > 0:
        raise AnalysisError(f"FFD(A, B) divides by MMD_B, which is {theirs}")
    return 100 * (theirs - mine) / theirs


def _figure(found: Mapping[str, Mapping[str, float]]) -> Figure:
    first = next(iter(found.values()))
    names = sorted(first, key=lambda name: first[name])
    figure, (axes,) = new_panels(3.6)
    for (label, each), (colour, marker) in zip(found.items(), ((BLUE, "o"), (ORANGE, "s")), strict=False):
        client_dots(axes, [each.get(name, np.nan) for name in names], label, colour, marker)
    clean(axes, "MMD²")
    axes.set_ylim(bottom=0)
    name_clients(axes, names, "client; dotted: the means")
    explain(figure, axes, "outside upper center", 2)
    return figure
