"""SHL preview: days in the order of time, labels joined by time, zips side by side, clear refusals."""

from __future__ import annotations

import numpy as np
import pytest

from har_pipeline import SourceError, prepare, recordings
from har_pipeline.readers import tables
from tests.har_pipeline import layouts
from tests.har_pipeline.layouts_pretraining import shl

JUNE, JULY = "SHLDataset_preview_v1/User3/140617", "SHLDataset_preview_v1/User3/030717"


def test_days_come_in_the_order_of_time_with_the_first_six_columns_after_the_clock(tmp_path):
    read = list(recordings("shl", layouts.unpacked(shl(), tmp_path), clients=["user3_torso"]))
    assert [(each.client, each.session, each.sensor) for each in read] == [
        ("user3_torso", day, sensor) for day in ("170614", "170703") for sensor in ("acc", "gyro")
    ]
    assert read[0].times_s[:2] == pytest.approx([1497427200.0, 1497427200.01])
    np.testing.assert_allclose(read[0].values[0], [2, 2, 9])
    np.testing.assert_allclose(read[1].values[0], [0.1, 0.2, 0.3], rtol=1e-6)


def test_coarse_labels_are_joined_by_time_and_0_is_unlabelled(tmp_path):
    files = shl()
    files[f"{JUNE}/Label.txt"] = b"\n".join(files[f"{JUNE}/Label.txt"].splitlines()[150:250])
    acc = next(recordings("shl", layouts.unpacked(files, tmp_path), clients=["user3_hand"]))
    edges = np.flatnonzero(acc.activity[1:] != acc.activity[:-1]) + 1
    # labelled null up to 2 s, then car to the last label at 2.49 s and for the second that it stays valid
    assert edges.tolist() == [200, 350]
    assert acc.activity[[0, 200, 350]].tolist() == ["null", "car", "null"]
    dataset = prepare("shl", tmp_path)
    assert {dataset.labels[y] for y in dataset.clients["user3_hand"].y} == {"car", "walking"}


def test_the_zips_of_the_preview_are_read_side_by_side(tmp_path):
    files = shl()
    for part, day in ((1, JUNE), (2, JULY)):
        mine = {name: content for name, content in files.items() if name.startswith(day)}
        (tmp_path / f"SHLDataset_preview_v1_part{part}.zip").write_bytes(layouts.zipped(mine))
    assert {each.session for each in recordings("shl", tmp_path)} == {"170614", "170703"}


def test_chunks_change_no_window(tmp_path, monkeypatch):
    root = layouts.unpacked(shl(), tmp_path)
    whole = prepare("shl", root)
    monkeypatch.setattr(tables, "CHUNK_ROWS", 37)
    pieces = prepare("shl", root)
    for client in whole.clients:
        np.testing.assert_allclose(pieces.clients[client].x, whole.clients[client].x, atol=1e-5)
        assert (pieces.clients[client].y == whole.clients[client].y).all()


def test_missing_labels_and_unknown_codes_are_refused(tmp_path):
    files = shl()
    files[f"{JUNE}/Label.txt"] = files[f"{JUNE}/Label.txt"].replace(b" 5 ", b" 9 ", 1)
    with pytest.raises(SourceError, match=r"140617/Label\.txt, line 201: coarse label 9; expected 0 to 8"):
        prepare("shl", layouts.unpacked(files, tmp_path / "a"))
    del files[f"{JUNE}/Label.txt"]
    with pytest.raises(SourceError, match=r"140617/Hand_Motion\.txt: no Label\.txt beside it"):
        prepare("shl", layouts.unpacked(files, tmp_path / "b"))
