"""Images kept as bytes give the numbers of images that were normalized beforehand, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from federation.errors import SettingsError
from federation.methods import METHODS
from federation.plan import Augmentation, TrainingConfig
from federation.records import Examples
from federation.tasks.segmentation import Segmentation
from federation.training.client_round import train_one, train_stacked
from federation.training.forward import Moments, initial_client, initial_model, network, network_input
from federation.training.local_round import Setup
from federation.training.prediction import measure, measure_each, measure_stacked, predict
from tests.federation.tiny_networks import WIDTH, TinySegmenter
from tests.federation.training.test_callbacks import assert_equal

MOMENTS = Moments((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def beforehand(x: np.ndarray) -> np.ndarray:
    """All of them as float32, in numpy: x·a − b with a = 1/(255 s) and b = m/s."""
    mean, std = np.array(MOMENTS.mean), np.array(MOMENTS.std)
    scale, shift = (part.astype(np.float32).reshape(-1, 1, 1) for part in (1 / (255 * std), mean / std))
    return x.astype(np.float32) * scale - shift


def test_normalized_is_the_formula() -> None:
    x = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
    found = MOMENTS.normalized(torch.from_numpy(x))
    wanted = (x / 255 - np.array(MOMENTS.mean)[:, None, None]) / np.array(MOMENTS.std)[:, None, None]
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - wanted).max() < 1e-6
    assert np.array_equal(found.numpy(), beforehand(x))


def test_numbers_stay_and_bytes_without_moments_are_refused() -> None:
    windows = torch.randn(2, 128, 6)
    assert network_input(windows, None) is windows
    assert network_input(windows, MOMENTS) is windows
    with pytest.raises(SettingsError, match=r"are bytes \(2, 3, 4, 4\), and nothing says how they are normalized"):
        network_input(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), None)


def both_ways(count: int = 9) -> tuple[Examples, Examples]:
    """The same images and masks as bytes, and as numbers."""
    random = np.random.default_rng(count)
    x = random.integers(0, 256, (count, 3, 8, 6), dtype=np.uint8)
    y = random.choice(np.array([0, 1, 2, 255], np.uint8), (count, 8, 6))
    masks = torch.from_numpy(y)
    return Examples(torch.from_numpy(x), masks), Examples(torch.from_numpy(beforehand(x)), masks.long())


@pytest.mark.parametrize("augmentation", ["none", "flip=0.5,padding=2,scale=0.5:2,brightness=0.2,saturation=0.5"])
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "moon"])
def test_a_round_and_its_scores_are_the_same_bits(method: str, augmentation: str) -> None:
    training = TrainingConfig(
        classes=3, feature_dim=WIDTH, batch_size=4, epochs=2, augmentation=Augmentation.model_validate(augmentation)
    )
    module = initial_model(lambda: TinySegmenter(3, alp=False), 0)
    setup = Setup(METHODS[method](), training, network(module), Segmentation(), MOMENTS)
    initial = setup.method.init_client_state(initial_client(module), training)
    state = setup.method.server_init(initial.params, initial.buffers, training)
    as_bytes, as_numbers = both_ways()
    results = [
        train_one(setup, initial, setup.method.broadcast(state, ""), mine, client_id="ada", round_number=1)
        for mine in (as_bytes, as_numbers)
    ]
    assert_equal(*results)
    pairs = both_ways(5)
    stacked = [
        train_stacked(setup, [initial] * 2, [state] * 2, each, client_ids=["ada", "bob"], round_number=1)
        for each in ([as_bytes, pairs[0]], [as_numbers, pairs[1]])
    ]
    for one, other in zip(*stacked, strict=True):
        assert_equal(one, other)
    scores = [
        (
            measure(setup, results[0].client, mine, 4)["confusion"],
            measure_each(setup, results[0].client, {"a": mine, "b": more}, 4)["b"]["confusion"],
            measure_stacked(setup, [results[0].client], mine, 4)[0]["confusion"],
            torch.from_numpy(predict(setup, results[0].client, mine.x, 4)),
        )
        for mine, more in ((as_bytes, pairs[0]), (as_numbers, pairs[1]))
    ]
    assert all(torch.equal(one, other) for one, other in zip(*scores, strict=True))
    with pytest.raises(SettingsError, match="nothing says how they are normalized"):
        measure(replace(setup, moments=None), initial, as_bytes, 4)
