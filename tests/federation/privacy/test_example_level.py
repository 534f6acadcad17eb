"""DP-SGD on the device: gradients by example against a loop, clipping by hand, the noise's size, and its account."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import models
from federation.errors import SettingsError
from federation.methods import METHODS
from federation.methods.fedavg import FedAvg
from federation.methods.fedproto import FedProto
from federation.plan import RoundSettings, TrainingConfig
from federation.privacy.accounting import epsilon_of_epochs, epsilon_of_poisson
from federation.privacy.differential_privacy import check_private
from federation.privacy.example_level import ExampleNoise, clipped_sum, epochs_of, per_example
from federation.records import Batch, Tensors
from federation.training.client_round import train_one, train_stacked
from federation.training.forward import initial_client, initial_model, network
from tests.federation.federated import Federation, federation


@pytest.fixture(scope="module")
def small() -> Federation:
    """Return a federation with a network whose examples do not mix: without ALP, whose prototypes move by the batch."""
    built = federation(FedAvg(), epochs=1)
    options = {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "dropout": 0.0}
    module = initial_model(lambda: models.build("har_cnn", classes=3, **options), 0).double()
    initial = initial_client(module)
    state = built.setup.method.server_init(initial.params, initial.buffers, built.setup.training)
    return built._replace(setup=replace(built.setup, network=network(module)), initial=initial, state=state)


def objective_of(small: Federation):
    setup, start = small.setup, small.initial

    def objective(params: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        return setup.method.loss(setup.task, setup.network, params, start.buffers, batch, {})

    return objective


def batch_of(small: Federation) -> Batch:
    examples = small.examples["ada"]
    return Batch(examples.x[:4], examples.y[:4], torch.tensor([1.0, 1, 1, 0], dtype=torch.float64))


def test_gradients_by_example_are_those_of_a_loop(small: Federation) -> None:
    objective, batch, params = objective_of(small), batch_of(small), small.initial.params
    gradients, losses = per_example(objective, params, batch)
    for row in range(4):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        alone = Batch(batch.x[row : row + 1], batch.y[row : row + 1], torch.ones(1, dtype=torch.float64))
        loss, _ = objective(leaves, alone)
        expected = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        assert torch.allclose(losses[row], loss.detach())
        for name, value in zip(leaves, expected, strict=True):
            assert torch.allclose(gradients[name][row], value, atol=1e-12), name


def test_gradients_are_clipped_over_all_tensors_together_and_padding_adds_nothing() -> None:
    gradients = {"a": torch.tensor([[3.0], [0.3], [9.0]]), "b": torch.tensor([[4.0], [0.4], [9.0]])}
    found = clipped_sum(gradients, torch.tensor([1.0, 1.0, 0.0]), clip_norm=1.0)
    assert torch.allclose(found["a"], torch.tensor([0.6 + 0.3]))  # (3, 4) has the norm 5
    assert torch.allclose(found["b"], torch.tensor([0.8 + 0.4]))


def test_without_noise_and_clip_the_step_is_the_plain_one(small: Federation) -> None:
    private = ExampleNoise(1e9, 0.0, 4)
    full = batch_of(small)._replace(mask=torch.ones(4, dtype=torch.float64))
    found, loss, _ = private(objective_of(small), small.initial.params, full)
    leaves = {name: value.clone().requires_grad_() for name, value in small.initial.params.items()}
    plain, _ = objective_of(small)(leaves, full)
    expected = torch.autograd.grad(plain, list(leaves.values()), materialize_grads=True)
    assert torch.allclose(loss, plain.detach())
    for name, value in zip(leaves, expected, strict=True):
        assert torch.allclose(found[name], value, atol=1e-12), name


def test_the_sum_has_noise_of_the_multiplier_times_the_clip() -> None:
    params = {"w": torch.zeros(20_000, dtype=torch.float64)}

    def flat(given: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        return (given["w"] * 0).sum() + 0 * batch.x.sum(), {}

    batch = Batch(torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2), torch.ones(2, dtype=torch.float64))
    private = ExampleNoise(0.5, 3.0, 8, torch.Generator().manual_seed(1))
    found, _, _ = private(flat, params, batch)
    assert float(found["w"].std()) == pytest.approx(3.0 * 0.5 / 8, rel=0.03)
    again, _, _ = private(flat, params, batch)
    assert not torch.equal(found["w"], again["w"])  # each step draws anew


def test_a_round_trains_with_it_one_client_at_a_time(small: Federation) -> None:
    private = ExampleNoise(1.0, 0.0, 4)
    setup = replace(small.setup, differentiate=private)
    clipped, plain = small._replace(setup=setup).train("ada"), small.train("ada")
    start = small.initial.params

    def length(result: object) -> float:
        params = result.client.params  # type: ignore[attr-defined]
        return math.sqrt(sum(float((params[name] - value).square().sum()) for name, value in start.items()))

    # three steps of at most C · lr, momentum 0.5: lr · (3 + 2 · 0.5 + 0.25)
    assert 0 < length(clipped) <= 0.05 * 4.25 + 1e-9
    assert length(clipped) < length(plain)
    broadcast, given = setup.method.broadcast(small.state, "ada"), [small.examples["ada"]]
    with pytest.raises(ValueError, match="one client at a time"):
        train_stacked(setup, [small.initial], [broadcast], given, client_ids=["ada"], round_number=1)


def test_epochs_compose_without_amplification_and_poisson_sampling_would_have_some() -> None:
    one, four = epsilon_of_epochs(2.0, 1, 1e-5), epsilon_of_epochs(2.0, 4, 1e-5)
    assert four == pytest.approx(epsilon_of_epochs(1.0, 1, 1e-5))  # 4 / 2² = 1 / 1²
    assert one < four
    assert epsilon_of_epochs(0.0, 1, 1e-5) == epsilon_of_poisson(0.0, 0.1, 10, 1e-5) == math.inf
    assert epsilon_of_poisson(1.0, 0.01, 100, 1e-5) < epsilon_of_epochs(1.0, 1, 1e-5)


def asked(small: Federation, **given: float) -> Federation:
    return small._replace(setup=replace(small.setup, training=small.setup.training.model_copy(update=given)))


def test_a_plan_asks_for_it_and_its_noise_is_the_seeds_or_secret(small: Federation) -> None:
    plain, clipped = small.train("ada"), asked(small, example_clip_norm=1e-3).train("ada")
    noisy = asked(small, example_clip_norm=1e-3, example_noise_multiplier=2.0)
    first, again, other = (noisy.train("ada", round_number=number).client.params for number in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert not any(torch.equal(first[name], value) for name, value in clipped.client.params.items())
    start = small.initial.params
    assert all((value - start[name]).abs().max() < 1e-3 for name, value in clipped.client.params.items())
    assert any((value - start[name]).abs().max() > 1e-3 for name, value in plain.client.params.items())

    def on_a_device() -> Tensors:
        return train_one(
            *(
                replace(noisy.setup, has_secret_noise=True),
                noisy.initial,
                noisy.setup.method.broadcast(noisy.state, "ada"),
                noisy.examples["ada"],
            ),
            client_id="ada",
            round_number=1,
        ).client.params

    mine, next_time = on_a_device(), on_a_device()
    assert not any(torch.equal(mine[name], next_time[name]) or torch.equal(mine[name], first[name]) for name in mine)
    given = [noisy.initial], [noisy.setup.method.broadcast(noisy.state, "ada")], [noisy.examples["ada"]]
    with pytest.raises(SettingsError, match="one client at a time"):
        train_stacked(noisy.setup, *given, client_ids=["ada"], round_number=1)


def test_a_plan_that_bounds_nothing_is_refused_and_others_say_nothing_of_it() -> None:
    with pytest.raises(ValidationError, match="needs example_clip_norm"):
        TrainingConfig(classes=3, example_noise_multiplier=1.0)
    assert not {"example_clip_norm", "example_noise_multiplier"} & TrainingConfig(classes=3).model_dump().keys()
    private = TrainingConfig(classes=3, example_clip_norm=1.0, example_noise_multiplier=1.0)
    check_private(FedAvg(), RoundSettings(), private)
    with pytest.raises(SettingsError, match="more than a mean of parameters"):
        check_private(FedProto(), RoundSettings(), private)
    check_private(FedProto(), RoundSettings(), TrainingConfig(classes=3))
    assert epochs_of(METHODS["fedrep"](), private.model_copy(update={"epochs": 3})) >= 3


def test_numbers_that_bound_nothing_are_refused() -> None:
    for given in ((0.0, 1.0, 4), (1.0, -1.0, 4), (1.0, 1.0, 0), (math.nan, 1.0, 4)):
        with pytest.raises(SettingsError, match="expected a norm above 0"):
            ExampleNoise(*given)
