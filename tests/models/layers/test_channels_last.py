"""Layers channels last: torch's numbers, alone and under vmap, and no copy where none is needed."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from models.layers.channels_last import Conv1d, Conv2d, GroupNorm, MaxPool2d, channels_last


def test_a_copy_is_made_once_and_shapes_stay() -> None:
    x = torch.rand(2, 3, 5, 4)
    laid = channels_last(x)
    assert laid.shape == x.shape
    assert torch.equal(laid, x)
    assert laid.is_contiguous(memory_format=torch.channels_last)
    assert channels_last(laid).data_ptr() == laid.data_ptr()


def test_layers_give_torch_s_numbers_and_keep_its_names() -> None:
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    mine, plain = Conv2d(3, 5, 3, padding=1).double(), nn.Conv2d(3, 5, 3, padding=1).double()
    plain.load_state_dict(mine.state_dict())
    torch.testing.assert_close(mine(x), plain(x), rtol=0, atol=1e-12)
    assert torch.equal(MaxPool2d(2)(x), nn.MaxPool2d(2)(x))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(12, 4, 4), (6, 2, 2), (3, 1, 1), (5, 3, 0)])
def test_layers_of_signals_give_torch_s_numbers(kernel: int, stride: int, padding: int) -> None:
    x = torch.rand(4, 6, 32, dtype=torch.float64, requires_grad=True)
    mine = nn.Sequential(Conv1d(6, 16, kernel, stride, padding), GroupNorm(8, 16), nn.SiLU()).double()
    plain = nn.Sequential(nn.Conv1d(6, 16, kernel, stride, padding), nn.GroupNorm(8, 16), nn.SiLU()).double()
    plain.load_state_dict(mine.state_dict())
    torch.testing.assert_close(mine(x), plain(x), rtol=0, atol=1e-12)
    assert mine(x).transpose(1, 2).is_contiguous()
    (ours,), (theirs,) = (torch.autograd.grad(layers(x).square().sum(), x) for layers in (mine, plain))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_they_stack_over_clients() -> None:
    layer = Conv2d(3, 5, 3).double()
    weights = {name: torch.randn(4, *value.shape, dtype=torch.float64) for name, value in layer.state_dict().items()}
    x = torch.rand(4, 2, 3, 8, 8, dtype=torch.float64)

    def one(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = MaxPool2d(2)(functional_call(layer, weights, (x,)))
        return pooled

    singly = torch.stack([one({name: value[k] for name, value in weights.items()}, x[k]) for k in range(4)])
    torch.testing.assert_close(vmap(one)(weights, x), singly, rtol=0, atol=1e-12)
