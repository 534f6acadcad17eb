"""PAMAP2: the right columns of 54, transient stretches unlabelled, lost rows, the optional recording on one clock."""

from __future__ import annotations

import numpy as np
import pytest

from har_pipeline import SourceError, prepare, recordings
from tests.har_pipeline import layouts
from tests.har_pipeline.layouts_pretraining import pamap2

NAME = "PAMAP2_Dataset/Protocol/subject101.dat"


def test_the_16_g_columns_and_the_gyroscope_of_each_place_are_read(tmp_path):
    root = layouts.unpacked(pamap2(), tmp_path)
    for unit, place in enumerate(("hand", "chest", "ankle")):
        acc, gyro = list(recordings("pamap2", root, clients=[f"102_{place}"]))
        assert (acc.client, acc.session, acc.sensor, acc.line) == (f"102_{place}", "Protocol", "acc", 1)
        np.testing.assert_allclose(acc.values, np.tile([10 * unit + axis for axis in (1, 2, 3)], (600, 1)))
        np.testing.assert_allclose(gyro.values, np.tile([unit + axis for axis in (0.1, 0.2, 0.3)], (600, 1)), rtol=1e-6)
        assert (acc.times_s[0], acc.times_s[-1]) == pytest.approx((8.38, 14.37))


def test_the_optional_recording_follows_the_protocol_though_both_count_from_their_own_start(tmp_path):
    read = list(recordings("pamap2", layouts.unpacked(pamap2(), tmp_path), clients=["101_chest"]))
    assert [(each.session, each.sensor) for each in read] == [
        ("Protocol", "acc"),
        ("Protocol", "gyro"),
        ("Optional", "acc"),
        ("Optional", "gyro"),
    ]
    assert read[2].times_s[0] > read[0].times_s[-1] + 2.56


def test_activity_0_is_unlabelled_and_its_windows_are_dropped(tmp_path):
    dataset = prepare("pamap2", layouts.unpacked(pamap2(), tmp_path))
    windows = dataset.clients["101_hand"]
    assert len(dataset.labels) == 18
    assert {dataset.labels[y] for y in windows.y} == {"walking", "playing_soccer"}
    acc = next(recordings("pamap2", tmp_path, clients=["101_hand"]))
    assert acc.activity[:101].tolist() == ["null"] * 100 + ["walking"]


def test_a_place_loses_the_rows_that_are_nan_for_it_and_no_other_does(tmp_path):
    files = pamap2()
    rows = files[NAME].decode().splitlines()
    for at in range(300, 330):
        cells = rows[at].split()
        rows[at] = " ".join([*cells[:3], *["NaN"] * 17, *cells[20:]])
    files[NAME] = "\n".join(rows).encode()
    dataset = prepare("pamap2", layouts.unpacked(files, tmp_path), clients=["101_hand", "101_ankle"])
    hand, ankle = dataset.clients["101_hand"], dataset.clients["101_ankle"]
    assert len(set(hand.session)) == len(set(ankle.session)) + 1
    assert np.isfinite(hand.x).all()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace(" 4 ", " 8 ", 1), r"subject101\.dat, line 101: activity 8; expected 0 or one of"),
        (lambda text: text.replace(" 11 ", " soft ", 1), r"line 1: 'soft' in column '22' is no number"),
        (lambda text: text.replace(" 11 ", " inf ", 1), r"line 1: infinite"),
        (lambda text: "\n".join(line + " 1" for line in text.splitlines()), "line 1: 55 columns; expected 54"),
        (lambda text: text[:-1] + " 7\n", "line 600: not a row of 54 columns"),
        (lambda text: text[: text.rindex(" 4 ") + 1], "line 600: activity nan"),
        (lambda text: "", "has no rows; expected 54"),
    ],
)
def test_broken_files_are_refused_with_file_and_line(tmp_path, damage, message):
    files = {NAME: damage(pamap2()[NAME].decode()).encode()}
    with pytest.raises(SourceError, match=message):
        prepare("pamap2", layouts.unpacked(files, tmp_path))
