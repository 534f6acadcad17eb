"""Vectors as dots: their places by t-SNE (van der Maaten and Hinton 2008), and a colour and a marker for each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE
from torch import Tensor

from federation.seeds import generator, seed_for
from sim.errors import AnalysisError
from sim.reports.figures.style import COLOURS, bare, plain_text

PERPLEXITY = 30.0


def tsne(vectors: Tensor, seed: int) -> Points:
    """Map vectors (n, D) to the plane (n, 2); neighbourhoods survive, distances and sizes of clusters do not.

    Raises:
        AnalysisError: for vectors that are not finite, or all the same: the run diverged, or its features died.
    """
    values = vectors.double().numpy()
    if not np.isfinite(values).all() or not values.std(axis=0).any():
        raise AnalysisError("t-SNE needs features that are finite and differ; did the run diverge?")
    perplexity = min(PERPLEXITY, max(1.0, (len(values) - 1) / 3))
    random = seed_for(seed, "tsne") % (1 << 32)
    model = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=random)
    return np.asarray(model.fit_transform(values), np.float64)


def subsample(count: int, limit: int, seed: int, *what: str) -> Tensor:
    """Draw up to `limit` of `count` indices, in ascending order; `what` makes draws independent of each other."""
    random = generator(seed, "subsample", *what)
    chosen = random.choice(count, min(limit, count), replace=False)
    return torch.from_numpy(np.sort(chosen))


Points = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]

Colour = str | tuple[float, float, float, float]

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NAMED_GROUPS = 14
NAMED_CLASSES = 35
"""Up to so many groups have a name in a legend; more are numbered along a scale of colours."""


class GroupStyle:
    """How groups look, the same in every panel of a figure."""

    def __init__(self, names: Sequence[str], title: str, max_named: int = NAMED_GROUPS) -> None:
        self.names, self.title = names, title
        self.named = len(names) <= max_named
        self.scale = colormaps["turbo"].resampled(max(len(names), 2))

    def colour(self, group: int) -> Colour:
        """Return the group's colour."""
        return COLOURS[group % len(COLOURS)] if self.named else self.scale(group)

    def marker(self, group: int) -> str:
        """Return the group's marker, which changes where the named colours begin again."""
        return MARKERS[group // len(COLOURS)] if self.named else "o"

    def dots(self, axes: Axes, points: Points, groups: Groups, size: float = 9.0) -> None:
        """Draw points (n, 2) in shuffled order, so that no group lies on top of the rest."""
        order = np.random.default_rng(0).permutation(len(points))
        for marker in dict.fromkeys(self.marker(group) for group in range(len(self.names))):
            chosen = [place for place in order if self.marker(int(groups[place])) == marker]
            colours = [self.colour(int(groups[place])) for place in chosen]
            x, y = points[chosen].T
            axes.scatter(x, y, s=size, c=colours, marker=marker, linewidths=0, alpha=0.65)

    def prototypes(self, axes: Axes, points: Points, groups: Groups, marker: str = "*", size: float = 220.0) -> None:
        """Draw prototypes (m, 2) in the colours of their groups."""
        edged(axes, points, [self.colour(int(group)) for group in groups], marker, size)

    def legend(self, figure: FigureBase, axes: Sequence[Axes]) -> None:
        """Explain the colours below the axes, or beside them where groups are numbered."""
        if not self.named:
            _numbered(figure, axes, self)
            return
        handles = [
            Line2D([], [], linestyle="", marker=self.marker(k), color=self.colour(k), label=plain_text(name))
            for k, name in enumerate(self.names)
        ]
        columns = max(1, min(4, 60 // (max(map(len, self.names)) + 4)))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _numbered(figure: FigureBase, axes: Sequence[Axes], style: GroupStyle) -> None:
    count = len(style.names)
    bar = figure.colorbar(
        ScalarMappable(BoundaryNorm(np.arange(count + 1) + 0.5, count), style.scale),
        ax=list(axes),
        location="bottom",
        pad=0.02,
        aspect=40,
    )
    step = 10 * -(-count // 100)
    bar.set_ticks([1, *range(step, count + 1, step)])
    bar.minorticks_off()
    bar.set_label(f"{style.title}, by place in the run's order", fontsize=9)


def edged(axes: Axes, points: Points, colours: Sequence[Colour], marker: str = "*", size: float = 220.0) -> None:
    """Draw points (m, 2) large and edged in black, above the dots."""
    x, y = points.T
    axes.scatter(x, y, s=size, c=list(colours), marker=marker, edgecolors="black", linewidths=0.9, zorder=3)


def name_map(axes: Axes, title: str) -> None:
    """Give a t-SNE map its title, and take away its scales, which mean nothing."""
    axes.set_title(title, fontsize=11)
    bare(axes)
