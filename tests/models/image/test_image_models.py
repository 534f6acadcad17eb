"""The image networks: sizes of the papers, and the forward pass against torch's functions on the same weights."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import OptionError, build
from models.image.segmentation import resized
from models.image.vit import Patches
from models.layers.attention import Attention


def count(model: nn.Module, kind: str = "") -> int:
    return sum(p.numel() for n, p in model.named_parameters() if n.startswith(kind))


def same(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def dense_count(*widths: int) -> int:
    return sum((a + 1) * b for a, b in pairwise(widths))


def conv_count(kernel: int, *widths: int) -> int:
    return sum((a * kernel**2 + 1) * b for a, b in pairwise(widths))


def vit_count(tokens: int, patch: int, width: int, mlp: int, blocks: int, classes: int) -> int:
    """Two LayerNorms, four projections without the key's bias, and the MLP, in each block; by hand."""
    block = 4 * width + 4 * width * width + 3 * width + 2 * width * mlp + mlp + width
    return (3 * patch**2 + 1) * width + tokens * width + blocks * block + 2 * width + (width + 1) * classes


def segmenter_count(channels: tuple[int, ...], width: int, classes: int) -> int:
    """Convolutions without bias, and two numbers a channel of each norm; the two before the join share one norm."""
    stem = 27 * channels[0] + 2 * channels[0]
    blocks = sum(9 * i * o + 9 * o * o + i * o + 6 * o for i, o in pairwise(channels))
    join = (channels[1] + channels[3]) * width + 2 * width + 9 * width * width + 2 * width
    return stem + blocks + join + (width + 1) * classes


def deeplab_count(classes: int) -> int:
    """MobileNet-V2 below its last convolution, and convolutions without bias, each with two numbers a channel."""
    encoder = 3_504_872 - 1000 * 1281 - (320 + 2) * 1280
    pyramid = 2 * (320 + 2) * 256 + 3 * (9 * 320 + 2) * 256 + (5 * 256 + 2) * 256
    decoder = (24 + 2) * 48 + (9 * (256 + 48) + 2) * 256 + (9 * 256 + 2) * 256
    return encoder + pyramid + decoder + (256 + 1) * classes


# Worked out by hand from the papers' layers.
PARAMETERS: dict[str, tuple[int, dict[str, Any], int]] = {
    "dense": (10, {}, dense_count(60, 128, 256, 10)),
    "mnist_cnn": (10, {}, conv_count(5, 1, 10, 20) + dense_count(20 * 4 * 4, 50, 10)),
    "femnist_cnn": (
        62, {"input_shape": [1, 128, 128]},
        conv_count(3, 1, 10) + conv_count(5, 10, 20) + dense_count(16_820, 50, 62),
    ),
    "margin_cnn": (10, {}, conv_count(5, 1, 32, 64) + dense_count(64 * 7 * 7, 256, 10)),
    "celeba_cnn": (2, {}, conv_count(3, 3, 32, 32, 32, 32) + 4 * 64 + dense_count(800, 2)),
    "public_cnn": (10, {}, conv_count(3, 3, 32, 64) + dense_count(64 * 14 * 14, 128, 10)),
    "vit_tiny": (10, {}, vit_count(64, 4, 192, 768, 6, 10)),
    "vit_tiny_alp": (10, {}, vit_count(64, 4, 192, 768, 6, 10) + 6 * dense_count(192, 384)),
    # 11 689 512 is torchvision's count with 1000 classes.
    "resnet18": (10, {}, 11_689_512 - 990 * 513),
    # 3 504 872 is torchvision's count with 1000 classes.
    "mobilenet_v2": (10, {}, 3_504_872 - 990 * 1281),
    "deeplab_v3plus": (21, {}, deeplab_count(21)),
    "segmenter_small": (11, {}, segmenter_count((16, 32, 64, 128), 48, 11)),
}  # fmt: skip
DOCUMENTED = {
    "dense": 43_402, "mnist_cnn": 21_840, "femnist_cnn": 849_332, "margin_cnn": 857_738, "celeba_cnn": 30_498,
    "public_cnn": 1_626_442, "vit_tiny": 2_692_042, "vit_tiny_alp": 3_136_714, "resnet18": 11_181_642,
    "segmenter_small": 332_011, "mobilenet_v2": 2_236_682, "deeplab_v3plus": 5_816_053,
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    classes, options, wanted = PARAMETERS[name]
    assert count(build(name, classes=classes, **options)) == wanted == DOCUMENTED[name]


def test_what_tan_et_al_report_to_travel_in_a_round() -> None:
    """Table 1 sums over the 20 clients, in thousands: FedAvg 430, FedPer (convolutions only) 106 and 102."""
    mnist, femnist = build("mnist_cnn", classes=10), build("femnist_cnn", classes=62)
    assert 20 * count(mnist) == pytest.approx(430_000, rel=0.02)
    for model, reported in ((mnist, 106_000), (femnist, 102_000)):
        assert 20 * count(model, "convolutions.") == pytest.approx(reported, rel=0.005)
    assert 20 * 4 * mnist.feature_dim == 4_000
    resnet = build("resnet18", classes=1000)
    assert 20 * count(resnet) == pytest.approx(235e6, rel=0.01)
    assert 20 * (count(resnet) - count(resnet, "head.")) == pytest.approx(225e6, rel=0.01)
    assert 20 * 4 * resnet.feature_dim == pytest.approx(41_000, rel=0.005)


def test_twelve_blocks_are_deit_tiny() -> None:
    """5 717 416 published parameters, less the class token and its position, and twelve key biases."""
    model = build("vit_tiny", classes=1000, input_shape=[3, 224, 224], patch=16, blocks=12)
    assert count(model) == 5_717_416 - 2 * 192 - 12 * 192
    cifar = build("vit_tiny", classes=10, blocks=12)
    assert count(cifar) == pytest.approx(5.4e6, rel=0.01)


@pytest.mark.parametrize("head_layers", [1, 2])
@pytest.mark.parametrize(("name", "padding"), [("mnist_cnn", 0), ("femnist_cnn", 0), ("margin_cnn", 2)])
def test_two_convolutions_and_two_dense_layers(name: str, padding: int, head_layers: int) -> None:
    model = build(name, classes=10, head_layers=head_layers).double().eval()
    first, second, hidden, last = [
        (p, model.get_parameter(n.replace("weight", "bias"))) for n, p in model.named_parameters() if "weight" in n
    ]
    x = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    maps = F.relu(F.max_pool2d(F.conv2d(x, *first, padding=padding), 2))
    maps = F.relu(F.max_pool2d(F.conv2d(maps, *second, padding=padding), 2))
    inner = F.relu(F.linear(maps.flatten(1), *hidden))
    features, logits = model(x)
    same(features, inner if head_layers == 1 else maps.flatten(1))
    same(logits, F.linear(inner, *last))


def test_both_ways_to_cut_the_head_are_one_network() -> None:
    short, long = build("mnist_cnn", classes=10), build("mnist_cnn", classes=10, head_layers=2)
    renamed = zip(long.state_dict(), short.state_dict().items(), strict=True)
    kept = {ours: tensor for ours, (theirs, tensor) in renamed if "noise" not in theirs}
    long.load_state_dict(long.state_dict() | kept)
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(short.eval()(x).logits, long.eval()(x).logits)


@pytest.mark.parametrize("channels", [18, 20, 22])
@pytest.mark.parametrize("name", ["mnist_cnn", "femnist_cnn"])
def test_tan_et_als_heterogeneous_clients_share_d(name: str, channels: int) -> None:
    model = build(name, classes=10, channels=[10, channels]).eval()
    assert model(torch.randn(2, 1, 28, 28)).features.shape == (2, 50)


def test_tan_et_als_strides_keep_every_shape() -> None:
    models = [build("resnet18", classes=10, width=8, stem_strides=s).eval() for s in ([2, 2], [1, 4])]
    shapes = [{n: p.shape for n, p in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1]
    assert [model(torch.randn(2, 3, 32, 32)).features.shape for model in models] == [(2, 64)] * 2


def test_the_public_network_has_one_pooling_and_glorots_start() -> None:
    model = build("public_cnn", classes=10).double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    first, second, hidden, last = (m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    maps = F.max_pool2d(F.relu(second(F.relu(first(x)))), 2).flatten(1)
    same(model(x).features, maps)
    same(model(x).logits, last(F.relu(hidden(maps))))
    # Glorot's uniform reaches ±√(6/(fan in + fan out)); torch's own start for the last layer ends at √(1/128).
    assert last.weight.detach().abs().max() == pytest.approx((6 / 138) ** 0.5, rel=0.02)


def test_celeba_without_norm_is_the_papers_text() -> None:
    model = build("celeba_cnn", classes=2, norm="none").double().eval()
    assert count(model) == 30_242
    maps = torch.randn(2, 3, 84, 84, dtype=torch.float64)
    wanted = maps
    for layer in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        wanted = F.relu(F.max_pool2d(layer(wanted), 2))
    same(model(maps).features, wanted.flatten(1))


def test_patches_are_a_strided_convolution() -> None:
    layer, x = Patches(3, 4, 10).double(), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    conv = F.conv2d(x, layer.project.weight.view(10, 3, 4, 4), layer.project.bias, stride=4)
    same(layer(x), conv.flatten(2).transpose(1, 2))


def test_narrow_heads_equal_torchs_attention() -> None:
    layer, x = Attention(12, 3, head_width=4).double(), torch.randn(2, 6, 12, dtype=torch.float64)

    def heads(t: Tensor) -> Tensor:
        return t.view(2, 6, 3, 4).transpose(1, 2)

    mixed = F.scaled_dot_product_attention(heads(layer.query(x)), heads(layer.key(x)), heads(layer.value(x)))
    same(layer(x), layer.out(mixed.transpose(1, 2).reshape(2, 6, 12)))


def test_vit_alp_counts_follow_the_blocks() -> None:
    model = build("vit_tiny_alp", classes=10, blocks=3)
    assert [block.alp.num_prototypes for block in model.blocks] == [2048, 1024, 512]
    with pytest.raises(OptionError, match="7 blocks"):
        build("vit_tiny_alp", classes=10, blocks=7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist_cnn", {"input_shape": [28, 28]}, "channels, height, width"),
        ("mnist_cnn", {"input_shape": [1, 15, 28]}, "too small"),
        ("mnist_cnn", {"channels": [10]}, "2 channel counts"),
        ("mnist_cnn", {"head_layers": 3}, "head_layers=3"),
        ("celeba_cnn", {"norm": "batch"}, "norm='batch'"),
        ("celeba_cnn", {"channels": [32, 32, 32, 20]}, "multiples of 8"),
        ("dense", {"hidden": [128]}, "two widths"),
        ("dense", {"input_shape": []}, "two widths"),
        ("vit_tiny", {"patch": 5}, "divisor"),
        ("vit_tiny", {"heads": 5}, "heads to divide 192"),
        ("vit_tiny", {"blocks": 10**9}, "32 blocks"),
        ("resnet18", {"norm": "batch"}, "group, frozen"),
        ("resnet18", {"stem_strides": [2]}, "two strides"),
        ("segmenter_small", {"channels": [16, 32, 64]}, "four widths"),
        ("segmenter_small", {"feature_dim": 20}, "multiples of 8"),
        ("segmenter_small", {"input_shape": [180, 240]}, "channels, height, width"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(name, classes=10, **options)


@pytest.mark.parametrize("sides", [(180, 240), (90, 120), (33, 50), (1, 1)])
def test_the_small_segmenter_takes_images_of_any_sides(sides: tuple[int, int]) -> None:
    model = build("segmenter_small", classes=11, channels=[8, 8, 16, 16], feature_dim=8).eval()
    features, logits = model(torch.randn(2, 3, *sides))
    assert features.shape == (2, 8, -(-sides[0] // 4), -(-sides[1] // 4))
    assert logits.shape == (2, 11, *sides)


@pytest.mark.parametrize(("small", "large"), [((3, 4), (12, 15)), ((5, 7), (5, 7)), ((6, 5), (2, 9))])
def test_resized_interpolates_between_the_centres_of_pixels(small: tuple[int, int], large: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, *small, dtype=torch.float64)
    found = resized(maps, torch.zeros(large)).numpy()
    rows, columns = (
        np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1) for old, new in zip(small, large, strict=True)
    )
    along = np.stack(
        [np.interp(rows, np.arange(small[0]), line) for line in maps.numpy().swapaxes(2, 3).reshape(-1, small[0])]
    )
    along = along.reshape(2, 3, small[1], large[0]).swapaxes(2, 3)
    wanted = np.stack([np.interp(columns, np.arange(small[1]), line) for line in along.reshape(-1, small[1])])
    np.testing.assert_allclose(found, wanted.reshape(2, 3, *large), atol=1e-12)


def test_a_group_of_images_is_answered_as_each_alone() -> None:
    model = build("segmenter_small", classes=4, channels=[8, 16, 16, 24], feature_dim=16).double().eval()
    x = torch.randn(3, 3, 20, 28, dtype=torch.float64)
    together = model(x).logits
    for one, image in zip(together, x, strict=True):
        torch.testing.assert_close(model(image[None]).logits[0], one, rtol=1e-10, atol=1e-11)
