"""How much each client weighed in each round: the margins' attention of fedproto_margin, and FedAtt's by layer.

Michieli and Ozay 2021 (arXiv 2105.08982), eq. 11 to 13; Ji et al. 2019 (arXiv 1812.07108), eq. 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from federation.method import Weights
from sim.diagnostics import effective_clients
from sim.errors import AnalysisError
from sim.reports.analysis.finished import FinishedRun
from sim.reports.figures.style import name_ticks, new_panels
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of

Shares = npt.NDArray[np.float64]
Rounds = Mapping[int, Mapping[str, float]]

TEXT = """A client's weight times the number of clients in the round: 1 is an equal share. Grey: not in the round.
The effective number of clients 1/Σa² says how many equal shares would be as uneven."""
NAMED_ROWS = 40
TITLES = {
    "examples": "examples (first round)",
    "lpm": "local margin (LPM)",
    "apm": "aggregate margin (APM)",
    "layers": "mean over parameter tensors",
    "combined": "both combined",
}


def attention(run: FinishedRun) -> ReportSection:
    """Draw clients' weights by round; of FedAtt also by parameter tensor.

    Raises:
        AnalysisError: if the run recorded no attention.
    """
    kinds = _by_kind({number: each.attention for number, each in run.diagnostics.items()})
    if not kinds:
        if run.method in ("fedproto_margin", "fedatt"):
            raise AnalysisError(run.without_diagnostics)
        raise AnalysisError(f"no attention in a run of {run.method}; fedproto_margin and fedatt weigh clients by it")
    figures = {"clients": CaptionedFigure(clients_figure(kinds, run.clients), "Weight of each client in each round.")}
    effective = {kind: [effective_clients(each) for each in rounds.values()] for kind, rounds in kinds.items()}
    values: dict[str, Any] = {"effective_clients": effective}
    if any(each.effective_clients for each in run.diagnostics.values()):
        spread = {n: each.effective_clients for n, each in run.diagnostics.items() if each.effective_clients}
        caption = "Effective number of clients of each parameter tensor by round."
        figures["layers"] = CaptionedFigure(layers_figure(spread), caption)
        values["effective_clients_by_layer"] = {str(number): each for number, each in spread.items()}
    last, weights = [(number, each.layer_attention) for number, each in run.diagnostics.items()][-1]
    if weights:
        caption = f"Weight of each client in each parameter tensor, round {last}."
        figures["last_round"] = CaptionedFigure(last_round_figure(weights), caption)
    told = [(f"{TITLES[kind]}: effective clients, last round", f"{each[-1]:.3g}") for kind, each in effective.items()]
    return ReportSection("attention", "Attention", TEXT, values, figures, [table_of((), told)])


def _by_kind(rounds: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, Rounds]:
    kinds = dict.fromkeys(kind for each in rounds.values() for kind in each)
    return {kind: {number: each[kind] for number, each in rounds.items() if kind in each} for kind in kinds}


def clients_figure(kinds: Mapping[str, Rounds], clients: Sequence[str]) -> Figure:
    """Draw one map a kind: clients from top to bottom, rounds from left to right."""
    shown = {kind: rounds for kind, rounds in kinds.items() if len(kinds) == 1 or kind != "examples"}
    seen = {name for rounds in shown.values() for each in rounds.values() for name in each}
    names = [name for name in clients if name in seen]
    shares = [_shares(rounds, names) for rounds in shown.values()]
    figure, panels = new_panels(_height(len(names)), len(shown), sharey=True)
    for axes, values, (kind, rounds) in zip(panels, shares, shown.items(), strict=True):
        image = _around_one(axes, values, _span(shares), (min(rounds), max(rounds)))
        axes.set_title(TITLES[kind], fontsize=10)
        _by_round(axes)
    _name_rows(panels[0], names, "client")
    figure.colorbar(image, ax=panels, label="weight × clients in the round", pad=0.01)
    return figure


def _shares(rounds: Rounds, names: Sequence[str]) -> Shares:
    """Return weights (clients, rounds), each times the round's clients; NaN where a client was not in a round."""
    first, last = min(rounds), max(rounds)
    each = [rounds.get(number, {}) for number in range(first, last + 1)]
    return np.array([[len(weights) * weights.get(name, np.nan) for weights in each] for name in names])


def layers_figure(spread: Rounds) -> Figure:
    """Draw the effective number of clients (parameter tensors, rounds)."""
    layers, rounds = list(next(iter(spread.values()))), range(min(spread), max(spread) + 1)
    values = np.array([[spread.get(number, {}).get(layer, np.nan) for number in rounds] for layer in layers])
    figure, (axes,) = new_panels(_height(len(layers)))
    place = (min(spread) - 0.5, max(spread) + 0.5, len(layers) - 0.5, -0.5)
    image = axes.imshow(values, cmap="cividis", aspect="auto", interpolation="nearest", extent=place)
    _name_rows(axes, layers, "parameter tensor")
    _by_round(axes)
    figure.colorbar(image, ax=axes, label="effective clients", pad=0.01)
    return figure


def last_round_figure(weights: Weights) -> Figure:
    """Draw one round's weights (parameter tensors, clients), each times the clients."""
    names = list(next(iter(weights.values())))
    values = np.array([[len(names) * each[name] for name in names] for each in weights.values()])
    figure, (axes,) = new_panels(_height(len(weights)) + 0.8)
    image = _around_one(axes, values, _span([values]), (0, len(names) - 1))
    _name_rows(axes, list(weights), "parameter tensor")
    name_ticks(axes.xaxis, names, NAMED_ROWS, 7)
    figure.colorbar(image, ax=axes, label="weight × clients in the round", pad=0.01)
    return figure


def _span(shares: Sequence[Shares]) -> float:
    """How far from 1 the colours reach: as far as the weights do, but never so near that noise is coloured."""
    return float(max(0.05, *(np.nanmax(np.abs(values - 1)) for values in shares)))


def _around_one(axes: Axes, values: Shares, span: float, columns: tuple[int, int]) -> AxesImage:
    colours = colormaps["RdBu_r"].with_extremes(bad="#dddddd")
    place = (columns[0] - 0.5, columns[1] + 0.5, len(values) - 0.5, -0.5)
    norm = Normalize(1 - span, 1 + span)
    return axes.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest", extent=place)


def _by_round(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _name_rows(axes: Axes, names: Sequence[str], what: str) -> None:
    name_ticks(axes.yaxis, names, NAMED_ROWS, 7)
    axes.set_ylabel(what)


def _height(rows: int) -> float:
    return float(np.clip(1.6 + 0.19 * rows, 3.2, 9.0))
