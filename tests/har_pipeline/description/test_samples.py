"""Described files give the numbers that were written into them, whatever their layout."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline import LabelError, Recording, SettingsError, SourceError
from har_pipeline.description import description_of, file_recordings, find_files
from tests.har_pipeline.description.made import RESPECK, SISFALL, G, Truth, respeck, sisfall


def read(root: Path, options: Mapping[str, Any]) -> dict[str, list[Recording]]:
    """All recordings of each file."""
    description = description_of(options)
    return {file.name: list(file_recordings(description, file)) for file in find_files(description, root).each()}


def joined(recordings: list[Recording], sensor: str) -> tuple[np.ndarray, np.ndarray]:
    mine = [each for each in recordings if each.sensor == sensor]
    return np.concatenate([each.times_s for each in mine]), np.concatenate([each.values for each in mine])


def words(recording: Recording) -> list[str]:
    return np.broadcast_to(np.asarray(recording.activity), len(recording.times_s)).tolist()


@pytest.mark.parametrize(("make", "options"), [(respeck, RESPECK), (sisfall, SISFALL)])
def test_both_foreign_layouts_give_the_numbers_that_were_written(tmp_path, make, options):
    truths: dict[str, Truth] = make(tmp_path)
    found = read(tmp_path, options)
    assert found.keys() == truths.keys()
    for name, truth in truths.items():
        for sensor, values in (("acc", truth.acc), ("gyro", truth.gyro)):
            times, read_values = joined(found[name], sensor)
            np.testing.assert_allclose(times, truth.times_s, rtol=0, atol=1e-6)
            np.testing.assert_allclose(read_values, values, rtol=1e-12, atol=1e-14)


def test_named_groups_say_client_session_and_activity(tmp_path):
    sisfall(tmp_path)
    first = read(tmp_path, SISFALL)["D01_SA03_R02.txt"][0]
    assert (first.client, first.session, first.activity) == ("SA03", "R02", "walking")
    assert (first.sensor, first.line) == ("acc", 1)


def write(folder: Path, text: str | bytes, name: str = "a/x.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


PLAIN: dict[str, Any] = {"time": "t", "acceleration": "specific force", "acc": {"columns": ["x", "y", "z"]}}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("t,x,y,z\n0,1,2,3\n1,4,5,6\n", {}),
        ("\ufefft,x,y,z\r\n0,1,2,3\r\n1,4,5,6\r\n", {}),
        ("t;x;y;z\n0,0;1,0;2;3\n1,0;4;5;6,0\n", {"separator": ";", "decimal": ","}),
        ("t x   y z\n 0 1  2 3 \n1 4 5 6\n", {"separator": "whitespace"}),
        ("t\tx\ty\tz\n0\t1\t2\t3\n1\t4\t5\t6\n", {"separator": "tab"}),
        ("made by a phone\n# comment\nt,x,y,z\n\n0,1,2,3\n# more\n1,4,5,6\n", {"comment": "#", "skip_lines": 1}),
        ("t,x,y,z,\n0,1,2,3,\n1,4,5,6,\n", {"trailing": ","}),
        ('"t","x","y","z"\n"0","1","2","3"\n1,4,5,6', {}),
        ("t,z,y,x\n0,3,2,1\n1,6,5,4\n", {"acc": {"columns": [4, 3, 2]}}),
        ("1,2,3,0\n4,5,6,1\n", {"header": False, "time": 4, "acc": {"columns": [1, 2, 3]}}),
        ("x,y,z\n1,2,3\n4,5,6\n", {"time": None, "rate_hz": 1}),
        ("t,x,y,z\n0,1,2,3\n1000,4,5,6\n", {"time": {"column": "t", "unit": "ms"}}),
        ("t,x,y,z\n0,1,2,3\n32768,4,5,6\n", {"time": {"column": "t", "unit": 1 / 32768}}),
        ("t,x,y,z\n1970-01-01T00:00:00Z,1,2,3\n1970-01-01T01:00:01+01:00,4,5,6\n",
         {"time": {"column": "t", "unit": "date"}}),
        ("t,x,y,z\n01.01.1970 00:00:00,1,2,3\n01.01.1970 00:00:01,4,5,6\n",
         {"time": {"column": "t", "unit": "date", "format": "%d.%m.%Y %H:%M:%S"}}),
        ("t,x,y,z\n0,11,14,17\n1,14,17,20\n", {"acc": {"columns": ["x", "y", "z"], "offset": [10, 12, 14]}}),
        ("t,x,y,z\n0,2,-1,3\n1,5,-4,6\n",
         {"acc": {"columns": ["x", "y", "z"], "matrix": [[0, -1, 0], [1, 0, 0], [0, 0, 1]]}}),
        ("t,x,y,z,a,b,c\n0,1,1,1,0,1,2\n1,4,4,4,0,1,2\n",
         {"acc": {"columns": ["x", "y", "z"], "add": ["a", "b", "c"]}}),
    ],
)  # fmt: skip
def test_every_way_to_write_the_same_two_rows(tmp_path, text, changes):
    found = read(write(tmp_path, text), {**PLAIN, **changes})["a/x.csv"]
    (times, acc), (gyro_times, gyro) = joined(found, "acc"), joined(found, "gyro")
    np.testing.assert_allclose(acc, [[1, 2, 3], [4, 5, 6]], rtol=1e-12)
    np.testing.assert_allclose(times, [0, 1], atol=1e-9)
    assert (gyro_times.tolist(), gyro.tolist()) == ([0, 1], [[0, 0, 0]] * 2)


@pytest.mark.parametrize(("unit", "per_s"), [("ms", 1000), ("us", 1000_000), ("ns", 1000_000_000)])
def test_times_are_rounded_once(tmp_path, unit, per_s):
    numbers = 1_657_544_418_323 + np.arange(100)
    rows = "".join(f"{number},1,2,3\n" for number in numbers)
    options = {**PLAIN, "time": {"column": "t", "unit": unit}}
    times, _ = joined(read(write(tmp_path, f"t,x,y,z\n{rows}"), options)["a/x.csv"], "acc")
    assert times.tolist() == [int(number) / per_s for number in numbers]


def test_a_strict_description_refuses_a_damaged_row_and_a_file_without_rows(tmp_path):
    rows = "".join(f"{at},1,2,3\n" for at in range(30))
    write(tmp_path, f"t,x,y,z\n{rows}30,one,2,3\n")
    assert joined(read(tmp_path, PLAIN)["a/x.csv"], "acc")[1].shape == (31, 3)
    with pytest.raises(SourceError, match=r"a/x\.csv, line 32: 'one' in column 'x' is no number"):
        read(tmp_path, {**PLAIN, "strict": True})
    write(tmp_path, "t,x,y,z\n")
    with pytest.raises(SourceError, match=r"a/x\.csv has no rows below its header"):
        read(tmp_path, {**PLAIN, "strict": True})


@pytest.mark.parametrize(
    ("section", "unit", "one"),
    [("acc", "m/s2", 1), ("acc", "g", G), ("acc", "mg", G / 1000), ("acc", 0.5, 0.5), ("gyro", "rad/s", 1),
     ("gyro", "deg/s", np.pi / 180)],
)  # fmt: skip
def test_units_by_name_and_by_number(tmp_path, section, unit, one):
    columns = {"acc": {"columns": ["x", "y", "z"]}, "gyro": {"columns": ["x", "y", "z"]}}
    columns[section]["unit"] = unit
    found = read(write(tmp_path, "t,x,y,z\n0,1,2,3\n"), {**PLAIN, **columns})["a/x.csv"]
    values = {each.sensor: each.values for each in found}
    np.testing.assert_allclose(values[section], [[one, 2 * one, 3 * one]], rtol=1e-14)


def test_a_column_says_the_sensor_of_each_row_and_others_are_left_out(tmp_path):
    text = "t,kind,x,y,z\n0,Accelerometer,1,2,3\n0,gyroscope,4,5,6\n0,mag,,,\n1,Accelerometer,7,8,9\n"
    options = {**PLAIN, "gyro": {"columns": ["x", "y", "z"]}, "sensor": "kind"}
    acc, gyro = read(write(tmp_path, text), options)["a/x.csv"]
    assert (acc.sensor, acc.times_s.tolist(), acc.values.tolist()) == ("acc", [0, 1], [[1, 2, 3], [7, 8, 9]])
    assert (gyro.sensor, gyro.times_s.tolist(), gyro.values.tolist(), gyro.line) == ("gyro", [0], [[4, 5, 6]], 3)
    own = {**options, "acc": {"columns": ["x", "y", "z"], "sensor": "mag"}}
    with pytest.raises(SourceError, match=r"no row has a number in each of the columns .* of acc"):
        read(tmp_path, own)


def test_columns_say_client_session_and_activity_and_chunks_end_where_they_change(tmp_path):
    rows = ["t,x,y,z,who,trial,what"]
    rows += [f"{i},1,2,3,p{i // 4},{i // 2}, {'go' if i % 2 else 'rest'} " for i in range(8)]
    options = {**PLAIN, "client": "who", "session": "trial", "activity": "what", "labels": ["go", "rest"]}
    acc = read(write(tmp_path, "\n".join([*rows, ""])), options)["a/x.csv"][::2]
    assert [(each.client, each.session, each.line) for each in acc] == [
        ("p0", "0", 2), ("p0", "1", 4), ("p1", "2", 6), ("p1", "3", 8)
    ]  # fmt: skip
    assert [words(each) for each in acc] == [["rest", "go"]] * 4


def test_labels_are_merged_ignored_and_an_unknown_one_names_the_key(tmp_path):
    rows = "t,x,y,z,what\n0,1,2,3,stroll\n1,1,2,3,idle\n2,1,2,3,null\n3,1,2,3,walking\n"
    options = {**PLAIN, "activity": "what"}
    labels = {"names": ["walking"], "map": {"stroll": "walking"}}
    found = read(write(tmp_path, rows), {**options, "labels": {**labels, "ignore": ["idle"]}})["a/x.csv"]
    assert words(found[0]) == ["walking", "", "", "walking"]
    with pytest.raises(LabelError, match=r"a/x\.csv, line 3: activity 'idle' isn't a label;.* labels\.ignore"):
        read(tmp_path, {**options, "labels": labels})


def test_an_empty_cell_or_a_short_row_is_a_lost_sample(tmp_path):
    acc = read(write(tmp_path, "t,x,y,z\n0,1,2,3\n1,,2,3\n2,1,2\n3,1,NaN,3\n4,1,2,3\n"), PLAIN)["a/x.csv"][0]
    assert np.isnan(acc.values).any(axis=1).tolist() == [False, True, True, True, False]


DAMAGED = {
    3: "3,one,2,3",
    5: "5,1,inf,3",
    8: "8,1,2,3,4,5",
    11: "11,1",
    14: "noon,1,2,3",
    17: "1e300,1,2,3",
    20: "20,-1e308,1e308,3",
}
"""What stands in place of a row: a word, an infinite number, too many cells, too few, two times, huge numbers."""


@pytest.mark.parametrize("separator", [",", " "])
def test_a_few_damaged_rows_are_lost_samples_and_the_others_stay(tmp_path, separator):
    rows = [DAMAGED.get(row, f"{row},1,2,{row}") for row in range(60)]
    text = "\n".join(["t,x,y,z", *rows, ""]).replace(",", separator)
    options = {**PLAIN, "separator": "whitespace" if separator == " " else separator}
    times, acc = joined(read(write(tmp_path, text), options)["a/x.csv"], "acc")
    lost = np.isnan(times) | np.isnan(acc).any(axis=1)
    assert np.flatnonzero(lost).tolist() == list(DAMAGED)
    good = np.setdiff1d(np.arange(60), list(DAMAGED))
    np.testing.assert_array_equal(times[good], good)
    np.testing.assert_array_equal(acc[good], np.stack([np.ones(53), np.full(53, 2), good], axis=1))


def test_a_row_that_was_cut_off_is_of_the_client_before(tmp_path):
    rows = ["t,x,y,z,who"] + [f"{row},1,2,3,{'a' if row < 20 else 'b'}" for row in range(40)]
    rows[8], rows[30] = "7,1,2", "29,1,2,3,4,5,6"
    found = read(write(tmp_path, "\n".join([*rows, ""])), {**PLAIN, "client": "who"})["a/x.csv"][::2]
    assert [(each.client, len(each.times_s), int(np.isnan(each.values).any(axis=1).sum())) for each in found] == [
        ("a", 20, 1), ("b", 20, 1)
    ]  # fmt: skip


def test_where_half_of_the_rows_are_damaged_the_file_is_refused_and_they_are_counted(tmp_path):
    rows = ["t,x,y,z", *(f"{row},1,2,{'3' if row % 2 else 'left'}" for row in range(30)), ""]
    with pytest.raises(
        SourceError, match=r"x\.csv, line 2: 'left' in column 'z' is no number \(and 14 of 30 rows more\)"
    ):
        read(write(tmp_path, "\n".join(rows)), PLAIN)


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("", {}, r"a/x\.csv is empty"),
        ("t,x,y\n0,1,2\n", {}, r"no column 'z'"),
        ("time,x,y,z\n0,1,2,3\n", {}, r"no column 't'; .*Known: time, x, y, z"),
        ("t,x,x,y,z\n0,1,1,2,3\n", {}, r"2 columns are called 'x'; give the column's number"),
        ("t,x,y,z\n0,1,2,3\n1,1,2,3,4\n", {}, r"line 3: not a row of 4 columns"),
        ("t,x,y,z\n0,1,2,3,4\n1,1,2,3\n", {}, r"line 2: not a row of 4 columns"),
        ("t,x,y,z\n0,1,2,3\n\n1,one,2,3\n", {}, r"line 4: 'one' in column 'x' is no number"),
        ("t,x,y,z\n0,1,2,inf\n", {}, r"line 2: infinite"),
        ("t,x,y,z\n0,1,2,1e308\n", {}, r"line 2: 1, 2, 1e\+308 .* beyond 1,000,000 .*; are unit and scale right"),
        ("t,x,y,z\n0,,,\n1,,,\n", {}, "no row has a number"),
        ("t,x,y,z\n1600000000000,1,2,3\n", {}, r"thousands of years away; is time.unit 's' right"),
        ("t,x,y,z\nnoon,1,2,3\n", {"time": {"column": "t", "unit": "date"}}, r"line 2: 'noon' .* is no date"),
        (b"t,x,y,z\n\0\0\0\0", {}, "zero bytes"),
        ("t,x,y,z\n".encode("utf-16"), {}, "UTF-16"),
        pytest.param("x" * (3 << 20), {}, "line of more than 1 MiB", id="a long line"),
        ("1,2,3\n", {"header": False, "time": None, "rate_hz": 5, "acc": {"columns": [2, 3, 4]}}, "no column 4"),
    ],
)
def test_what_is_no_such_table_is_refused_with_its_line(tmp_path, text, changes, message):
    with pytest.raises(SourceError, match=message):
        read(write(tmp_path, text), {**PLAIN, **changes})


def test_a_file_alone_is_matched_with_the_folders_that_it_lies_in(tmp_path):
    respeck(tmp_path)
    (found,) = find_files(description_of(RESPECK), tmp_path / "subject12" / "respeck" / "sitting.csv").each()
    assert found.name == found.matched.visit == "sitting.csv"
    assert found.matched.captured == {"client": "12", "activity": "sitting"}


def test_a_pattern_that_never_ends_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("har_pipeline.description.files.MATCHING_S", 0.5)
    write(tmp_path, "t,x,y,z\n0,1,2,3\n", f"{'a' * 60}.csv")
    with pytest.raises(SettingsError, match="avoid repeats within repeats"):
        find_files(description_of({**PLAIN, "files": r"(a+)+b"}), tmp_path)


def test_a_quotation_mark_too_many_damages_its_row_alone(tmp_path):
    rows = ["t,x,y,z,what", *(f"{row},1,2,{row},{chr(34) if row == 7 else ''}walk" for row in range(40)), ""]
    acc, _ = read(write(tmp_path, "\n".join(rows)), {**PLAIN, "activity": "what"})["a/x.csv"]
    assert np.flatnonzero(np.isnan(acc.values).any(axis=1)).tolist() == [7]
    assert [word for word in words(acc) if word] == ["walk"] * 39
    with pytest.raises(SourceError, match=r"line 3: a quotation mark isn't closed .* \(and 9 of 20 rows"):
        read(write(tmp_path, "t,x,y,z\n" + '0,1,2,3\n1,1,2,"3\n' * 10), PLAIN)


def test_words_of_digits_stay_as_they_are_written(tmp_path):
    """Read as numbers, 01 would be 1 where all cells are numbers, and 01 where one is empty."""
    rows = "".join(f"{row},1,2,3,01\n" for row in range(30))
    for more in ("", "30,1,2,3,\n"):
        found = read(write(tmp_path, "t,x,y,z,who\n" + rows + more), {**PLAIN, "client": "who"})["a/x.csv"]
        assert {each.client for each in found} == {"01"}


@pytest.mark.parametrize("encoded", ["windows-1252", "utf-8", "utf-8-sig"])
def test_texts_of_windows_programs_and_lines_of_old_macs_are_read(tmp_path, encoded):
    rows = ["t;x;y;z;Aktivität", *(f"{row};1;2;3;gehen – schräg" for row in range(30)), ""]
    options = {**PLAIN, "separator": ";", "activity": "Aktivität", "labels": ["gehen – schräg"]}
    for ending in ("\n", "\r\n", "\r"):
        acc, _ = read(write(tmp_path, ending.join(rows).encode(encoded)), options)["a/x.csv"]
        assert words(acc) == ["gehen – schräg"] * 30


@pytest.mark.ci
def test_five_hours_in_one_file_are_read_in_constant_memory(tmp_path):
    """At 25 Hz 450,000 rows, 30 MB in memory as float64; the first of each hour is compared."""
    description = description_of(RESPECK)
    path = tmp_path / "subject1" / "respeck" / "sitting.csv.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("timestamp,accel_x,accel_y,accel_z,gyro_x,gyro_y,gyro_z\n")
        file.writelines(f"{40 * i},{i % 7},0,1,{i % 90},0,0\n" for i in range(5 * 3600 * 25))
    options = {**RESPECK, "files": RESPECK["files"] + r"\.gz"}
    description, rows = description_of(options), {"acc": 0, "gyro": 0}
    file = next(find_files(description, tmp_path).each())
    tracemalloc.start()
    for recording in file_recordings(description, file):
        at = rows[recording.sensor] + np.arange(len(recording.times_s))
        if recording.sensor == "acc":
            np.testing.assert_allclose(recording.values[:, 0], at % 7 * G, rtol=1e-12)
        else:
            np.testing.assert_allclose(recording.values[:, 0], np.deg2rad(at % 90), rtol=1e-12)
        np.testing.assert_allclose(recording.times_s, at * 0.04, atol=1e-9)
        rows[recording.sensor] += len(at)
        assert abs(rows["acc"] - rows["gyro"]) <= 8192
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == {"acc": 450_000, "gyro": 450_000}
    assert peak < 40e6
