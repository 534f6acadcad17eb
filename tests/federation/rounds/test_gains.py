"""Reports of gains: what a device can say, and what their sums are worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from federation.protocol.messages import BlobPointer
from federation.rounds.gains import added, checked, fitting, length, plausible, published
from federation.rounds.serving import Evidence, Prior
from tests.federation.protocol.test_protocol import POINTER, manifest

CLASSES = 4


def evidence(seed: int, scale: float) -> Evidence:
    """What a device with 3 to 60 held-out windows of some classes finds; a scale above 1 is beyond what is reported."""
    draw = np.random.default_rng(seed)
    y = np.asarray(draw.integers(0, CLASSES, draw.integers(3, 61)), np.int64)
    quality, shared = (np.asarray(scale * draw.random(len(y)), np.float64) for _ in range(2))
    session: NDArray[np.int64] = np.asarray(draw.integers(0, 3, len(y)), np.int64)
    return Evidence.of(y, quality, shared, session, CLASSES)


@settings(deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=15), scale=st.sampled_from([0.0, 0.1, 1.0, 50.0]))
def test_what_devices_report_is_taken_alone_and_in_sums(seeds: list[int], scale: float) -> None:
    reports = [{"midway": evidence(seed, scale).report()} for seed in seeds]
    taken = [manifest(gains=report).gains for report in reports]
    sums = added(taken)
    assert sums["midway"] == np.sum([report["midway"] for report in reports], axis=0).tolist()
    pointer = BlobPointer.model_validate({**POINTER.model_dump(), "gains": sums})
    assert fitting(pointer.gains, CLASSES) == pointer.gains
    assert plausible(sums, len(seeds)) == sums
    assert plausible(sums, len(seeds) - 1) == {}
    assert (Prior.of(pointer.gains["midway"], taken[0]["midway"]) is None) == (len(seeds) < 11)


def test_reports_add_by_candidate_and_nobodys_are_left_out() -> None:
    one, other = {"midway": [1, 5, -2]}, {"midway": [1, 3, 4], "personalized": [1, 7, 1]}
    assert added([one, other, {}]) == {"midway": [2, 8, 2], "personalized": [1, 7, 1]}
    assert added([{"midway": [0, 0, 0]}]) == {}
    assert one == {"midway": [1, 5, -2]}


def test_only_candidates_and_classes_of_the_federation_fit() -> None:
    report = (1,) + (0,) * (length(2) - 1)
    given_ = {"midway": report, "network": report, "personalized": report[:-2], "adapted": report}
    assert fitting(given_, 2) == {"midway": report}


def test_devices_are_told_no_sum_of_fewer_than_ten() -> None:
    sums = {"midway": [9, 5, 2, 9, 5], "personalized": [10, 50, 3, 10, 40, 9, 45]}
    assert published(sums) == {"personalized": [10, 50, 3, 10, 40, 0, 0]}
    assert published(None) == {}


def test_impossible_sums_are_told() -> None:
    with pytest.raises(ValueError, match="got 2 numbers"):
        checked((1, 0))
    assert plausible({"midway": (3, 15_001, 0), "personalized": (3, 15_000, 0)}, 3) == {"personalized": (3, 15_000, 0)}
