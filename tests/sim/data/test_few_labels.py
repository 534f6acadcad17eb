"""Few labels: who has how many, that more labels keep the fewer, and that nothing else of a client changes."""

from __future__ import annotations

import pytest
import torch

from federation.records import Examples
from federation.tasks.classification import Classification
from federation.tasks.masked_reconstruction import MaskedReconstruction
from sim.data.federated_data import ClientData, FederatedData
from sim.data.selection import with_few_labels
from sim.errors import SettingsError

TASK = Classification()


def client(count: int, classes: int) -> ClientData:
    x = torch.arange(count * 2.0).view(count, 2)
    examples = Examples(x, torch.arange(count) % classes)
    return ClientData(examples, examples, examples)


DATA = FederatedData(("a", "b", "c"), {f"c{i}": client(30 + i, 2 + i % 2) for i in range(8)}, {}, False)


def test_everybody_has_k_examples_of_each_class_and_no_validation() -> None:
    few = with_few_labels(DATA, TASK, 3, 1.0, 0)
    for name, own in few.clients.items():
        before = DATA.clients[name]
        assert torch.bincount(own.train.y).tolist() == [3] * len(before.train.y.unique())
        rows = (own.train.x[:, 0] / 2).long()
        assert torch.equal(own.train.y, before.train.y[rows])
        assert torch.equal(own.test.x, before.test.x)
        assert own.validation is None
    assert few.train_sizes.keys() == DATA.clients.keys()


def test_more_labels_keep_the_fewer_and_another_seed_draws_others() -> None:
    drawn = [
        set(with_few_labels(DATA, TASK, k, 1.0, seed).clients["c3"].train.x[:, 0].tolist())
        for k, seed in ((2, 0), (5, 0), (2, 1), (99, 0))
    ]
    assert drawn[0] < drawn[1] < drawn[3]
    assert drawn[2] != drawn[0]
    assert len(drawn[3]) == 33


def test_a_share_of_the_clients_has_labels() -> None:
    half, quarter = (with_few_labels(DATA, TASK, None, share, 0).train_sizes for share in (0.5, 0.2))
    assert (len(half), len(quarter)) == (4, 2)
    assert quarter.keys() < half.keys()
    assert all(half[name] == DATA.train_sizes[name] for name in half)


def test_all_labels_is_what_it_was() -> None:
    assert with_few_labels(DATA, TASK, None, 1.0, 0) is DATA


def test_a_task_without_classes_has_no_use_for_labels() -> None:
    with pytest.raises(SettingsError, match="masked_reconstruction uses none and learns from every example"):
        with_few_labels(DATA, MaskedReconstruction(), 5, 1.0, 0)
