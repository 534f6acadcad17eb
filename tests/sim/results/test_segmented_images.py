"""The images that a run of segmentation leaves: which they are, what is in the file, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from federation.records import Examples, Output
from federation.tasks.segmentation import Segmentation
from har_pipeline import ChannelStatistics
from models.image.segmentation import SegmenterSmall
from sim.errors import RunDirectoryError
from sim.results.artifacts import (
    SegmentedImages,
    choose_images,
    feature_entropy,
    image_of,
    images_of,
    read_images,
    shown,
    softmax_entropy,
    together,
    write_images,
)
from tests.sim.test_tasks import images, simulation

TASK = Segmentation(background=0)


def drawn(count: int = 2) -> SegmentedImages:
    random = torch.Generator().manual_seed(0)

    def one(number: int) -> SegmentedImages:
        x = torch.randint(0, 256, (1, 3, 6, 8), generator=random).to(torch.uint8)
        truth = torch.randint(0, 3, (1, 6, 8), generator=random).to(torch.uint8)
        truth[0, 0] = 255
        output = Output(torch.rand(1, 5, 3, 4, generator=random), torch.randn(1, 3, 6, 8, generator=random), {})
        return image_of(TASK, f"ada, {number}", x, truth, output, None)

    found = together(one(number) for number in range(count))
    assert found is not None
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    wrote = drawn()
    write_images(tmp_path / "images.safetensors", wrote)
    came = read_images(tmp_path / "images.safetensors")
    assert came is not None
    assert (came.names, came.feature_dim) == (("ada, 0", "ada, 1"), 5)
    for one, other in zip(wrote[:5], came[:5], strict=True):
        assert torch.equal(one, other)
    assert int(came.truth.max()) == 255
    assert read_images(tmp_path / "none") is None


@pytest.mark.parametrize("damage", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ", b"x" * 100])
def test_a_damaged_file_is_refused_in_words(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "images.safetensors"
    path.write_bytes(damage)
    with pytest.raises(RunDirectoryError, match="the file is damaged"):
        read_images(path)


def test_shapes_that_disagree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.safetensors"
    write_images(path, drawn()._replace(truth=torch.zeros(2, 5, 5, dtype=torch.int16)))
    with pytest.raises(RunDirectoryError, match="images and masks differ in shape"):
        read_images(path)


def test_the_seed_chooses_and_classes_take_turns() -> None:
    tests = {"ada": images(30, (1,), 0), "bob": images(2, (2,), 1)}
    chosen = choose_images(tests, TASK, 3)
    assert chosen == choose_images(tests, TASK, 3)
    assert len(set(chosen)) == 4
    assert {name for name, _ in chosen[:2]} == {"ada", "bob"}, "the rare class is among the first two"
    assert [chosen != choose_images(tests, TASK, seed) for seed in range(4, 9)].count(True) >= 4
    few = {"ada": images(1, (1,), 0), "bob": Examples(torch.zeros(0, 3, 16, 16), torch.zeros(0, 16, 16))}
    assert choose_images(few, TASK, 0) == [("ada", 0)]


def test_normalization_is_undone() -> None:
    random = np.random.default_rng(0)
    original = torch.from_numpy(random.integers(0, 256, size=(2, 3, 4, 4)).astype(np.uint8))
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
    statistics = ChannelStatistics(1, mean, std**2 + mean**2)
    numbers = (original / 255 - torch.from_numpy(mean).view(-1, 1, 1)) / torch.from_numpy(std).view(-1, 1, 1)
    assert torch.equal(shown(numbers.float(), statistics), original)
    assert torch.equal(shown(original, statistics), original)
    spread = shown(torch.tensor([[[[-3.0, 1.0]]]]), None)
    assert spread.tolist() == [[[[0, 255]]] * 3], "of one channel, unknown units: grey from black to white"


@torch.no_grad()
def test_feature_entropy_has_the_encoders_resolution() -> None:
    """H_E of 4 × 6 cells, each as wide as 16 pixels; between centres of cells it is linear."""
    network = SegmenterSmall(classes=3, channels=[8, 8, 8, 16], feature_dim=8, features_at="encoder").eval()
    x, truth = torch.randn(1, 3, 64, 96), torch.zeros(1, 64, 96, dtype=torch.uint8)
    features, logits = network(x)
    output = Output(features, logits, {})
    found = image_of(TASK, "ada, 0", x, truth, output, None)
    maps = network.deep(network.quarter(network.stem(x)))[0].double().numpy()
    shares = maps / maps.sum(0)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(0)
    assert entropy.shape == (4, 6)
    assert found.feature_dim == 16
    rows, columns = (np.clip((np.arange(16 * n) + 0.5) / 16 - 0.5, 0, n - 1) for n in entropy.shape)
    along = np.stack([np.interp(columns, np.arange(6), line) for line in entropy])
    wanted = np.stack([np.interp(rows, np.arange(4), line) for line in along.T], axis=1)
    np.testing.assert_allclose(found.feature_entropy[0].numpy(), wanted, atol=2e-3)  # kept as float16


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_run_shows_what_it_is_scored_by(method: str) -> None:
    """The masks have the scores that the run has: the server's, or those of each client's own model."""
    played = simulation(method, rounds=2)
    records = list(played.run_rounds())
    found = images_of(played)
    assert found is not None
    assert len(found.names) == 4
    assert found.predicted.shape == found.feature_entropy.shape == (4, 16, 16)
    own = {name: iter(range(8)) for name in played.data.clients}
    assert own.keys() >= {name.split(",")[0] for name in found.names}
    for k, name in enumerate(found.names):
        client, row = name.split(",")[0], int(name.rsplit(" ", 1)[1]) - 1
        assert torch.equal(found.truth[k].long(), played.data.clients[client].test.y[row])
    assert records[-1]["evaluated"]


RANDOM = np.random.default_rng(5)


def entropy(shares: np.ndarray) -> float:
    return float(-sum(share * math.log(share) for share in shares if share > 0))


def test_softmax_entropy_pixel_by_pixel() -> None:
    logits = RANDOM.normal(0, 3, size=(2, 5, 3, 4))
    found = softmax_entropy(torch.from_numpy(logits))
    assert found.shape == (2, 3, 4)
    for n, i, j in np.ndindex(2, 3, 4):
        shares = np.exp(logits[n, :, i, j]) / np.exp(logits[n, :, i, j]).sum()
        assert float(found[n, i, j]) == pytest.approx(entropy(shares), rel=1e-12)


def test_softmax_entropy_at_its_ends() -> None:
    """Equal logits: ln C; a certain class: 0; a class that scores −∞, as one without a prototype does, has no share."""
    logits = torch.zeros(1, 4, 1, 3)
    logits[0, 0, 0, 1] = 1e4
    logits[0, 2:, 0, 2] = -torch.inf
    assert softmax_entropy(logits)[0, 0].tolist() == pytest.approx([math.log(4), 0.0, math.log(2)])
    assert softmax_entropy(logits.half()).dtype == torch.float64


def test_feature_entropy_pixel_by_pixel() -> None:
    """Features that are not negative are divided by their sum; others are raised by their least first."""
    features = RANDOM.normal(size=(2, 6, 3, 4))
    features[0] = np.abs(features[0])
    found = feature_entropy(torch.from_numpy(features), (3, 4))
    for n, i, j in np.ndindex(2, 3, 4):
        raised = features[n, :, i, j] - min(0.0, features[n, :, i, j].min())
        assert float(found[n, i, j]) == pytest.approx(entropy(raised / raised.sum()), rel=1e-12)


def test_feature_entropy_is_interpolated_between_the_centres_of_cells() -> None:
    """Twice as fine: a quarter of the way from one centre to the next, and flat beyond the outermost."""
    features = RANDOM.normal(size=(1, 6, 2, 3))
    coarse, fine = (feature_entropy(torch.from_numpy(features), size)[0].numpy() for size in ((2, 3), (4, 6)))

    def between(i: int, j: int) -> float:
        y, x = (min(max((k + 0.5) / 2 - 0.5, 0), most) for k, most in ((i, 1), (j, 2)))
        top, left = int(min(y, 0)), int(min(x, 1))
        down, right = y - top, x - left
        rows = coarse[top : top + 2, left : left + 2]
        return float(np.array([1 - down, down]) @ rows @ np.array([1 - right, right]))

    for i, j in np.ndindex(4, 6):
        assert fine[i, j] == pytest.approx(between(i, j), rel=1e-12)


def test_feature_entropy_at_its_ends() -> None:
    features = torch.zeros(1, 4, 1, 4)
    features[0, :, 0, 1] = 3.0
    features[0, 2, 0, 2] = 5.0
    features[0, :, 0, 3] = -1.0
    found = feature_entropy(features, (1, 4))[0, 0].tolist()
    assert found == pytest.approx([0.0, math.log(4), 0.0, 0.0]), "no feature, all alike, one alone, all as negative"
