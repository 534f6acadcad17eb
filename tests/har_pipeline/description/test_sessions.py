"""Files become sessions: paired by name, apart where their clocks overlap, in step, and on one clock for a client."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline import LabelError, PipelineSettings, Recording, SourceError, StreamPipeline, prepare, recordings
from har_pipeline.description import description_of, find_files
from har_pipeline.description import sessions as sessions_of
from tests.har_pipeline import layouts
from tests.har_pipeline.description.made import RESPECK, SISFALL, respeck, sisfall

PLAIN: dict[str, Any] = {
    "files": r"(?P<client>p\d)/(?P<session>s\d+)[^/]*\.csv",
    "labels": ["walk"],
    "activity": {"fixed": "walk"},
    "time": "t",
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"]},
    "gyro": {"columns": ["x", "y", "z"]},
}


def csv(begin_s: float, count: int, *, rate_hz: float = 50.0, value: float = 1.0) -> bytes:
    rows = [[f"{begin_s + i / rate_hz:.3f}", value, 2, i] for i in range(count)]
    return layouts.table(["t", "x", "y", "z"], rows)


def read(root: Path, options: dict[str, Any] = PLAIN) -> list[Recording]:
    return list(recordings("described", root, options=options))


def spans(found: list[Recording]) -> dict[tuple[str, str], tuple[float, float]]:
    """When each session of each client begins and ends, in the order in which they came."""
    kept: dict[tuple[str, str], tuple[float, float]] = {}
    for each in found:
        low, high = kept.get((each.client, each.session), (np.inf, -np.inf))
        kept[each.client, each.session] = min(low, each.times_s.min()), max(high, each.times_s.max())
    return kept


def test_trials_that_all_begin_at_zero_follow_one_another_and_absolute_times_stay(tmp_path):
    files = {"p1/s1.csv": csv(0, 100), "p1/s2.csv": csv(0, 100), "p2/s1.csv": csv(5000, 100), "p2/s2.csv": csv(20, 100)}
    found = spans(read(layouts.unpacked(files, tmp_path)))
    assert list(found) == [("p1", "s1"), ("p1", "s2"), ("p2", "s2"), ("p2", "s1")]
    assert found["p1", "s1"] == (0, pytest.approx(1.98))
    assert found["p1", "s2"] == (12, pytest.approx(13.98))
    assert found["p2", "s1"] == (5000, pytest.approx(5001.98))
    assert found["p2", "s2"] == (20, pytest.approx(21.98))


def test_two_files_of_one_session_stay_apart_where_they_overlap_and_join_where_they_follow(tmp_path):
    files = {
        "p1/s1_a.csv": csv(0, 100),
        "p1/s1_b.csv": csv(1, 100),
        "p2/s1_a.csv": csv(0, 100),
        "p2/s1_b.csv": csv(2, 100),
    }
    found = read(layouts.unpacked(files, tmp_path))
    assert list(spans(found)) == [("p1", "s1"), ("p1", "s1 (2)"), ("p2", "s1")]
    joined = [each for each in found if each.client == "p2" and each.sensor == "acc"]
    np.testing.assert_allclose(np.concatenate([each.times_s for each in joined]), np.arange(200) / 50, atol=1e-9)
    # 200 samples at 50 Hz without a gap are two windows of 128 that half overlap; twice 100 would be none
    windows = prepare("described", tmp_path, options=PLAIN).clients
    assert {name: len(each) for name, each in windows.items()} == {"p1": 0, "p2": 2}


def test_a_clock_that_is_set_back_begins_another_session(tmp_path):
    rows = csv(0, 100) + csv(0, 150).split(b"\n", 1)[1]
    found = read(layouts.unpacked({"p1/s1.csv": rows}, tmp_path))
    assert [(each.session, each.sensor, len(each.times_s)) for each in found] == [
        ("s1", "acc", 100), ("s1", "gyro", 100), ("s1 (2)", "acc", 150), ("s1 (2)", "gyro", 150)
    ]  # fmt: skip


def test_rows_of_two_devices_mixed_are_refused(tmp_path):
    rows = [[value, 1, 2, 3] for i in range(1200) for value in (i, i + 5000)]
    mixed = layouts.table(["t", "x", "y", "z"], rows)
    with pytest.raises(SourceError, match=r"times have gone back 1000 times; .* client or the session"):
        read(layouts.unpacked({"p1/s1.csv": mixed}, tmp_path))


@pytest.mark.ci
@pytest.mark.parametrize("packed", [False, True])
def test_two_sensors_in_two_files_come_in_step_from_a_folder_and_from_a_tar(tmp_path, packed):
    """Forty minutes of each, at different rates: neither sensor runs ahead by more than a chunk."""
    options = {**PLAIN, "files": r"(?P<client>p\d)/(?P<sensor>acc|gyr)_(?P<session>s\d+)\.csv"}
    files = {"p1/acc_s1.csv": csv(100, 120_000), "p1/gyr_s1.csv": csv(100.01, 48_000, rate_hz=20, value=7)}
    root = layouts.unpacked(files, tmp_path / "folder")
    if packed:
        root = tmp_path / "data.tar.gz"
        root.write_bytes(layouts.tarred(files, "gz"))
    found, newest = read(root, options), {"acc": 100.0, "gyro": 100.0}
    for each in found:
        newest[each.sensor] = each.times_s[-1]
        assert abs(newest["acc"] - newest["gyro"]) <= 600.1
    assert {(each.client, each.session) for each in found} == {("p1", "s1")}
    for sensor, value, count in (("acc", 1, 120_000), ("gyro", 7, 48_000)):
        values = np.concatenate([each.values for each in found if each.sensor == sensor])
        assert (values[:, 0] == value).all()
        assert values[:, 2].tolist() == list(range(count))
    assert len(prepare("described", root, options=options).clients["p1"]) == (40 * 60 * 50 - 128) // 64


def test_one_sensor_alone_is_left_out_and_said(tmp_path, caplog):
    options = {**PLAIN, "files": r"(?P<client>p\d)/(?P<sensor>acc|gyr)_(?P<session>s\d+)\.csv"}
    layouts.unpacked({"p1/acc_s1.csv": csv(0, 300), "p1/gyr_s2.csv": csv(0, 300)}, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, options) == []
    assert "client p1, session s1 (p1/acc_s1.csv): there is no gyro; left out" in caplog.text
    assert "session s2 (p1/gyr_s2.csv): there is no acc" in caplog.text


def test_an_unknown_activity_leaves_its_file_out_as_a_whole_unless_strict(tmp_path, caplog):
    sisfall(tmp_path)
    (tmp_path / "D99_SA03_R01.txt").write_bytes((tmp_path / "D01_SA03_R01.txt").read_bytes())
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, SISFALL)
    assert "D99_SA03_R01.txt: activity 'D99' isn't a label" in caplog.text
    assert "labels.ignore" in caplog.text
    assert {each.source for each in found} == {path.name for path in tmp_path.iterdir()} - {"D99_SA03_R01.txt"}
    with pytest.raises(LabelError, match="D99"):
        read(tmp_path, {**SISFALL, "labels": {**SISFALL["labels"], "strict": True}})


def test_both_foreign_layouts_become_windows_with_their_labels(tmp_path):
    """A sitting body measures gravity alone; its windows are known without a filter of our own."""
    respeck(tmp_path / "a")
    sisfall(tmp_path / "b")
    for folder, options, clients in (("a", RESPECK, ["12", "3"]), ("b", SISFALL, ["SA03", "SE11"])):
        dataset = prepare("described", tmp_path / folder, options=options)
        assert list(dataset.clients) == clients
        for windows in dataset.clients.values():
            sitting = windows.x[windows.y == dataset.labels.index("sitting")]
            assert len(sitting) >= 10
            assert len(windows) > len(sitting)
            np.testing.assert_allclose(np.median(sitting[..., :3], axis=(0, 1)), [0, 0, 9.80665], atol=0.05)
            assert np.abs(np.median(sitting[..., 3:], axis=(0, 1))).max() < 0.01


def test_chosen_clients_alone_are_read(tmp_path):
    layouts.unpacked({"p1/s1.csv": csv(0, 300), "p2/s1.csv": csv(0, 300)}, tmp_path)
    assert {each.client for each in recordings("described", tmp_path, clients=["p2"], options=PLAIN)} == {"p2"}


def test_without_a_gyroscope_its_channels_are_zero(tmp_path):
    layouts.unpacked({"p1/s1.csv": csv(0, 300)}, tmp_path)
    options = {key: value for key, value in PLAIN.items() if key != "gyro"}
    windows = prepare("described", tmp_path, options=options).clients["p1"]
    assert (windows.x[..., 3:] == 0).all()
    assert (windows.x[..., 1] > 1.9).all()


def test_rows_that_all_have_one_time_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions_of, "CHUNK_ROWS", 10_000)
    monkeypatch.setattr(sessions_of, "PART_ROWS", 5_000)
    (tmp_path / "p1").mkdir()
    (tmp_path / "p1" / "s1.csv").write_text("t,x,y,z\n" + "7,1,2,3\n" * 60_000)
    description = description_of(PLAIN)
    sizes = [len(each.times_s) for each in sessions_of.recordings(description, find_files(description, tmp_path))]
    assert sum(sizes) == 2 * 60_000
    assert max(sizes) <= 15_000


@pytest.mark.ci
def test_five_hours_of_two_sensors_become_windows_in_constant_memory(tmp_path):
    """At 100 Hz 1.8 million rows of each sensor: 115 MB as float64, of which no more than a part is ever held."""
    (tmp_path / "p1").mkdir()
    with (tmp_path / "p1" / "s1.csv").open("w") as file:
        file.write("t,x,y,z\n")
        file.writelines(f"{i / 100:.2f},1,2,{i % 5}\n" for i in range(5 * 3600 * 100))
    description = description_of(PLAIN)
    pipeline, windows = StreamPipeline(PipelineSettings(), ("walk",)), 0
    tracemalloc.start()
    for each in sessions_of.recordings(description, find_files(description, tmp_path)):
        windows += len(pipeline.push(each))
    windows += len(pipeline.flush())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert windows == (5 * 3600 * 50 - 128) // 64 + 1
    assert peak < 60e6


@pytest.mark.data
def test_motionsense_by_a_description_is_what_its_own_reader_reads(data):
    options = {
        "files": r"A_DeviceMotion_data/(?P<activity>[a-z]+)_(?P<session>\d+)/sub_(?P<client>\d+)\.csv",
        "labels": ["dws", "ups", "sit", "std", "wlk", "jog"],
        "rate_hz": 50,
        "acceleration": "gravity points down",
        "acc": {
            "columns": [f"userAcceleration.{axis}" for axis in "xyz"],
            "add": [f"gravity.{axis}" for axis in "xyz"],
            "unit": "g",
        },
        "gyro": {"columns": [f"rotationRate.{axis}" for axis in "xyz"]},
    }
    root = data / "motionsense" / "sample"
    mine = prepare("described", root, options=options).clients["1"]
    theirs = prepare("motionsense", root).clients["s01"]
    assert len(mine) == len(theirs) >= 50
    for name in ("x", "y", "start_s", "session"):
        assert getattr(mine, name).tobytes() == getattr(theirs, name).tobytes()


def test_trials_that_begin_at_once_follow_one_another_by_their_numbers_whatever_holds_them(tmp_path):
    files = {f"p1/s{trial}.csv": csv(0, 300) for trial in (2, 10, 1)}
    layouts.unpacked(files, tmp_path / "folder")
    (tmp_path / "data.tar").write_bytes(layouts.tarred(files, ""))
    for root in (tmp_path / "folder", tmp_path / "data.tar"):
        assert list(spans(read(root))) == [("p1", "s1"), ("p1", "s2"), ("p1", "s10")]


def test_damaged_rows_and_another_rate_than_the_declared_one_are_findings(tmp_path):
    respeck(tmp_path)
    assert prepare("described", tmp_path, options={**RESPECK, "rate_hz": 25}).findings == ()
    path = tmp_path / "subject3" / "respeck" / "walking_slow.csv"
    rows = path.read_text().splitlines()
    rows[100], rows[200], rows[300] = "garbage", rows[200][:30], rows[300] + ",7,8"
    path.write_text("\n".join(rows) + "\n")
    found = prepare("described", tmp_path, options={**RESPECK, "rate_hz": 50}).findings
    lost = {(each.client, each.sensor): each.message for each in found if each.code == "rows_without_numbers"}
    assert lost.keys() == {("3", "acc"), ("3", "gyro")}
    assert lost["3", "gyro"].startswith("3 rows (0.1%)")
    declared = [each for each in found if each.code == "declared_rate"]
    assert {(each.client, each.sensor) for each in declared} == {(c, s) for c in ("3", "12") for s in ("acc", "gyro")}
    assert "measured 25 samples per second, about half of it, declared 50 Hz" in declared[0].message
