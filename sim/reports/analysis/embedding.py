"""t-SNE maps of test features and class prototypes, coloured by class and by client.

As figure 2 of Tan et al. 2022 (arXiv 2105.00243) and figure S3 of Michieli and Ozay 2021 (arXiv 2105.08982).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from federation.aggregation.class_statistics import class_prototypes
from federation.records import ClassStats, Examples
from federation.records.tree import total
from federation.tasks.segmentation import Segmentation
from models.model import Model
from sim.reports.analysis.dots import NAMED_CLASSES, Groups, GroupStyle, edged, name_map, subsample, tsne
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.style import new_figure
from sim.reports.page import CaptionedFigure, ReportSection

TEXT = """Each dot is a test example, in segmentation one of its pixels of the features' resolution that is not of the
background; the same dots left and right. Stars are the aggregate prototypes
Σ n_k[c] p_k[c] / Σ n_k[c]; diamonds on the left are the clients' own prototypes p_k[c], measured on training examples.
t-SNE keeps neighbourhoods: distances between clusters and their sizes mean nothing."""
MAX_DOTS = 1500
MAX_DIAMONDS = 300


class Cloud(NamedTuple):
    """Features (n, D) with classes and clients, and prototypes to mark among them."""

    features: Tensor
    classes: Groups  # (n,)
    clients: Groups  # (n,)
    local: Tensor  # (m, D) prototypes of single clients
    local_classes: Groups  # (m,)
    shared: Tensor  # (C′, D) aggregate prototypes
    shared_classes: Groups  # (C′,)


def embedding(run: FinishedRun) -> ReportSection:
    """Map the features under the clients' own models, and under the server's if there is one."""
    figures = {}
    if not run.pools_data:
        figures["clients"] = CaptionedFigure(
            _figure(run, _own(run)), "Features under each client's own model, best round."
        )
    if run.has_server_model:
        caption = "Features of the same examples under the server's model, last round."
        figures["server"] = CaptionedFigure(_figure(run, _server(run)), caption)
    return ReportSection("features", "Features and prototypes", TEXT, figures=figures)


def _own(run: FinishedRun) -> Cloud:
    return _cloud(run, {name: _drawn(run, name, run.model(name)) for name in run.own_features}, run.own_stats)


def _server(run: FinishedRun) -> Cloud:
    return _cloud(run, {name: _drawn(run, name, run.server) for name in run.own_features}, run.server_stats)


def _drawn(run: FinishedRun, name: str, model: Model) -> tuple[Tensor, Tensor]:
    """Draw a client's share of the dots, features (m, D) and classes (m,); every client has the same, as far as it can.

    In segmentation they are of pixels, as many as of other tasks examples, and none of the background.
    """
    share, test = max(1, MAX_DOTS // len(run.own_features)), run.data.clients[name].test
    chosen = subsample(len(test.y), share, run.settings.training.seed, name)
    return run.rows(model, Examples(test.x[chosen], test.y[chosen]), share, name, without=_background(run))


def _background(run: FinishedRun) -> int | None:
    """Return the class that would hide all others."""
    return run.task.background if isinstance(run.task, Segmentation) else None


def _cloud(run: FinishedRun, dots: Mapping[str, tuple[Tensor, Tensor]], stats: Mapping[str, ClassStats]) -> Cloud:
    features, classes = (torch.cat(parts) for parts in zip(*dots.values(), strict=True))
    numbers = {name: k for k, name in enumerate(run.clients)}
    clients = np.concatenate([np.full(len(own), numbers[name]) for name, (_, own) in dots.items()])
    local, local_classes = _local(run, stats)
    shared = total(stats.values())
    known = _known(run, shared)
    return Cloud(
        features,
        classes.numpy(),
        clients,
        local,
        local_classes,
        class_prototypes(shared)[known],
        known.nonzero()[:, 0].numpy(),
    )


def _known(run: FinishedRun, stats: ClassStats) -> Tensor:
    """Return which classes (C,) have a prototype that is drawn."""
    return (stats.counts > 0) & (torch.arange(len(stats.counts)) != (-1 if (b := _background(run)) is None else b))


def _local(run: FinishedRun, stats: Mapping[str, ClassStats]) -> tuple[Tensor, Groups]:
    """Stack the clients' prototypes (m, D) and their classes (m,); too many to draw are subsampled."""
    known = {name: _known(run, class_stats) for name, class_stats in stats.items()}
    vectors = torch.cat([class_prototypes(class_stats)[known[name]] for name, class_stats in stats.items()])
    classes = torch.cat([mask.nonzero()[:, 0] for mask in known.values()])
    rows = subsample(len(vectors), MAX_DIAMONDS, run.settings.training.seed, "prototypes")
    return vectors[rows], classes[rows].numpy()


def _figure(run: FinishedRun, cloud: Cloud) -> Figure:
    run.progress("t-SNE of features", 0, 0)
    places = tsne(torch.cat([cloud.features, cloud.local, cloud.shared]), run.settings.training.seed)
    dots, diamonds, stars = np.split(places, np.cumsum([len(cloud.features), len(cloud.local)]))
    figure = new_figure(6.0)
    halves = figure.subfigures(1, 2, squeeze=False)[0]
    left, right = (half.subplots() for half in halves)
    by_class, by_client = GroupStyle(run.data.labels, "class", NAMED_CLASSES), GroupStyle(run.clients, "client")
    by_class.dots(left, dots, cloud.classes)
    by_class.prototypes(left, diamonds, cloud.local_classes, "d", 34.0)
    by_class.prototypes(left, stars, cloud.shared_classes)
    by_client.dots(right, dots, cloud.clients)
    edged(right, stars, ["white"] * len(stars))  # they belong to no client
    for half, axes, style in zip(halves, (left, right), (by_class, by_client), strict=True):
        name_map(axes, f"by {style.title}")
        style.legend(half, [axes])
    return figure
