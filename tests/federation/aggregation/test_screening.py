"""Capped weights and updates that are left out, against numbers worked out by hand and in numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from federation.aggregation.screening import (
    HISTORY_ROUNDS,
    NormHistory,
    Screening,
    Typical,
    UpdateClaim,
    cap_examples,
    change_norms,
    examples_limit,
    refusal,
    screen,
    shortfall,
)
from federation.method import Method
from federation.methods import METHODS
from federation.plan import RoundSettings
from federation.records import Update
from tests.federation.federated import federation

ON = RoundSettings()


def claims(norms: Mapping[str, float], examples: int = 10) -> dict[str, UpdateClaim]:
    return {client: UpdateClaim(examples, {"params": norm}) for client, norm in norms.items()}


def history(*medians: float, updates: int = 4) -> NormHistory:
    found = NormHistory()
    for median in medians:
        found = found.published({"params": Typical(median, updates)})
    return found


def test_norms_by_hand() -> None:
    start = {"params": {"w": torch.tensor([1.0, 1.0])}}
    upload = {
        "params": {"w": torch.tensor([4.0, 5.0])},
        "prototypes": torch.tensor([[6.0, 8.0]]),
        "counts": torch.ones(1),
    }
    groups = METHODS["fedpr"].upload_groups
    assert change_norms(upload, start, groups) == {"params": 5.0, "prototypes": 10.0}
    assert change_norms({"params": {"new": torch.tensor([3.0, 4.0])}}, start, groups) == {"params": 5.0}


def test_a_covariance_is_judged_in_the_units_of_the_features() -> None:
    """Features of an honest device that are four times as large: 16 times the covariance, and no outlier by 10."""
    groups = METHODS["pfedfda"].upload_groups
    ours, larger = ({"means": by * torch.ones(2, 8), "covariance": by**2 * torch.eye(16)} for by in (1.0, 4.0))
    assert change_norms(ours, {}, groups) == {"means": 4.0, "covariance": 2.0}
    assert change_norms(larger, {}, groups) == {"means": 16.0, "covariance": 8.0}
    claims = {name: UpdateClaim(10, change_norms(ours, {}, groups)) for name in "abc"}
    claims["d"] = UpdateClaim(10, change_norms(larger, {}, groups))
    assert not screen(RoundSettings(), claims, NormHistory()).excluded
    claims["d"] = UpdateClaim(10, change_norms({**ours, "covariance": 101 * torch.eye(16)}, {}, groups))
    assert list(screen(RoundSettings(), claims, NormHistory()).excluded) == ["d"]


@pytest.mark.parametrize(
    ("examples", "limit"),
    [
        ((40, 40, 40, 10**9), 80),
        ((40, 50, 10**9), 100),
        ((40, 10**9), 80),  # the lower one of two
        ((30, 40, 10**9, 10**9), 80),  # half of them cannot raise it
        ((40, 10**9, 10**9), 2 * 10**9),  # a majority can
        ((7,), 14),
        ((), None),
    ],
)
def test_the_most_examples_are_twice_the_lower_median(examples: tuple[int, ...], limit: int | None) -> None:
    assert examples_limit(ON, examples) == limit
    if examples:
        lower = np.percentile(examples, 50, method="lower")
        assert limit == 2 * int(lower)
    assert examples_limit(RoundSettings(max_weight_ratio=None), examples) is None


def test_a_capped_weight_is_that_of_the_limit_and_others_are_as_they_were() -> None:
    found = screen(
        ON,
        {"a": UpdateClaim(40, {}), "b": UpdateClaim(90, {}), "c": UpdateClaim(30, {}), "z": UpdateClaim(10**9, {})},
        history(),
    )
    assert found.capped == {"b": 80, "z": 80}
    assert found.excluded == {}


def test_counts_of_classes_shrink_with_the_weight() -> None:
    update = Update("z", 100, 1, {"prototypes": torch.ones(2, 3), "counts": torch.tensor([75.0, 25.0])})
    capped = cap_examples(update, 20, METHODS["fedproto"].upload_groups)
    assert (capped.examples, capped.tensors["counts"].tolist()) == (20, [15.0, 5.0])
    assert update.tensors["counts"].tolist() == [75.0, 25.0]
    assert cap_examples(update, None, {}) is update


def test_the_mean_of_a_capped_round_in_numpy() -> None:
    method, values = METHODS["fedavg"](), {"a": 1.0, "b": 2.0, "c": 3.0, "z": -1000.0}
    examples = {"a": 40, "b": 50, "c": 60, "z": 10**9}
    found = screen(ON, {name: UpdateClaim(n, {}) for name, n in examples.items()}, history())
    updates = [Update(n, examples[n], 1, {"params": {"w": torch.tensor([v])}}) for n, v in values.items()]
    state = {"params": {"w": torch.zeros(1)}}
    after = method.aggregate(
        state, [cap_examples(update, found.capped.get(update.client_id), method.upload_groups) for update in updates]
    )
    mean = np.average(list(values.values()), weights=[40, 50, 60, 100])  # twice 50
    assert float(after["params"]["w"]) == pytest.approx(mean, rel=1e-6)
    assert float(method.aggregate(state, updates)["params"]["w"]) == pytest.approx(-1000, abs=1e-2)


@pytest.mark.parametrize("fleet", range(2, 9))
@pytest.mark.parametrize("known", [0, 1, 5])
def test_noise_is_left_out_in_every_small_fleet(fleet: int, known: int) -> None:
    """Whoever is first in the alphabet, or uploads first: the judgement is over all of them."""
    norms = {"a": 1000.0} | {f"h{n}": 1.0 + n / 10 for n in range(fleet - 1)}
    found = screen(ON, claims(norms), history(*[1.2] * known, updates=fleet))
    assert list(found.excluded) == ["a"]
    lower = float(np.percentile([norms[name] for name in norms if name != "a"], 50, method="lower"))
    assert found.norms["params"] == Typical(lower, fleet - 1)
    assert "the L2 norm 1000, over 10 times the median" in found.excluded["a"]


def test_the_median_is_over_this_round_and_the_last_ones_in_numpy() -> None:
    earlier = history(4.0, 5.0, updates=3)
    own = {"a": 1.0, "b": 2.0, "c": 49.0, "d": 51.0, "e": 100.0}
    lower = float(np.percentile([*own.values(), *[4.0] * 3, *[5.0] * 3], 50, method="lower"))
    assert lower == 5.0
    assert sorted(screen(ON, claims(own), earlier).excluded) == [name for name, n in own.items() if n > 10 * lower]
    # alone they would say 49, and nobody would be out
    assert screen(ON, claims(own), history()).excluded == {}


def test_a_tiny_update_does_not_put_an_honest_one_out_where_earlier_rounds_are_known() -> None:
    both = claims({"honest": 1.0, "tiny": 1e-6})
    assert list(screen(ON, both, history()).excluded) == ["honest"]  # of two, the larger one: nobody can tell
    assert screen(ON, both, history(1.0, updates=2)).excluded == {}


def test_after_a_failed_round_three_updates_judge_one_another() -> None:
    """Where all have changed honestly, rounds would fail for ever."""
    earlier = history(1.0, 1.0, 1.0)
    changed = claims({"a": 30.0, "b": 31.0, "c": 32.0})
    assert len(screen(ON, changed, earlier).excluded) == 3
    assert refusal(ON, {"params": 30.0}, earlier)
    failed = earlier.failed()
    assert refusal(ON, {"params": 30.0}, failed) == ""
    assert screen(ON, changed, failed).excluded == {}
    assert failed.published({"params": Typical(31.0, 3)}).rounds == ({"params": Typical(31.0, 3)},)
    # two cannot: earlier rounds still count
    assert list(screen(ON, claims({"a": 1.0, "z": 30.0}), failed).excluded) == ["z"]


def test_on_arrival_earlier_rounds_judge_once_they_are_enough() -> None:
    assert refusal(ON, {"params": 1e6}, NormHistory()) == ""
    assert refusal(ON, {"params": 11.0}, history(1.0, updates=7)) == ""  # norm_after is 8
    reason = refusal(ON, {"params": 11.0}, history(1.0, updates=8))
    assert reason == (
        "the change of params has the L2 norm 11, over 10 times the median 1 of 8 updates of earlier rounds "
        "(rounds.norm_factor)"
    )
    assert refusal(ON, {"params": 9.9}, history(1.0, updates=8)) == ""


def test_null_and_clipping_switch_both_off() -> None:
    off = RoundSettings(norm_factor=None, max_weight_ratio=None)
    wild = {**claims({"a": 1.0, "b": 1.0, "c": 1e9}), "d": UpdateClaim(10**9, {"params": 1.0})}
    assert screen(off, wild, history()) == Screening(norms={"params": Typical(1.0, 4)})
    clipped = RoundSettings(clip_norm=1.0)
    assert screen(clipped, wild, history(1.0)) == Screening()
    assert refusal(clipped, {"params": 1e9}, history(1.0, 1.0)) == ""


def test_a_round_of_which_too_little_is_left_says_so() -> None:
    two = RoundSettings(minimum_clients=2)
    both = claims({"a": 1.0, "z": 1000.0})
    found = screen(two, both, history())
    reason = shortfall(two, both, found)
    assert reason.startswith("quorum not reached: 1 of 2 updates were left out for their norm (z), 1 remain, 2 are")
    assert "raise rounds.norm_factor" in reason
    assert shortfall(ON, both, found) == ""
    assert shortfall(two, claims({"a": 1.0}), Screening()) == ""  # that is the round machine's to say


def test_the_history_is_short_and_survives_being_written_down() -> None:
    long = history(*map(float, range(20)))
    assert [one["params"].median for one in long.rounds] == [15.0, 16.0, 17.0, 18.0, 19.0]
    assert len(long.rounds) == HISTORY_ROUNDS
    assert NormHistory.from_json(json.loads(json.dumps(long.failed().to_json()))) == long.failed()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_method_gives_a_capped_client_more_than_the_limit(name: str) -> None:
    """What a client claims beyond the limit changes nothing: 10⁹ examples are as 80."""
    if METHODS[name].traits.pools_data or name == "local":
        pytest.skip("nothing is aggregated")
    here = federation(METHODS[name]())
    method, state, updates = here.setup.method, here.state, here.updates()
    limit = 2 * sorted(update.examples for update in updates)[(len(updates) - 1) // 2]
    wild = [_claiming(method, update, 10**9 if n == 0 else update.examples) for n, update in enumerate(updates)]
    fair = [_claiming(method, update, limit if n == 0 else update.examples) for n, update in enumerate(updates)]
    found = screen(
        RoundSettings(norm_factor=None), {one.client_id: UpdateClaim(one.examples, {}) for one in wild}, history()
    )
    assert found.capped == {wild[0].client_id: limit}
    capped = method.aggregate(
        state, [cap_examples(update, found.capped.get(update.client_id), method.upload_groups) for update in wild]
    )
    _assert_close(capped, method.aggregate(state, fair))


def _claiming(method: Method, update: Update, examples: int) -> Update:
    return cap_examples(update, examples, method.upload_groups)._replace(examples=examples)


def _assert_close(left: Any, right: Any) -> None:
    if isinstance(left, Mapping):
        assert left.keys() == right.keys()
        for key in left:
            _assert_close(left[key], right[key])
    else:
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
