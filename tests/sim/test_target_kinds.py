"""Which examples are drawn, counted and kept never depends on what their targets are stored as.

Classes are int64, masks are bytes: a row number that takes a mask's type is a byte, which ends at 255 and which torch
reads as true or false.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from federation.records import Examples
from federation.tasks.classification import Classification
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData, PartitionClasses, joined
from sim.data.partitions import partition_from_json
from sim.data.repartition import repartition
from sim.data.selection import drawn_rows, few_shot, scaled, with_few_labels
from sim.scores.evaluation import subsample

SIM = Path(__file__).resolve().parents[2] / "sim"
COUNT, CLIENTS = 400, 3
"""More examples than a byte has values."""
TASK = Classification()


def examples(dtype: torch.dtype, client: int = 0) -> Examples:
    """Examples that know their own place, x (COUNT, 1), with classes of 0 to 2 in some type."""
    place = torch.arange(COUNT, dtype=torch.float64)[:, None] + COUNT * client
    return Examples(place, (torch.arange(COUNT) % 3).to(dtype))


def data(dtype: torch.dtype) -> FederatedData:
    clients = {}
    for client in range(CLIENTS):
        own = examples(dtype, client)
        dealt = PartitionClasses(*(own.y.long() for _ in range(2)))
        clients[f"client-{client}"] = ClientData(own, own, partition_classes=dealt)
    statistics = ChannelStatistics(1, np.zeros(1), np.ones(1))
    return FederatedData(("a", "b", "c"), clients, dict.fromkeys(clients, statistics), split_leaks=False)


def places(found: FederatedData) -> list[Tensor]:
    return [part.x for client in found.clients.values() for part in (client.train, client.test)]


def few_labels(data: FederatedData) -> list[Tensor]:
    return places(with_few_labels(data, TASK, 5, 0.5, 0))


def drawn(data: FederatedData) -> list[Tensor]:
    client = data.clients["client-1"]
    return [drawn_rows(TASK, client, 7, "client-1", 0), few_shot(TASK, client, 7).x]


def dealt_again(data: FederatedData) -> list[Tensor]:
    bare = {name: replace(client, partition_classes=None) for name, client in data.clients.items()}
    partition = partition_from_json({"kind": "dirichlet", "clients": 4, "alpha": 1.0, "test": "split"})
    return places(repartition(replace(data, clients=bare), partition, 0, 0.1))


DRAWS: dict[str, Callable[[FederatedData], list[Tensor]]] = {
    "the union's sample": lambda data: [subsample(data.union_test(), 300, 0).x],
    "a scaled federation": lambda data: places(scaled(data, 0.7, 0, TASK)),
    "few labels": few_labels,
    "few shots": drawn,
    "clients joined": lambda data: [joined([client.train for client in data.clients.values()]).x],
    "a partition of recordings": dealt_again,
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16], ids=str)
def test_what_is_drawn_does_not_depend_on_the_targets_type(name: str, dtype: torch.dtype) -> None:
    draw = DRAWS[name]
    wanted, found = draw(data(torch.int64)), draw(data(dtype))
    assert [len(part) for part in found] == [len(part) for part in wanted]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_the_unions_sample_is_of_different_examples_and_keeps_their_targets() -> None:
    union = data(torch.uint8).union_test()
    found = subsample(union, 300, 0)
    assert len(found.y) == len(set(found.x.flatten().tolist())) == 300
    assert torch.equal(found.y, union.y[found.x.flatten().long()])


def conversions(tree: ast.AST) -> Iterator[Any]:
    """Yield the argument of each `.to(other)` with one argument that is a variable's name."""
    for node in ast.walk(tree):
        called_to = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        if called_to and len(node.args) == 1 and isinstance(node.args[0], (ast.Name, ast.Attribute, ast.Subscript)):
            yield node.args[0]


def test_the_simulation_moves_tensors_to_a_device_or_a_type_and_never_to_another_tensor() -> None:
    """`rows.to(y)` takes over the type of `y` as well as its device."""
    found = [
        f"{path.relative_to(SIM.parent)}:{argument.lineno}: .to({ast.unparse(argument)})"
        for path in sorted(SIM.rglob("*.py"))
        for argument in conversions(ast.parse(path.read_text()))
        if not ast.unparse(argument).endswith(("device", "dtype")) and not ast.unparse(argument).startswith("torch.")
    ]
    assert found == []
