"""Clients' weights in each round, and the attention of the ALP layers.

Michieli and Ozay 2021 (arXiv 2105.08982), eq. 3, 11 to 13 and figure S2; Ji et al. 2019 (arXiv 1812.07108), eq. 6.

t-SNE maps of what the ALP layers see: tokens, the clients' local prototypes and the server's centres, per block.
After figure 1 of Ek et al. 2024 (arXiv 2411.10595). Tokens and prototypes are normalised first: the plan matches by
cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn
from torch.nn.functional import normalize

from federation.method import Method, Weights
from federation.methods import method_from_json
from federation.records import Examples, Update
from federation.training.forward import network_input
from models.layers.alp import ALP
from models.registry import alp_models
from sim.errors import AnalysisError
from sim.reports.analysis.dots import NAMED_CLASSES, Groups, GroupStyle, name_map, subsample, tsne
from sim.reports.analysis.finished import FinishedRun, diagnostics_of
from sim.reports.figures.style import COLOURS, DASHES, clean, name_ticks, new_figure, new_panels, plain_text
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import table_of
from sim.results.run_directory import RunDirectory
from sim.scores.diagnostics import effective_clients
from sim.scores.records import RoundRecord

Shares = npt.NDArray[np.float64]
Rounds = Mapping[int, Mapping[str, float]]

TEXT = """A client's weight times the number of clients in the round: 1 is an equal share. Grey: not in the round.
The effective number of clients 1/Σa² says how many equal shares would be as uneven."""
NAMED_ROWS = 40
BINS = 40
WEIGHTS_CAPTION = "How often a client has which weight, over all rounds and their clients."
TITLES = {
    "examples": "examples (first round)",
    "lpm": "local margin (LPM)",
    "apm": "aggregate margin (APM)",
    "layers": "mean over parameter tensors",
    "combined": "both combined",
    "mean": "weight in the mean",
}


def attention(run: FinishedRun) -> ReportSection:
    """Draw clients' weights by round; of FedAtt also by parameter tensor.

    Raises:
        AnalysisError: if the server of the run's method averages nothing, or the run did not record its weights.
    """
    kinds = client_weights(run.directory)
    if not kinds:
        if run.method in ("fedproto_margin", "fedatt"):
            raise AnalysisError(run.without_diagnostics)
        raise AnalysisError(f"no client weighs more or less in a run of {run.method}")
    figures = {
        "clients": CaptionedFigure(
            clients_figure(kinds, list(run.directory.clients)), "Weight of each client in each round."
        ),
        "weights": CaptionedFigure(weights_figure({run.method: final_weights(kinds)}), WEIGHTS_CAPTION),
    }
    effective = {kind: [effective_clients(shares) for shares in rounds.values()] for kind, rounds in kinds.items()}
    values: dict[str, Any] = {"effective_clients": effective}
    if any(record.effective_clients for record in run.diagnostics.values()):
        spread = {n: record.effective_clients for n, record in run.diagnostics.items() if record.effective_clients}
        caption = "Effective number of clients of each parameter tensor by round."
        figures["layers"] = CaptionedFigure(layers_figure(spread), caption)
        values["effective_clients_by_layer"] = {str(number): counts for number, counts in spread.items()}
    by_layer = {number: record.layer_attention for number, record in run.diagnostics.items()}
    if by_layer and (weights := by_layer[last := max(by_layer)]):
        caption = f"Weight of each client in each parameter tensor, round {last}."
        figures["last_round"] = CaptionedFigure(last_round_figure(weights), caption)
    facts = [
        (f"{TITLES[kind]}: effective clients, last round", f"{counts[-1]:.3g}") for kind, counts in effective.items()
    ]
    return ReportSection("attention", "Attention", TEXT, values, figures, [table_of((), facts)])


def client_weights(run: RunDirectory) -> dict[str, Rounds]:
    """Return clients' weights by kind and round: as recorded, or of a method that takes a mean those in the mean."""
    recorded = _by_kind({number: record.attention for number, record in diagnostics_of(run).items()})
    method = method_from_json(run.config.method)
    if recorded or method.traits.pools_data or not method.averages_parameters:
        return recorded
    sizes = {name: client.train for name, client in run.clients.items()}
    found = {record.round: _weights_in_mean(method, record, sizes) for record in run.rounds if not record.failed}
    return {"mean": found} if found else {}


def _weights_in_mean(method: Method, record: RoundRecord, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return n_k / Σ n_j, or what else the method weighs by, of the round's clients whose updates were used."""
    used = [name for name in record.cohort if name not in record.lost and name not in record.excluded]
    updates = (Update(name, record.capped.get(name, sizes[name]), 0, {}) for name in used)
    weights = {update.client_id: method.weight(update) for update in updates}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def final_weights(kinds: Mapping[str, Rounds]) -> list[Mapping[str, float]]:
    """Return each round's weights, those that parameters are averaged by: the last of the kinds that the round has."""
    return list({number: weights for rounds in kinds.values() for number, weights in rounds.items()}.values())


def weights_figure(methods: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Draw for each method how often a client has which weight in a round, as figure S2 of Michieli and Ozay."""
    figure, (axes,) = new_panels(3.2)
    shares = {name: [weight for weights in rounds for weight in weights.values()] for name, rounds in methods.items()}
    edges = np.linspace(0, max(max(weights) for weights in shares.values()), BINS + 1)
    for index, (name, values) in enumerate(shares.items()):
        percent = 100 * np.histogram(values, edges)[0] / len(values)
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        axes.stairs(percent, edges, label=plain_text(name), linewidth=1.5, color=colour, linestyle=dash)
    equal = {round(1 / len(weights), 6) for rounds in methods.values() for weights in rounds}
    if len(equal) == 1:
        axes.axvline(equal.pop(), color="#777777", linewidth=1, linestyle=":", label="equal share")
    clean(axes, "of clients and rounds (%)", "weight of a client in a round")
    axes.legend(frameon=False)
    return figure


def _by_kind(rounds: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, Rounds]:
    kinds = dict.fromkeys(kind for by_kind in rounds.values() for kind in by_kind)
    return {kind: {number: by_kind[kind] for number, by_kind in rounds.items() if kind in by_kind} for kind in kinds}


def clients_figure(kinds: Mapping[str, Rounds], clients: Sequence[str]) -> Figure:
    """Draw one map a kind: clients from top to bottom, rounds from left to right."""
    shown = {kind: rounds for kind, rounds in kinds.items() if len(kinds) == 1 or kind != "examples"}
    seen = {name for rounds in shown.values() for weights in rounds.values() for name in weights}
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
    all_rounds = [rounds.get(number, {}) for number in range(first, last + 1)]
    return np.array([[len(weights) * weights.get(name, np.nan) for weights in all_rounds] for name in names])


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
    values = np.array([[len(names) * by_client[name] for name in names] for by_client in weights.values()])
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
    norm = TwoSlopeNorm(1, max(0, 1 - span), 1 + span)
    return axes.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest", extent=place)


def _by_round(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _name_rows(axes: Axes, names: Sequence[str], what: str) -> None:
    name_ticks(axes.yaxis, names, NAMED_ROWS, 7)
    axes.set_ylabel(what)


def _height(rows: int) -> float:
    return float(np.clip(1.6 + 0.19 * rows, 3.2, 9.0))


TOKENS_TEXT = """\
What enters the ALP layers of the server's model, and the prototypes that they match it with, for up to three
blocks. Above: tokens of test examples in the colours of their classes, crosses the server's centres P_g. Below: the
clients' local prototypes P_l of the best round around the same centres."""
MAX_EXAMPLES = 64
MAX_TOKENS = 600
MAX_CENTRES = 150
MAX_LOCAL = 600


def tokens(run: FinishedRun) -> ReportSection:
    """Map tokens and prototypes of the first, the middle and the last block.

    Raises:
        AnalysisError: if the server's model has no ALP layer, or there is none.
    """
    layers = alp_layers(run.server)
    if not layers:
        raise AnalysisError(f"no ALP layer in {run.directory.config.model_name}; {', '.join(alp_models())} have some")
    names = list(layers)
    shown = list(dict.fromkeys([names[0], names[len(names) // 2], names[-1]]))
    caption = f"ALP layers {', '.join(shown)}: tokens (above) and local prototypes (below) around the centres."
    figures = {"blocks": CaptionedFigure(_figure(run, shown), caption)}
    sizes = {name: list(layer.global_prototypes.shape) for name, layer in layers.items()}
    return ReportSection(
        "tokens", "Tokens and prototypes of the ALP layers", TOKENS_TEXT, {"prototypes": sizes}, figures
    )


def alp_layers(module: nn.Module) -> dict[str, ALP]:
    """Return the ALP layers of a model by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, ALP)}


@contextmanager
def watched(layers: Mapping[str, ALP]) -> Iterator[dict[str, Tensor]]:
    """Collect what enters each layer (B, Z, d) while the block runs."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda _layer, inputs: seen.update({name: inputs[0]})

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _figure(run: FinishedRun, shown: list[str]) -> Figure:
    seed, layers = run.settings.training.seed, alp_layers(run.server)
    entering, classes = _tokens(run, {name: layers[name] for name in shown})
    local = _local_prototypes(run, shown)
    figure = new_figure(9.4, max(6.0, 3.8 * len(shown)))
    halves = figure.subfigures(2, 1, squeeze=False)[:, 0]
    above, below = (half.subplots(1, len(shown), squeeze=False)[0] for half in halves)
    by_class, by_client = GroupStyle(run.data.labels, "class", NAMED_CLASSES), GroupStyle(run.clients, "client")
    for column, name in enumerate(shown):
        run.progress(f"t-SNE of {name}", column, len(shown))
        centres = _some(layers[name].global_prototypes, MAX_CENTRES, seed, name)[0]
        _map(above[column], by_class, entering[name], classes[name], centres, seed)
        _map(below[column], by_client, *local[name], centres, seed)
        name_map(above[column], f"{name}, G = {layers[name].num_prototypes}: tokens")
        name_map(below[column], f"{name}: local prototypes")
    by_class.legend(halves[0], above)
    by_client.legend(halves[1], below)
    return figure


def _map(axes: Axes, style: GroupStyle, vectors: Tensor, groups: Groups, centres: Tensor, seed: int) -> None:
    """Draw dots, and over them crosses, which hide no local prototype that lies where its centre does."""
    places = tsne(normalize(torch.cat([vectors, centres]), dim=-1), seed)
    style.dots(axes, places[: len(vectors)], groups, size=14.0)
    x, y = places[len(vectors) :].T
    axes.scatter(x, y, s=40, c="black", marker="+", linewidths=1.0)


@torch.no_grad()
def _tokens(run: FinishedRun, layers: Mapping[str, ALP]) -> tuple[dict[str, Tensor], dict[str, Groups]]:
    """Return some tokens (n, d) of each layer, and the classes (n,) of their examples."""
    seed, union = run.settings.training.seed, run.data.union_test()
    rows = subsample(len(union.y), MAX_EXAMPLES, seed, "tokens")
    some = Examples(union.x[rows], union.y[rows])
    with watched(layers) as seen:
        run.server(network_input(some.x, run.data.moments))
    vectors, classes = {}, {}
    for name, entered in seen.items():
        vectors[name], chosen = _some(entered.flatten(0, 1), MAX_TOKENS, seed, name)
        classes[name] = some.y.repeat_interleave(entered.shape[1])[chosen].numpy()
    return vectors, classes


def _local_prototypes(run: FinishedRun, shown: list[str]) -> dict[str, tuple[Tensor, Groups]]:
    """Return some local prototypes (n, d) of each layer, and the clients (n,) that they are from."""
    share = max(1, MAX_LOCAL // len(run.clients))
    found: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in shown}
    for number, client in enumerate(run.clients):
        layers = alp_layers(run.model(client))
        for name in shown:
            found[name].append(
                (_some(layers[name].local_prototypes, share, run.settings.training.seed, client)[0], number)
            )
    return {
        name: (
            torch.cat([vectors for vectors, _ in pairs]),
            np.concatenate([np.full(len(vectors), number) for vectors, number in pairs]),
        )
        for name, pairs in found.items()
    }


def _some(vectors: Tensor, limit: int, seed: int, *what: str) -> tuple[Tensor, Tensor]:
    chosen = subsample(len(vectors), limit, seed, *what)
    return vectors[chosen], chosen
