"""Plots: they show the files' numbers, no label covers another, and they come out as PNG."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from sim.reports.figures import run_figures
from sim.reports.figures.style import new_figure
from sim.results.run_directory import RunDirectory
from tests.sim.example_run import write_run

pytestmark = pytest.mark.ci

NAMES_46 = tuple(f"s{k:02d}_{device}" for k in range(1, 24) for device in ("phone", "watch"))
LABELS_9 = ["climbingdown", "climbingup", "jumping", "lying", "running", "sitting", "standing", "walking", "bike"]


DRAWN = [name for name in run_figures.FIGURES if name != "images"]
"""What a run that classifies has; `test_segmentation_figure` has the other."""


@pytest.fixture(scope="module")
def run_24(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return RunDirectory(write_run(tmp_path_factory.mktemp("plots") / "run"))


@pytest.fixture(scope="module")
def run_141(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    path = tmp_path_factory.mktemp("plots") / "run"
    return RunDirectory(write_run(path, clients=141, rounds=300, global_score=None, config={"labels": LABELS_9}))


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of visible texts that cover each other or leave the figure, as drawn."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    hidden = {id(text) for axes in figure.axes for text in out_of_view(axes)}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and id(text) not in hidden]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text().strip()]
    inside = [(name, box) for name, box in boxes if box.width and figure.bbox.overlaps(box)]
    covered = [(a, b) for (a, first), (b, second) in itertools.combinations(inside, 2) if _touch(first, second)]
    cut = [(name, "the edge") for name, box in inside if box.x0 < -1 or box.y0 < -1 or box.x1 > figure.bbox.x1 + 1]
    return covered + cut


def out_of_view(axes: Axes) -> Iterator[Text]:
    """Labels of ticks beyond an axis' end, which exist but are not drawn."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                yield from (tick.label1, tick.label2)


def _touch(first: object, second: object) -> bool:
    a, b = first.extents, second.extents
    return bool(min(a[2], b[2]) - max(a[0], b[0]) > 0.5 and min(a[3], b[3]) - max(a[1], b[1]) > 0.5)


def test_the_overlap_check_sees_an_overlap() -> None:
    figure = new_figure(3)
    axes = figure.subplots()
    axes.set_xticks(range(60), ["a long client name"] * 60)
    assert overlapping(figure)


@pytest.mark.parametrize("name", ["learning_curves", "score_over_bytes"])
def test_a_legend_of_every_score_lies_within_the_figure(name: str, run_24: RunDirectory) -> None:
    figure = run_figures.FIGURES[name](run_24)
    assert figure is not None
    figure.canvas.draw()
    (legend,), width = figure.legends, figure.bbox.width
    assert len(legend.get_texts()) >= 2
    box = legend.get_window_extent()
    assert (box.x0 >= 0, box.x1 <= width) == (True, True)


@pytest.mark.parametrize("name", DRAWN)
def test_no_label_covers_another_with_many_clients(name: str, run_141: RunDirectory) -> None:
    figure = run_figures.FIGURES[name](run_141)
    if name == "confusion_global":
        assert figure is None
    else:
        assert figure is not None
        assert overlapping(figure) == []


@pytest.mark.parametrize("name", ["client_scores", "partition"])
def test_46_named_clients_stay_apart(name: str, tmp_path: Path) -> None:
    run = RunDirectory(write_run(tmp_path / "run", clients=46, names=NAMES_46))
    figure = run_figures.FIGURES[name](run)
    assert figure is not None
    assert overlapping(figure) == []
    shown = {label.get_text() for label in figure.axes[1 if name == "partition" else 0].get_xticklabels()}
    assert shown == set(NAMES_46)


def test_learning_curves_show_percent_of_the_file(run_24: RunDirectory) -> None:
    figure = run_figures.learning_curves(run_24)
    assert figure is not None
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    expected = [100 * r.personalization["macro_f1"].mean for r in run_24.rounds if r.personalization]
    np.testing.assert_allclose(lines["personalization (mean ± std over clients)"].get_ydata(), expected)
    expected = [100 * r.global_["accuracy"] for r in run_24.rounds if r.global_ and r.global_["accuracy"]]
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    np.testing.assert_allclose(lines["global (server's model)"].get_ydata(), expected)


def test_client_scores_rise_and_keep_pairs_together(run_24: RunDirectory) -> None:
    figure = run_figures.client_scores(run_24)
    assert figure is not None
    own, other = (line.get_ydata() for line in figure.axes[0].get_lines() if len(line.get_ydata()) == 24)
    assert list(own) == sorted(own)
    pairs = {
        (100 * s.personalization["macro_f1"], 100 * s.generalization["macro_f1"]) for s in run_24.client_scores.values()
    }
    assert set(zip(own, other, strict=True)) == pairs


def test_confusion_rows_are_shares_of_the_true_class(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", config={"labels": ["a", "b", "c"]})
    empty_row = '{"personalization": [[3, 1, 0], [0, 0, 0], [1, 0, 999]], "generalization": null, "global": null}'
    (path / "confusion.json").write_text(empty_row)
    figure = run_figures.confusion(RunDirectory(path), "personalization")
    assert figure is not None
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown[0], [75, 25, 0])
    assert shown.mask[1].all()
    assert [text.get_text() for text in figure.axes[0].texts] == ["75", "25", "0", "<1", "0", "100"]


def test_traffic_adds_up(run_24: RunDirectory) -> None:
    figure = run_figures.cost(run_24)
    assert figure is not None
    for line in figure.axes[0].get_lines():
        assert line.get_ydata()[-1] == pytest.approx(12 * 1.780232)


def test_scores_stand_over_the_bytes_of_all_clients(run_24: RunDirectory) -> None:
    figure = run_figures.score_over_bytes(run_24)
    assert figure is not None
    own, server = figure.axes[0].get_lines()
    assert own.get_xdata()[-1] == pytest.approx(12 * 24 * 2 * 1.780232)
    assert own.get_ydata()[-1] == pytest.approx(100 * run_24.rounds[-1].personalization["macro_f1"].mean)
    assert server.get_label() == "global"


def test_draw_run_writes_png(run_24: RunDirectory) -> None:
    paths = run_figures.draw_run(run_24)
    assert [path.stem for path in paths] == DRAWN
    for path in paths:
        assert path.parent == run_24.path / "plots"
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
        assert path.stat().st_size > 1000


def test_an_unfinished_run_draws_what_it_has(tmp_path: Path) -> None:
    paths = run_figures.draw_run(RunDirectory(write_run(tmp_path / "run", finished=False)))
    assert [path.stem for path in paths] == [
        *("learning_curves", "train_loss", "analyses", "partition", "score_over_bytes", "cost"),
    ]


def test_one_round_two_clients_and_a_name_like_a_formula(tmp_path: Path) -> None:
    run = RunDirectory(write_run(tmp_path / "run", clients=2, rounds=1, names=("$x", "a$_{y$")))
    assert len(run_figures.draw_run(run)) == len(DRAWN)


def test_nothing_of_pyplot_is_loaded() -> None:
    code = "import sys, sim.reports.figures.run_figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
