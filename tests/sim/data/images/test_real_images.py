"""The readers on the real files: what they hold, and the constants that describe it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from federation.tasks.classification import Classification
from sim.data.images import IMAGE_SETS, LabelledImages
from sim.data.images.digits import read_idx
from sim.data.partitions import Natural, NWay, Shards, class_counts
from sim.data.sources.images import image_federation

pytestmark = pytest.mark.data


def small_data(folder: Path, name: str) -> Path:
    if not (folder / name).is_dir():
        pytest.skip(f"{folder / name} is not there; set GAITWAY_DATA")
    return folder / name


@pytest.fixture(scope="module")
def mnist(gaitway_data: Path) -> LabelledImages:
    return IMAGE_SETS["mnist"].read(small_data(gaitway_data, "mnist"))


def test_mnist_is_complete(mnist: LabelledImages) -> None:
    assert mnist.x.shape == (70_000, 1, 28, 28)
    # LeCun's training and test counts, added
    assert np.bincount(mnist.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


def test_mnists_natural_clients_are_those_of_its_configuration(mnist: LabelledImages, gaitway_data: Path) -> None:
    config = json.loads((gaitway_data / "mnist" / "config.json").read_text())
    shares = Natural(test="published").divide(mnist.pool(Classification()), 0)
    table = class_counts(shares, mnist.y, 10, "train") + class_counts(shares, mnist.y, 10, "test")
    for row, wanted in zip(table, config["Size of samples for labels in clients"], strict=True):
        assert [[c, n] for c, n in enumerate(row.tolist()) if n] == wanted


def test_every_published_test_image_is_among_mnists_70000(mnist: LabelledImages, gaitway_data: Path) -> None:
    """So the t10k files are no held-out set beside the npz, and the reader leaves them alone."""
    with gzip.open(gaitway_data / "mnist" / "t10k-images-idx3-ubyte.gz") as stream:
        t10k = read_idx(stream, "t10k", (28, 28))
    known = {image.tobytes() for image in mnist.x}
    assert all(image.tobytes() in known for image in t10k)


@pytest.mark.ci
@pytest.mark.parametrize(("name", "tolerance"), [("mnist", 5e-4), ("fashion_mnist", 1e-3)])
def test_the_constants_are_the_datas(name: str, tolerance: float, gaitway_data: Path) -> None:
    reader = IMAGE_SETS[name]
    images = reader.read(small_data(gaitway_data, name))
    assert images.x.mean() / 255 == pytest.approx(reader.moments.mean[0], abs=tolerance)
    assert images.x.std() / 255 == pytest.approx(reader.moments.std[0], abs=tolerance)


def test_fashion_has_1500_a_class_and_60_clients(gaitway_data: Path) -> None:
    images = IMAGE_SETS["fashion_mnist"].read(small_data(gaitway_data, "fashion_mnist"))
    assert np.bincount(images.y).tolist() == [1500] * 10
    assert len(Natural(test="published").divide(images.pool(Classification()), 0)) == 60


def test_a_thousand_clients_of_mnist_take_one_copy_of_it(mnist: LabelledImages) -> None:
    shares = Shards(clients=1000, sigma=1.65, examples=61_676).divide(mnist.pool(Classification()), 0)
    data = image_federation(mnist, shares, IMAGE_SETS["mnist"].moments)
    assert len(data.clients) == 1000
    first = next(iter(data.clients.values()))
    assert first.train.x.untyped_storage().nbytes() == 61_676 * 28 * 28


def test_tan_et_als_setting_fits_the_data(mnist: LabelledImages) -> None:
    shares = NWay(clients=20, ways=5, stdev=2).divide(mnist.pool(Classification()), 0)
    assert all(40 <= len(share.test) <= 400 for share in shares.values())


@pytest.mark.slow
def test_cifar_as_jpeg(gaitway_data: Path) -> None:
    images = IMAGE_SETS["cifar10_jpg"].read(small_data(gaitway_data, "cifar10_jpg"))
    assert images.x.shape == (30_000, 3, 32, 32)
    assert images.train.sum() == 20_000
    assert np.bincount(images.y).tolist() == [3000] * 10
    assert np.allclose(images.x.mean((0, 2, 3)) / 255, IMAGE_SETS["cifar10"].moments.mean, atol=5e-3)
