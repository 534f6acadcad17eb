"""Learning rates that decay over a federation's rounds, against torch.optim's own schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from federation.errors import SettingsError
from federation.methods import METHODS
from federation.plan import TrainingConfig
from federation.records import Examples, Tensors
from federation.training.client_round import train_one, train_stacked
from federation.training.forward import initial_client, network
from federation.training.local_round import Setup, Step
from federation.training.schedule import RoundStream, rate_of_round, schedule
from tests.sim.engines.local_rounds import torch_optimizer

ROUNDS = 5


class Linear(nn.Module):
    """Two features, two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2).double()
        nn.init.constant_(self.head.weight, 0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.head(x)


def training(**changes: Any) -> TrainingConfig:
    given = {"classes": 2, "feature_dim": 2, "batch_size": 2, "epochs": 2, "lr": 0.1, "weight_decay": 0.05}
    return TrainingConfig.model_validate({**given, "lr_schedule": "polynomial", **changes})


def examples(count: int) -> Examples:
    made = torch.Generator().manual_seed(count)
    return Examples(torch.randn(count, 2, generator=made, dtype=torch.float64), torch.arange(count) % 2)


def in_plain_torch(settings: TrainingConfig, mine: Examples, client_id: str, round_number: int) -> Tensors:
    """One client's round by torch's optimizer, at the rate that torch's schedule has then."""
    module = Linear()
    optimizer = torch_optimizer(module, settings)
    decay = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=ROUNDS, power=settings.lr_power)
    for _ in range(round_number - 1):
        optimizer.step()  # of no gradients, which torch wants to see before its schedule moves
        decay.step()
    order = schedule(len(mine.y), 2, 2, RoundStream(settings.seed, client_id, round_number))
    for rows, mask in zip(order.rows.reshape(-1, 2), order.mask.reshape(-1, 2), strict=True):
        batch = torch.from_numpy(rows[mask > 0])
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(mine.x[batch])[1], mine.y[batch]))
        optimizer.step()
    return initial_client(module).params


@pytest.mark.parametrize("round_number", [1, 2, ROUNDS])
@pytest.mark.parametrize("optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.5}])
def test_a_round_is_torchs_at_its_rate_alone_and_stacked(optimizer: dict[str, Any], round_number: int) -> None:
    settings = training(**optimizer)
    client = initial_client(Linear())
    setup, state = Setup(METHODS["fedavg"](), settings, network(Linear()), rounds=ROUNDS), {"params": client.params}
    clients = {"ada": examples(5), "bob": examples(4)}
    together = train_stacked(
        setup, [client] * 2, [state] * 2, list(clients.values()), client_ids=list(clients), round_number=round_number
    )
    for (name, mine), stacked in zip(clients.items(), together, strict=True):
        alone = train_one(setup, client, state, mine, client_id=name, round_number=round_number)
        for key, wanted in in_plain_torch(settings, mine, name, round_number).items():
            torch.testing.assert_close(alone.client.params[key], wanted, rtol=0, atol=1e-10)
            torch.testing.assert_close(stacked.client.params[key], wanted, rtol=0, atol=1e-10)


def test_one_step_by_hand() -> None:
    # x = (1, 0) of class 0, weights 0: ∂L/∂w₀₀ = −1/2; in round 3 of 5 the rate is 0.1 · (3/5)^0.9
    module = Linear()
    nn.init.zeros_(module.head.weight)
    settings = training(optimizer="sgd", epochs=1, weight_decay=0.0)
    setup = Setup(METHODS["fedavg"](), settings, network(module), rounds=5)
    client, one = initial_client(module), Examples(torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0]))
    result = train_one(setup, client, {"params": client.params}, one, client_id="ada", round_number=3)
    assert float(result.client.params["head.weight"][0, 0]) == pytest.approx(0.5 * 0.1 * 0.6**0.9, rel=1e-12)


def test_rates_fall_from_one_to_the_last_rounds() -> None:
    rates = [rate_of_round(training(), t, 4) for t in range(1, 7)]
    assert rates == pytest.approx([1, 0.75**0.9, 0.5**0.9, 0.25**0.9, 0.25**0.9, 0.25**0.9])
    assert rate_of_round(training(lr_power=1.0), 2, 4) == 0.75
    assert rate_of_round(training(lr_schedule="constant"), 3, None) == 1.0
    with pytest.raises(SettingsError, match="ends with the federation's last round"):
        rate_of_round(training(), 3, None)


def test_scaffold_counts_the_rates_that_were_stepped_with() -> None:
    settings = training(optimizer="sgd", weight_decay=0.0)
    method, client, mine = METHODS["scaffold"](), initial_client(Linear()), examples(4)
    setup = Setup(method, settings, network(Linear()), rounds=4)
    state = method.server_init(client.params, client.buffers, settings)
    mover = method.init_client_state(client, settings)

    def upload(setup: Setup, round_number: int) -> Tensors:
        broadcast = method.broadcast(state, "ada")
        found = train_one(setup, mover, broadcast, mine, client_id="ada", round_number=round_number)
        variate: Tensors = found.upload["variate"]
        return variate

    # the same round at the constant rate that the schedule has then
    constant = settings.model_copy(update={"lr_schedule": "constant", "lr": settings.lr * 0.75**0.9})
    for name, wanted in upload(replace(setup, training=constant), 2).items():
        torch.testing.assert_close(upload(setup, 2)[name], wanted, rtol=0, atol=1e-12)


def test_one_compiled_program_serves_the_rates_of_all_rounds() -> None:
    client = initial_client(Linear())
    asked: list[float] = []
    rates: set[float] = set()
    setup = Setup(METHODS["fedavg"](), training(), network(Linear()), rounds=ROUNDS)

    def compiled(rate: float, step: Step) -> Step:
        asked.append(rate)

        def run(*trees: Any) -> Any:
            rates.add(round(float(trees[-1][0]), 12))
            return step(*trees)

        return run

    for round_number in (1, 2):
        train_stacked(
            setup, [client], [{"params": client.params}], [examples(4)],
            client_ids=["ada"], round_number=round_number, compiled=compiled,
        )  # fmt: skip
    assert asked == [1.0, 1.0]
    assert rates == {1.0, round(0.8**0.9, 12)}
