"""A module as a pure function: what torch's own `functional_call` gives, and the module as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from federation.methods import METHODS
from federation.records import Examples
from federation.training.forward import functional, initial_client
from federation.training.prediction import batched, measure, measure_each, measure_stacked, predict
from tests.federation.federated import SIZES, federation


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


def test_batches_are_the_union_in_pieces_and_say_whose() -> None:
    sizes = {"ada": 3, "bob": 0, "cyd": 11, "dan": 4, "eve": 1, "fay": 4}
    clients = {name: Examples(torch.randn(n, 2), torch.arange(n)) for name, n in sizes.items()}
    batches = list(batched(clients, 4))
    assert [sum(len(part.y) for _, part in pieces) for pieces in batches] == [4, 4, 4, 4, 4, 3]
    union = torch.cat([part.x for pieces in batches for _, part in pieces])
    assert torch.equal(union, torch.cat([one.x for one in clients.values()]))
    for name, own in clients.items():
        rows = [row for batch in batches for owner, part in batch if owner == name for row in part.y.tolist()]
        assert rows == own.y.tolist()
    assert list(batched({}, 4)) == []


def test_scores_are_those_of_the_predictions() -> None:
    fed = federation(METHODS["fedavg"]())
    clients = [fed.train(name).client for name in SIZES]
    none = Examples(fed.examples["ada"].x[:0], fed.examples["ada"].y[:0])
    each = measure_each(fed.setup, clients[0], {**fed.examples, "dan": none}, 5)
    assert each["dan"]["confusion"].sum() == 0
    union = Examples(*(torch.cat(parts) for parts in zip(*fed.examples.values(), strict=True)))
    answers = torch.from_numpy(predict(fed.setup, clients[0], union.x, 5)).split(list(SIZES.values()))
    for mine, name in zip(answers, SIZES, strict=True):
        wanted = torch.zeros(3, 3, dtype=torch.int64)
        for truth, answer in zip(fed.examples[name].y.tolist(), mine.tolist(), strict=True):
            wanted[truth, answer] += 1
        assert torch.equal(each[name]["confusion"], wanted)
    stacked = measure_stacked(fed.setup, clients, union, 5)
    singly = [measure(fed.setup, client, union, 5) for client in clients]
    assert [one["confusion"].tolist() for one in stacked] == [one["confusion"].tolist() for one in singly]
