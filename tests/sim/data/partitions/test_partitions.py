"""Every partition: no example twice, nobody empty, the sizes that were asked for, and the same again from one seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.data.partitions import (
    PARTITIONS,
    Dirichlet,
    Equal,
    Natural,
    NWay,
    Partition,
    Pool,
    PowerLaw,
    Shards,
    class_counts,
    partition_from_json,
    partition_to_json,
)
from sim.data.partitions.partition import apportion, thinned
from sim.errors import SettingsError
from tests.sim.data.partitions.pools import pool

EXAMPLES: list[Partition] = [
    Natural(),
    Natural(test="published"),
    Natural(clients=3),
    Dirichlet(clients=8, alpha=0.5),
    Dirichlet(clients=8, alpha=0.5, capped=False, test="split"),
    Dirichlet(clients=8, alpha=0.05, axis="client", examples=400),
    NWay(clients=6, shots=40, test_shots=10),
    NWay(clients=6, shots=40, test_shots=10, test="split"),
    Shards(clients=30),
    Shards(clients=30, classes=3, test="published"),
    PowerLaw(clients=20, alpha=0.1),
    PowerLaw(clients=9, gamma=1.5, examples=500, test="published"),
    Equal(clients=13),
    Equal(clients=13, test="split", examples=100),
]


@pytest.mark.parametrize("partition", EXAMPLES, ids=repr)
@given(seed=st.integers(0, 2**40), data=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_no_example_twice_and_nobody_empty(partition: Partition, seed: int, data: int) -> None:
    given = pool(seed=data)
    shares = partition.divide(given, seed)
    dealt = np.concatenate([part for share in shares.values() for part in share])
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < len(given.y)
    assert list(shares) == sorted(shares)
    for share in shares.values():
        assert len(share.train) > 0
        assert len(share.test) > 0
        assert np.all(np.diff(share.train) > 0)
        if partition.test == "published":
            assert given.train[share.train].all()
            assert not given.train[share.test].any()


@pytest.mark.parametrize("partition", EXAMPLES, ids=repr)
def test_one_seed_repeats_and_another_differs(partition: Partition) -> None:
    first, again, other = (partition.divide(pool(), seed) for seed in (3, 3, 4))
    assert list(first) == list(again)
    for name, share in first.items():
        assert all(np.array_equal(a, b) for a, b in zip(share, again[name], strict=True))
    if partition != Natural(test="published"):  # it draws nothing
        assert any(not np.array_equal(first[name].train, other[name].train) for name in first.keys() & other.keys())


@pytest.mark.parametrize("partition", EXAMPLES, ids=repr)
def test_json_round_trip(partition: Partition) -> None:
    record = partition_to_json(partition)
    assert record["kind"] == partition.kind
    assert partition_from_json(record) == partition


def test_every_kind_has_an_example() -> None:
    assert {partition.kind for partition in EXAMPLES} == set(PARTITIONS)


@pytest.mark.parametrize("partition", [p for p in EXAMPLES if p.test == "split" and not isinstance(p, NWay)], ids=repr)
def test_split_holds_out_a_fifth_in_the_clients_proportions(partition: Partition) -> None:
    given = pool()
    shares = partition.divide(given, 0)
    train, test = (class_counts(shares, given.y, given.classes, part) for part in ("train", "test"))
    both = train + test
    assert np.all(np.abs(test.sum(1) - 0.2 * both.sum(1)) <= 1)
    if not isinstance(partition, Natural):
        assert np.all(np.abs(test - 0.2 * both) <= 1.5)


def test_published_tests_follow_the_training_classes() -> None:
    given = pool()
    shares = Dirichlet(clients=8, alpha=0.3).divide(given, 0)
    train, test = (class_counts(shares, given.y, given.classes, part) for part in ("train", "test"))
    assert test.sum(0).tolist() == given.sizes(~given.train).tolist()  # every test example is somebody's
    assert np.array_equal(test > 0, train > 0)
    quota = given.sizes(~given.train) * train / train.sum(0)
    assert np.all(np.abs(test - quota) <= 8)  # one for each holder first, the rest in proportion


def test_dirichlet_by_class_hands_out_everything_with_the_minimum() -> None:
    given = pool()
    table = class_counts(Dirichlet(clients=8, alpha=0.3, minimum=40).divide(given, 1), given.y, 4, "train")
    assert table.sum(0).tolist() == given.sizes(given.train).tolist()
    assert table.sum(1).min() >= 40


def test_dirichlet_by_class_has_the_distributions_moments() -> None:
    """A proportion of Dir(α, …, α) over K clients has mean 1/K and variance (K − 1)/(K²(Kα + 1))."""
    k, alpha = 5, 0.8
    sizes = np.full(40, 2000)
    tables = [Dirichlet(clients=k, alpha=alpha, minimum=1, capped=False).counts(sizes, seed) for seed in range(40)]
    shares = np.stack(tables) / 2000
    assert shares.mean() == pytest.approx(1 / k)
    assert shares.var() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.1)


def test_dirichlet_by_client_has_equal_sizes_and_the_distributions_moments() -> None:
    classes, alpha = 5, 0.8
    table = Dirichlet(clients=400, alpha=alpha, axis="client", minimum=1, examples=40_000).counts(
        np.full(classes, 40_000), 0
    )
    assert set(table.sum(1)) == {100}
    assert (table / 100).var() == pytest.approx((classes - 1) / (classes**2 * (classes * alpha + 1)), rel=0.1)


def test_dirichlet_by_client_uses_up_every_class() -> None:
    sizes = np.array([50, 10, 0, 40])
    table = Dirichlet(clients=10, alpha=0.05, axis="client", minimum=1).counts(sizes, 0)
    assert table.sum(0).tolist() == sizes.tolist()
    assert set(table.sum(1)) == {10}


def test_a_large_alpha_is_nearly_equal() -> None:
    sizes = np.array([1000, 2000])
    for axis in ("class", "client"):
        table = Dirichlet(clients=10, alpha=1e6, axis=axis, capped=False).counts(sizes, 0)
        assert np.all(np.abs(table - sizes / 10) <= 3)


def test_n_way_has_about_n_classes_and_k_shots() -> None:
    table = NWay(clients=2000, ways=4, stdev=1, shots=100, shots_stdev=5).counts(np.full(10, 10**6), 0)
    ways = (table > 0).sum(1)
    assert ways.mean() == pytest.approx(4, abs=0.1)
    assert ways.std() == pytest.approx(np.sqrt(1 + 1 / 12), abs=0.1)  # rounding adds a twelfth
    assert table[table > 0].mean() == pytest.approx(100, abs=0.5)
    assert all(len(set(row[row > 0])) == 1 for row in table)  # one k for all of a client's classes
    assert np.abs((table > 0).mean(0) - 0.4).max() < 0.05  # no class is preferred


def test_n_way_tests_each_of_its_classes_alike() -> None:
    given = pool()
    for test in ("published", "split"):
        shares = NWay(clients=6, shots=40, test_shots=10, test=test).divide(given, 0)
        train, tested = (class_counts(shares, given.y, 4, part) for part in ("train", "test"))
        assert np.array_equal(tested, 10 * (train > 0))
        assert np.abs(train[train > 0] - 40).max() <= 10


def test_a_client_more_changes_no_others_draws() -> None:
    sizes = np.full(4, 800)
    few, more = (NWay(clients=clients, shots=20, test_shots=5) for clients in (5, 6))
    assert np.array_equal(few.counts(sizes, 0), more.counts(sizes, 0)[:5])
    before, after = (each.divide(pool(), 0) for each in (few, more))
    for name, share in before.items():
        assert all(np.array_equal(a, b) for a, b in zip(share, after[name], strict=True))
    small, large = (Dirichlet(clients=k, axis="client", examples=50 * k) for k in (5, 6))
    assert np.array_equal(small.counts(sizes, 0), large.counts(sizes, 0)[:5])


def test_shards_hold_neighbouring_classes_and_sizes_of_a_power_law() -> None:
    sizes = np.full(10, 7000)
    table = Shards().counts(sizes, 0)
    assert table.shape == (1000, 10)
    assert table.sum(0).tolist() == sizes.tolist()
    assert table[table > 0].min() >= 5
    assert np.flatnonzero(table[19]).tolist() == [0, 9]
    totals = table.sum(1)
    assert np.median(totals) < 0.6 * totals.mean()  # many small, few large
    assert totals.max() > 10 * totals.mean()


@pytest.mark.parametrize(
    ("sizes", "partition", "deviation"),
    [
        ([7000] * 10, {"clients": 1000, "classes": 2, "examples": 61676}, 164.7),
        ([5600] * 10, {"clients": 200, "classes": 5, "examples": 16421}, 143.0),
    ],
)
def test_shards_deviate_as_asked_with_every_seed(sizes: list[int], partition: dict[str, int], deviation: float) -> None:
    """Michieli and Ozay 2021, table 1, MNIST and FEMNIST; one σ for all seeds has 111 to 164 and 70 to 102."""
    for seed in range(6):
        totals = Shards(deviation=deviation, **partition).counts(np.array(sizes), seed).sum(1)
        assert totals.sum() == partition["examples"]
        assert totals.std() == pytest.approx(deviation, rel=0.002)


def test_shards_refuse_a_spread_out_of_reach() -> None:
    with pytest.raises(SettingsError, match=r"deviation is 900.0; these sizes deviate by \d+.\d at σ = 10"):
        Shards(clients=10, classes=2, deviation=900.0).counts(np.full(10, 100), 0)


def test_shards_without_spread_are_equal() -> None:
    table = Shards(clients=100, sigma=0).counts(np.full(10, 1000), 0)
    assert np.all(table[table > 0] == 50)


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6), clients=st.integers(1, 9))
@settings(deadline=None)
def test_equal_differs_by_one_at_most(sizes: list[int], clients: int) -> None:
    if sum(sizes) < clients:
        with pytest.raises(SettingsError, match="cannot be divided"):
            Equal(clients=clients).counts(np.array(sizes), 0)
        return
    table = Equal(clients=clients).counts(np.array(sizes), 0)
    assert table.sum(0).tolist() == sizes
    assert np.ptp(table, axis=0).max() <= 1
    assert np.ptp(table.sum(1)) <= 1


def test_natural_keeps_owners_and_leaves_small_ones_out() -> None:
    y = np.array([0, 1] * 10)
    client = np.array(["b"] * 12 + ["a"] * 7 + ["lonely"])
    shares = Natural(minimum=5).divide(Pool(y, 2, np.ones(20, bool), client), 0)
    assert list(shares) == ["a", "b"]
    for name, share in shares.items():
        assert set(client[np.concatenate(share)]) == {name}
    assert [len(share.test) for share in shares.values()] == [1, 2]


def test_natural_without_some_clients_leaves_the_others_as_they_were() -> None:
    given = pool()
    without = given.client != "writer-3"
    part = Pool(given.y, given.classes, given.train, np.where(without, given.client, "nobody"))
    before, after = Natural().divide(given, 0), Natural().divide(part, 0)
    for name in before.keys() & after.keys():
        assert np.array_equal(before[name].train, after[name].train)


def test_a_power_law_has_its_own_quantiles_as_sizes() -> None:
    """P(N ≥ n) ∝ n^−3: the k-th largest has k^(−1/3) parts; 6,665 examples of 100 clients are 66.65 ± 26.9."""
    table = PowerLaw(clients=100, alpha=0.1, examples=6665).counts(np.full(20, 400), 3)
    totals = np.sort(table.sum(1))[::-1]
    parts = np.arange(1, 101) ** (-1 / 3)
    assert np.all(np.abs(totals - 6665 * parts / parts.sum()) < 1)
    assert totals.mean() == 66.65
    assert totals.std() == pytest.approx(26.88, abs=0.05)
    first, other = (PowerLaw(clients=100, examples=6665).counts(np.full(20, 400), seed).sum(1) for seed in (0, 1))
    assert sorted(first) == sorted(other)
    assert first.tolist() != other.tolist(), "the seed says who is which"


def test_a_power_laws_clients_have_the_dirichlet_distributions_moments() -> None:
    classes, alpha = 5, 0.8
    table = PowerLaw(clients=400, gamma=1e6, alpha=alpha, examples=40_000).counts(np.full(classes, 40_000), 0)
    assert set(table.sum(1)) == {100}
    assert (table / 100).var() == pytest.approx((classes - 1) / (classes**2 * (classes * alpha + 1)), rel=0.1)
    assert PowerLaw(clients=400).counts(np.full(classes, 400), 0).sum(0).tolist() == [400] * classes, "all are dealt"


@given(
    total=st.integers(0, 1000),
    weights=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=20),
    at_least=st.integers(0, 3),
)
@settings(deadline=None)
def test_apportioned_parts_sum_and_stay_near_their_quota(total: int, weights: list[float], at_least: int) -> None:
    parts = apportion(total, weights, at_least)
    assert parts.min() >= 0
    assert np.all(parts[np.array(weights) == 0] == 0)
    assert parts.sum() == (total if sum(weights) else 0)
    if at_least == 0 and sum(weights):
        assert np.all(np.abs(parts - total * np.array(weights) / sum(weights)) < 1 + 1e-6)


def test_apportion_by_hand() -> None:
    assert apportion(10, [47, 16, 16, 21]).tolist() == [5, 2, 1, 2]  # quotas 4.7 1.6 1.6 2.1
    assert apportion(6, [1000, 1, 0], at_least=1).tolist() == [5, 1, 0]
    assert apportion(1, [3, 4], at_least=1).tolist() == [0, 1]  # not enough for everybody
    assert thinned(np.array([30, 10]), 4).tolist() == [3, 1]
    assert thinned(np.array([30, 10]), None).tolist() == [30, 10]


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"kind": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"kind": "dirichlet", "alhpa": 1}, "option of the partition dirichlet 'alhpa'.*did you mean 'alpha'"),
        ({"kind": "dirichlet", "alpha": "small"}, r"dirichlet: alpha: .*\(got 'small'\)"),
        ({"kind": "dirichlet", "alpha": 0}, "alpha is 0"),
        ({"kind": "dirichlet", "axis": "row"}, r"axis: .*\(got 'row'\)"),
        ({"kind": "shards", "sigma": 11}, "sigma is 11"),
        ({"kind": "power_law", "gamma": 0}, "gamma is 0"),
        ({"kind": "power_law", "alpha": 0}, "power_law: alpha is 0"),
        ({"kind": "n_way", "ways": 0}, "ways is 0"),
        ({"kind": "equal", "clients": 0}, "clients is 0"),
        ({"kind": "equal", "test_share": 1}, "test_share is 1"),
        ({}, "unknown partition ''"),
    ],
)
def test_wrong_options_are_explained(description: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        partition_from_json(description)


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (Dirichlet(clients=400), "3000 examples|2[0-9]+ examples for 400 clients"),
        (Dirichlet(clients=100, alpha=0.001), "none of 1000 draws"),
        (Shards(clients=4000), "need 5 examples each of class 0"),
        (Shards(clients=10, classes=5), "5 classes per client, but the data have 4"),
        (PowerLaw(clients=1501), "3000 examples for 1501 clients, which need one to train and one to test on"),
        (NWay(clients=100), "of class .*use fewer clients or a smaller shots"),
        (NWay(clients=6, shots=10, test_shots=100), "use fewer clients or a smaller test_shots"),
        (Natural(clients=8), "the data have 7"),
        (Natural(minimum=10_000), "no client has 10000"),
    ],
)
def test_what_cannot_be_divided_is_explained(partition: Partition, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        partition.divide(pool(), 0)


def test_data_without_a_test_part_or_clients_say_what_to_do() -> None:
    y = np.repeat([0, 1], 20)
    bare = Pool(y, 2, np.ones(40, bool))
    with pytest.raises(SettingsError, match='set test="split"'):
        Equal(clients=2).divide(bare, 0)
    with pytest.raises(SettingsError, match="use another partition"):
        Natural().divide(bare, 0)
