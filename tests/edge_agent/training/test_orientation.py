"""The warning sign that a device lies otherwise than most: its gravity against that of all windows in the sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edge_agent.training.local_data import LocalData
from edge_agent.training.torch_runtime import orientation_of
from federation.aggregation import ridge
from federation.aggregation.ridge_numpy import MIN_VARIANCE
from federation.records import Tree
from federation.tasks.task import LabelledFeatures
from har_pipeline import ClientWindows
from models import build
from models.har_features import AXES, gravity_columns

NETWORK = build("har_features", classes=2, cosines=17)
CLIP = 4.0
POCKET, BELT = (1.0, -9.5, 1.0), (9.7, -1.0, 0.5)


def lying(*gravity: float, windows: int = 20) -> LocalData:
    x = np.zeros((windows, 128, 6), np.float32)
    x[..., :AXES] = gravity
    some = ClientWindows("c", x, np.zeros(windows, np.int64), np.arange(windows) * 1.28, np.zeros(windows, np.int64))
    nothing = some.select(np.zeros(0, np.int64))
    return LocalData(some, nothing, (0.0,) * 6, (1.0,) * 6, None)


def others(*gravity: float) -> tuple[Tree, Tensor, Tensor]:
    """Sums of twelve devices that lie about a direction, each of which also lies down a third of the time."""
    draw = np.random.default_rng(3)
    parts, features, weights = [], [], []
    for _ in range(12):
        x = np.zeros((30, 128, 6), np.float32)
        x[..., :AXES] = np.array(gravity) + draw.normal(0, 1, (30, 1, 3))
        x[20:, :, :AXES] = [0, 0, 9.8]
        y = torch.tensor([0] * 20 + [1] * 10)
        with torch.no_grad():
            mine = NETWORK.eval()(torch.from_numpy(x)).features
        labelled = LabelledFeatures(mine, y, torch.ones(30))
        parts.append(ridge.travelling(ridge.added(ridge.empty_ridge_sums(2, mine.shape[1], mine), labelled, CLIP)))
        features.append(mine.double())
        weights.append(torch.bincount(y).double()[y] ** -0.5)
    weight = torch.cat(weights)
    return ridge.total_of(parts), torch.cat(features)[:, list(gravity_columns(NETWORK))], weight / weight.sum()


@pytest.mark.parametrize("gravity", [POCKET, BELT])
def test_a_phone_upside_down_is_far_in_any_federation_and_one_that_lies_as_most_is_not(
    gravity: tuple[float, float, float],
) -> None:
    shared, _, _ = others(*gravity)
    assert not orientation_of(NETWORK, lying(*gravity), shared).is_far
    assert not orientation_of(NETWORK, lying(*(np.array(gravity) + np.array([0.5, 0.5, -0.5]))), shared).is_far
    assert orientation_of(NETWORK, lying(-gravity[0], -gravity[1], gravity[2]), shared).is_far


def test_the_distance_is_mahalanobis_of_everybodys_windows() -> None:
    shared, features, weight = others(*POCKET)
    mean = weight @ features
    covariance = (features - mean).T @ ((features - mean) * weight[:, None])
    mine = lying(*BELT)
    with torch.no_grad():
        away = NETWORK(torch.from_numpy(mine.train.x)).features[0, list(gravity_columns(NETWORK))].double() - mean
    wanted = float(away @ torch.linalg.inv(covariance + MIN_VARIANCE * torch.eye(AXES)) @ away / AXES) ** 0.5
    assert orientation_of(NETWORK, mine, shared).distance == pytest.approx(wanted, rel=1e-3)


def test_without_sums_windows_or_a_network_that_names_gravity_there_is_no_distance() -> None:
    shared, _, _ = others(*POCKET)
    assert orientation_of(nn.Linear(1, 1), lying(*BELT), shared).distance is None
    nobody = {name: torch.zeros_like(value) for name, value in shared.items()}
    assert orientation_of(NETWORK, lying(*BELT), nobody).distance is None
    found = orientation_of(NETWORK, lying(*BELT, windows=0), shared)
    assert (found.distance, found.is_far) == (None, False)
