"""t-SNE maps of what the ALP layers see: tokens, the clients' local prototypes and the server's centres, per block.

After figure 1 of Ek et al. 2024 (arXiv 2411.10595). Tokens and prototypes are normalised first: the plan matches by
cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import normalize

from federation.records import Examples
from federation.training.forward import network_input
from models.layers.alp import ALP
from models.registry import alp_models
from sim.errors import AnalysisError
from sim.reports.analysis.colours import NAMED_CLASSES, Groups, GroupStyle, name_map
from sim.reports.analysis.finished import FinishedRun
from sim.reports.analysis.tsne import subsample, tsne
from sim.reports.figures.style import new_figure
from sim.reports.page import CaptionedFigure, ReportSection

TEXT = """What enters the ALP layers of the server's model, and the prototypes that they match it with, for up to three
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
    return ReportSection("tokens", "Tokens and prototypes of the ALP layers", TEXT, {"prototypes": sizes}, figures)


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
