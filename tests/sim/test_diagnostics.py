"""What a round records: against the numbers by hand, and against what the methods' own aggregation did."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from federation.method import Method
from federation.methods.fedali import FedAli
from federation.methods.fedatt import FedAtt
from federation.methods.fedpr import FedPr
from federation.methods.fedproto import FedProto
from federation.methods.fedproto_margin import FedProtoMargin
from federation.records import Tree, Update
from sim.scores import diagnostics
from sim.scores.diagnostics import (
    Diagnostics,
    aggregate_margin,
    diagnose,
    effective_clients,
    local_movement,
    prototype_distance,
    with_local_movement,
)

CLIENTS = ("ada", "bob", "eve")


def unit(place: int) -> Tensor:
    return torch.eye(len(CLIENTS))[place]


def updates(*trees: Tree) -> list[Update]:
    return [Update(name, 10 * (k + 1), 1, tree) for k, (name, tree) in enumerate(zip(CLIENTS, trees, strict=True))]


def around(method: Method, state: Tree, came: list[Update]) -> tuple[Tree, dict[str, Any]]:
    """Aggregate, and return the state after it and what was recorded, as it comes out of JSON."""
    after = method.aggregate(state, came)
    return after, json.loads(json.dumps(diagnose(method, state, after, came)))


def test_a_method_without_prototypes_and_attention_records_nothing() -> None:
    _, record = around(Method(), {"params": {"w": unit(0)}}, updates(*({"params": {"w": unit(k)}} for k in range(3))))
    assert record == {}


def test_fedali_records_how_far_each_block_moved() -> None:
    # G = 1: the only centre goes from (0, 0) to the mean (3, 4) of all clients' prototypes
    state = {"params": {"w": unit(0)}, "prototypes": {"blocks.0.alp.": torch.zeros(1, 2)}, "rounds": torch.tensor(3)}
    came = updates(
        *({"params": {"w": unit(k)}, "prototypes": {"blocks.0.alp.": torch.tensor([[3.0, 4.0]])}} for k in range(3))
    )
    _, record = around(FedAli(), state, came)
    assert record == {"movement": {"blocks.0.alp": {"mean": 5.0, "largest": 5.0, "length": 5.0}}}


def test_clients_own_prototypes_move_where_no_server_sets_them() -> None:
    """Block by block, the mean over two clients; what the server records of a block stays."""
    one = local_movement(
        {"b.local_prototypes": torch.zeros(2, 2)}, {"b.local_prototypes": torch.tensor([[3.0, 4], [0, 1]])}
    )
    two = local_movement({"b.local_prototypes": torch.ones(1, 2)}, {"b.local_prototypes": torch.tensor([[1.0, 2.0]])})
    record = with_local_movement({"aggregate_margin": 1.0}, [one, two])
    expected = {"mean": 2.0, "largest": 5.0, "length": pytest.approx((3 + 5**0.5) / 2, rel=1e-4)}
    assert record == {"aggregate_margin": 1.0, "movement": {"b": expected}}
    assert with_local_movement({"movement": {"b": 7}}, [one])["movement"] == {"b": 7}
    assert with_local_movement({}, [{}]) == {}


def test_a_prototype_that_was_not_known_did_not_move() -> None:
    state = {"prototypes": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "known": torch.tensor([1.0, 0.0])}
    tree = {"prototypes": torch.tensor([[1.0, 2.0], [4.0, 0.0]]), "counts": torch.tensor([5.0, 5.0])}
    _, record = around(FedProto(), state, updates(tree, tree, tree))
    assert record["movement"]["classes"]["largest"] == 2.0
    # scaled they are (0, 1) and (1, 0)
    assert record["aggregate_margin"] == pytest.approx(math.sqrt(2), rel=1e-4)


def test_the_margin_by_hand() -> None:
    # scaled over channels: (0, 1, ½), (1, 0, ½) and again (0, 1, ½): distances √2, 0 and √2
    prototypes = torch.tensor([[2.0, 6.0, 4.0], [3.0, 1.0, 2.0], [0.0, 1.0, 0.5], [9.0, 9.0, 0.0]])
    upload = {"prototypes": prototypes, "counts": torch.tensor([1.0, 1, 1, 0])}
    assert aggregate_margin([upload]) == pytest.approx(2 * math.sqrt(2) / 3)
    assert aggregate_margin([{**upload, "counts": torch.tensor([0.0, 1, 0, 0])}]) is None


def test_the_distance_between_prototypes_by_hand() -> None:
    """Class 0: (0, 0) of one example, (4, 8) of three, so (3, 6); class 1 is one client's alone, class 2 nobody's."""
    ada = {"prototypes": torch.tensor([[0.0, 0.0], [9.0, 9.0], [5.0, 5.0]]), "counts": torch.tensor([1.0, 7.0, 0.0])}
    bob = {"prototypes": torch.tensor([[4.0, 8.0], [1.0, 1.0], [6.0, 6.0]]), "counts": torch.tensor([3.0, 0.0, 0.0])}
    # (1 · (9 + 36) + 3 · (1 + 4)) / 4 = 15, and its mean over two features
    assert prototype_distance([ada, bob]) == pytest.approx(7.5)
    assert prototype_distance([ada]) == 0.0


@pytest.mark.parametrize("method", [FedProto(), FedPr(), FedProtoMargin()], ids=lambda method: method.name)
def test_every_method_records_the_margin_of_prototypes_that_are_scaled_once(method: Method) -> None:
    # class 0: (0, 1) of one example and (1, 0) of one and of two, so (¾, ¼); class 1: always (0, 1)
    other = torch.tensor([0.0, 7.0])
    sent = [torch.stack([torch.tensor(mine), other]) for mine in ([2.0, 6.0], [6.0, 2.0], [9.0, 1.0])]
    state = {"params": {"w": unit(0)}, "prototypes": torch.zeros(2, 2), "known": torch.zeros(2)}
    trees: list[Tree] = [
        {"params": {"w": unit(0)}, "prototypes": each, "counts": torch.tensor([count, 1.0]), "margins": torch.zeros(2)}
        for each, count in zip(sent, (1.0, 1.0, 2.0), strict=True)
    ]
    _, record = around(method, state, updates(*trees))
    assert record["aggregate_margin"] == pytest.approx(0.75 * math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("margins", ["both", "lpm", "apm"])
def test_margin_attention_is_what_averaged_the_parameters(known: bool, margins: Any) -> None:
    random = torch.Generator().manual_seed(3)
    state = {
        "params": {"w": torch.zeros(3)},
        "prototypes": torch.rand(4, 5, generator=random),
        "known": torch.full((4,), float(known)),
    }
    came = updates(
        *(
            {
                "params": {"w": unit(k)},
                "prototypes": torch.rand(4, 5, generator=random),
                "counts": torch.ones(4),
                "margins": torch.rand(4, generator=random) - 0.5,
            }
            for k in range(3)
        )
    )
    after, record = around(FedProtoMargin(margins=margins), state, came)
    weights = list(record["attention"].values())[-1]
    # client k's parameters are the k-th unit vector, so the mean's entries are the weights
    assert list(weights.values()) == pytest.approx(after["params"]["w"].tolist(), rel=1e-4)
    kinds = {"both": ["lpm", "apm", "combined"], "lpm": ["lpm"], "apm": ["apm"]}[margins] if known else ["examples"]
    assert list(record["attention"]) == kinds


def test_fedatts_attention_is_what_it_stepped_by() -> None:
    state = {"params": {"far": torch.zeros(3), "near": torch.zeros(3)}}
    trees = ({"params": {"far": (k + 1.0) * unit(k), "near": unit(k)}} for k in range(3))
    after, record = around(FedAtt(epsilon=1.0), state, updates(*trees))
    # w ← Σ a_k w_k, whose k-th entry is a_k‖w_k‖
    far = [weight * (k + 1) for k, weight in enumerate(record["layer_attention"]["far"].values())]
    assert far == pytest.approx(after["params"]["far"].tolist(), rel=1e-4)
    assert record["layer_attention"]["near"] == pytest.approx(dict.fromkeys(CLIENTS, 1 / 3), rel=1e-4)
    assert record["effective_clients"]["near"] == pytest.approx(3.0, rel=1e-4)
    assert sum(record["attention"]["layers"].values()) == pytest.approx(1, rel=1e-4)


def test_many_layer_weights_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "MAX_WEIGHTS", 2)
    came = updates(*({"params": {"w": unit(k)}} for k in range(3)))
    _, record = around(FedAtt(), {"params": {"w": torch.zeros(3)}}, came)
    assert set(record) == {"attention", "effective_clients"}


def test_what_is_recorded_can_be_read_again() -> None:
    came = updates(*({"params": {"w": unit(k)}} for k in range(3)))
    _, record = around(FedAtt(), {"params": {"w": torch.zeros(3)}}, came)
    read = Diagnostics.model_validate(record)
    assert read.model_dump(exclude_defaults=True) == record


def test_effective_clients() -> None:
    assert effective_clients({"ada": 0.5, "bob": 0.5}) == 2.0
    assert effective_clients({"ada": 1.0, "bob": 0.0}) == 1.0
