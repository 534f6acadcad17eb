"""Splits keep what they promise; statistics add up and see training windows only."""

from __future__ import annotations

import json
import warnings

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from har_pipeline import (
    ChannelStatistics,
    ClientWindows,
    PipelineSettings,
    SettingsError,
    Split,
    WindowedDataset,
    channel_statistics,
    cut_validation,
    leave_devices_out,
    leave_subjects_out,
    normalize_clients,
    split_client,
)
from har_pipeline.splits import overlaps


def client(y, start_s, name="c", seed=0) -> ClientWindows:
    x = np.random.default_rng(seed).normal(3, 2, (len(y), 128, 6)).astype(np.float32)
    return ClientWindows(name, x, np.asarray(y), np.asarray(start_s, float), np.zeros(len(y), np.int64))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120),
    steps=st.sampled_from([0.02, 0.32, 1.28, 2.56, 4.0]),
    base=st.sampled_from([0.0, 1.6e9]),
    shuffle=st.booleans(),
)
def test_no_test_window_overlaps_a_training_window_under_temporal(labels, steps, base, shuffle):
    start = base + steps * np.arange(len(labels))
    if shuffle:
        start = np.random.default_rng(len(labels)).permutation(start)
    windows = client(labels, start)
    split = split_client(windows, settings=PipelineSettings())
    assert not split.leaks
    assert not set(split.train) & set(split.test)
    distance = np.abs(start[split.train][:, None] - start[split.test][None, :])
    assert (distance > 2.56 - 1e-5).all()
    for label in set(labels):
        mine = np.flatnonzero(windows.y == label)
        tested = np.intersect1d(mine, split.test)
        assert len(tested) == (max(1, round(0.2 * len(mine))) if len(mine) > 1 else 0)
        kept = np.setdiff1d(mine, tested)
        assert not len(tested) or not len(kept) or start[kept].max() <= start[tested].min()
    dropped = np.setdiff1d(np.arange(len(labels)), np.concatenate([split.train, split.test]))
    for each in dropped:
        assert np.abs(start[each] - start[split.test]).min() < 2.56


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120),
    steps=st.sampled_from([0.02, 0.32, 1.28, 2.56, 4.0]),
    share=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
)
def test_no_validation_window_overlaps_a_training_window_and_no_class_is_lost(labels, steps, share):
    start = np.random.default_rng(len(labels)).permutation(steps * np.arange(len(labels)))
    windows = client(labels, start)
    before = split_client(windows, settings=PipelineSettings()).train
    train, validation = cut_validation(windows, before, share, PipelineSettings())
    assert set(train) | set(validation) <= set(before)
    assert not set(train) & set(validation)
    distance = np.abs(start[train][:, None] - start[validation][None, :])
    assert (distance > 2.56 - 1e-5).all()
    assert set(windows.y[train]) == set(windows.y[before])
    for label in set(windows.y[validation]):
        mine, held = (rows[windows.y[rows] == label] for rows in (before, validation))
        assert len(held) == round(share * len(mine))
        assert start[held].min() > np.delete(start[mine], np.isin(mine, held)).max()


def test_validation_is_the_tail_of_training_and_only_the_window_across_the_cut_is_dropped():
    windows = client([0] * 20 + [1] * 20, 1.28 * np.arange(40))
    train, validation = cut_validation(windows, np.arange(40), 0.1, PipelineSettings())
    assert validation.tolist() == [18, 19, 38, 39]
    assert train.tolist() == [*range(17), *range(21, 37)]  # 17, 20 and 37 reach into a validation window


def test_a_class_that_would_be_lost_to_training_keeps_its_tail():
    windows = client([0] * 20 + [1] * 6, 0.32 * np.arange(26))  # six windows of 2.56 s begin within 1.6 s
    train, validation = cut_validation(windows, np.arange(26), 0.1, PipelineSettings())
    assert validation.tolist() == []  # the tail of 0 reaches into all of 1, that of 1 too
    assert train.tolist() == list(range(26))
    apart = client([0] * 20 + [1] * 6, [*(0.32 * np.arange(20)), *(100 + 0.32 * np.arange(6))])
    assert cut_validation(apart, np.arange(26), 0.1, PipelineSettings())[1].tolist() == [18, 19]


@pytest.mark.parametrize("share", [-0.1, 0.6])
def test_an_impossible_share_of_validation_is_refused(share):
    with pytest.raises(SettingsError, match=r"must lie between 0 .none. and 0\.5"):
        cut_validation(client([0], [0]), np.arange(1), share, PipelineSettings())


def test_temporal_takes_the_last_fifth_and_drops_only_the_window_across_the_cut():
    split = split_client(client([0] * 20, 1.28 * np.arange(20)), settings=PipelineSettings())
    assert split.test.tolist() == [16, 17, 18, 19]
    assert split.train.tolist() == list(range(15))


def test_random80_is_seeded_and_says_that_it_leaks():
    windows = client([0] * 50 + [1] * 30, 1.28 * np.arange(80))
    settings = PipelineSettings()
    split = split_client(windows, "random80", seed=1, settings=settings)
    assert split.leaks
    assert len(split.test) == 16
    assert sorted([*split.train, *split.test]) == list(range(80))
    again = split_client(windows, "random80", seed=1, settings=settings)
    assert (again.test == split.test).all()
    assert (split_client(windows, "random80", seed=2, settings=settings).test != split.test).any()


def kfold(windows: ClientWindows, fold: int = 0, seed: int = 0) -> Split:
    return split_client(windows, "kfold7_3", fold=fold, seed=seed, settings=PipelineSettings())


@given(
    runs=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=12),
    seed=st.integers(0, 3),
)
def test_kfold_takes_the_folds_of_scikit_learn_without_shuffling(runs, seed):
    """The oracle is what the FedAli authors' processFLData does: seven folds train, the last three test."""
    labels = np.repeat([label for label, _ in runs], [length for _, length in runs])
    hypothesis.assume(max(np.bincount(labels)) >= 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with fewer examples than folds
        folds = [test for _, test in StratifiedKFold(10, shuffle=False).split(labels, labels)]
    in_time = client(labels, 1.28 * np.arange(len(labels)))
    split = kfold(in_time, seed=seed)
    assert split.train.tolist() == sorted(np.hstack(folds[:7]))
    assert split.test.tolist() == sorted(np.hstack(folds[7:]))
    assert kfold(in_time, fold=1).test.tolist() == sorted(np.hstack(folds[:3]))
    # the same windows in another order: time decides
    order = np.random.default_rng(seed).permutation(len(labels))
    assert set(order[kfold(in_time.select(order)).test]) == set(split.test)


def test_kfold_leaks_only_where_training_and_test_meet():
    windows = client([0] * 50 + [1] * 30, 1.28 * np.arange(80))
    split = kfold(windows)
    assert split.leaks
    assert split.test.tolist() == [*range(35, 50), *range(71, 80)]
    shared = overlaps(windows.start_s[split.test], windows.start_s[split.train], 2.56)
    # 35 with 34, 49 with 50, 71 with 70; of windows drawn at random nearly all do
    assert split.test[shared].tolist() == [35, 49, 71]


def test_unknown_splits_and_shares_are_refused():
    with pytest.raises(SettingsError, match="did you mean 'temporal'"):
        split_client(client([0], [0]), "temporall", settings=PipelineSettings())
    with pytest.raises(SettingsError, match="test_share"):
        split_client(client([0], [0]), test_share=1, settings=PipelineSettings())


@pytest.mark.parametrize("kind", ["temporal", "random80"])
def test_with_a_share_of_0_every_window_is_for_training(kind):
    split = split_client(client([0, 1] * 9, 1.28 * np.arange(18)), kind, test_share=0, settings=PipelineSettings())
    assert (split.train.tolist(), split.test.tolist(), split.leaks) == (list(range(18)), [], False)


@pytest.fixture
def dataset() -> WindowedDataset:
    names = [f"{subject}_{device}" for subject in "abc" for device in ("nexus4", "s3")]
    clients = {name: client([0, 1] * 10, 2.56 * np.arange(20), name, seed) for seed, name in enumerate(names)}
    return WindowedDataset("hhar", ("walk", "sit"), clients, PipelineSettings())


def test_subjects_and_devices_are_left_out_whole(dataset):
    train, test = leave_subjects_out(dataset, ["b"])
    assert test == ("b_nexus4", "b_s3")
    assert train == ("a_nexus4", "a_s3", "c_nexus4", "c_s3")
    train, test = leave_devices_out(dataset, ["s3"])
    assert test == ("a_s3", "b_s3", "c_s3")
    train, test = leave_subjects_out(dataset, 1, seed=3)
    assert len({dataset.subject_of(each) for each in test}) == 1
    assert (train, test) == leave_subjects_out(dataset, 1, seed=3)
    with pytest.raises(SettingsError, match="unknown subject 'z'"):
        leave_subjects_out(dataset, ["z"])
    with pytest.raises(SettingsError, match="at least one on each side"):
        leave_devices_out(dataset, 2)
    with pytest.raises(SettingsError, match="one side without clients"):
        leave_devices_out(dataset, ["s3", "nexus4"])


def test_statistics_add_up_to_those_of_the_whole_and_survive_json():
    x = np.random.default_rng(0).normal(5, 3, (30, 128, 6)).astype(np.float32)
    parts = ChannelStatistics.of(x[:7]) + ChannelStatistics.of(x[7:])
    rows = x.reshape(-1, 6).astype(np.float64)
    np.testing.assert_allclose(parts.mean, rows.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(parts.std, rows.std(axis=0), rtol=1e-10)
    assert ChannelStatistics.from_json(json.loads(json.dumps(parts.to_json()))) == parts
    assert parts.normalize(x).dtype == np.float32
    with pytest.raises(SettingsError, match="lack 'square'"):
        ChannelStatistics.from_json({"count": 1, "total": [0]})


def test_a_constant_channel_becomes_zeros_and_nothing_counted_changes_nothing():
    x = np.full((4, 128, 6), 9.81, dtype=np.float32)
    assert np.abs(ChannelStatistics.of(x).normalize(x)).max() < 0.01
    none = ChannelStatistics.of(x[:0])
    assert (none.normalize(x) == x).all()


def test_client_normalization_uses_each_clients_own_training_windows(dataset):
    splits = {name: split_client(each, settings=dataset.settings) for name, each in dataset.clients.items()}
    normalized, statistics = normalize_clients(dataset.clients, splits, "client")
    for name, each in normalized.items():
        train = each.x[splits[name].train].reshape(-1, 6)
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-4)
        assert statistics[name].count == 128 * len(splits[name].train)


def test_federated_equals_pooled_and_both_ignore_test_windows_and_other_clients(dataset):
    splits = {name: split_client(each, settings=dataset.settings) for name, each in dataset.clients.items()}
    training = [name for name in dataset.clients if not name.startswith("c")]
    federated = channel_statistics(dataset.clients, splits, "federated", training_clients=training)
    pooled = channel_statistics(dataset.clients, splits, "pooled", training_clients=training)
    np.testing.assert_allclose(federated["c_s3"].mean, pooled["c_s3"].mean, rtol=1e-9)
    np.testing.assert_allclose(federated["c_s3"].std, pooled["c_s3"].std, rtol=1e-9)
    for name, each in dataset.clients.items():
        each.x[splits[name].test] += 1000
    dataset.clients["c_s3"].x[:] += 1000
    assert channel_statistics(dataset.clients, splits, training_clients=training) == federated
    with pytest.raises(SettingsError, match="normalization 'global'"):
        channel_statistics(dataset.clients, splits, "global")
    with pytest.raises(SettingsError, match="no client contributes"):
        channel_statistics(dataset.clients, splits, training_clients=["nobody"])
