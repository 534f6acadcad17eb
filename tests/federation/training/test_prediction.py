"""Scores of several clients' examples from one pass over all of them."""

from __future__ import annotations

import torch

from federation.methods import METHODS
from federation.records import Examples
from federation.training.prediction import batched, measure, measure_each, measure_stacked, predict
from tests.federation.federated import SIZES, federation


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
