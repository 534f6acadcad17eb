"""How every figure looks: size, colours, axes, and how it becomes a PNG.

Figures are built without pyplot, so that nothing is kept between calls. Colours are Okabe and Ito's, which colour-blind
readers can tell apart; lines also differ in dash or marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gaitway.tasks import Metric

WIDTH_IN = 10.0
DPI = 150
NAMED_CLIENTS = 50
"""Up to so many clients are named on an axis; beyond, the names would touch."""

BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#000000",
)
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK)
DASHES = ("-", "--", "-.", ":")
LegendPlace = Literal["outside upper center", "outside lower center"]
SCORE_STYLES = {"personalization": (BLUE, "o"), "generalization": (VERMILLION, "s"), "global": (GREEN, "^")}


def draw(figures: Mapping[str, Figure | None], folder: Path) -> list[Path]:
    """Write figures as PNG under their names and return the paths; None is skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths.append(folder / f"{name}.png")
            figure.set_dpi(DPI)  # savefig would lay out and draw twice
            canvas: Any = FigureCanvasAgg(figure)  # matplotlib has no types for `print_png`
            canvas.print_png(paths[-1], metadata={"Software": ""})
    return paths


def new_figure(height_in: float, width_in: float = WIDTH_IN) -> Figure:
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(
    height_in: float, count: int = 1, *, sharey: bool = False, width_in: float = WIDTH_IN
) -> tuple[Figure, list[Axes]]:
    """Begin a figure with panels from left to right."""
    figure = new_figure(height_in, width_in)
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


def explain(figure: Figure, axes: Axes, place: LegendPlace, columns: int) -> None:
    """Put what one panel names above or below all of them."""
    figure.legend(*axes.get_legend_handles_labels(), loc=place, ncols=columns, frameon=False)


def line_style(index: int, points: int) -> dict[str, Any]:
    """Tell up to 28 lines apart: 7 colours and 4 dashes have no common divisor; one point alone is a dot."""
    dash = DASHES[index % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dash, "marker": "o" if points == 1 else ""}


def clean(axes: Axes, ylabel: str, xlabel: str = "") -> None:
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def axis_of(axes: Axes, metric: Metric) -> None:
    """Let an axis of scores show all that is possible of a share, and begin at 0."""
    axes.set_ylim(0, 102 if metric.is_share else None)


def heading(metric: Metric) -> str:
    """Name a metric on an axis."""
    return metric.label + metric.unit


def by_round(axes: Axes, ylabel: str, last: int) -> None:
    clean(axes, ylabel, "round")
    axes.set_xlim(0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def rounds_figure(lines: Mapping[str, Mapping[int, float]], ylabel: str, last: int) -> Figure:
    """Draw values by round, a line for each name; a legend only where there are several."""
    figure, (axes,) = new_panels(2.8)
    for index, (name, values) in enumerate(lines.items()):
        axes.plot(list(values), list(values.values()), label=plain_text(name), **line_style(index, len(values)))
    by_round(axes, ylabel, last)
    axes.set_ylim(bottom=0)
    if len(lines) > 1:
        axes.legend(frameon=False)
    return figure


def plain_text(text: str) -> str:
    """Keep matplotlib from reading a name as a formula."""
    return text.replace("$", r"\$")


def name_ticks(axis: Axis, names: Sequence[str], most: int, size: float) -> None:
    """Name the places of an axis, or evenly at most so many of them; below a figure names stand upright."""
    step = -(-len(names) // most)
    shown = [plain_text(name) for name in names[::step]]
    axis.set_ticks(range(0, len(names), step), shown, rotation=90 if isinstance(axis, XAxis) else 0, fontsize=size)


def client_dots(axes: Axes, values: Sequence[float], label: str, colour: str, marker: str) -> None:
    """Draw a value of each client, and dotted the mean of those that have one."""
    axes.plot(range(len(values)), values, marker, color=colour, label=plain_text(label), markersize=5)
    axes.axhline(float(np.nanmean(values)), color=colour, linewidth=1, linestyle=":")


def bare(axes: Axes) -> None:
    """Take away the scales, where they mean nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def name_clients(axes: Axes, names: Sequence[str], label: str) -> None:
    """Put clients on the x-axis: by name while the names fit, else by position."""
    axes.set_xlim(-0.5, len(names) - 0.5)
    if len(names) > NAMED_CLIENTS:
        step = 10 * -(-len(names) // 100)
        axes.set_xticks([0, *range(step - 1, len(names), step)], ["1", *map(str, range(step, len(names) + 1, step))])
        axes.set_xlabel(f"{label} ({len(names)} clients)")
        return
    names = [name.removeprefix("client-") for name in names]  # the label says it
    upright = len(names) <= 25 and max(map(len, names)) <= 3
    shown = [plain_text(name if len(name) <= 28 else name[:27] + "…") for name in names]
    axes.set_xticks(range(len(names)), shown, rotation=0 if upright else 90, fontsize=8)
    axes.set_xlabel(label)
