"""What a finished run of segmentation is analysed by: per pixel, and with the scores that the run had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from federation.aggregation.class_statistics import class_stats
from federation.records import Batch, Output
from sim.errors import AnalysisError
from sim.reports.analysis.analyse import analyse
from sim.reports.analysis.discrepancy import discrepancy
from sim.reports.analysis.finished import FinishedRun
from sim.reports.analysis.pixels import pixels
from sim.reports.report import write_report
from sim.rounds import analyses as analyses_module
from tests.sim.reports.analysis.conftest import Finished
from tests.sim.reports.analysis.segmented_runs import finished as segmented

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return segmented("fedproto_margin", tmp_path_factory.mktemp("segmented") / "run", analyses="michieli")


def test_the_whole_page_is_made(run: FinishedRun) -> None:
    page = analyse(run)
    found = json.loads((page.parent / "analysis.json").read_text())
    drawn = {path.name for path in page.parent.glob("*.png")}
    assert {"pixels_server.png", "pixels_clients.png", "features_server.png", "features_clients.png"} <= drawn
    assert {"attention", "convergence", "aggregate_margin", "analyses", "classes"} <= found.keys()
    assert set(found["analyses"]) >= {"server_loss", "gradient_dissimilarity", "aggregate_margin"}
    assert list(found["missing"]) == ["tokens"]
    text = page.read_text()
    assert '<th scope="col">softmax entropy, server</th>' in text
    assert '<th scope="row">green</th>' in text


def test_measures_are_those_of_numpy_and_scores_those_of_the_run(run: FinishedRun) -> None:
    values = pixels(run).values
    last = json.loads((run.directory.path / "summary.json").read_text())["last"]["global"]
    assert values["server"]["mean_iou"] == pytest.approx(last["mean_iou"], abs=1e-12)
    softmax, features = [], []
    for client in run.clients:
        test = run.data.clients[client].test
        with torch.no_grad():
            output = run.server(test.x)
        shares = output.logits.double().softmax(1).numpy()
        labelled = test.y.numpy() == 1
        softmax.extend((-shares * np.log(shares)).sum(1)[labelled])
        features.append(int(labelled.sum()))
    red = values["server"]["classes"]["red"]
    assert red["pixels"] == sum(features)
    assert red["softmax_entropy"] == pytest.approx(np.mean(softmax), rel=1e-6)
    assert 0 < red["feature_entropy"] < np.log(8)
    assert set(values) == {"server", "clients"}


def test_a_class_without_pixels_has_no_entropy(run: FinishedRun) -> None:
    """0 would be one that the network is sure of."""
    tests = {
        name: replace(client, test=client.test._replace(y=torch.where(client.test.y == 1, 255, client.test.y)))
        for name, client in run.data.clients.items()
    }
    section = pixels(replace(run, data=replace(run.data, clients=tests)))
    red = section.values["server"]["classes"]["red"]
    assert (red["pixels"], red["softmax_entropy"], red["feature_entropy"]) == (0, None, None)
    (table,) = section.tables
    cells = [[cell.text for cell in row] for row in table.rows]
    assert all(cell in ("red", "0", "–") for cell in next(row for row in cells if row[0] == "red"))


def test_the_report_shows_images_and_the_iou_of_each_class(run: FinishedRun) -> None:
    text = write_report(run.directory).read_text()
    assert "A few test images, the same for every run of a seed" in text
    assert "personalization IoU (%)" in text
    assert (run.directory.path / "plots" / "images.png").is_file()


def test_statistics_in_parts_are_those_at_once(run: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    train = run.data.clients["cyd"].train
    with torch.no_grad():
        found = run.server(train.x)
    batch = Batch(train.x, train.y, torch.ones(len(train.y)))
    at_once = class_stats(run.task.labelled_features(Output(found.features, found.logits, {}), batch), 3)
    monkeypatch.setattr(analyses_module, "STATS_NUMBERS", 2 * 3 * 16 * 16)
    assert len(list(run.outputs(run.server, train))) == 12
    for one, other in zip(run.stats(run.server, train), at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_rows_are_labelled_pixels_up_to_a_limit(run: FinishedRun) -> None:
    test = run.data.clients["ada"].test
    features, classes = run.rows(run.server, test, 20, "ada")
    assert features.shape == (20, 8)
    again, _ = run.rows(run.server, test, 20, "ada")
    assert torch.equal(features, again)
    _, objects = run.rows(run.server, test, 1000, "ada", without=0)
    cells = test.y[:, 2::4, 2::4]  # features have a quarter of the sides
    assert sorted(objects.tolist()) == sorted(cells[(cells > 0) & (cells != 255)].tolist())
    assert len(classes) == 20


def test_other_tasks_are_told_apart_in_words(finished: Finished) -> None:
    with pytest.raises(AnalysisError, match="masks and entropy maps are of segmentation; this run learnt classific"):
        pixels(finished("fedavg"))


def test_methods_without_a_servers_model_show_their_clients(tmp_path: Path) -> None:
    assert set(pixels(segmented("fedproto", tmp_path / "own", rounds=1)).figures) == {"clients"}
    pooled = segmented("centralized", tmp_path / "pooled", rounds=1)
    assert set(pixels(pooled).figures) == {"server"}


def test_features_of_pixels_are_compared_in_the_last_round(run: FinishedRun, tmp_path: Path) -> None:
    pooled = segmented("centralized", tmp_path / "pooled", rounds=1)
    found = discrepancy(run, pooled, None).values
    (by_round,) = found["mmd"].values()
    assert list(by_round) == [3], "large networks leave no model of each round"
    (own,) = found["clients"].values()
    assert own.keys() == set(run.clients), "of pixels' features"
    assert all(value > 0 for value in own.values())
