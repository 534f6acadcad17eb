"""HART: its size, and each layer against torch's own operation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models import OptionError, build
from models.hart import KERNELS, Attention, LightConv, PatchEmbedding


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_parameter_counts_of_the_docstrings() -> None:
    hart, with_alp = build("hart", classes=6), build("hart_alp", classes=6)
    assert count(hart) == 1_444_190
    assert abs(count(hart) / 1.446e6 - 1) < 0.01
    assert count(with_alp) == 1_888_862
    for kind in ("local", "global"):
        buffers = dict(with_alp.named_buffers())
        assert sum(b.numel() for n, b in buffers.items() if n.endswith(f"{kind}_prototypes")) == 774_144


def test_the_patch_embedding_is_a_strided_convolution() -> None:
    layer, x = PatchEmbedding(10).double(), torch.randn(4, 128, 3, dtype=torch.float64)
    kernel = layer.project.weight.view(10, 16, 3).transpose(1, 2)
    conv = F.conv1d(x.transpose(1, 2), kernel, layer.project.bias, stride=16).transpose(1, 2)
    torch.testing.assert_close(layer(x), conv)


@pytest.mark.parametrize("kernel", sorted(set(KERNELS)))
@pytest.mark.parametrize("time", [8, 40])
def test_light_conv_is_a_depthwise_convolution_along_time(kernel: int, time: int) -> None:
    layer, x = LightConv(kernel, heads=4).double(), torch.randn(3, time, 24, dtype=torch.float64)
    weight = torch.softmax(layer.weight, dim=1).repeat_interleave(6, dim=0)[:, None]
    conv = F.conv1d(x.transpose(1, 2), weight, padding=kernel // 2, groups=24).transpose(1, 2)
    torch.testing.assert_close(layer(x), conv)


def test_attention_equals_torchs() -> None:
    layer, x = Attention(12, 3).double(), torch.randn(4, 8, 12, dtype=torch.float64)

    def heads(t: torch.Tensor) -> torch.Tensor:
        return t.view(4, 8, 3, 12).transpose(1, 2)

    mixed = F.scaled_dot_product_attention(heads(layer.query(x)), heads(layer.key(x)), heads(layer.value(x)))
    torch.testing.assert_close(layer(x), layer.out(mixed.transpose(1, 2).reshape(4, 8, 36)))


def test_stochastic_depth_grows_from_zero_to_the_dropout_rate() -> None:
    rates = [block.drop_mix.p for block in build("hart", classes=6, dropout=0.3).blocks]
    assert rates == pytest.approx([0.0, 0.06, 0.12, 0.18, 0.24, 0.3])


def test_alp_counts_follow_the_blocks() -> None:
    model = build("hart_alp", classes=6, blocks=2)
    assert [block.alp.num_prototypes for block in model.blocks] == [2048, 1024]
    with pytest.raises(OptionError, match="2 blocks"):
        build("hart_alp", classes=6, blocks=2, prototypes=[4, 4, 4])


@pytest.mark.parametrize("options", [{"blocks": 0}, {"blocks": 7}, {"feature_dim": 100}, {"dropout": 1.5}])
def test_wrong_sizes_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=str(next(iter(options.values())))):
        build("hart", classes=6, **options)
