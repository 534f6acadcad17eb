"""MobiAct: annotated files by row label, raw files by name, trials on one clock, clear refusals."""

from __future__ import annotations

import numpy as np
import pytest

from har_pipeline import PipelineSettings, SettingsError, SourceError, prepare, recordings
from tests.har_pipeline import layouts
from tests.har_pipeline.layouts_pretraining import mobiact, mobiact_raw

FALL = "MobiAct_Dataset_v2.0/Annotated Data/FOL/FOL_2_1_annotated.csv"


def test_trials_follow_each_other_on_one_clock_and_labels_change_within_them(tmp_path):
    read = list(recordings("mobiact", layouts.unpacked(mobiact(), tmp_path), clients=["s02"]))
    assert [(each.session, each.sensor) for each in read] == [
        (session, sensor) for session in ("WAL_1", "FOL_1", "SLH_1") for sensor in ("acc", "gyro")
    ]
    assert read[0].times_s[0] == 0
    for before, after in zip(read[::2], read[2::2], strict=False):
        assert 2.56 < after.times_s[0] - before.times_s[-1] < 12
    np.testing.assert_allclose(np.diff(read[0].times_s), 0.005, atol=1e-6)
    np.testing.assert_allclose(read[0].values[0], [1, 2, 3])
    np.testing.assert_allclose(read[1].values[0], [0.1, 0.2, 0.3], rtol=1e-6)
    assert [read[2].activity[at] for at in (0, 600, 800)] == ["STD", "FOL", "LYI"]
    dataset = prepare("mobiact", tmp_path)
    assert list(dataset.clients) == ["s02", "s11"]
    assert {dataset.labels[y] for y in dataset.clients["s02"].y} == {"WAL", "STD", "LYI"}


def test_raw_files_take_the_activity_of_their_name_and_scenarios_are_unlabelled(tmp_path):
    root = layouts.unpacked(mobiact_raw(), tmp_path)
    dataset = prepare("mobiact", root)
    windows = dataset.clients["s02"]
    assert {dataset.labels[y] for y in windows.y} == {"WAL", "FOL"}
    np.testing.assert_allclose(windows.x[0, 5], [1, 2, 3, 0.1, 0.2, 0.3], rtol=1e-4)
    everything = prepare("mobiact", root, PipelineSettings(keep_unlabelled=True)).clients["s02"]
    assert {-1, *windows.y} == set(everything.y)
    acc = next(recordings("mobiact", root))
    assert (acc.source.rpartition("/")[2], acc.line) == ("WAL_acc_2_1.txt", 9)


def test_raw_files_beside_annotated_ones_are_not_read_twice(tmp_path):
    files = mobiact()
    raw = {f"MobiAct_Dataset_v2.0/Raw Data/{name}": content for name, content in mobiact_raw().items()}
    alone = prepare("mobiact", layouts.unpacked(files, tmp_path / "a"))
    beside = prepare("mobiact", layouts.unpacked({**files, **raw}, tmp_path / "b"))
    assert list(beside.clients) == list(alone.clients)
    for client in alone.clients:
        assert beside.clients[client].x.tobytes() == alone.clients[client].x.tobytes()


def test_an_unknown_label_or_a_missing_column_is_refused_with_file_and_line(tmp_path):
    files = mobiact()
    files[FALL] = files[FALL].replace(b"FOL", b"FLO", 1)
    with pytest.raises(SettingsError, match=r"FOL_2_1_annotated\.csv, line 602: label 'FLO'; Known: STD"):
        prepare("mobiact", layouts.unpacked(files, tmp_path))
    files[FALL] = files[FALL].replace(b"gyro_x", b"gyr_x", 1)
    with pytest.raises(SourceError, match=r"line 1: no column \['gyro_x'\]"):
        prepare("mobiact", layouts.unpacked(files, tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"@DATA", b"@DATE", "no line @DATA among the first 64"),
        (b", 1.0, 2.0", b", one, 2.0", r"WAL_acc_2_1\.txt, line 9: 'one' in column '2' is no number"),
        (b", 1.0, 2.0", b", 1.0, 2.0, 5.0", r"line 9: 5 columns; expected 4"),
    ],
)
def test_broken_raw_files_are_refused_with_file_and_line(tmp_path, old, new, message):
    files = mobiact_raw()
    name = "sub2/ADL/WAL/WAL_acc_2_1.txt"
    files[name] = files[name].replace(old, new, 1)
    with pytest.raises(SourceError, match=message):
        prepare("mobiact", layouts.unpacked(files, tmp_path))
