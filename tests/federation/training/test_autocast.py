"""Mixed precision over every method and network: products in bfloat16, everything that is kept in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from federation.method import trains
from federation.methods import METHODS
from federation.plan import TrainingConfig
from federation.records import Tensors
from federation.records.tree import flatten, stack
from federation.training.client_round import train_stacked
from federation.training.forward import initial_client, network
from federation.training.local_round import LocalRound
from tests.federation.federated import SIZES, Federation, federation
from tests.models.small_models import CASES, small

BF16, F32 = torch.bfloat16, torch.float32


def mixed(name: str) -> Federation:
    return federation(METHODS[name](), dropout=0.3, dtype=F32, autocast=BF16)


def stacked(fed: Federation) -> list[LocalRound]:
    names = list(SIZES)
    broadcasts = [fed.setup.method.broadcast(fed.state, client) for client in names]
    examples = list(fed.examples.values())
    return train_stacked(fed.setup, [fed.initial] * len(names), broadcasts, examples, client_ids=names, round_number=1)


def numbers(result: LocalRound) -> Tensors:
    return flatten({"client": result.client._asdict(), "upload": result.upload, "loss": result.loss})


TRAINING = [name for name, kind in METHODS.items() if trains(kind(), TrainingConfig(classes=3))]


def distance(found: Tensor, exact: Tensor) -> float:
    """The largest difference; where numbers are large, as in a head that was solved, in parts of the largest one."""
    return float((found - exact).abs().max() / exact.abs().max().clamp(min=1))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("fedavg", "fedali") else pytest.mark.ci) for name in TRAINING]
)
def test_a_round_in_bfloat16_keeps_float32_and_stays_near_it(name: str) -> None:
    plain, cast = federation(METHODS[name](), dropout=0.3, dtype=F32), mixed(name)
    together = [numbers(result) for result in stacked(cast)]
    for number, client in enumerate(SIZES):
        exact, alone = numbers(plain.train(client)), numbers(cast.train(client))
        for found in (alone, together[number]):
            assert {path: value.dtype for path, value in found.items()} == {p: v.dtype for p, v in exact.items()}
            assert all(torch.isfinite(value).all() for value in found.values())
            gap = max(distance(found[path], exact[path]) for path in exact if path.startswith("client/par"))
            assert 0 < gap < 0.05, "either nothing was cast, or bfloat16 went astray"
    state = cast.setup.method.aggregate(cast.state, cast.updates())
    assert all(value.dtype != BF16 and torch.isfinite(value).all() for value in flatten(state).values())


@pytest.mark.parametrize("case", CASES)
def test_every_network_trains_stacked_in_bfloat16(case: str) -> None:
    module = small(case).float()
    train = network(module, autocast=BF16).train
    client = initial_client(module)
    seen: set[torch.dtype] = set()
    last = list(module.head.modules())[-1]  # networks may call a head's layers, not the head
    handle = last.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))

    def loss(params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Tensor, Any]:
        output = train(params, buffers, x, None)
        return output.logits.square().sum() + output.features.sum(), (output.features, output.logits, output.buffers)

    x = torch.randn(2, 3, *module.input_shape)
    together = stack([client.params] * 2), stack([client.buffers] * 2)
    gradients, (features, logits, buffers) = vmap(grad(loss, has_aux=True))(*together, x)
    handle.remove()
    assert seen == {BF16}
    assert {logits.dtype, features.dtype} == {F32}
    assert all(value.dtype == F32 and torch.isfinite(value).all() for value in gradients.values())
    assert {name: value.dtype for name, value in buffers.items()} == {
        name: value.dtype for name, value in client.buffers.items()
    }


class Twice(nn.Module):
    """Applies one layer two times, so that torch would keep its cast weight for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        features = self.layer(x)
        return features, self.layer(features)


def test_each_step_sees_its_own_parameters() -> None:
    torch.manual_seed(3)
    module = Twice()
    forward = network(module, autocast=BF16).train
    params = initial_client(module).params
    x = torch.randn(4, 3)

    def loss(params: Tensors) -> Tensor:
        return forward(params, {}, x, None).logits.sum()

    def wanted(params: Tensors) -> Tensor:
        weight, bias = params["layer.weight"], params["layer.bias"]
        return ((x @ weight.T + bias) @ weight.T + bias).sum()

    for _ in range(3):
        found = grad(loss)(params)
        for name, value in grad(wanted)(params).items():
            torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.05)
        params = {name: value - 0.5 * found[name] for name, value in params.items()}
