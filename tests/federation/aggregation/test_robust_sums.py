"""Least trimmed squares over clients' sums, and versions that follow from who is present alone."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation.aggregation import ridge, robust
from federation.aggregation.present_sums import combined, needs_all, settings_of
from federation.errors import RoundError, SettingsError
from federation.methods import method_from_json
from federation.methods.analytic import Analytic
from federation.plan import RoundSettings
from federation.records import Tensors, Tree, Update
from federation.records.tree import flatten
from federation.tasks.task import LabelledFeatures

CLASSES, D = 3, 5
OFF = RoundSettings(max_weight_ratio=None, norm_factor=None)
CENTRES = 2 * np.random.default_rng(5).normal(size=(CLASSES, D))


def sums(seed: int, count: int = 30, *, turned: int = 0) -> Tensors:
    """What a client sends whose classes lie where all others' do; `turned`: it calls them by other names."""
    draw = np.random.default_rng(seed)
    classes = np.arange(count) % CLASSES
    features = CENTRES[classes] + draw.normal(0, 0.7, (count, D))
    labels = (classes + turned) % CLASSES
    rows = LabelledFeatures(torch.tensor(features), torch.tensor(labels), torch.ones(count))
    return ridge.travelling(ridge.added(ridge.empty_ridge_sums(CLASSES, D, torch.zeros(())), rows, 4.0))


def state() -> Tree:
    size = D + 1
    zero = {"gram": torch.zeros(size * (size + 1) // 2).long(), "moment": torch.zeros(size, CLASSES).long()}
    params = {"head.weight": torch.zeros(CLASSES, D), "head.bias": torch.zeros(CLASSES)}
    return {"params": params, "sums": {**zero, "clients": torch.tensor(0)}}


def version(parts: dict[str, Tensors], rounds: RoundSettings = OFF, **options: Any) -> Tree:
    return made(parts, rounds, **options).state


def made(parts: dict[str, Tensors], rounds: RoundSettings = OFF, **options: Any) -> Any:
    method = method_from_json({"name": "analytic", **options})
    return combined(method, rounds, 7, state(), list(parts), lambda name: Update(name, 30, 0, parts[name]))


def same(one: Tree, other: Tree) -> bool:
    left, right = flatten(one), flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def is_sum_of(found: Tree, parts: list[Tensors]) -> bool:
    return all(torch.equal(found["sums"][name], value) for name, value in ridge.total_of(parts).items())


HONEST = {f"h{k}": sums(k) for k in range(7)}
HOSTILE = {f"a{k}": sums(100 + k, turned=1) for k in range(3)}


@pytest.mark.parametrize("rule", [{"aggregation": "trimmed_mean", "trim": 0.3}, {"aggregation": "median"}])
def test_three_of_ten_who_call_classes_by_other_names_are_not_used(rule: dict[str, Any]) -> None:
    found = version({**HOSTILE, **HONEST}, **rule)
    assert is_sum_of(found, list(HONEST.values()))
    assert int(found["sums"]["clients"]) == 7
    assert not is_sum_of(version({**HOSTILE, **HONEST}), list(HONEST.values())), "the mean uses them"


def test_the_median_uses_all_who_fit() -> None:
    assert is_sum_of(version(HONEST, aggregation="median"), list(HONEST.values()))


def test_the_trimmed_sum_leaves_out_its_share() -> None:
    for trim, left in ((0.0, 7), (0.15, 6), (0.3, 5), (0.49, 4)):
        found = version(HONEST, aggregation="trimmed_mean", trim=trim)
        assert int(found["sums"]["clients"]) == left


def test_the_choice_is_the_best_of_all_choices() -> None:
    """Against every subset of five of seven clients: none has a head with less error on it. Oracle: numpy."""
    parts = [*list(HONEST.values())[:5], *list(HOSTILE.values())[:2]]

    def error(chosen: tuple[int, ...]) -> float:
        grams, moments = [], []
        for index in chosen:
            half = np.zeros((D + 1, D + 1))
            half[np.triu_indices(D + 1)] = parts[index]["gram"].numpy() / float(parts[index]["gram"][-1])
            grams.append(half + np.triu(half, 1).T)
            moments.append(parts[index]["moment"].numpy() / float(parts[index]["gram"][-1]))
        gram = sum(grams)
        head = np.linalg.solve(gram + 1e-2 * np.trace(gram) / (D + 1) * np.eye(D + 1), sum(moments))
        squares = [
            np.trace(head.T @ g @ head) - 2 * (head * b).sum() + b[-1].sum()
            for g, b in zip(grams, moments, strict=True)
        ]
        return float(sum(squares))

    best = min(combinations(range(7), 5), key=error)
    assert tuple(robust.used("trimmed_mean", parts, 0.3, 1e-2)) == best == (0, 1, 2, 3, 4)


def test_clients_without_examples_change_nothing() -> None:
    nobody = {name: torch.zeros_like(value) for name, value in sums(0).items()}
    found = version({**HONEST, **HOSTILE, "none": nobody}, aggregation="median")
    assert is_sum_of(found, list(HONEST.values()))
    assert same(version({"none": nobody}, aggregation="median")["params"], version({}, aggregation="median")["params"])


def test_many_clients_are_dealt_into_groups_of_about_one_size_whatever_their_order() -> None:
    names = [f"n{k}" for k in range(50)]
    groups = robust.deal(names, 8, 3)
    assert sorted(map(len, groups)) == [6] * 6 + [7] * 2
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert groups == robust.deal(names[::-1], 8, 3)
    assert groups != robust.deal(names, 8, 4)
    assert robust.deal(names[:3], 8, 3) == [[name] for group in robust.deal(names[:3], 8, 3) for name in group]


def test_a_group_with_a_hostile_client_is_left_out_as_a_whole() -> None:
    parts = {**{f"h{k}": sums(k) for k in range(20)}, "a": sums(100, turned=1)}
    found = version(parts, aggregation="median", groups=7)
    (hit,) = (group for group in robust.deal(list(parts), 7, 7) if "a" in group)
    assert is_sum_of(found, [part for name, part in parts.items() if name not in hit])


RULES = [
    {},
    {"aggregation": "median"},
    {"aggregation": "trimmed_mean", "trim": 0.25},
    {"aggregation": "median", "groups": 3},
]


@given(
    st.lists(st.sampled_from([*HONEST, *HOSTILE]), max_size=10, unique=True),
    st.sampled_from(RULES),
    st.sampled_from([OFF, RoundSettings()]),
    st.integers(0, 9),
)
def test_a_version_follows_from_who_is_present_alone(
    names: list[str], rule: dict[str, Any], rounds: RoundSettings, leaver: int
) -> None:
    """Any order, and from the state that any others have left: so who has gone was never there, bit for bit."""
    everybody, method = {**HONEST, **HOSTILE}, method_from_json({"name": "analytic", **rule})
    parts = {name: everybody[name] for name in names}
    found = version(parts, rounds, **rule)
    assert same(found, version(dict(sorted(parts.items(), reverse=True)), rounds, **rule))
    before = version({**parts, sorted(everybody)[leaver]: sums(55, turned=2)}, rounds, **rule)
    again = combined(method, rounds, 7, before, names, lambda name: Update(name, 30, 0, parts[name]))
    assert same(again.state, found)


def test_a_claim_is_worth_two_median_clients() -> None:
    """The same means with 900 times the windows: thirty times the weight, of which two median ones' is left."""
    heavy = {name: (value.double() * 30).round().int() for name, value in sums(50).items()}
    found = made({**HONEST, "big": heavy}, RoundSettings(norm_factor=None))
    share = found.state["sums"]["gram"] - ridge.total_of(list(HONEST.values()))["gram"]
    assert float(share[-1]) == pytest.approx(2 * float(HONEST["h0"]["gram"][-1]), rel=1e-6)
    expected = heavy["gram"].double() * float(share[-1]) / float(heavy["gram"][-1])
    assert float((share - expected).abs().max()) <= 0.5
    assert found.screening.capped == {"big": 30 * 4 // 900}  # of the 30 that are claimed here


def test_sums_too_large_for_their_weight_are_left_out() -> None:
    draw = np.random.default_rng(0)
    small = {}
    for k in range(5):
        rows = LabelledFeatures(torch.tensor(draw.normal(0, 0.05, (30, D))), torch.arange(30) % 3, torch.ones(30))
        small[f"s{k}"] = ridge.travelling(ridge.added(ridge.empty_ridge_sums(3, D, torch.zeros(())), rows, 4.0))
    rows = LabelledFeatures(torch.full((30, D), 4.0), torch.arange(30) % 3, torch.ones(30))
    lever = ridge.travelling(ridge.added(ridge.empty_ridge_sums(3, D, torch.zeros(())), rows, 4.0))
    found = made({**small, "lever": lever}, RoundSettings())
    assert "over 10 times the median" in found.screening.excluded["lever"]
    assert is_sum_of(found.state, list(small.values()))
    with pytest.raises(RoundError, match="quorum not reached"):
        made({**small, "lever": lever}, RoundSettings(minimum_clients=6))


def test_a_state_says_by_which_rules_it_was_made_and_devices_do_not_hear_it() -> None:
    found = version(HONEST, RoundSettings(max_weight_ratio=3, norm_factor=None))
    read = settings_of(found, RoundSettings())
    assert (read.max_weight_ratio, read.norm_factor) == (3.0, None)
    assert needs_all(Analytic(), OFF, found), "the sums of all are of capped ones"
    plain = version(HONEST)
    assert not needs_all(Analytic(), OFF, plain)
    assert settings_of(plain, RoundSettings()) == OFF
    assert same(Analytic().broadcast(found, ""), plain)


def test_rules_without_a_meaning_for_sums_are_refused() -> None:
    with pytest.raises(SettingsError, match="aggregation=krum: expected mean, median, trimmed_mean"):
        Analytic(aggregation="krum")
    with pytest.raises(SettingsError, match="groups=2: expected 3 to 256"):
        Analytic(groups=2)
