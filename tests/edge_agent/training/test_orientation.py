"""The warning sign that a device lies otherwise than most: gravity against the constants that ship with the network."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from edge_agent.training.local_data import LocalData
from edge_agent.training.orientation import orientation_of
from har_pipeline import ClientWindows
from models import build
from models.orientation import AXES


def lying(*gravity: float, windows: int = 20) -> LocalData:
    x = np.zeros((windows, 128, 6), np.float32)
    x[..., :AXES] = gravity
    some = ClientWindows("c", x, np.zeros(windows, np.int64), np.arange(windows) * 1.28, np.zeros(windows, np.int64))
    nothing = some.select(np.zeros(0, np.int64))
    return LocalData(some, nothing, (0.0,) * 6, (1.0,) * 6, None)


@pytest.mark.parametrize(
    ("gravity", "is_far"), [((0.0, -9.8, 0.0), False), ((0.0, 9.8, 0.0), True), ((2.0, -9.0, 3.0), False)]
)
def test_a_phone_upside_down_is_far_and_one_in_a_pocket_is_not(
    gravity: tuple[float, float, float], is_far: bool
) -> None:
    assert orientation_of(build("har_features", classes=2, cosines=17), lying(*gravity)).is_far is is_far


def test_the_usual_direction_itself_has_no_distance() -> None:
    network = build("har_features", classes=2, cosines=17)
    usual = network.get_buffer("feature_mean")[list(network.gravity_columns)].double().numpy()
    gravity = np.sign(usual) * np.expm1(abs(usual))
    assert orientation_of(network, lying(*gravity.tolist())).distance == pytest.approx(0.0, abs=1e-5)


def test_a_network_that_says_nothing_of_gravity_and_a_device_without_windows_have_none() -> None:
    assert orientation_of(nn.Linear(1, 1), lying(0.0, 9.8, 0.0)).distance is None
    found = orientation_of(build("har_features", classes=2, cosines=17), lying(0.0, 9.8, 0.0, windows=0))
    assert (found.distance, found.is_far) == (None, False)
