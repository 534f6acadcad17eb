"""The readers and the pipeline on the real recordings."""

from __future__ import annotations

import numpy as np
import pytest

from har_pipeline import (
    SignalError,
    StreamPipeline,
    dataset_labels,
    dataset_settings,
    leave_subjects_out,
    prepare,
    recordings,
    split_client,
)
from tests.har_pipeline.streams import assert_same, cut

pytestmark = pytest.mark.data


@pytest.mark.ci
def test_spsw_phone_and_watch_windows_do_not_depend_on_chunks_and_do_not_leak(data):
    clients = ["s02_sp", "s02_sw"]
    dataset = prepare("spsw", data / "sp_sw_har", clients=clients)
    read = list(recordings("spsw", data / "sp_sw_har", clients=clients))
    assert {(each.client, each.sensor) for each in read} == {
        (name, each) for name in clients for each in ("acc", "gyro")
    }
    for client in clients:
        mine = [each for each in read if each.client == client]
        whole, pieces = (StreamPipeline(dataset_settings("spsw"), dataset.labels) for _ in range(2))
        one = [window for each in mine for window in whole.push(each)] + whole.flush()
        chunks = []
        for acc, gyro in zip(mine[::2], mine[1::2], strict=True):
            both = [cut(each, range(7, len(each.times_s), 37)) for each in (acc, gyro)]
            chunks += [piece for pair in zip(*both, strict=True) for piece in pair]
        other = [window for each in chunks for window in pieces.push(each)] + pieces.flush()
        assert_same(one, other)
        windows = dataset.clients[client]
        assert (np.stack([window.x for window in one]) == windows.x).all()
        split = split_client(windows, settings=dataset.settings)
        distance = np.abs(windows.start_s[split.train][:, None] - windows.start_s[split.test][None])
        assert distance.min() >= 2.56 - 1e-5
        # A person's gravity: the median of the total acceleration is close to it on the phone and on the watch.
        assert np.median(np.linalg.norm(windows.x[..., :3], axis=2)) == pytest.approx(9.81, abs=0.6)


def test_motionsense_sample_has_total_acceleration(data):
    dataset = prepare("motionsense", data / "motionsense" / "sample")
    windows = dataset.clients["s01"]
    assert {dataset.labels[y] for y in windows.y} == {"dws", "ups", "wlk", "jog"}
    assert windows.x[..., :3].mean(axis=(0, 1)) @ windows.x[..., :3].mean(axis=(0, 1)) == pytest.approx(96, rel=0.2)
    assert np.isfinite(windows.x).all()


def test_realworld_sensors_meet_on_one_grid_and_split_at_the_gaps(data):
    dataset = prepare("realworld", data / "realworld")
    windows = dataset.clients["1_shin"]
    assert {dataset.labels[y] for y in windows.y} == {"walking"}
    assert 400 < len(windows) < 31947 / 64
    assert len(set(windows.session)) > 3


def test_hhar_sample_with_its_constant_times_is_refused_with_file_and_line(data):
    with pytest.raises(
        SignalError, match=r"Phones_accelerometer1\.csv\.gz, line 2: more than 64 samples carry the same"
    ):
        prepare("hhar", data / "hhar_sample")


def test_ucihar_windows_overlap_by_half_within_their_sessions(data):
    dataset = prepare("ucihar", data / "uci_har")
    assert len(dataset.clients) == 30
    assert sum(len(each) for each in dataset.clients.values()) == 10_299
    assert dataset.labels == dataset_labels("ucihar")
    for windows in dataset.clients.values():
        follows = np.diff(windows.session) == 0
        assert (windows.x[1:][follows][:, :64] == windows.x[:-1][follows][:, 64:]).all()
        split = split_client(windows, settings=dataset.settings)
        assert not np.isin(windows.x[split.train][:, 64:, 0], windows.x[split.test][:, :64, 0]).all(axis=1).any()


@pytest.mark.slow
def test_the_union_has_a_hundred_clients_of_three_sets_under_ten_activities(data):
    dataset = prepare("union", data)
    assert {name: len(clients) for name, clients in dataset.clients_by("dataset").items()} == {
        "motionsense": 24,
        "spsw": 46,
        "ucihar": 30,
    }
    assert len(dataset.subjects) == 77
    assert set(dataset.clients_by("place")) == {"pocket", "waist", "wrist"}
    assert len(dataset.labels) == 10
    counts = dataset.class_counts()
    assert all(count[dataset.labels.index("walking")] for count in counts.values())
    ucihar = sum(counts[client].sum() for client in dataset.clients_by("dataset")["ucihar"])
    assert ucihar == 10_299
    train, test = leave_subjects_out(dataset, 15, seed=0)
    sides = [{dataset.subject_of(client) for client in side} for side in (train, test)]
    assert (len(sides[0]), len(sides[1])) == (62, 15)
    assert sides[0].isdisjoint(sides[1])
