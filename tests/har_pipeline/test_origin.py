"""Origins: whose windows, on which device, worn where; clients grouped again by any of these, and left out by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from har_pipeline import Origin, device_of, leave_devices_out, leave_subjects_out, prepare, subject_of
from har_pipeline.readers import READERS
from tests.har_pipeline import layouts


@pytest.mark.parametrize(
    ("dataset", "client", "user", "device", "place"),
    [
        ("motionsense", "s07", "s07", "iphone_6s", "pocket"),
        ("ucihar", "s07", "s07", "galaxy_s2", "waist"),
        ("spsw", "s07_sp", "s07", "sp", "pocket"),
        ("spsw", "s07_sw", "s07", "sw", "wrist"),
        ("hhar", "a_nexus4", "a", "nexus4", "waist"),
        ("realworld", "1_shin", "1", "", "shin"),
        ("pamap2", "101_ankle", "101", "colibri", "ankle"),
        ("mobiact", "s07", "s07", "galaxy_s3", "pocket"),
        ("shl", "user1_bag", "user1", "mate9", "bag"),
        ("described", "trial", "trial", "", ""),
        ("synthetic", "s00_phone100-waist", "s00", "phone100", "waist"),
    ],
)
def test_each_reader_knows_where_its_clients_come_from(dataset, client, user, device, place):
    assert READERS[dataset].origin(client) == Origin(dataset, user, device, place)
    assert subject_of(client) == user


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("union")
    spsw = layouts.spsw()
    spsw.update({name.replace("s03", "s07"): content for name, content in layouts.spsw().items()})
    for name, files in (("ms", layouts.motionsense()), ("uci", layouts.ucihar()), ("spsw", spsw)):
        layouts.unpacked(files, folder / name)
    return folder


def test_origins_survive_the_cache_and_group_the_clients_again(root, tmp_path):
    for _ in range(2):
        dataset = prepare("union", root, cache_dir=tmp_path)
        assert set(dataset.origins) == set(dataset.clients)
        assert dataset.origin("spsw-s07_sw") == ("spsw", "spsw-s07", "sw", "wrist")
        assert dataset.clients_by("place") == {
            "pocket": ("motionsense-s01", "motionsense-s24", "spsw-s03_sp", "spsw-s07_sp"),
            "waist": ("ucihar-s01", "ucihar-s02"),
            "wrist": ("spsw-s03_sw", "spsw-s07_sw"),
        }
    users = dataset.clients_by("user")
    assert users["spsw-s03"] == ("spsw-s03_sp", "spsw-s03_sw")
    assert users["motionsense-s01"] != users["ucihar-s01"]
    assert tuple(users) == dataset.subjects
    assert list(dataset.clients_by("dataset")) == ["motionsense", "spsw", "ucihar"]
    assert list(dataset.clients_by("device")) == ["galaxy_s2", "iphone_6s", "sp", "sw"]
    for client in dataset.clients:
        assert dataset.subject_of(client) == subject_of(client)
        assert dataset.device_of(client) == device_of(client) or dataset.origin(client).device


@pytest.mark.parametrize("seed", range(4))
def test_phone_and_watch_of_a_subject_fall_on_the_same_side(root, seed):
    dataset = prepare("spsw", root)
    train, test = leave_subjects_out(dataset, 1, seed=seed)
    assert len(train) == len(test) == 2
    assert {subject_of(client) for client in train}.isdisjoint(subject_of(client) for client in test)
    united = prepare("union", root)
    for count in (1, 3, 5):
        sides = leave_subjects_out(united, count, seed=seed)
        left, right = ({united.origin(client).user for client in side} for side in sides)
        assert len(right) == count
        assert left.isdisjoint(right)
        assert sorted(client for side in sides for client in side) == list(united.clients)


def test_devices_are_left_out_across_the_members_of_a_union(root):
    united = prepare("union", root)
    train, test = leave_devices_out(united, ["sw"])
    assert test == ("spsw-s03_sw", "spsw-s07_sw")
    assert leave_devices_out(united, ["galaxy_s2"])[1] == ("ucihar-s01", "ucihar-s02")
    assert len(train) == 6
