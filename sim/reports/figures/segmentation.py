"""Images beside their truth, the predicted mask, and how sure the network is.

As figures 6 and S4 of Michieli and Ozay 2021 (arXiv 2105.08982). Colours are Okabe and Ito's, then darker and lighter
ones; since nobody tells 20 colours apart, each region also bears the number that its class has in the legend.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from federation.tasks.classification import confusion
from federation.tasks.segmentation import Segmentation
from sim.reports.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    WIDTH_IN,
    bare,
    new_figure,
    plain_text,
)
from sim.results.artifacts import FILE, SegmentedImages, read_images
from sim.results.run_directory import RunDirectory

Mask = npt.NDArray[np.int64]
Colour = tuple[float, float, float]

YELLOW = "#F0E442"
BASES = (VERMILLION, BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
BACKGROUND, UNLABELLED = "#d9d9d9", "#ffffff"
MIN_NUMBERED = 0.004
"""A region of less than this share of the image has no room for a number."""
COLUMNS = ("image", "truth", "predicted", "softmax entropy", "feature entropy")


def class_colours(classes: int, background: int | None) -> list[Colour]:
    """Return a colour for each class: grey for the background, then seven colours, darker and lighter ones of them."""
    shades = [to_rgb(base) for base in BASES]
    shades += [_mixed(shade, 0.0, 0.45) for shade in shades[:7]] + [_mixed(shade, 1.0, 0.45) for shade in shades[:7]]
    others = iter(range(classes))
    return [
        to_rgb(BACKGROUND) if label == background else shades[next(others) % len(shades)] for label in range(classes)
    ]


def _mixed(colour: Colour, towards: float, share: float) -> Colour:
    red, green, blue = ((1 - share) * part + share * towards for part in colour)
    return red, green, blue


def images(run: RunDirectory) -> Figure | None:
    """Draw the test images that the run segmented at its end; None where it learnt another task."""
    task, found = run.config.learnt, read_images(run.path / FILE)
    if found is None or not isinstance(task, Segmentation):
        return None
    return segmentation_figure(found, run.config.labels, task)


def segmentation_figure(images: SegmentedImages, labels: Sequence[str], task: Segmentation) -> Figure:
    """Draw a row for each image, and below each predicted mask how good it is."""
    k, _, height, width = images.x.shape
    present = _present(images, len(labels))
    figure = new_figure(_height_in(k, height / width, labels, len(present)))
    rows = figure.subplots(k + 1, len(COLUMNS), squeeze=False, height_ratios=[*[1.0] * k, 0.05])
    colours = class_colours(len(labels), task.background)
    maps = [entropy.float().numpy() for entropy in (images.softmax_entropy, images.feature_entropy)]
    limits = [(0.0, float(np.log(len(labels)))), (float(maps[1].min()), float(maps[1].max()))]
    for row, panels in enumerate(rows[:k]):
        panels[0].imshow(images.x[row].permute(1, 2, 0).numpy())
        panels[0].set_ylabel(plain_text(images.names[row]), fontsize=8)
        for axes, mask in zip(panels[1:3], (images.truth[row], images.predicted[row]), strict=True):
            _draw_mask(axes, mask.numpy().astype(np.int64), colours, task.background)
        panels[2].set_xlabel(_score(images, row, len(labels), task), fontsize=8, labelpad=2)
        for axes, entropy, (low, high) in zip(panels[3:], maps, limits, strict=True):
            axes.imshow(entropy[row], cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
        for axes in panels:
            bare(axes)
    for axes, title in zip(rows[0], COLUMNS, strict=True):
        axes.set_title(title, fontsize=10)
    for axes in rows[k, :3]:
        axes.set_axis_off()
    for axes, panel, (low, high) in zip(rows[k, 3:], rows[0, 3:], limits, strict=True):
        _scale(figure, axes, panel, low, high)
    _legend(figure, labels, colours, present)
    return figure


def _height_in(rows: int, ratio: float, labels: Sequence[str], present: int) -> float:
    image = (WIDTH_IN - 0.6) / len(COLUMNS) * ratio
    legend = 0.2 * -(-(present + 1) // _legend_columns(labels))
    return min(40.0, rows * (image + 0.25) + 0.9 + legend)


def _score(images: SegmentedImages, row: int, classes: int, task: Segmentation) -> str:
    truth, predicted = images.truth[row].long(), images.predicted[row].long()
    found = task.metrics({"confusion": confusion(truth, predicted, truth != task.ignore_index, classes)})
    kind = task.metric_kinds[task.primary_metric]
    return f"{kind.label} {kind.text(found[task.primary_metric])} %"


def _scale(figure: Figure, axes: Axes, panel: Axes, low: float, high: float) -> None:
    bar = figure.colorbar(panel.images[0], cax=axes, orientation="horizontal")
    ticks = (low, (low + high) / 2, high)
    bar.set_ticks(list(ticks), labels=[f"{tick:.2f}" for tick in ticks])
    bar.ax.tick_params(labelsize=7, length=2)
    first, _, last = bar.ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    bar.set_label("nats", fontsize=8, labelpad=1)


def _present(images: SegmentedImages, classes: int) -> list[int]:
    """Return the classes that are true or predicted in some pixel."""
    found = np.union1d(images.truth.numpy(), images.predicted.numpy())
    return [int(label) for label in found if 0 <= label < classes]


def _draw_mask(axes: Axes, mask: Mask, colours: Sequence[Colour], background: int | None) -> None:
    painted = np.full((*mask.shape, 3), to_rgb(UNLABELLED))
    for label in np.unique(mask):
        if 0 <= label < len(colours):
            painted[mask == label] = colours[label]
    axes.imshow(painted, interpolation="nearest")
    for label in np.unique(mask):
        if 0 <= label < len(colours) and label != background:
            _number(axes, mask == label, int(label))


def _number(axes: Axes, where: npt.NDArray[np.bool_], label: int) -> None:
    """Write a class's number into its largest region, at the place that is furthest from its edge."""
    from scipy import ndimage

    regions, count = ndimage.label(where)
    sizes = np.bincount(regions.ravel(), minlength=count + 1)[1:]
    if sizes.max() < MIN_NUMBERED * where.size:
        return
    inner = ndimage.distance_transform_edt(np.pad(regions == 1 + sizes.argmax(), 1))[1:-1, 1:-1]
    y, x = np.unravel_index(inner.argmax(), inner.shape)
    axes.text(
        float(x), float(y), str(label), fontsize=7, ha="center", va="center", color="black",
        path_effects=[withStroke(linewidth=1.6, foreground="white")],
    )  # fmt: skip


def _legend(figure: Figure, labels: Sequence[str], colours: Sequence[Colour], present: Sequence[int]) -> None:
    """Name the classes that are seen."""
    handles = [
        Patch(
            facecolor=colours[label], edgecolor="#888888", linewidth=0.5, label=f"{label} {plain_text(labels[label])}"
        )
        for label in present
    ]
    handles.append(Patch(facecolor=UNLABELLED, edgecolor="#888888", linewidth=0.5, label="not labelled"))
    figure.legend(handles=handles, loc="outside lower center", ncols=_legend_columns(labels), frameon=False, fontsize=8)


def _legend_columns(labels: Sequence[str]) -> int:
    return max(1, min(7, 90 // (max(map(len, labels)) + 7)))
