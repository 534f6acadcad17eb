"""Synthetic(φ1, φ2): the distributions of its definition, streams of one client each, and an 80/20 division."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sim.data.sources.synthetic import DIMENSION, LABELS, SyntheticTasks, synthetic_federation
from sim.errors import SettingsError


def test_one_client_by_the_definition() -> None:
    """Inputs of one client scatter around one point with the variances j^−1.2, uncorrelated."""
    tasks = SyntheticTasks(smallest=20_000, log_mean=-20, log_std=0)
    x, y = tasks.draw(0, 7)
    assert x.shape == (20_000, DIMENSION)
    assert x.dtype == np.float32
    assert y.dtype == np.int64
    assert set(np.unique(y)) <= set(range(len(LABELS)))
    assert np.allclose(x.var(0), np.arange(1, 61) ** -1.2, rtol=0.05)
    correlation = np.corrcoef(x.T) - np.eye(DIMENSION)
    assert np.abs(correlation).max() < 0.04


def test_labels_are_linear_in_the_inputs() -> None:
    """A logistic regression fits a client: the labels are the argmax of 10 affine functions."""
    x, y = SyntheticTasks(smallest=3000, log_mean=-20, log_std=0).draw(3, 0)
    design = torch.tensor(np.column_stack([x, np.ones(len(x))]), dtype=torch.float32)
    weights = torch.zeros(DIMENSION + 1, len(LABELS), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(design @ weights, torch.from_numpy(y))
        value.backward()
        return value

    optimizer.step(loss)
    assert ((design @ weights).argmax(1).numpy() == y).mean() > 0.99


@pytest.mark.parametrize("phi2", [0.0, 1.0, 9.0])
def test_phi2_is_the_variance_of_the_clients_centres(phi2: float) -> None:
    tasks = SyntheticTasks(phi2=phi2, smallest=20, log_mean=-20, log_std=0)
    centres = np.array([tasks.draw(k, 0).x.mean() for k in range(600)])
    # the mean over 60 elements of v_k adds 1/60, that of 20 inputs adds about nothing
    assert centres.var() == pytest.approx(phi2 + 1 / 60, rel=0.2)


def test_sizes_are_those_of_the_power_law() -> None:
    sizes = np.array([len(SyntheticTasks().draw(k, 0).y) for k in range(300)])
    assert sizes.min() >= 50
    assert np.log(sizes - 49.5).mean() == pytest.approx(4, abs=0.4)
    assert np.log(sizes - 49.5).std() == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize("seed", range(12))
def test_sizes_meet_a_condition_with_every_seed(seed: int) -> None:
    """Michieli and Ozay 2021, table 1: 9,600 examples of 30 clients, 320.0 ± 1051.6."""
    data = synthetic_federation(SyntheticTasks(examples=9600, deviation=1051.6), seed=seed)
    sizes = np.array([len(client.train.y) + len(client.test.y) for client in data.clients.values()])
    assert sizes.sum() == 9600
    assert sizes.std() == pytest.approx(1051.6, rel=0.012)  # 1 %, and the rounding to whole examples
    assert sizes.min() >= 50
    assert sizes.max() > 5800  # as in Li et al.'s published file, where the largest of 30 clients has about 5,950


def test_a_condition_on_the_sum_alone_leaves_the_spread_to_the_draw() -> None:
    sizes = [SyntheticTasks(examples=9600).conditional_sizes(seed) for seed in range(8)]
    assert all(each is not None and each.sum() == 9600 for each in sizes)
    assert np.ptp([each.std() for each in sizes if each is not None]) > 50


def test_a_condition_that_no_draw_meets_is_refused() -> None:
    with pytest.raises(SettingsError, match="draws of 3 clients' sizes have examples=9600 and"):
        SyntheticTasks(clients=3, examples=9600, deviation=1051.6).conditional_sizes(0)


def test_a_client_more_changes_no_other_and_a_seed_repeats() -> None:
    few, more, again, other = (
        synthetic_federation(SyntheticTasks(clients=clients), seed=seed)
        for clients, seed in ((3, 1), (4, 1), (3, 1), (3, 2))
    )
    assert list(few.clients) == ["client-000", "client-001", "client-002"]
    for name, client in few.clients.items():
        for same in (more, again):
            assert torch.equal(client.train.x, same.clients[name].train.x)
            assert torch.equal(client.test.y, same.clients[name].test.y)
        assert len(client.train.y) != len(other.clients[name].train.y)


def test_a_fifth_is_held_out_as_float32() -> None:
    data = synthetic_federation(SyntheticTasks(clients=5), seed=0)
    for client in data.clients.values():
        total = len(client.train.y) + len(client.test.y)
        assert len(client.test.y) == round(0.2 * total)
        assert client.train.x.dtype == torch.float32
    assert data.labels == LABELS
    assert data.union_test().x.shape[1] == DIMENSION
    statistics = data.statistics["client-000"]
    assert statistics.mean.tolist() == [0] * DIMENSION
    assert statistics.std.tolist() == [1] * DIMENSION


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"phi1": -1}, "phi1 is -1"),
        ({"clients": 0}, "clients is 0"),
        ({"smallest": 1}, "smallest is 1"),
        ({"test_share": 0}, "test_share is 0"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, float], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        SyntheticTasks(**options)
