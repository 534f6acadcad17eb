"""A module as a pure function: what torch's own `functional_call` gives, and the module as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from federation.training.forward import functional, initial_client


class Tied(nn.Module):
    """Two layers that share a weight, one without a bias, and a norm whose statistics move."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if mask is not None:
            raise ValueError("no mask")
        features = self.norm(self.first(x))
        return features, self.second(features)


def everything(module: nn.Module) -> dict[str, Any]:
    return {
        f"{name}.{key}": value
        for name, part in module.named_modules()
        for table in (part._parameters, part._buffers)
        for key, value in table.items()
    }


@pytest.mark.parametrize("training", [True, False])
def test_it_computes_what_torch_computes_and_leaves_the_module_as_it_was(training: bool) -> None:
    module, before = Tied(), initial_client(Tied())
    mine, x = everything(module), torch.randn(8, 4)
    given = {name: value.clone() for name, value in (before.params | before.buffers).items()}
    found = functional(module, training=training)(before.params, before.buffers, x)
    assert all(value is mine[name] for name, value in everything(module).items())
    features, logits = functional_call(module.train(training), given, (x,), tie_weights=True)
    assert torch.equal(found.features, features)
    assert torch.equal(found.logits, logits)
    assert (found.buffers["norm.num_batches_tracked"] == 1) == training
    assert all(torch.equal(value, given[name]) for name, value in found.buffers.items())


def test_a_module_that_fails_is_left_as_it_was() -> None:
    module, client = Tied(), initial_client(Tied())
    mine = everything(module)
    with pytest.raises(ValueError, match="no mask"):
        functional(module, training=True)(client.params, client.buffers, torch.randn(8, 4), torch.ones(8))
    assert all(value is mine[name] for name, value in everything(module).items())
