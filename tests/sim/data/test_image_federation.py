"""Normalization, and from images and a partition to each client's examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federation.tasks.classification import Classification
from har_pipeline import SourceError
from sim.data.images import IMAGE_SETS, LabelledImages
from sim.data.images import reader as constants
from sim.data.partitions import Dirichlet, Natural, Shards
from sim.data.sources.images import image_federation


def images(count: int = 400, channels: int = 3) -> LabelledImages:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (count, channels, 5, 4), dtype=np.uint8)
    client = np.array(["ann", "bob"])[random.integers(0, 2, count)]
    return LabelledImages(x, random.integers(0, 4, count), tuple("abcd"), random.random(count) < 0.8, client)


def test_every_set_has_moments_for_its_channels() -> None:
    for reader in IMAGE_SETS.values():
        named = {"labels": ["a", "b"]} if "labels" in reader.defaults and not reader.defaults["labels"] else None
        channels = reader.shape(reader.options(named))[0]
        assert len(reader.moments.mean) == len(reader.moments.std) == channels


def test_each_client_gets_its_share_as_views_of_one_tensor() -> None:
    given, moments = images(), constants.CIFAR10
    shares = Dirichlet(clients=5, alpha=0.5, minimum=5).divide(given.pool(Classification()), 0)
    data = image_federation(given, shares, moments)
    storages = set()
    for name, share in shares.items():
        client = data.clients[name]
        for part, rows in zip((client.train, client.test, client.validation), share, strict=True):
            assert part.x.dtype == torch.uint8
            assert torch.equal(part.x, torch.from_numpy(given.x[rows]))
            assert part.y.tolist() == given.y[rows].tolist()
            assert part.y.dtype == torch.int64
            storages.add(part.x.untyped_storage().data_ptr())
    assert len(storages) == 1
    assert (data.labels, data.moments) == (given.labels, moments)
    assert not data.split_leaks
    assert sum(row["test"] for row in data.per_class(Classification()).values()) == (~given.train).sum()


def test_statistics_are_the_constants_for_a_client_and_for_the_sum_of_all() -> None:
    given = images()
    data = image_federation(given, Natural().divide(given.pool(Classification()), 0), constants.CIFAR10)
    both = data.statistics["ann"] + data.statistics["bob"]
    for statistics in (data.statistics["ann"], both):
        assert np.allclose(statistics.mean, constants.CIFAR10.mean, rtol=1e-12)
        assert np.allclose(statistics.std, constants.CIFAR10.std, rtol=1e-12)


def test_only_what_was_dealt_is_kept() -> None:
    given = images()
    shares = Shards(clients=4, examples=60, minimum=1).divide(given.pool(Classification()), 0)
    data = image_federation(given, shares, constants.CIFAR10)
    assert data.clients["client-000"].train.x.untyped_storage().nbytes() == 60 * 3 * 5 * 4


def test_images_that_do_not_fit_are_refused() -> None:
    x, y, train = np.zeros((2, 1, 3, 3), np.uint8), np.array([0, 1]), np.ones(2, bool)
    for wrong, words in (
        ((x[:, 0], y, ("a", "b"), train), "expected uint8"),
        ((x.astype(np.float32), y, ("a", "b"), train), "expected uint8"),
        ((x, y[:1], ("a", "b"), train), "differ in number"),
        ((x, y, ("a",), train), "expected 0 to 0"),
    ):
        with pytest.raises(SourceError, match=words):
            LabelledImages(*wrong)
