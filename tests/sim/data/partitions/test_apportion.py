"""Dividing whole things in proportions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.data.partitions.partition import apportion, thinned


@given(
    total=st.integers(0, 1000),
    weights=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=20),
    at_least=st.integers(0, 3),
)
@settings(deadline=None)
def test_apportioned_parts_sum_and_stay_near_their_quota(total: int, weights: list[float], at_least: int) -> None:
    parts = apportion(total, weights, at_least)
    assert parts.min() >= 0
    assert np.all(parts[np.array(weights) == 0] == 0)
    assert parts.sum() == (total if sum(weights) else 0)
    if at_least == 0 and sum(weights):
        assert np.all(np.abs(parts - total * np.array(weights) / sum(weights)) < 1 + 1e-6)


def test_apportion_by_hand() -> None:
    assert apportion(10, [47, 16, 16, 21]).tolist() == [5, 2, 1, 2]  # quotas 4.7 1.6 1.6 2.1
    assert apportion(6, [1000, 1, 0], at_least=1).tolist() == [5, 1, 0]
    assert apportion(1, [3, 4], at_least=1).tolist() == [0, 1]  # not enough for everybody
    assert thinned(np.array([30, 10]), 4).tolist() == [3, 1]
    assert thinned(np.array([30, 10]), None).tolist() == [30, 10]
