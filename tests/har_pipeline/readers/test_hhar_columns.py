"""HHAR without a header, with other names of its times, with these mixed up, and with watches beside the phones."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from har_pipeline import SettingsError, SourceError, prepare, recordings
from har_pipeline.readers import READERS
from tests.har_pipeline import layouts
from tests.har_pipeline.layouts import HHAR_COLUMNS, Files


def without_header(content: bytes) -> bytes:
    return content.split(b"\n", 1)[1]


def renamed(content: bytes, names: dict[str, str]) -> bytes:
    header = ",".join(names.get(column, column) for column in HHAR_COLUMNS)
    return header.encode() + b"\n" + without_header(content)


def reordered(content: bytes) -> bytes:
    """Creation_Time before Arrival_Time."""
    rows = [row.split(",") for row in content.decode().splitlines()]
    return "\n".join([",".join([row[0], row[2], row[1], *row[3:]]) for row in rows] + [""]).encode()


SPOILT = {
    "no header": without_header,
    "no header, times in the other order": lambda content: without_header(reordered(content)),
    "other names of the times": lambda content: renamed(content, {"Arrival_Time": "t1", "Creation_Time": "t2"}),
    "other names, Creation_Time first": lambda content: reordered(
        renamed(content, {"Arrival_Time": "t1", "Creation_Time": "t2"})
    ),
    "names of the times mixed up": lambda content: renamed(
        content, {"Arrival_Time": "Creation_Time", "Creation_Time": "Arrival_Time"}
    ),
    "one name lost": lambda content: renamed(content, {"Creation_Time": "nanoseconds"}),
}


def changed(files: Files, change) -> Files:
    return {name: change(content) for name, content in files.items()}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_the_times_are_told_apart_by_their_rates(spoilt, tmp_path):
    files = layouts.hhar()
    whole = prepare("hhar", layouts.unpacked(files, tmp_path / "whole")).clients
    found = prepare("hhar", layouts.unpacked(changed(files, SPOILT[spoilt]), tmp_path / "spoilt")).clients
    assert list(found) == list(whole) == ["a_nexus4", "a_s3"]
    for client, windows in whole.items():
        np.testing.assert_array_equal(found[client].x, windows.x)
        np.testing.assert_array_equal(found[client].start_s, windows.start_s)


def test_a_file_within_a_tar_is_read_once_and_has_no_header_either(tmp_path):
    files = changed(layouts.hhar(), without_header)
    (tmp_path / "hhar.tar.gz").write_bytes(layouts.tarred(files, "gz"))
    assert list(prepare("hhar", tmp_path).clients) == ["a_nexus4", "a_s3"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0,1424696633908,1,2,3\n" * 50, "has no header, and 5 columns; expected the 10"),
        (b"Index,A,B,x,y,z,User,Model,Device,gt\n" + b"1,5,5,1,2,3,a,s3,s3_1,walk\n" * 50, "no two others run"),
        (b"", "is empty"),
    ],
)
def test_what_cannot_be_told_is_refused_in_words(content, words, tmp_path):
    files = dict.fromkeys(layouts.hhar(seconds=1), content)
    with pytest.raises(SourceError, match=words):
        prepare("hhar", layouts.unpacked(files, tmp_path))


def with_watches() -> Files:
    files = layouts.hhar()
    for name, content in list(files.items()):
        watch = content.replace(b",nexus4,nexus4_", b",gear,gear_").replace(b",s3,s3_1", b",lgwatch,lgwatch_1")
        files[name.replace("Phones_", "Watch_")] = watch
    return files


def test_a_watch_is_a_client_of_its_own_beside_the_phone_of_the_same_person(tmp_path, caplog):
    root = layouts.unpacked(with_watches(), tmp_path)
    with caplog.at_level(logging.WARNING):
        assert list(prepare("hhar", root).clients) == ["a_nexus4", "a_s3"]
    assert "Watch_accelerometer.csv is not read; give option devices" in caplog.text
    everything = list(prepare("hhar", root, options={"devices": "all"}).clients)
    assert everything == ["a_gear", "a_lgwatch", "a_nexus4", "a_s3"]
    assert {each.client for each in recordings("hhar", root, options={"devices": "watches"})} == {"a_gear", "a_lgwatch"}
    origins = [READERS["hhar"].origin(client) for client in everything]
    assert [(origin.user, origin.place) for origin in origins] == [
        ("a", "wrist"), ("a", "wrist"), ("a", "waist"), ("a", "waist")
    ]  # fmt: skip
    with pytest.raises(SettingsError, match="did you mean 'watches'"):
        prepare("hhar", root, options={"devices": "watch"})
