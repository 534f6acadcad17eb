"""Class statistics against a plain loop over the rows: bit for bit, alone and stacked, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.func import vmap

from federation.aggregation.class_statistics import class_stats
from federation.records import ClassStats
from federation.tasks.task import LabelledFeatures

THREADS = (1, 2, 16)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(seed: int, rows: int, length: int, classes: int) -> LabelledFeatures:
    """Features (rows, length) over 36 powers of ten, most of which cancel, so that every other order shows."""
    random = np.random.default_rng(seed)
    half = random.standard_normal((rows, length)) * 10.0 ** random.integers(-18, 19, (rows, 1))
    order = random.permutation(2 * rows)[:rows]
    features = np.concatenate([half, -half])[order].astype(np.float32)
    mask = (random.random(rows) < 0.8).astype(np.float32)
    features[mask == 0] = np.nan  # rows that do not count may hold anything
    return LabelledFeatures(
        torch.from_numpy(features), torch.from_numpy(random.integers(0, classes, rows)), torch.from_numpy(mask)
    )


def by_loop(labelled: LabelledFeatures, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (C,), sums (C, D) and square sums (C,), a row after the other in float64."""
    features = labelled.features.numpy().astype(np.float64)
    counts, total, square = np.zeros(classes), np.zeros((classes, features.shape[1])), np.zeros(classes)
    for row, label, counted in zip(features, labelled.classes.tolist(), labelled.mask.tolist(), strict=True):
        if counted:
            counts[label] += 1
            total[label] += row
            square[label] += (row**2).sum()
    return counts, total, square


def require_equal(found: ClassStats, labelled: LabelledFeatures, classes: int) -> None:
    counts, total, square = by_loop(labelled, classes)
    assert all(part.dtype == torch.float64 for part in found)
    np.testing.assert_array_equal(found.counts.numpy(), counts)
    np.testing.assert_array_equal(found.total.numpy(), total)
    np.testing.assert_allclose(found.square.numpy(), square, rtol=1e-12)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("rows", "length", "classes"), [(1, 1, 2), (300, 192, 6), (2000, 3, 40), (20_000, 8, 3)])
def test_sums_are_a_loop_over_the_rows(rows: int, length: int, classes: int, threads: int) -> None:
    torch.set_num_threads(threads)
    for seed in range(3):
        labelled = drawn(seed, rows, length, classes)
        require_equal(class_stats(labelled, classes), labelled, classes)


@pytest.mark.parametrize("threads", THREADS)
def test_batches_go_on_where_the_last_one_ended(threads: int) -> None:
    torch.set_num_threads(threads)
    labelled, stats = drawn(3, 1000, 16, 5), None
    for start in range(0, 1000, 64):
        stats = class_stats(LabelledFeatures(*(part[start : start + 64] for part in labelled)), 5, stats)
    assert stats is not None
    require_equal(stats, labelled, 5)


@pytest.mark.parametrize("threads", THREADS)
def test_stacked_clients_have_the_sums_of_single_ones(threads: int) -> None:
    torch.set_num_threads(threads)
    clients = [drawn(seed, 500, 24, 4) for seed in range(6)]
    stacked = LabelledFeatures(*(torch.stack(parts) for parts in zip(*clients, strict=True)))
    before = ClassStats(torch.zeros(6, 4).double(), torch.zeros(6, 4, 24).double(), torch.zeros(6, 4).double())

    def one(labelled: LabelledFeatures, before: ClassStats) -> ClassStats:
        return class_stats(labelled, 4, before)

    found = vmap(one)(stacked, before)
    for number, client in enumerate(clients):
        require_equal(ClassStats(*(part[number] for part in found)), client, 4)
