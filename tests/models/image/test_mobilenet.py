"""MobileNet-V2 and DeepLab-V3+ from a file in torchvision's layout, against torch's functions in float64."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from models import CheckpointError, OptionError, build
from models.checkpoint import load_pretrained
from models.image.mobilenet import scaled

State = dict[str, Tensor]
# torchvision's features.1 to features.17: channels before, within and after, the stride, and DeepLab's dilation.
BLOCKS = (
    (32, 32, 16, 1, 1), (16, 96, 24, 2, 1), (24, 144, 24, 1, 1), (24, 144, 32, 2, 1), (32, 192, 32, 1, 1),
    (32, 192, 32, 1, 1), (32, 192, 64, 2, 1), (64, 384, 64, 1, 1), (64, 384, 64, 1, 1), (64, 384, 64, 1, 1),
    (64, 384, 96, 1, 1), (96, 576, 96, 1, 1), (96, 576, 96, 1, 1), (96, 576, 160, 2, 1), (160, 960, 160, 1, 2),
    (160, 960, 160, 1, 2), (160, 960, 320, 1, 2),
)  # fmt: skip
KEYS = 314
"""Tensors of torchvision's file: 52 convolutions, 52 BatchNorms of five tensors each, and the classifier's two."""


def layout() -> dict[str, tuple[int, ...]]:
    """Return torchvision's names and shapes, with 1000 classes."""
    shapes: dict[str, tuple[int, ...]] = {}

    def layer(name: str, norm: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        for tensor in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{tensor}"] = shape[:1]
        shapes[f"{norm}.num_batches_tracked"] = ()

    layer("features.0.0", "features.0.1", 32, 3, 3, 3)
    layer("features.1.conv.0.0", "features.1.conv.0.1", 32, 1, 3, 3)
    layer("features.1.conv.1", "features.1.conv.2", 16, 32, 1, 1)
    for i, (before, within, after, _, _) in enumerate(BLOCKS[1:], 2):
        layer(f"features.{i}.conv.0.0", f"features.{i}.conv.0.1", within, before, 1, 1)
        layer(f"features.{i}.conv.1.0", f"features.{i}.conv.1.1", within, 1, 3, 3)
        layer(f"features.{i}.conv.2", f"features.{i}.conv.3", after, within, 1, 1)
    layer("features.18.0", "features.18.1", 1280, 320, 1, 1)
    return shapes | {"classifier.1.weight": (1000, 1280), "classifier.1.bias": (1000,)}


def published_file(path: Path) -> State:
    """Write and return random tensors in torchvision's layout."""
    torch.manual_seed(1)
    state: State = {}
    for name, shape in layout().items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(9)
        elif len(shape) == 4:
            state[name] = torch.randn(shape) * (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        else:
            state[name] = torch.rand(shape) + 0.5 if name.endswith(("weight", "var")) else 0.3 * torch.randn(shape)
    save_file(state, path)
    return state


def layer(state: State, name: str, norm: str, x: Tensor, stride: int = 1, groups: int = 1, dilation: int = 1) -> Tensor:
    """A convolution that keeps the sides, and BatchNorm in evaluation, in float64."""
    weight = state[f"{name}.weight"].double()
    x = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2 * dilation, dilation, groups)
    mean, var, scale, shift = (state[f"{norm}.{t}"].double() for t in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, mean, var, scale, shift)


def encoded(state: State, x: Tensor, *, dilated: bool) -> list[Tensor]:
    """Return the maps after each of torchvision's features.0 to features.17; dilated as DeepLab at 1/16 has them."""
    maps = [F.relu6(layer(state, "features.0.0", "features.0.1", x, 2))]
    for i, (before, within, after, stride, dilation) in enumerate(BLOCKS, 1):
        name, inner = f"features.{i}.conv", maps[-1]
        last = 1 if i == 1 else 2
        if i > 1:
            inner = F.relu6(layer(state, f"{name}.0.0", f"{name}.0.1", inner))
        step = 1 if dilated and i == 14 else stride
        wide = F.relu6(
            layer(
                state, f"{name}.{last - 1}.0", f"{name}.{last - 1}.1", inner, step, within, dilation if dilated else 1
            )
        )
        narrow = layer(state, f"{name}.{last}", f"{name}.{last + 1}", wide)
        maps.append(maps[-1] + narrow if stride == 1 and before == after else narrow)
    return maps


def test_a_published_file_makes_torchvisions_mobilenet(tmp_path: Path) -> None:
    assert len(layout()) == KEYS
    assert sum(torch.Size(s).numel() for n, s in layout().items() if "running" not in n and "num" not in n) == 3_504_872
    state = published_file(tmp_path / "weights")
    model = build("mobilenet_v2", classes=1000, norm="frozen")
    names = load_pretrained(model, tmp_path / "weights", skip=())
    left = {name for name in layout() if name.endswith("num_batches_tracked")}
    assert {name.replace("head.", "classifier.") for name in names} == layout().keys() - left
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    features, logits = model.double().eval()(x)
    last = F.relu6(layer(state, "features.18.0", "features.18.1", encoded(state, x, dilated=False)[-1]))
    torch.testing.assert_close(features, last.mean((2, 3)), rtol=1e-10, atol=1e-10)
    wanted = F.linear(features, state["classifier.1.weight"].double(), state["classifier.1.bias"].double())
    torch.testing.assert_close(logits, wanted, rtol=1e-10, atol=1e-10)


def test_the_classifier_stays_as_it_is_by_default(tmp_path: Path) -> None:
    published_file(tmp_path / "weights")
    model = build("mobilenet_v2", classes=7, norm="frozen")
    head = {name: value.clone() for name, value in model.head.state_dict().items()}
    load_pretrained(model, tmp_path / "weights")
    assert all(torch.equal(value, head[name]) for name, value in model.head.state_dict().items())


def group_normed(state: State, name: str, x: Tensor, stride: int = 1, dilation: int = 1) -> Tensor:
    """A convolution, GroupNorm by groups of eight channels, ReLU6, of a Sequential of these three."""
    weight = state[f"{name}.0.weight"]
    x = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2 * dilation, dilation)
    return F.relu6(F.group_norm(x, len(weight) // 8, state[f"{name}.1.weight"], state[f"{name}.1.bias"]))


def test_deeplab_takes_the_encoder_of_a_published_file_and_computes_the_papers_network(tmp_path: Path) -> None:
    state = published_file(tmp_path / "weights")
    model = build("deeplab_v3plus", classes=5, norm="frozen", channels=16, quarter_channels=8, dilations=[2, 3])
    names = load_pretrained(model, tmp_path / "weights")
    assert set(names) == {name for name in model.state_dict() if name.startswith("features.")}
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in names)
    x = torch.randn(2, 3, 65, 90, dtype=torch.float64)
    features, logits = model.double().eval()(x)
    own = model.state_dict()

    maps = encoded(state, x, dilated=True)
    shallow, deep = maps[3], maps[-1]
    assert (shallow.shape, deep.shape) == ((2, 24, 17, 23), (2, 320, 5, 6))
    branches = [group_normed(own, "pyramid.branches.0", deep)]
    branches += [group_normed(own, f"pyramid.branches.{i}", deep, dilation=d) for i, d in ((1, 2), (2, 3))]
    pooled = group_normed(own, "pyramid.branches.3.project", F.adaptive_avg_pool2d(deep, 1))
    joined = group_normed(own, "pyramid.project", torch.cat([*branches, pooled.repeat(1, 1, 5, 6)], 1))
    upward = F.interpolate(joined, (17, 23), mode="bilinear", align_corners=False)
    inner = torch.cat([upward, group_normed(own, "quarter", shallow)], 1)
    wanted = group_normed(own, "decoder.1", group_normed(own, "decoder.0", inner))
    torch.testing.assert_close(features, wanted, rtol=1e-10, atol=1e-10)
    scores = F.conv2d(wanted, own["head.weight"], own["head.bias"])
    wanted = F.interpolate(scores, (65, 90), mode="bilinear", align_corners=False)
    torch.testing.assert_close(logits, wanted, rtol=1e-10, atol=1e-10)


def test_files_and_networks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    published_file(tmp_path / "weights")
    with pytest.raises(CheckpointError, match="norm='frozen'"):
        load_pretrained(build("deeplab_v3plus", classes=5), tmp_path / "weights")
    with pytest.raises(CheckpointError, match=r"'features.0.0.weight' is \(32, 3, 3, 3\).*expected \(16, 3, 3, 3\)"):
        load_pretrained(build("mobilenet_v2", classes=5, norm="frozen", width=0.5), tmp_path / "weights")
    with pytest.raises(CheckpointError, match="only known for resnet18, mobilenet_v2, deeplab_v3plus"):
        load_pretrained(build("segmenter_small", classes=5), tmp_path / "weights")


def test_widths_are_those_of_the_authors_code() -> None:
    """Multiples of 8 that lose no more than a tenth, and a last layer that never gets narrower."""
    assert [scaled(channels, 0.5) for channels in (32, 16, 24, 96, 160, 320)] == [16, 8, 16, 48, 80, 160]
    assert [scaled(channels, 1.4) for channels in (32, 24, 320, 1280)] == [48, 32, 448, 1792]
    assert build("mobilenet_v2", classes=5, width=0.35).feature_dim == 1280


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mobilenet_v2", {"norm": "batch"}, "group, frozen"),
        ("mobilenet_v2", {"width": 0}, "width=0"),
        ("deeplab_v3plus", {"width": 100}, "width=100"),
        ("deeplab_v3plus", {"channels": 20}, "multiples of 8"),
        ("deeplab_v3plus", {"dilations": []}, "one to eight"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(name, classes=10, **options)
