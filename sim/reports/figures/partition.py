"""A partition as a figure: every client's size, and its training examples by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sim.data.partitions.partition import Counts, Indices, Share, class_counts
from sim.reports.figures.style import BLUE, NAMED_CLIENTS, ORANGE, clean, draw, name_clients, name_ticks, new_figure

BUBBLE_CLASSES = 30
"""Named clients have a bubble for each of up to so many classes; all else is a map of colours."""
AREA, MIN_AREA = 400.0, 1.5  # points² of the largest bubble, and of the smallest that is seen
MIXED_CLIENTS = 30
FULL_COLUMNS = 24  # with more clients than these, bubbles shrink with the columns


def draw_partition(path: Path, shares: Mapping[str, Share], y: Indices, labels: Sequence[str]) -> Path:
    """Write the figure as the PNG `path` and return it."""
    train, test = (class_counts(shares, y, len(labels), part) for part in ("train", "test"))
    return draw({path.stem: partition_figure(list(shares), train, test, labels)}, path.parent)[0]


def draw_classes(path: Path, shares: Mapping[str, Share], y: Indices, labels: Sequence[str]) -> Path:
    """Write the figure of clients' classes as the PNG `path` and return it."""
    train, test = (class_counts(shares, y, len(labels), part) for part in ("train", "test"))
    return draw({path.stem: class_figure(train + test, labels)}, path.parent)[0]


def partition_figure(names: Sequence[str], train: Counts, test: Counts, labels: Sequence[str]) -> Figure:
    """Draw sizes above and classes below, clients from left to right; counts are (K, C)."""
    named = len(names) <= NAMED_CLIENTS
    order = np.arange(len(names)) if named else _by_class_and_size(train)
    height = float(np.clip(0.32 * len(labels), 1.6, 8.0))
    figure = new_figure(2.4 + height)
    above, below = figure.subplots(2, 1, height_ratios=[1.5, height], sharex=True)
    _sizes(above, train[order].sum(axis=1), test[order].sum(axis=1), logarithmic=not named)
    (_bubbles if named and len(labels) <= BUBBLE_CLASSES else _map)(figure, below, train[order].T)
    name_ticks(below.yaxis, labels, BUBBLE_CLASSES, 9)
    ordered = "client" if named else "client, ordered by their two most frequent classes, then by size"
    name_clients(below, [names[k] for k in order], ordered)
    return figure


def class_figure(counts: Counts, labels: Sequence[str]) -> Figure:
    """Draw which classes clients have, as figure S1 of Michieli and Ozay 2021 (arXiv 2105.08982), and their sizes.

    `counts` (K, C) are examples. From left to right: clients that have a class, clients with so many classes, sizes,
    and the classes of up to 30 clients, drawn evenly from the largest to the smallest.
    """
    held = np.flatnonzero(counts.sum(0))  # nobody has the background of segmentation
    counts, labels = counts[:, held], [labels[k] for k in held.tolist()]
    figure = new_figure(3.4)
    holding, number, sizes, mix = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.6])
    holding.bar(range(len(labels)), (counts > 0).sum(0), 0.85, color=BLUE)
    name_ticks(holding.xaxis, labels, 12, 7)
    clean(holding, "clients that have it", "class")
    classes_held = (counts > 0).sum(1)
    number.hist(classes_held, np.arange(0.5, len(labels) + 1), color=BLUE, rwidth=0.85)
    number.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    clean(number, "clients", "classes of a client")
    totals = np.sort(counts.sum(1))[::-1]
    sizes.plot(range(1, len(totals) + 1), totals, color=BLUE)
    if totals[0] > 30 * max(1, totals[-1]):
        sizes.set_yscale("log")
    else:
        sizes.set_ylim(bottom=0)
    clean(sizes, "examples", f"client, by size ({totals.mean():.1f} ± {totals.std():.1f})")
    _mixes(mix, counts, len(labels))
    return figure


def _mixes(axes: Axes, counts: Counts, classes: int) -> None:
    """Draw the shares of classes of some clients, from the largest to the smallest, as bars from left to right."""
    order = np.argsort(-counts.sum(1), kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, MIXED_CLIENTS).round().astype(int))]
    shares = counts[chosen] / counts[chosen].sum(1, keepdims=True)
    left = np.zeros(len(chosen))
    for k, share in enumerate(shares.T):
        axes.barh(range(len(chosen)), share, 1.0, left, color=colormaps["turbo"]((k + 0.5) / classes))
        left += share
    axes.set(xlim=(0, 1), ylim=(len(chosen) - 0.5, -0.5), yticks=[], ylabel=f"{len(chosen)} clients, the largest above")
    axes.set_xlabel("share of each class")


def _by_class_and_size(train: Counts) -> Indices:
    """Order clients by the two classes that they have most of, then by size, so that like stand together."""
    ranked = np.argsort(-train, axis=1, kind="stable")
    return np.lexsort((-train.sum(axis=1), *ranked[:, :2].T[::-1]))


def _sizes(axes: Axes, train: Indices, test: Indices, *, logarithmic: bool) -> None:
    places = np.arange(len(train))
    if logarithmic:
        # a bar is one pixel and a half here, and the largest client hides the rest on a linear scale
        axes.fill_between(places, train + test, 1, step="mid", color=ORANGE, label="test", linewidth=0)
        axes.fill_between(places, train, 1, step="mid", color=BLUE, label="train", linewidth=0)
        axes.set_yscale("log")
        axes.set_ylim(bottom=1)
    else:
        axes.bar(places, train, 0.85, color=BLUE, label="train")
        axes.bar(places, test, 0.85, bottom=train, color=ORANGE, label="test")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    clean(axes, "examples")
    handles, names = axes.get_legend_handles_labels()
    order = np.argsort(names)[::-1]
    axes.legend(
        [handles[k] for k in order],
        [names[k] for k in order],
        frameon=False,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.2,
    )


def _bubbles(figure: Figure, axes: Axes, counts: Counts) -> None:
    """Draw a disc whose area is the count; the scale stands beside."""
    classes, clients = np.nonzero(counts)
    largest = counts.max()
    area = AREA * min(1.0, (FULL_COLUMNS / counts.shape[1]) ** 2) / largest
    axes.scatter(clients, classes, np.maximum(area * counts[classes, clients], MIN_AREA), BLUE, linewidths=0)
    axes.set_ylim(len(counts) - 0.4, -0.6)
    axes.set_axisbelow(True)
    axes.grid(color="#eeeeee", linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for value in _scale(int(largest)):
        axes.scatter([], [], max(area * value, MIN_AREA), BLUE, linewidths=0, label=f"{value}")
    figure.legend(
        *axes.get_legend_handles_labels(), title="training\nexamples", loc="outside right center", frameon=False,
        labelspacing=1.1,
    )  # fmt: skip


def _scale(largest: int) -> list[int]:
    """Round numbers to compare a bubble with: the largest 1, 2 or 5 times a power of ten, and a quarter or so."""
    steps = [step * 10**power for power in range(9) for step in (1, 2, 5) if step * 10**power <= largest]
    return sorted(set(steps[-1::-2][:3]))


def _map(figure: Figure, axes: Axes, counts: Counts) -> None:
    colours = colormaps["cividis"].with_extremes(bad="white")
    scale = LogNorm(vmin=1, vmax=max(2, int(counts.max())))
    image = axes.imshow(np.ma.masked_equal(counts, 0), cmap=colours, norm=scale, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="training examples; white: none", pad=0.01)
