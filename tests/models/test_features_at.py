"""Where networks take their features: the head, its names and its logits stay whatever the place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from models import Model, OptionError, build
from models.image.segmentation import DeepLabV3Plus, SegmenterSmall
from models.registry import MODELS

CHOSEN: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "dense": ("last_layer", {}, (256,)),
    "mnist_cnn": ("last_layer", {"head_layers": 2}, (50,)),
    "margin_cnn": ("last_layer", {}, (256,)),
    "segmenter_small": ("encoder", {"input_shape": [3, 90, 120]}, (128, 6, 8)),
    "deeplab_v3plus": ("encoder", {"input_shape": [3, 256, 256]}, (256, 16, 16)),
}
"""The place, other options, and the shape of an example's features; MobileNet's halvings leave 16 of 256 pixels."""


def pair(name: str) -> tuple[Model, Model, Tensor]:
    """Return the network as it is by default, one of the same weights with other features, and an input."""
    place, options, _ = CHOSEN[name]
    torch.manual_seed(1)
    usual = build(name, classes=4, **options).eval()
    other = build(name, classes=4, features_at=place, **options).eval()
    other.load_state_dict(usual.state_dict())
    return usual, other, torch.randn(2, *usual.input_shape)


@pytest.mark.parametrize("name", CHOSEN)
@torch.no_grad()
def test_only_the_features_move(name: str) -> None:
    usual, other, x = pair(name)
    before, after = usual(x), other(x)
    assert tuple(after.features.shape[1:]) == CHOSEN[name][2]
    assert (usual.features_at, other.features_at) == ("head", CHOSEN[name][0])
    assert (usual.feature_dim, other.feature_dim) == (before.features.shape[1], after.features.shape[1])
    assert torch.equal(before.logits, after.logits)
    assert [n for n, _ in usual.head.named_parameters()] == [n for n, _ in other.head.named_parameters()]


@torch.no_grad()
def test_what_enters_the_last_layer_is_what_it_answers() -> None:
    for name in ("dense", "mnist_cnn", "margin_cnn"):
        _, other, x = pair(name)
        output = other(x)
        last = [layer for layer in other.head.modules() if isinstance(layer, torch.nn.Linear)][-1]
        torch.testing.assert_close(output.features @ last.weight.T + last.bias, output.logits)


@torch.no_grad()
def test_an_encoders_maps_are_those_below_the_decoder() -> None:
    _, other, x = pair("segmenter_small")
    assert isinstance(other, SegmenterSmall)
    assert torch.equal(other(x).features, other.deep(other.quarter(other.stem(x))))
    _, other, x = pair("deeplab_v3plus")
    assert isinstance(other, DeepLabV3Plus)
    assert torch.equal(other(x).features, other.pyramid(other.features(x)))
    assert other(x).features.min() >= 0, "so that they are shares of a sum"


def test_the_last_layer_of_a_head_of_one_layer_is_the_head() -> None:
    """Tan et al.'s D = 50 is what enters the last layer, with either of the two heads."""
    network = build("mnist_cnn", classes=10, features_at="last_layer")
    assert (network.features_at, network.feature_dim) == ("head", 50)
    assert build("mnist_cnn", classes=10).feature_dim == 50


def test_every_model_says_where_its_features_are_taken() -> None:
    for name in MODELS:
        with torch.device("meta"):
            assert build(name, classes=4).features_at == "head"
    with pytest.raises(OptionError, match="features_at='decoder': expected one of head, encoder"):
        build("segmenter_small", classes=4, features_at="decoder")
