"""Optimizers, schedules, seeds, scores and k-means against independent references."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.plan import TrainingConfig
from federation.records.tree import flatten, unflatten
from federation.seeds import generator, seed_for
from federation.training.forward import initial_client, reseed
from federation.training.optimizers import adam, optimizer_for, sgd
from federation.training.schedule import RoundStream, in_order, schedule, stack_schedules
from gaitway.tasks.classification import macro_f1, scores_of


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_optimizers_are_torchs(kind: str, in_place: bool, weight_decay: float) -> None:
    generator_ = torch.Generator().manual_seed(1)
    value = torch.randn(5, generator=generator_, dtype=torch.float64)
    theirs = value.clone().requires_grad_()
    if kind == "adam":
        reference: torch.optim.Optimizer = torch.optim.Adam([theirs], lr=0.01, weight_decay=weight_decay)
        ours = adam(0.01, weight_decay, in_place=in_place)
    else:
        momentum = 0.9 if kind == "momentum" else 0.0
        reference = torch.optim.SGD([theirs], lr=0.01, momentum=momentum, weight_decay=weight_decay)
        ours = sgd(0.01, momentum, weight_decay, in_place=in_place)
    params = given = {"w": value.clone()}
    state = ours.init(params)
    for _ in range(20):
        theirs.grad = torch.sin(theirs.detach() * 3)
        reference.step()
        state, params = ours.apply({"w": torch.sin(params["w"] * 3)}, state, params)
    assert torch.allclose(params["w"], theirs.detach(), rtol=0, atol=1e-12)
    assert not torch.allclose(params["w"], value, atol=1e-3)
    assert torch.equal(given["w"], params["w"] if in_place else value)


RELAID: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda value: value.contiguous(memory_format=torch.channels_last),
    "transposed": lambda value: value.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda value: value[:1].expand_as(value),
    "a slice": lambda value: torch.stack([value, -value], dim=-1)[..., 0],
}
"""One gradient in other layouts of memory: a convolution's, a transposed product's, a sum's, a part of a larger one."""


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("layout", RELAID)
def test_optimizers_are_torchs_whatever_the_gradients_strides(
    layout: str, kind: str, in_place: bool, weight_decay: float
) -> None:
    made = torch.Generator().manual_seed(1)
    value, *gradients = (torch.randn(6, 4, 3, 5, generator=made, dtype=torch.float64) for _ in range(4))
    theirs = value.clone().requires_grad_()
    reference = (
        torch.optim.Adam([theirs], lr=0.01, weight_decay=weight_decay)
        if kind == "adam"
        else torch.optim.SGD([theirs], lr=0.01, momentum=0.9 * (kind == "momentum"), weight_decay=weight_decay)
    )
    training = TrainingConfig(
        classes=2, optimizer="adam" if kind == "adam" else "sgd", lr=0.01, weight_decay=weight_decay
    )
    training = training.model_copy(update={"momentum": 0.9 * (kind == "momentum")})
    ours, params = optimizer_for(training, stacked=not in_place), {"w": value.clone()}
    state = ours.init(params)
    for gradient in map(RELAID[layout], gradients):
        assert not gradient.is_contiguous()
        theirs.grad = gradient.contiguous()
        reference.step()
        state, params = ours.apply({"w": gradient}, state, params)
    assert torch.allclose(params["w"], theirs.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["parameter", "first moment", "second moment"])
def test_adam_in_place_refuses_what_it_would_scramble(name: str) -> None:
    value = torch.ones(2, 3)
    optimizer, scrambled = adam(0.01, in_place=True), torch.ones(3, 2).T
    params = {"w": scrambled if name == "parameter" else value.clone()}
    state = optimizer.init(params)
    assert state["m"]["w"].is_contiguous(), "whatever the parameter is"
    if name != "parameter":
        state["m" if name == "first moment" else "v"]["w"] = scrambled
    with pytest.raises(ValueError, match=rf"{name} of 'w': strides \(1, 2\) of shape \(2, 3\).*contiguous first"):
        optimizer.apply({"w": torch.ones(2, 3)}, state, params)
    assert torch.equal(scrambled, torch.ones(2, 3)), "it was changed before it was refused"


def test_optimizer_for_reads_the_task() -> None:
    assert optimizer_for(TrainingConfig(classes=2, optimizer="sgd", momentum=0.9)).init({"w": torch.ones(1)})
    assert not optimizer_for(TrainingConfig(classes=2, optimizer="sgd")).init({"w": torch.ones(1)})


@given(n=st.integers(1, 40), batch=st.integers(1, 17), epochs=st.integers(1, 3))
def test_every_epoch_is_a_permutation(n: int, batch: int, epochs: int) -> None:
    order = schedule(n, batch, epochs, RoundStream(3, "a", 1))
    assert order.rows.shape == order.mask.shape == (epochs, -(-n // batch), batch)
    for rows, mask in zip(order.rows, order.mask, strict=True):
        assert sorted(rows[mask > 0]) == list(range(n))
    assert order.steps == epochs * -(-n // batch)
    swept = in_order(n, batch)
    assert swept.rows[swept.mask > 0].tolist() == list(range(n))


def test_orders_differ_by_client_round_and_epoch_and_repeat() -> None:
    def rows(client: str, number: int) -> list[int]:
        return schedule(50, 50, 2, RoundStream(3, client, number)).rows.reshape(2, -1).tolist()

    one = rows("a", 1)
    assert one == rows("a", 1)
    assert len({str(x) for x in [*one, *rows("b", 1), *rows("a", 2)]}) == 6


def test_a_straggler_stops_after_its_steps() -> None:
    full = schedule(10, 4, 2, RoundStream(0, "a", 1))
    cut = schedule(10, 4, 2, RoundStream(0, "a", 1), max_steps=4)
    assert (full.steps, cut.steps) == (6, 4)
    assert np.array_equal(cut.mask[0], full.mask[0])
    assert cut.mask[1, 1:].sum() == 0


def test_stacking_pads_with_empty_steps() -> None:
    both = stack_schedules([in_order(9, 4), in_order(3, 4)])
    assert both.rows.shape == (2, 1, 3, 4)
    assert both.mask[1].sum() == 3


def test_seeds_depend_on_every_name() -> None:
    seeds = {
        seed_for(0, "order", "a", 1),
        seed_for(1, "order", "a", 1),
        seed_for(0, "order", "a1"),
        seed_for(0, "order"),
    }
    assert len(seeds) == 4
    assert seed_for(0, "x") == seed_for(0, "x") < 2**63
    assert generator(5, "cohort").random() == generator(5, "cohort").random()


def test_reseed_sets_only_noise() -> None:
    from models.layers.dropout import Dropout

    client = initial_client(torch.nn.Sequential(Dropout(0.5), torch.nn.Linear(2, 2), Dropout(0.5)))
    once, again, other = (reseed(client, 1, name, 2) for name in ("a", "a", "b"))
    assert once.params is client.params
    names = [name for name in client.buffers if name.endswith("noise_state")]
    assert len(names) == 2
    assert all(torch.equal(once.buffers[n], again.buffers[n]) for n in names)
    assert len({int(c.buffers[n]) for n in names for c in (once, other)}) == 4


def test_no_examples_have_no_score() -> None:
    assert np.isnan(scores_of(np.zeros((3, 3), np.int64)).macro_f1)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"name": "fedavgg"}, "unknown method 'fedavgg'.*did you mean 'fedavg'"),
        ({}, "unknown method ''"),
        ({"name": "fedprox", "nu": 1}, "unknown hyper-parameter of fedprox 'nu'.*did you mean 'mu'"),
        ({"name": "fedprox", "mu": "much"}, r"fedprox: mu: expected .*\(got 'much'\)"),
        ({"name": "fedavg", "weighting": "fair"}, r"fedavg: weighting: expected .*\(got 'fair'\)"),
    ],
)
def test_bad_descriptions_of_methods_are_explained(description: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        method_from_json(description)


def test_numbers_may_come_as_text() -> None:
    assert method_from_json({"name": "fedprox", "mu": "0.5"}).mu == 0.5


names = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=8)


@given(st.dictionaries(names, st.dictionaries(names, st.integers(), min_size=1), max_size=4))
def test_flatten_and_back(tree: dict[str, dict[str, int]]) -> None:
    assert unflatten(flatten(tree)) == tree


def test_macro_f1_by_hand() -> None:
    # Class 0: 2 hits of 3 true and 2 predicted: 4/5. Class 1: 1 hit of 1 and 2: 2/3. Class 3 absent: not counted.
    assert macro_f1(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])) == pytest.approx((4 / 5 + 2 / 3) / 2)
