"""Clipped changes and noise in their sum, by hand and against another accountant."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from federation.errors import SettingsError
from federation.methods import METHODS, method_from_json
from federation.plan import RoundSettings
from federation.privacy.accounting import epsilon, spent
from federation.privacy.differential_privacy import aggregated, check_private
from federation.records import Update

START = {"params": {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([0.0])}}


def update(client: str, a: list[float], b: float, examples: int = 100) -> Update:
    return Update(client, examples, 1, {"params": {"a": torch.tensor(a), "b": torch.tensor([b])}}, 0.5)


def mean(rounds: RoundSettings, updates: list[Update], seed: int = 0) -> dict[str, torch.Tensor]:
    method = method_from_json({"name": "fedavg"})
    params: dict[str, torch.Tensor] = aggregated(rounds, method, START, updates, np.random.default_rng(seed), {}).state[
        "params"
    ]
    return params


def test_a_long_change_is_cut_a_short_one_is_not_and_both_weigh_the_same() -> None:
    # changes (3, 4; 0) of norm 5, cut to norm 1, and (0, 0; 0.5)
    got = mean(RoundSettings(clip_norm=1.0), [update("x", [4.0, 5.0], 0.0, examples=1), update("y", [1.0, 1.0], 0.5)])
    torch.testing.assert_close(got["a"], torch.tensor([1.0 + 0.3, 1.0 + 0.4]))
    torch.testing.assert_close(got["b"], torch.tensor([0.25]))


def test_the_noise_in_the_mean_of_n_has_the_deviation_z_c_over_n() -> None:
    rounds = RoundSettings(clip_norm=2.0, noise_multiplier=3.0)
    state = {"params": {"a": torch.zeros(3000)}}
    same = [Update(client, 100, 1, state, 0.5) for client in "wxyz"]
    method = method_from_json({"name": "fedavg"})
    drawn = aggregated(rounds, method, state, same, np.random.default_rng(0), {}).state["params"]["a"]
    assert float(drawn.std()) == pytest.approx(3.0 * 2.0 / 4, rel=0.05)
    assert abs(float(drawn.mean())) < 4 * 1.5 / math.sqrt(3000)


def test_without_a_clip_norm_nothing_changes() -> None:
    method, updates = method_from_json({"name": "fedavg"}), [update("x", [4.0, 5.0], 0.0)]
    got = aggregated(RoundSettings(), method, START, updates, np.random.default_rng(0), {}).state
    assert torch.equal(got["params"]["a"], method.aggregate(START, updates)["params"]["a"])


@pytest.mark.parametrize(
    ("method", "rounds", "words"),
    [
        ({"name": "scaffold"}, {"clip_norm": 1.0}, "scaffold sends or combines more"),
        ({"name": "fedproto"}, {"clip_norm": 1.0}, "fedproto sends or combines more"),
        ({"name": "fesem"}, {"clip_norm": 1.0}, "fesem sends or combines more"),
        ({"name": "fedavg", "aggregation": "median"}, {"clip_norm": 1.0}, "aggregation=mean"),
        ({"name": "fedavg"}, {"clip_norm": 1.0, "late": "next"}, "needs rounds.late=drop"),
        ({"name": "fedavg"}, {"noise_multiplier": 1.0}, "needs rounds.clip_norm"),
    ],
)
def test_what_would_protect_nothing_is_refused(method: dict[str, str], rounds: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_private(method_from_json(method), RoundSettings.model_validate(rounds))


def test_these_methods_can_be_private() -> None:
    able = set()
    for name in METHODS:
        try:
            check_private(method_from_json({"name": name}), RoundSettings(clip_norm=1.0))
        except SettingsError:
            continue
        able.add(name)
    assert {"fedavg", "fedprox", "fedper", "fedrep", "fedadam", "fedyogi", "fedavgm"} <= able
    assert not able & {"scaffold", "fedali", "fedproto", "fedpac", "fedpr", "fesem", "fedatt", "local"}


def test_epsilon_is_below_what_renyi_accounting_says_and_near_it() -> None:
    pytest.importorskip("dp_accounting")
    from dp_accounting import GaussianDpEvent, NeighboringRelation, rdp

    for multiplier, rounds in ((1.0, 10), (4.0, 100)):
        renyi = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
        renyi.compose(GaussianDpEvent(multiplier), rounds)
        ours = epsilon(rounds * spent(multiplier), 1e-5)
        assert 0.85 * renyi.get_epsilon(1e-5) < ours < renyi.get_epsilon(1e-5)


def test_epsilon_gives_delta_in_the_gaussian_mechanisms_own_formula() -> None:
    pytest.importorskip("dp_accounting")
    from scipy.stats import norm

    for multiplier in (0.7, 2.0, 9.0):
        ours, a = epsilon(spent(multiplier), 1e-5), 1 / (2 * multiplier)  # theorem 8 of Balle and Wang
        delta = norm.cdf(a - ours * multiplier) - math.exp(ours) * norm.cdf(-a - ours * multiplier)
        assert delta == pytest.approx(1e-5, rel=1e-3)


def test_epsilon_at_the_ends() -> None:
    assert epsilon(0.0, 1e-5) == 0.0
    assert epsilon(spent(0.0), 1e-5) == math.inf
