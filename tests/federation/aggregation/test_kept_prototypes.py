"""What clients sent last, kept on the server: a round of one client replaces no one else's class means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation import wire
from federation.aggregation import kept_prototypes
from federation.aggregation.present_sums import KeptContributions
from federation.method import Method
from federation.methods import method_from_json
from federation.records import Tree, Update
from federation.records.tree import flatten

C, D = 3, 2
ALL = {"name": "fedproto", "average_over": "clients"}


def method(**options: str) -> Method:
    return method_from_json({**ALL, **options})


def empty() -> Tree:
    return {"prototypes": torch.zeros(C, D), "known": torch.zeros(C)}


def sent(client: str, value: float, counts: tuple[int, ...] = (2, 0, 1), discount: float = 1.0) -> Update:
    tensors = {"prototypes": torch.full((C, D), value), "counts": torch.tensor(counts, dtype=torch.float32)}
    return Update(client, sum(counts), 0, tensors, discount)


def stored(state: Tree) -> Tree:
    """The state as a server that was started anew reads it."""
    data = wire.encode(state)
    return wire.decode(data, limit_bytes=len(data))


def test_a_round_of_one_client_keeps_what_the_others_sent() -> None:
    proto = method()
    state = proto.aggregate(empty(), [sent("a", 1.0, (2, 0, 1)), sent("b", 4.0, (1, 0, 0))])
    state = proto.aggregate(stored(state), [sent("b", 7.0, (2, 4, 0))])
    # by hand: class 0 is (2·1 + 2·7) / 4, class 1 is b's alone, class 2 a's alone
    assert state["prototypes"][:, 0].tolist() == [4.0, 7.0, 1.0]
    assert state["known"].tolist() == [1, 1, 1]
    assert list(state["clients"]) == ["a", "b"]
    alone = method(average_over="round")
    before = alone.aggregate(empty(), [sent("a", 1.0), sent("b", 4.0)])
    assert alone.aggregate(before, [sent("b", 7.0, (2, 4, 0))])["prototypes"][:, 0].tolist() == [7.0, 7.0, 1.0 * 2.5]


def test_what_clients_sent_stays_on_the_server_and_a_late_one_counts_less() -> None:
    proto = method()
    state = proto.aggregate(empty(), [sent("a", 1.0, (1, 1, 1)), sent("b", 4.0, (1, 1, 1), discount=0.5)])
    assert state["prototypes"][0, 0] == pytest.approx((1 + 0.5 * 4) / 1.5)
    assert proto.broadcast(state, "a").keys() == {"prototypes", "known"}
    assert not [name for name in flatten(proto.broadcast(state, "")) if name.startswith("clients")]


@given(
    st.lists(
        st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True).map(sorted), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_the_order_of_rounds_and_restarts_change_no_bit(rounds: list[list[str]], uniform: bool) -> None:
    proto = method(weighting="uniform" if uniform else "examples")
    generator = torch.Generator().manual_seed(0)
    live = sim = empty()
    last: dict[str, Update] = {}
    for clients in rounds:
        updates = []
        for name in clients:
            tensors = {
                "prototypes": torch.randn(C, D, generator=generator),
                "counts": torch.randint(0, 5, (C,), generator=generator).float(),
            }
            updates.append(Update(name, 1, 0, tensors))
            last[name] = updates[-1]
        live, sim = proto.aggregate(stored(live), updates), proto.aggregate(sim, updates)
    assert wire.encode(live) == wire.encode(sim)
    at_once = proto.aggregate(empty(), [last[name] for name in sorted(last)])
    same = torch.stack([update.tensors["counts"] for update in last.values()]).sum(0) > 0
    assert torch.equal(live["prototypes"][same], at_once["prototypes"][same])
    weights = np.stack([last[name].tensors["counts"].numpy() for name in sorted(last)]).astype(np.float64)
    weights = (weights > 0).astype(np.float64) if uniform else weights
    values = np.stack([last[name].tensors["prototypes"].numpy() for name in sorted(last)]).astype(np.float64)
    expected = (weights[:, :, None] * values).sum(0)[same.numpy()] / weights.sum(0)[same.numpy(), None]
    np.testing.assert_allclose(live["prototypes"][same].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_client_can_be_taken_out_and_leaves_nothing() -> None:
    proto = method()
    state = proto.aggregate(empty(), [sent("a", 1.0, (2, 0, 1)), sent("b", 4.0, (1, 0, 0))])
    left = proto.forget_clients(state, {"a", "nobody"})
    only_b = proto.aggregate(empty(), [sent("b", 4.0, (1, 0, 0))])
    assert wire.encode(left) == wire.encode(only_b)
    assert proto.forget_clients(left, {"a"}) is left
    assert proto.forget_clients(left, {"b"}).keys() == {"prototypes", "known"}


def test_no_more_are_kept_than_a_bound_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_prototypes, "MAX_CLIENTS", 2)
    proto, state = method(), empty()
    for client in ("c", "a", "b"):
        state = proto.aggregate(state, [sent(client, 1.0)])
    assert list(state["clients"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "keeps"),
    [({}, False), ({"backbone": "frozen"}, True), ({"backbone": "frozen", "average_over": "round"}, False)],
)
def test_the_paper_averages_the_rounds_clients_and_a_frozen_backbone_all(options: dict[str, str], keeps: bool) -> None:
    assert method_from_json({"name": "fedproto", **options}).keeps_uploads is keeps


def test_what_a_client_has_in_the_sums_is_kept_until_it_withdraws() -> None:
    kept, tensors = KeptContributions(), {"gram": torch.tensor([1, 2])}
    first = kept.replacing(Update("ada", 3, 0, tensors))
    assert first.replaces is None
    kept.note([first])
    tensors["gram"].zero_()  # an engine's memory is used again
    again = kept.replacing(Update("ada", 4, 0, {"gram": torch.tensor([5, 6])}))
    assert again.replaces is not None
    assert again.replaces["gram"].tolist() == [1, 2]
    kept.note([again, kept.replacing(Update("bob", 1, 0, {"gram": torch.tensor([1, 1])}))])
    gone = kept.withdrawal("ada")
    assert gone.tensors == {}
    assert gone.replaces is not None
    assert gone.replaces["gram"].tolist() == [5, 6]
    kept.note([gone])
    assert set(kept.trees) == {"bob"}
