"""Predicted masks and entropy maps of a few test images, and per class how good and how sure a segmentation is.

U. Michieli, M. Ozay 2021 (arXiv 2105.08982), section 5.2, figures 6 and S4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from federation.records import Examples
from federation.records.tree import total
from federation.tasks.segmentation import Segmentation
from models.model import Model
from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.segmentation import segmentation_figure
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of
from sim.results.artifacts import choose_images, feature_entropy, image_of, softmax_entropy, together

TEXT = """What the network answers for a few test images, the same for every run of this seed. Softmax entropy is
that of the class probabilities of a pixel: dark where the network is sure. Feature entropy is that of a pixel's
features, raised to be non-negative where some are below 0 and divided by their sum, scaled up to the image: bright
where many features are active. Both in nats, at most ln C and ln D. The networks' heads answer here, also where the
method predicts by prototypes. The table is over the labelled pixels of all clients' test images."""
ALL = "all"
MODEL_NAMES = {
    "server": "The server's model, last round.",
    "clients": "Each image by the model of the client whose it is, best round.",
}


def pixels(run: FinishedRun) -> ReportSection:
    """Draw the images and measure both entropies by class, under the server's model and under the clients' own.

    Raises:
        AnalysisError: if the task is no segmentation.
    """
    task = run.task
    if not isinstance(task, Segmentation):
        raise AnalysisError(f"masks and entropy maps are of segmentation; this run learnt {task.name}")
    models: dict[str, Callable[[str], Model]] = {}
    if run.has_server_model:
        models["server"] = lambda _name: run.server
    if not run.pools_data:
        models["clients"] = run.model
    measured = {whose: _measured(run, task, model) for whose, model in models.items()}
    figures = {whose: CaptionedFigure(_figure(run, task, model), MODEL_NAMES[whose]) for whose, model in models.items()}
    heads = [f"{column}, {whose}" for whose in models for column in COLUMNS]
    return ReportSection(
        "pixels",
        "Masks and entropy maps",
        TEXT,
        measured,
        figures,
        [table_of(("class", "pixels", *heads), _rows(measured))],
    )


def _figure(run: FinishedRun, task: Segmentation, model: Callable[[str], Model]) -> Any:
    tests = {name: run.data.clients[name].test for name in run.own_features}
    found = []
    for name, row in choose_images(tests, task, run.settings.training.seed):
        example = Examples(tests[name].x[row : row + 1], tests[name].y[row : row + 1])
        ((_, output),) = run.outputs(model(name), example)
        title = f"{name}, test image {row + 1}"
        found.append(image_of(task, title, example.x, example.y, output, run.data.statistics.get(name)))
    images = together(found)
    assert images is not None  # own_features has refused a run without a test image
    return segmentation_figure(images, run.data.labels, task)


def _measured(run: FinishedRun, task: Segmentation, model: Callable[[str], Model]) -> dict[str, Any]:
    """Return the metrics, and of each class IoU, pixels and mean entropies, over all clients' test images."""
    sums = total(_sums(run, task, model(name), run.data.clients[name].test) for name in run.own_features)
    per_class = {
        label: {"iou": None if iou != iou else iou, **_means(sums["entropies"][:, k])}
        for k, (label, iou) in enumerate(zip(run.data.labels, task.class_scores(sums["statistics"]), strict=True))
    }
    return {**task.metrics(sums["statistics"]), **_means(sums["entropies"].sum(1)), "classes": per_class}


def _means(sums: Tensor) -> dict[str, Any]:
    """Return how many pixels there are, and their mean entropies, of the sums (3,); None of no pixels."""
    pixels, *entropies = sums.tolist()
    means = (entropy / pixels if pixels else None for entropy in entropies)
    return {"pixels": int(pixels), **dict(zip(("softmax_entropy", "feature_entropy"), means, strict=True))}


def _sums(run: FinishedRun, task: Segmentation, model: Model, test: Examples) -> dict[str, Any]:
    """Add, over some images, the task's statistics, and by class (3, C) pixels and both entropies."""
    classes = run.settings.training.classes
    found = []
    for batch, output in run.outputs(model, test):
        size = (int(batch.y.shape[1]), int(batch.y.shape[2]))
        labelled = batch.y != task.ignore_index
        maps = (torch.ones(batch.y.shape), softmax_entropy(output.logits), feature_entropy(output.features, size))
        by_class = [_by_class(pixel_map[labelled], batch.y[labelled], classes) for pixel_map in maps]
        found.append({"statistics": task.statistics(output, batch), "entropies": torch.stack(by_class)})
    sums: dict[str, Any] = total(found)
    return sums


def _by_class(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    none = torch.zeros(classes, dtype=torch.float64)
    return none.scatter_add(0, labels.long(), values.double())


COLUMNS = ("IoU (%)", "softmax entropy", "feature entropy")


def _rows(measured: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield of all classes, then of each: its pixels, and what each model makes of them."""
    first = next(iter(measured.values()))
    for label in (ALL, *first["classes"]):
        found = [measures if label == ALL else measures["classes"][label] for measures in measured.values()]
        cells = [cell for measures in found for cell in _cells(measures)]
        yield label, f"{found[0]['pixels']:,}", *cells


def _cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    if not found["pixels"]:
        return ("–",) * len(COLUMNS)
    score = found.get("mean_iou", found.get("iou"))
    entropies = (f"{found[name]:.3f}" for name in ("softmax_entropy", "feature_entropy"))
    return "–" if score is None else f"{100 * score:.1f}", *entropies
