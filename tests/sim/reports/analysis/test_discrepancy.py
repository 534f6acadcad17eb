"""MMD against a double loop and numbers by hand; FFD; runs that cannot be compared."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.checkpoint import load_checkpoint
from sim.errors import AnalysisError
from sim.reports.analysis.discrepancy import (
    discrepancies,
    discrepancy,
    ffd,
    kernel,
    mean_discrepancy,
    median_distance,
    reference_of,
)
from sim.results.run_directory import round_model_file
from tests.sim.reports.analysis.conftest import Finished


def by_loops(x: torch.Tensor, y: torch.Tensor, width: float) -> float:
    def mean(a: torch.Tensor, b: torch.Tensor) -> float:
        values = [
            math.exp(-sum((p - q) ** 2 for p, q in zip(one, other, strict=True)) / (2 * width**2))
            for one in a.double().tolist()
            for other in b.double().tolist()
        ]
        return math.fsum(values) / len(values)

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def squared_mmd(x: torch.Tensor, y: torch.Tensor, width: float) -> float:
    return float(mean_discrepancy(x, y, width, kernel(y, y, width).mean()))


def test_mmd_is_that_of_a_double_loop() -> None:
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(13, 5, generator=random), 0.5 + torch.randn(9, 5, generator=random)
    assert squared_mmd(x, y, 1.7) == pytest.approx(by_loops(x, y, 1.7), rel=1e-12)


def test_mmd_by_hand() -> None:
    # one vector each, at distance 2, width 1: 1 + 1 − 2e⁻²
    assert squared_mmd(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]]), 1.0) == pytest.approx(
        2 - 2 * math.exp(-2)
    )
    # {0, 2} against {0}: ½(1 + e⁻²) + 1 − (1 + e⁻²) = ½(1 − e⁻²)
    two, one = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0]])
    assert squared_mmd(two, one, 1.0) == pytest.approx((1 - math.exp(-2)) / 2)


def test_mmd_of_a_set_with_itself_is_0_far_from_the_origin_too() -> None:
    x = 1e4 + torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    assert abs(squared_mmd(x, x, 1.0)) < 1e-15


def test_the_bandwidth_is_the_median_distance() -> None:
    # 0, 1, 3: distances 1, 3, 2
    assert median_distance(torch.tensor([[0.0], [1.0], [3.0]])) == 2.0
    with pytest.raises(AnalysisError, match="the centralized features coincide"):
        median_distance(torch.ones(4, 2))


def test_ffd_by_hand() -> None:
    assert ffd(own=0.3, theirs=0.4) == pytest.approx(25.0)
    with pytest.raises(AnalysisError, match=r"divides by MMD_B, which is 0"):
        ffd(own=0.3, theirs=0.0)


def test_a_run_against_another(finished: Finished) -> None:
    run, centralized, against = finished("fedavg"), finished("centralized"), finished("fedprox")
    section = discrepancy(run, centralized, against)
    mine, theirs = (by_round[2] for by_round in section.values["mmd"].values())
    assert section.values["ffd"] == pytest.approx(100 * (theirs - mine) / theirs)
    reference = centralized.features(centralized.server, run.data.union_test().x)
    width = section.values["bandwidth"]
    assert width == pytest.approx(median_distance(reference))
    # the mean over clients of roots, under the server's model of the last round (eq. 16)
    features = [run.features(run.server, client.test.x) for client in run.data.clients.values()]
    expected = [math.sqrt(by_loops(each, reference, width)) for each in features]
    assert mine == pytest.approx(np.mean(expected), rel=1e-6)


def test_rounds_that_were_analysed_have_their_own_discrepancy(finished: Finished) -> None:
    """Of the clients of each round, which one client is here."""
    run, centralized = finished("fedavg", analyses="michieli", rounds=3, clients_per_round=1), finished("centralized")
    by_round = discrepancies(run, centralized, reference_of(centralized))
    assert list(by_round) == [1, 2, 3]
    assert [list(each) for each in by_round.values()] == [list(record.cohort) for record in run.directory.rounds]
    reference = centralized.features(centralized.server, run.data.union_test().x)
    model = load_checkpoint(round_model_file(run.directory.path, 1))[0]
    ((name, value),) = by_round[1].items()
    features = run.features(model, run.data.clients[name].test.x)
    assert value == pytest.approx(math.sqrt(by_loops(features, reference, median_distance(reference))), rel=1e-6)


def test_a_method_without_a_servers_model_has_none(finished: Finished) -> None:
    with pytest.raises(AnalysisError, match="no global model in a run of local"):
        discrepancy(finished("local"), finished("centralized"), None)


def test_the_reference_must_be_centralized(finished: Finished) -> None:
    with pytest.raises(AnalysisError, match="is a run of fedavg; expected one of centralized"):
        discrepancy(finished("fedprox"), finished("fedavg"), None)


def test_runs_must_have_been_tested_on_the_same(finished: Finished, tmp_path: Path) -> None:
    run = finished("fedavg")
    other = replace(run, settings=run.settings.model_copy(update={"dataset": "motionsense"}))
    with pytest.raises(AnalysisError, match=r"on other examples .* data = 'motionsense', not 'synthetic'"):
        discrepancy(run, other, None)
    elsewhere = run.settings.model.model_copy(update={"options": {"features_at": "last_layer"}})
    other = replace(run, settings=run.settings.model_copy(update={"model": elsewhere}))
    with pytest.raises(AnalysisError, match="features are taken at head and last_layer"):
        discrepancy(run, other, None)
    fewer = dict(list(run.data.clients.items())[:1])
    with pytest.raises(AnalysisError, match="other test examples"):
        discrepancy(run, replace(run, data=replace(run.data, clients=fewer)), None)
