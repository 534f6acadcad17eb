"""Every reader on small files in exactly the published layout: units, clients, labels, and clear refusals."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from har_pipeline import (
    PipelineSettings,
    SettingsError,
    SignalError,
    SourceError,
    dataset_labels,
    dataset_settings,
    prepare,
    recordings,
)
from har_pipeline.readers import APPS, READERS
from tests.har_pipeline import layouts, layouts_pretraining

G = 9.80665
FORMS = ["folder", "deep", "zip", "tar", "tar.gz", "tar.xz", "zip in zip in folder"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, dict[str, Path]]:
    made = {
        "motionsense": (layouts.motionsense(), "motionsense-master"),
        "spsw": (layouts.spsw(), "sp-sw-har-dataset"),
        "ucihar": (layouts.ucihar(), "human+activity+recognition+using+smartphones"),
        "hhar": (layouts.hhar(), "heterogeneity+activity+recognition"),
        "realworld": (layouts.realworld(), "realworld2016_dataset"),
        "pamap2": (layouts_pretraining.pamap2(), "pamap2+physical+activity+monitoring"),
        "mobiact": (layouts_pretraining.mobiact(), "MobiAct_Dataset_v2.0"),
        "shl": (layouts_pretraining.shl(), "SHLDataset_preview_v1_part1"),
    }
    return {
        name: layouts.forms(files, tmp_path_factory.mktemp(name), archive) for name, (files, archive) in made.items()
    }


CLASSES = {
    "motionsense": 6,
    "ucihar": 6,
    "spsw": 5,
    "hhar": 6,
    "realworld": 8,
    "pamap2": 18,
    "mobiact": 16,
    "shl": 8,
}
EXPECTED = {
    "motionsense": ["s01", "s24"],
    "spsw": ["s03_sp", "s03_sw"],
    "ucihar": ["s01", "s02"],
    "hhar": ["a_nexus4", "a_s3"],
    "realworld": ["1_shin", "1_waist", "2_shin", "2_waist"],
    "pamap2": [f"{subject}_{place}" for subject in (101, 102) for place in ("ankle", "chest", "hand")],
    "mobiact": ["s02", "s11"],
    "shl": ["user3_hand", "user3_torso"],
}


@pytest.fixture(scope="module")
def plain(sources):
    """Read a set from its folder, once."""
    return cache(lambda name: prepare(name, sources[name]["folder"]))


def left_to_ci(name: str, form: str) -> bool:
    """Archives are opened by one module, whatever the set: one set in every form and every set in one see most."""
    return name != "motionsense" and form != "zip"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=pytest.mark.ci if left_to_ci(name, form) else ())
        for name, form in itertools.product(EXPECTED, FORMS)
    ],
)
def test_each_set_reads_the_same_from_a_folder_and_from_any_archive(sources, plain, name, form):
    packed = prepare(name, sources[name][form])
    assert list(packed.clients) == EXPECTED[name]
    for client, windows in packed.clients.items():
        assert len(windows) > 0
        assert windows.x.dtype == np.float32
        for field in ("x", "y", "start_s", "session"):
            assert (getattr(windows, field) == getattr(plain(name).clients[client], field)).all()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_chosen_client_has_the_windows_that_it_has_among_all(sources, name):
    source = sources[name]["zip"]
    everyone, client = prepare(name, source), EXPECTED[name][-1]
    alone = prepare(name, source, clients=[client])
    assert list(alone.clients) == [client]
    assert alone.clients[client].x.tobytes() == everyone.clients[client].x.tobytes()
    with pytest.raises(SettingsError, match="no client 'nobody'"):
        prepare(name, source, clients=["nobody"])


def test_of_several_places_under_a_common_root_the_fullest_wins(sources, tmp_path):
    files = layouts.motionsense()
    sample = "A_DeviceMotion_data/wlk_7/sub_1.csv"
    layouts.unpacked({f"motionsense/sample/{sample}": files[sample], "mnist/notes.txt": b"-"}, tmp_path)
    (tmp_path / "motionsense" / "motionsense.tar.xz").write_bytes(layouts.tarred(files, "xz"))
    (tmp_path / "mnist" / "images.zip").write_bytes(b"not to be opened for motionsense")
    assert list(prepare("motionsense", tmp_path).clients) == ["s01", "s24"]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_wrong_path_says_what_was_expected_where(tmp_path, name):
    with pytest.raises(SourceError, match=rf"no {name} files under .*expected"):
        prepare(name, tmp_path)
    with pytest.raises(SourceError, match="does not exist"):
        prepare(name, tmp_path / "nothing")
    with pytest.raises(SourceError, match="give --data-root DATA"):
        prepare(name, None)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SourceError, match="neither a folder nor a zip"):
        prepare(name, tmp_path / "notes.txt")
    broken = tmp_path / "realworld human activity recognition motionsense uci_har sp_sw pamap mobiact SHL.zip"
    broken.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(SourceError, match="cannot be read as an archive"):
        prepare(name, broken)


def test_motionsense_is_specific_force_in_metres_and_follows_the_protocol(sources):
    read = list(recordings("motionsense", sources["motionsense"]["tar.xz"], clients=["s24"]))
    assert [(each.session, each.sensor) for each in read] == [
        ("7", "acc"),
        ("7", "gyro"),
        ("11", "acc"),
        ("11", "gyro"),
    ]
    np.testing.assert_allclose(read[0].values[0], [-0.5 * G, -G, 0])
    np.testing.assert_allclose(read[1].values[0], [0.1, 0.2, 0.3])
    assert np.diff(read[0].times_s) == pytest.approx(0.02)
    assert read[2].times_s[0] > read[0].times_s[-1] + 2.56


def test_spsw_labels_change_within_a_file_and_windows_advance_by_16(sources):
    read = next(recordings("spsw", sources["spsw"]["folder"]))
    assert (read.client, read.session, read.line) == ("s03_sp", "01", 2)
    assert np.asarray(read.activity)[199:201].tolist() == ["WALKING", "TURNING"]
    assert read.times_s[0] == pytest.approx(1657544418.323)
    dataset = prepare("spsw", sources["spsw"]["folder"])
    assert dataset.settings.stride == 16
    windows = dataset.clients["s03_sw"]
    assert np.diff(windows.start_s[windows.session == 0]) == pytest.approx(0.32)
    assert {dataset.labels[y] for y in windows.y} == {"WALKING", "TURNING"}


def test_ucihar_takes_the_windows_as_they_are_in_chains_that_do_not_leak(sources):
    dataset = prepare("ucihar", sources["ucihar"]["folder"])
    first = dataset.clients["s01"]
    assert first.session.tolist() == [0, 0, 0, 1, 1]
    assert np.diff(first.start_s) == pytest.approx([1.28, 1.28, 12.56, 1.28])
    assert [dataset.labels[y] for y in first.y] == ["WALKING"] * 3 + ["SITTING"] * 2
    folder = sources["ucihar"]["folder"] / "UCI HAR Dataset/train/Inertial Signals"
    acc = np.loadtxt(folder / "total_acc_z_train.txt")
    gyro = np.loadtxt(folder / "body_gyro_x_train.txt")
    np.testing.assert_allclose(first.x[4, :, 2], acc[4] * G, rtol=1e-5)
    np.testing.assert_allclose(first.x[4, :, 3], gyro[4], rtol=1e-5)
    with pytest.raises(SettingsError, match="published as windows"):
        prepare("ucihar", sources["ucihar"]["folder"], PipelineSettings(stride=16))
    changed = PipelineSettings(anti_alias="downsampling", keep_unlabelled=True)
    unfiltered = prepare("ucihar", sources["ucihar"]["folder"], changed)
    assert np.array_equal(unfiltered.clients["s01"].x, first.x), "nothing of it is resampled"
    with pytest.raises(SettingsError, match="has no recordings"):
        next(recordings("ucihar", sources["ucihar"]["folder"]))


def test_ucihar_says_which_file_is_missing_or_no_table(tmp_path):
    files = layouts.ucihar()
    files.pop("UCI HAR Dataset/train/Inertial Signals/body_gyro_y_train.txt")
    with pytest.raises(SourceError, match=r"train lacks \['body_gyro_y'\]"):
        prepare("ucihar", layouts.unpacked(files, tmp_path / "a"))
    files = layouts.ucihar()
    files["UCI HAR Dataset/test/y_test.txt"] = b"word"
    with pytest.raises(SourceError, match=r"y_test\.txt: not a table of numbers"):
        prepare("ucihar", layouts.unpacked(files, tmp_path / "b"))
    files["UCI HAR Dataset/test/y_test.txt"] = b"9"
    with pytest.raises(SourceError, match="labels from 1 to 6"):
        prepare("ucihar", layouts.unpacked(files, tmp_path / "c"))


def test_hhar_puts_both_sensors_on_the_arrival_clock_and_drops_null(sources):
    read = list(recordings("hhar", sources["hhar"]["folder"]))
    assert [(each.client, each.session, each.sensor) for each in read] == [
        ("a_nexus4", "nexus4_1", "acc"),
        ("a_nexus4", "nexus4_1", "gyro"),
        ("a_nexus4", "nexus4_2", "acc"),
        ("a_nexus4", "nexus4_2", "gyro"),
        ("a_s3", "s3_1", "acc"),
        ("a_s3", "s3_1", "gyro"),
    ]
    for acc, gyro in zip(read[::2], read[1::2], strict=True):
        np.testing.assert_allclose(acc.times_s[0], 1424696633.908, atol=0.02)
        np.testing.assert_allclose(acc.times_s, gyro.times_s, atol=1e-5)
        np.testing.assert_allclose(np.diff(acc.times_s), np.diff(acc.times_s)[0], atol=1e-6)
    dataset = prepare("hhar", sources["hhar"]["folder"])
    windows = dataset.clients["a_nexus4"]
    assert sorted(set(windows.session)) == [0, 1]
    assert {dataset.labels[y] for y in windows.y} == {"walk"}
    np.testing.assert_allclose(windows.x, np.tile([1, 2, 3, 0.1, 0.2, 0.3], (len(windows), 128, 1)), rtol=1e-4)
    ends = windows.start_s + 2.56 - 1424696633.908
    assert ends.max() < 6 + 1.28 + 0.05


def test_hhar_survives_a_restarted_clock_and_refuses_a_wrong_unit(tmp_path):
    columns = layouts.HHAR_COLUMNS

    def files(created, seconds=8.0):
        rows = [
            [i, int(1.4e12 + 1000 * i / 100), int(created(i / 100)), 1, 2, 3, "b", "s3", "s3_2", "sit"]
            for i in range(int(seconds * 100))
        ]
        content = layouts.table(columns, rows)
        return {f"Phones_{sensor}.csv": content for sensor in ("accelerometer", "gyroscope")}

    restarted = layouts.unpacked(files(lambda t: 1e9 * (5000 + t if t < 4 else t)), tmp_path / "a")
    windows = prepare("hhar", restarted).clients["b_s3"]
    assert len(windows) == (8 * 50 - 128) // 64 + 1
    assert set(windows.session) == {0}
    micro = layouts.unpacked(files(lambda t: 1e6 * (5000 + t), seconds=70), tmp_path / "b")
    with pytest.raises(SignalError, match=r"accelerometer\.csv, line 2: Creation_Time advances 0\.07 s"):
        prepare("hhar", micro)


def test_hhar_needs_both_files_and_known_activities(tmp_path):
    files = layouts.hhar(seconds=1)
    name = "Activity recognition exp/Phones_gyroscope.csv"
    gyroscope = files.pop(name)
    with pytest.raises(SourceError, match="found only"):
        prepare("hhar", layouts.unpacked(files, tmp_path))
    files[name] = gyroscope.replace(b"walk", b"wolk", 3)
    with pytest.raises(SettingsError, match=r"gyroscope\.csv, line 2: activity 'wolk'; did you mean 'walk'"):
        prepare("hhar", layouts.unpacked(files, tmp_path))


def test_hhar_rows_without_a_time_are_left_out_and_move_no_row_to_another_handset(tmp_path):
    files = layouts.hhar(seconds=8)
    for name, content in files.items():
        lines = content.splitlines()
        for at in (5, 6, 7):  # the first block is nexus4_1's, the next s3_1's
            cells = lines[at].split(b",")
            lines[at] = b",".join([*cells[:1], b"", b"NaN", *cells[3:]])
        files[name] = b"\n".join(lines) + b"\n"
    read = {(each.session, each.sensor): each for each in recordings("hhar", layouts.unpacked(files, tmp_path))}
    assert {key: len(each.times_s) for key, each in read.items()} == {
        (session, sensor): count
        for session, count in (("nexus4_1", 1597), ("nexus4_2", 1600), ("s3_1", 1200))
        for sensor in ("acc", "gyro")
    }


def test_realworld_joins_parts_and_reads_zips_within_zips(sources, tmp_path):
    read = list(recordings("realworld", sources["realworld"]["zip"], clients=["2_shin"]))
    samples = Counter[tuple[str, str]]()
    for recording in read:
        samples[recording.session, recording.sensor] += len(recording.times_s)
    assert samples == {
        ("walking", "acc"): 200,
        ("walking", "gyro"): 200,
        ("climbingup", "acc"): 600,
        ("climbingup", "gyro"): 600,
    }
    dataset = prepare("realworld", sources["realworld"]["zip"])
    for client in ("1_shin", "2_shin"):
        assert len(set(dataset.clients[client].session)) == 4
        counts = np.bincount(dataset.clients[client].y, minlength=8)
        assert counts[dataset.labels.index("climbingup")] == 3 * counts[dataset.labels.index("walking")] > 0
    loose = layouts.unpacked(layouts.realworld(packed=False), tmp_path)
    again = prepare("realworld", loose).clients["1_shin"]
    assert again.x.tobytes() == dataset.clients["1_shin"].x.tobytes()
    inner = prepare("realworld", loose / "proband1" / "data", options={"subject": "7"})
    assert list(inner.clients) == ["7_shin", "7_waist"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda rows: rows.__setitem__(4, rows[4].replace(b"0.5", b"0,5x", 1)), r"sub_1\.csv"),
        (lambda rows: rows.__setitem__(4, rows[4].replace(b"0.5", b"half")), r"sub_1\.csv, line 5: 'half' in column"),
        (lambda rows: rows.__setitem__(9, rows[9].replace(b"0.5", b"inf")), r"sub_1\.csv, line 10: infinite"),
        (
            lambda rows: rows.__setitem__(0, rows[0].replace(b"gravity.x", b"gravity")),
            r"sub_1\.csv: no column 'gravity\.x'",
        ),
        (lambda rows: rows.clear(), r"sub_1\.csv is empty"),
        (lambda rows: rows.__delitem__(slice(1, None)), r"sub_1\.csv has no rows"),
        (
            lambda rows: rows.__setitem__(slice(1, 200), [b"," * 12] * 199),
            r"no row has a number in each of the columns",
        ),
    ],
)
def test_broken_csv_is_refused_with_file_and_line(tmp_path, damage, message):
    name = "A_DeviceMotion_data/dws_11/sub_1.csv"
    rows = layouts.motionsense()[name].splitlines()[:200]
    damage(rows)
    with pytest.raises(SourceError, match=message):
        prepare("motionsense", layouts.unpacked({name: b"\n".join(rows)}, tmp_path))


def test_an_empty_cell_is_a_lost_sample(tmp_path):
    name = "A_DeviceMotion_data/dws_11/sub_1.csv"
    rows = layouts.motionsense()[name].splitlines()
    rows[50] = rows[50].replace(b"0.5", b"")
    rows[60] = b"," * 12
    windows = prepare("motionsense", layouts.unpacked({name: b"\n".join(rows)}, tmp_path)).clients["s01"]
    assert len(windows) == 2
    np.testing.assert_allclose(windows.x[0, :, 0], -0.5 * G, rtol=1e-4)


@pytest.mark.parametrize(("name", "classes"), CLASSES.items())
def test_every_published_set_has_its_classes_and_stride(name: str, classes: int) -> None:
    assert len(dataset_labels(name)) == classes
    assert dataset_settings(name).stride == (16 if name == "spsw" else 64)


def test_every_set_describes_itself() -> None:
    for name, reader in READERS.items():
        assert (reader.name, bool(reader.summary), bool(reader.expected(reader.defaults))) == (name, True, True)
        assert reader.layouts(reader.defaults) or name in ("synthetic", "described") or reader in APPS


def test_an_unknown_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="did you mean 'hhar'"):
        prepare("hha", None)
