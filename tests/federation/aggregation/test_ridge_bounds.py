"""Sums that somebody can have made pass, whatever the examples; others are refused in words. Oracle: numpy."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation.aggregation import ridge
from federation.aggregation.ridge import implausibility
from federation.records import Tree
from federation.tasks.task import LabelledFeatures

CLASSES, D, CLIP = 3, 6, 4.0


def sums(features: np.ndarray, classes: np.ndarray, clip: float = CLIP) -> Tree:
    """What a client sends that has these examples."""
    rows = LabelledFeatures(
        torch.tensor(features, dtype=torch.float32), torch.tensor(classes), torch.ones(len(classes))
    )
    empty = ridge.empty_ridge_sums(CLASSES, features.shape[1], torch.zeros(()))
    return ridge.travelling(ridge.added(empty, rows, clip))


def honest(seed: int = 0, count: int = 40) -> Tree:
    draw = np.random.default_rng(seed)
    return sums(draw.normal(0, 2, (count, D)), draw.choice(CLASSES, count))


def square(upload: Tree) -> np.ndarray:
    """G as a matrix, in steps."""
    full = np.zeros((D + 1, D + 1), dtype=np.int64)
    full[np.triu_indices(D + 1)] = upload["gram"].numpy()
    return full + np.triu(full, 1).T


def packed(matrix: np.ndarray) -> torch.Tensor:
    return torch.tensor(matrix[np.triu_indices(D + 1)].astype(np.int32))


@given(
    st.integers(0, 10_000),
    st.integers(1, 400),
    st.sampled_from([0.1, 1.0, 3.3, 4.0, 8.0]),
    st.sampled_from(["normal", "equal", "huge", "zero", "one"]),
)
def test_what_examples_can_give_passes(seed: int, count: int, clip: float, kind: str) -> None:
    draw = np.random.default_rng(seed)
    features = {
        "normal": lambda: draw.normal(0, 2, (count, D)),
        "equal": lambda: np.repeat(draw.normal(0, 2, (1, D)), count, 0),
        "huge": lambda: draw.choice([-1e30, 1e30], (count, D)),
        "zero": lambda: np.zeros((count, D)),
        "one": lambda: np.eye(D)[draw.choice(D, count)],
    }[kind]()
    classes = draw.choice(CLASSES, count, p=draw.dirichlet(np.ones(CLASSES) * 0.3))
    assert implausibility(sums(features, classes, clip), count, clip) == ""
    assert implausibility(sums(features, classes, clip), 2 * count, clip) == ""


def test_more_examples_than_are_claimed_are_found() -> None:
    words = implausibility(honest(count=40), 30, CLIP)
    assert words.startswith("the sums contain at least 40.0 examples, but 30 are claimed") or "39.9" in words


@pytest.mark.parametrize("factor", [2, 10, 1000])
def test_sums_that_are_made_heavier_are_found(factor: int) -> None:
    upload = honest()
    assert "are claimed" in implausibility({name: value * factor for name, value in upload.items()}, 40, CLIP)
    heavy = {**upload, "gram": upload["gram"] * factor}
    assert "in one place" in implausibility(heavy, 40, CLIP)
    matrix = square(upload)
    matrix[:D, :D] *= 50  # but the weight of the examples stays
    assert "a sum of products is" in implausibility({**upload, "gram": packed(matrix)}, 40, CLIP)


def test_a_moment_beyond_the_clip_is_found() -> None:
    upload = honest()
    moment = upload["moment"].clone()
    moment[0, 0] = int(5 * CLIP * moment[-1, 0])
    assert "above 4" in implausibility({**upload, "moment": moment}, 40, CLIP)
    moment = upload["moment"].clone()
    moment[-1, 1] = -moment[-1, 1]
    assert "a class has a weight of -" in implausibility({**upload, "moment": moment}, 40, CLIP)


def test_negative_squares_and_impossible_products_are_found() -> None:
    upload, matrix = honest(), square(honest())
    matrix[2, 2] = -5
    assert "below 0" in implausibility({**upload, "gram": packed(matrix)}, 40, CLIP)
    matrix = square(upload)
    matrix[0, 1] = matrix[1, 0] = int(1.05 * np.sqrt(float(matrix[0, 0]) * float(matrix[1, 1])))
    assert "not positive semidefinite" in implausibility({**upload, "gram": packed(matrix)}, 40, CLIP)


def test_a_moment_that_no_such_examples_have_is_found() -> None:
    """Each entry is within the clip, but the features of so small squares have no such means."""
    draw = np.random.default_rng(1)
    upload = sums(draw.normal(0, 0.1, (40, D)), draw.choice(CLASSES, 40))
    moment = upload["moment"].clone()
    moved = int(2 * moment[-1, 0]) - moment[0, 0]
    moment[0, 0], moment[0, 1] = moment[0, 0] + moved, moment[0, 1] - moved  # the sum over all examples stays
    assert "not positive semidefinite" in implausibility({**upload, "moment": moment}, 40, CLIP)


def test_moments_that_do_not_add_up_to_the_sum_over_all_examples_are_found() -> None:
    """Else whoever claims 40 windows could say anything about a class, and nothing about it in G."""
    upload = honest()
    moment = upload["moment"].clone()
    moment[2, 1] += 20
    assert "feature 2 sums up to" in implausibility({**upload, "moment": moment}, 40, CLIP)


def test_a_class_with_part_of_an_example_is_found() -> None:
    upload, matrix = honest(), square(honest())
    whole = round((float(upload["moment"][-1, 0]) / 2**15) ** 2)
    half = round((whole + 0.5) ** 0.5 * 2**15)
    moment, added = upload["moment"].clone(), half - int(upload["moment"][-1, 0])
    moment[-1, 0], matrix[-1, -1] = half, matrix[-1, -1] + added
    words = implausibility({"gram": packed(matrix), "moment": moment}, 400, CLIP)
    assert "examples: expected a whole number" in words


def test_what_was_cut_off_at_32_bits_is_found() -> None:
    upload = honest()
    upload["gram"][0] = 2**31 - 1
    assert "cut off" in implausibility(upload, 10**9, CLIP)
    upload["gram"][0] = -(2**31)
    assert "cut off" in implausibility(upload, 10**9, CLIP)


@pytest.mark.slow
def test_a_check_at_full_size_takes_milliseconds() -> None:
    draw = np.random.default_rng(0)
    rows = LabelledFeatures(
        torch.tensor(draw.normal(0, 1, (600, 759)), dtype=torch.float32),
        torch.tensor(draw.choice(6, 600)),
        torch.ones(600),
    )
    upload = ridge.travelling(ridge.added(ridge.empty_ridge_sums(6, 759, torch.zeros(())), rows, CLIP))
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        assert implausibility(upload, 600, CLIP) == ""
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.25
