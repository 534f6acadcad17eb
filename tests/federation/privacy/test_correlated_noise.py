"""Correlated noise, against the matrices of its papers in float64, and whom its spacing lets take part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.plan import RoundSettings
from federation.privacy.differential_privacy import aggregated, check_private, coefficients, next_noise, sensitivity
from federation.records import Update

ROUNDS, BANDS = 12, 4


def strategy(rounds: int, bands: int) -> NDArray[np.float64]:
    """Return C: the first `bands` columns' worth of the square root of the prefix sums' matrix, by scipy."""
    from scipy.linalg import sqrtm, toeplitz

    root = np.real(sqrtm(np.tril(np.ones((rounds, rounds)))))
    column = np.where(np.arange(rounds) < bands, root[:, 0], 0.0)
    return np.asarray(toeplitz(column, np.zeros(rounds)))


def test_the_matrix_is_the_square_root_of_the_prefix_sums_cut_off() -> None:
    # scipy's root of a defective matrix is good to five digits
    np.testing.assert_allclose(coefficients(8), strategy(8, 8)[:, 0], rtol=1e-4)
    assert coefficients(4) == [1.0, 0.5, 0.375, 0.3125]


def test_units_of_noise_are_the_rows_of_the_inverse_on_independent_noise() -> None:
    like, draw, again = {"w": torch.zeros(5, 2)}, np.random.default_rng(0), np.random.default_rng(0)
    past: dict[str, torch.Tensor] = {}
    rows = []
    for _ in range(ROUNDS):
        units, past = next_noise(past, like, BANDS, draw)
        rows.append(units["w"])
    independent = np.stack([again.standard_normal((5, 2)) for _ in range(ROUNDS)])
    wanted = np.tensordot(np.linalg.inv(strategy(ROUNDS, BANDS)), independent, axes=1)
    np.testing.assert_allclose(torch.stack(rows).numpy(), wanted, atol=1e-4)


def test_rounds_of_a_client_that_rests_between_them_are_as_sensitive_as_one_each() -> None:
    matrix = strategy(ROUNDS, BANDS)
    for mine in ([0, 4], [0, 4, 8], [1, 6], [3, 8]):
        moved = matrix[:, mine].sum(axis=1)  # the worst changes of norm 1: all the same
        assert np.square(moved).sum() <= len(mine) * sensitivity(BANDS) ** 2 * (1 + 1e-4)
    too_soon = matrix[:, [0, 2]].sum(axis=1)
    assert np.square(too_soon).sum() > 2 * sensitivity(BANDS) ** 2


@pytest.mark.parametrize(("bands", "rounds", "times_less"), [(8, 64, 1.45), (16, 64, 1.75), (64, 64, 2.5)])
def test_models_have_less_noise_than_of_independent_rounds_for_the_same_account(
    bands: int, rounds: int, times_less: float
) -> None:
    """What a federation gains: the root mean square error of all its models, each a sum of changes."""
    prefix = np.tril(np.ones((rounds, rounds)))
    correlated = sensitivity(bands) * np.linalg.norm(prefix @ np.linalg.inv(strategy(rounds, bands)))
    assert np.linalg.norm(prefix) / correlated > times_less


def test_the_noise_of_fedavgs_models_is_correlated_as_the_matrix_says() -> None:
    settings = RoundSettings(clip_norm=2.0, noise_multiplier=3.0, noise_bands=3, clients_per_round=1)
    method, state = method_from_json({"name": "fedavg"}), {"params": {"a": torch.zeros(2000)}}
    models, past = [state["params"]["a"]], {}
    for number in range(40):
        same = [Update(client, 100, 1, state, 1.0) for client in "xy"]
        state, past = aggregated(settings, method, state, same, np.random.default_rng(number), past)
        assert state.keys() == {"params"}  # what is broadcast
        assert past["a"].shape == (2, 2000)
        models.append(state["params"]["a"])
    # C applied to the rounds' noise is independent again, of deviation z · C · ‖column‖ in the sum of two
    steps = torch.stack(models).double().diff(dim=0) * 2 / (3.0 * 2.0 * sensitivity(3))
    independent = torch.from_numpy(strategy(40, 3)) @ steps
    assert float(independent.std()) == pytest.approx(1.0, rel=0.02)
    assert float((independent[1:] * independent[:-1]).mean()) == pytest.approx(0.0, abs=0.02)
    assert float((steps[1:] * steps[:-1]).mean()) < -0.2  # each round takes back some of the one before


def test_noise_of_other_bands_is_no_past() -> None:
    like = {"w": torch.zeros(3)}
    _, past = next_noise({}, like, 3, np.random.default_rng(0))
    after, alone = (next_noise(before, like, 4, np.random.default_rng(1)) for before in (past, {}))
    assert torch.equal(after[0]["w"], alone[0]["w"])


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ({"noise_bands": 2}, "needs rounds.clip_norm"),
        ({"noise_bands": 2, "clip_norm": 1.0, "clients_per_round": 2}, "needs rounds.noise_multiplier above 0"),
        ({"noise_bands": 2, "clip_norm": 1.0, "noise_multiplier": 1.0}, "without rounds.clients_per_round"),
    ],
)
def test_what_could_not_work_is_refused(rounds: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_private(method_from_json({"name": "fedavg"}), RoundSettings.model_validate(rounds))
