"""What the figures hold: their rows, their panels, and looks that can be told apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sim.errors import AnalysisError
from sim.reports.analysis.attention import clients_figure, last_round_figure, layers_figure
from sim.reports.analysis.dots import NAMED_GROUPS, GroupStyle, subsample, tsne
from sim.reports.figures.style import new_figure

ROUNDS = {1: {"ada": 0.5, "bob": 0.5}, 2: {"ada": 0.25, "eve": 0.75}, 4: {"bob": 1.0}}


def test_weights_are_shown_times_the_rounds_clients() -> None:
    figure = clients_figure({"lpm": ROUNDS, "combined": ROUNDS}, ["ada", "bob", "eve", "sam"])
    values = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    nothing = np.nan
    expected = [[1, 0.5, nothing, nothing], [1, nothing, nothing, 1], [nothing, 1.5, nothing, nothing]]
    np.testing.assert_array_equal(values, expected)
    assert figure.axes[0].images[0].get_clim() == (0.5, 1.5)


def test_the_first_round_of_the_margins_is_by_examples_and_not_drawn() -> None:
    figure = clients_figure({"examples": ROUNDS, "lpm": ROUNDS}, ["ada", "bob", "eve"])
    assert [axes.get_title() for axes in figure.axes if axes.images and axes.get_title()] == ["local margin (LPM)"]


def test_layers() -> None:
    figure = layers_figure({1: {"a": 2.0, "b": 1.5}, 2: {"a": 1.0, "b": 2.0}})
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), [[2, 1], [1.5, 2]])
    figure = last_round_figure({"a": {"ada": 0.25, "bob": 0.75}})
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), [[0.5, 1.5]])


def test_named_groups_look_different() -> None:
    style = GroupStyle([f"g{k}" for k in range(NAMED_GROUPS)], "class")
    assert len({(style.colour(k), style.marker(k)) for k in range(NAMED_GROUPS)}) == NAMED_GROUPS


@pytest.mark.parametrize("count", [2, NAMED_GROUPS + 1, 141])
def test_every_dot_is_drawn_and_explained(count: int) -> None:
    figure = new_figure(3)
    axes = figure.subplots()
    groups = np.arange(count) % count
    style = GroupStyle([f"$g{k}" for k in range(count)], "client")
    style.dots(axes, np.random.default_rng(0).random((count, 2)), groups)
    style.legend(figure, [axes])
    figure.draw_without_rendering()
    assert sum(len(np.asarray(dots.get_offsets())) for dots in axes.collections) == count
    assert bool(figure.legends) == style.named


def test_one_seed_gives_one_map() -> None:
    vectors = torch.randn(25, 4, generator=torch.Generator().manual_seed(0))
    first, again, other = tsne(vectors, 1), tsne(vectors, 1), tsne(vectors[:5], 1)
    np.testing.assert_array_equal(first, again)
    assert first.shape == (25, 2)
    assert np.isfinite(other).all()


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_features_that_died_or_diverged_have_no_map(value: float) -> None:
    with pytest.raises(AnalysisError, match="finite and differ; did the run diverge"):
        tsne(torch.full((9, 3), value), 0)


def test_subsamples_are_drawn_once_each_and_differ_by_what_they_are_for() -> None:
    chosen = subsample(100, 10, 0, "ada")
    assert len(set(chosen.tolist())) == 10
    assert chosen.tolist() == sorted(chosen.tolist()) == subsample(100, 10, 0, "ada").tolist()
    assert chosen.tolist() != subsample(100, 10, 0, "bob").tolist()
    assert subsample(4, 10, 0).tolist() == [0, 1, 2, 3]
