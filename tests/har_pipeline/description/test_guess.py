"""A first description is right but for the lines that it says to check, and on real files too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gaitway.python310 import tomllib
from har_pipeline import SourceError, prepare
from har_pipeline.description import description_of, file_recordings, find_files
from har_pipeline.description.guess.draft import draft
from har_pipeline.description.inspection import inspect
from tests.har_pipeline import layouts
from tests.har_pipeline.description.made import RESPECK, SISFALL, respeck, sisfall


def test_respeck_is_guessed_with_nothing_left_to_change(tmp_path):
    truths = respeck(tmp_path)
    found = draft(tmp_path)
    assert {key: found.guesses[key].value for key in RESPECK} == RESPECK
    assert {key for key, guess in found.guesses.items() if not guess.sure} == {"files", "acceleration", "labels"}
    assert found.problems == []
    assert len([line for line in found.toml().splitlines() if not line.startswith("#")]) <= 20
    description = description_of(tomllib.loads(found.toml()))
    for file in find_files(description, tmp_path).each():
        acc = np.concatenate([each.values for each in file_recordings(description, file) if each.sensor == "acc"])
        np.testing.assert_allclose(acc, truths[file.name].acc, rtol=1e-12)


def test_sisfall_is_guessed_but_for_the_rate_which_no_file_says(tmp_path):
    sisfall(tmp_path)
    found = draft(tmp_path)
    guessed = tomllib.loads(found.toml())
    assert not found.guesses["rate_hz"].sure
    assert {**guessed, "rate_hz": 200, "files": SISFALL["files"], "labels": SISFALL["labels"]} == SISFALL
    assert guessed["labels"] == ["D01", "D08"]
    assert "7 8 9" in found.toml()  # the second accelerometer
    options = {**guessed, "rate_hz": 200}
    windows, own = (prepare("described", tmp_path, options=each).clients["SA03"] for each in (options, SISFALL))
    assert (windows.x == own.x).all()


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("time,ax,ay,az", "{s},0,0,9.8", {"time": {"column": "time", "unit": "s"}, "acc": "m/s2"}),
        (
            "Time;AccX (mg);AccY (mg);AccZ (mg)",
            "{ms};0;0;1000",
            {"time": {"column": "Time", "unit": "ms"}, "acc": "mg"},
        ),
        ("x,y,z,timestamp", "0,0,1,{ns}", {"time": {"column": "timestamp", "unit": "ns"}, "acc": "g"}),
        ("t,acc_x,acc_y,acc_z", "{us},0,-9.8,0", {"time": {"column": "t", "unit": "us"}, "acc": "m/s2"}),
    ],
)
def test_units_of_time_and_acceleration(tmp_path, header, row, expected):
    rows = [
        row.format(
            s=i / 50,
            ms=1.6e12 + 20 * i,
            us=1_600_000_000_000_000 + 20_000 * i,
            ns=1_600_000_000 * 10**9 + 20_000_000 * i,
        )
        for i in range(200)
    ]
    (tmp_path / "walking.csv").write_text("\n".join([header, *rows]))
    found = draft(tmp_path)
    assert found.guesses["time"].value == expected["time"]
    assert found.guesses["acc"].value["unit"] == expected["acc"]


@pytest.mark.parametrize(
    ("name", "header", "clients", "labels"),
    [
        ("{who}/{what}.csv", "t,x,y,z", ["anna", "bert"], ["sitting", "walking"]),
        ("{who}_{what}.csv", "t,x,y,z", ["anna", "bert"], ["sitting", "walking"]),
        ("{who}_{what}.csv", "t,x,y,z,activity", ["anna", "bert"], ["sitting", "walking"]),
        ("{who}/{what}_slow.csv", "t,x,y,z", ["anna", "bert"], ["sitting_slow", "walking_slow"]),
        ("{who}/{what}/Accelerometer.csv", "t,x,y,z", ["anna", "bert"], ["sitting", "walking"]),
        ("{who}_{what[0]}.csv", "Zeit (s);Kraft (m/s²) x;y;z;Aktivität", ["anna", "bert"], ["sitting", "walking"]),
    ],
)
def test_who_did_it_is_not_taken_for_what_was_done(tmp_path, name, header, clients, labels):
    mark = ";" if ";" in header else ","
    for who, what in itertools.product(("anna", "bert"), ("sitting", "walking")):
        word = [what] if header.endswith(("activity", "Aktivität")) else []
        rows = [mark.join([f"{i / 50:.2f}", f"0.{i % 7}", f"0.{i % 9}", f"9.{i % 8}", *word]) for i in range(200)]
        path = tmp_path / name.format(who=who, what=what)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *rows]))
    found = draft(tmp_path)
    assert found.guesses["labels"].value == labels
    description = description_of(tomllib.loads(found.toml()))
    reports = list(inspect(description, find_files(description, tmp_path)))
    assert sorted(set[str]().union(*(report.clients for report in reports))) == clients


@pytest.mark.parametrize(
    "names",
    [
        ("anna/walk_1.csv", "ben/walk_2.csv"),
        ("anna_walk_1.csv", "ben_walk_2.csv"),
        ("anna/walk_1.csv", "anna/walk_2.csv", "ben/walk_1.csv"),
        ("anna/1.csv", "ben/2.csv"),
    ],
)
def test_a_recordings_number_is_not_its_client(tmp_path, names):
    for name in names:
        rows = [f"{row / 50:.2f},0.{row % 7},0.{row % 9},9.{row % 8}" for row in range(200)]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(["t,x,y,z", *rows]))
    found = draft(tmp_path)
    assert found.clients == ["anna", "ben"]
    assert found.to_json().get("labels", ["walk"]) == ["walk"]


def test_other_encodings_are_guessed_or_named(tmp_path):
    rows = ["t;Acc X;Acc Y;Acc Z;Aktivität", *(f"{row / 50};0;0;9.81;gehen – schräg" for row in range(200)), ""]
    (tmp_path / "x.csv").write_bytes("\n".join(rows).encode("windows-1252"))
    found = draft(tmp_path).to_json()
    assert (found["activity"], found["labels"]) == ("Aktivität", ["gehen – schräg"])
    (tmp_path / "y.csv").write_bytes("\n".join(rows).encode("utf-16"))
    assert "1 files are UTF-16 and cannot be read, such as 'y.csv'" in draft(tmp_path).remarks
    with pytest.raises(SourceError, match=r"y\.csv is UTF-16; save it as UTF-8"):
        draft(tmp_path / "y.csv")


def test_a_column_of_sensors_tells_the_gyroscope_too(tmp_path):
    lines = ["Timestamp;Sensor;X;Y;Z"]
    for row in range(400):
        lines += [
            f"{row * 32};Accelerometer;0;{row % 3};9.8",
            f"{row * 32 + 3};Gyroscope;{row % 90 - 44.5};0;{row % 60}",
        ]
    (tmp_path / "x.csv").write_text("\n".join([*lines, ""]))
    found = draft(tmp_path)
    assert found.to_json()["acc"] == {"columns": ["X", "Y", "Z"], "unit": "m/s2"}
    assert found.to_json()["gyro"] == {"columns": ["X", "Y", "Z"], "unit": "deg/s"}
    assert "31.25 rows per second" in found.guesses["time"].why
    assert not any("no gyroscope" in each for each in found.remarks)
    described = description_of(found.to_json())
    (report,) = inspect(described, find_files(described, tmp_path))
    assert report.samples == {"acc": 400, "gyro": 400}


@pytest.mark.parametrize("still_first", [True, False])
def test_a_gyroscope_without_a_name_is_found_in_the_files_in_which_it_turns(tmp_path, still_first):
    random = np.random.default_rng(1)
    for number in range(4):
        still = (number < 3) == still_first
        phase = np.arange(900) / 20
        acc = np.array([0, 256, 0]) + random.normal(0, 1, (900, 3)) + (0 if still else 60) * np.sin(phase)[:, None]
        turns = np.stack([np.sin(phase), np.sin(phase + 1), np.cos(phase)], axis=1)
        turns *= np.array([900, 300, 200]) * (0 if still else 1)
        gyro = turns + random.normal(0, 1, (900, 3)) + np.array([9, 4, 7]) * still
        rows = np.hstack([acc, gyro, 4 * acc]).round().astype(int)
        np.savetxt(tmp_path / f"D0{number}_S01_R01.txt", rows, "%4d", delimiter=", ", newline=";\n")
    found = draft(tmp_path)
    assert found.to_json()["acc"]["columns"] == [1, 2, 3]
    assert found.to_json()["gyro"]["columns"] == [4, 5, 6]
    assert "columns that are not used, perhaps further sensors: 7 8 9" in found.remarks


def test_german_names_and_dates_are_guessed(tmp_path):
    rows = [f"31.03.2024 01:30:{row // 50:02d},{row % 50 * 20:03d};0;0;9,81;0,5;{row % 9}" for row in range(600)]
    header = "Datum;Beschl X;Beschl Y;Beschl Z;Dreh;Aktivität"
    (tmp_path / "x.csv").write_text("\n".join([header, *rows, ""]))
    found = draft(tmp_path)
    assert found.to_json()["time"] == {"column": "Datum", "unit": "date", "format": "%d.%m.%Y %H:%M:%S,%f"}
    assert found.to_json()["acc"]["columns"] == ["Beschl X", "Beschl Y", "Beschl Z"]
    assert 'activity = "Aktivität"' in found.toml()
    assert found.problems == []


@pytest.mark.parametrize("odd", ["1e308", "inf", "-1e400"])
def test_numbers_that_no_sensor_measures_are_left_out_of_the_guess(tmp_path, odd):
    """Warnings of numpy are errors here."""
    noise = np.random.default_rng(1).normal(0, 0.05, (600, 3)) + np.array([0, 0, 9.8])
    rows = [f"{row / 50};{odd if row % 9 == 0 else round(x, 4)};{y:.4f};{z:.4f}" for row, (x, y, z) in enumerate(noise)]
    (tmp_path / "x.csv").write_text("\n".join([*rows, ""]))
    assert draft(tmp_path).to_json()["acc"] == {"columns": [2, 3, 4], "unit": "m/s2"}


def test_an_open_quotation_mark_ends_no_guess(tmp_path):
    (tmp_path / "x.csv").write_text("t,ax,ay,az,label\n" + '0,0,0,9.81,"walk\n' * 300)
    assert "a quotation mark isn't closed" in draft(tmp_path).problems[0]


def test_what_holds_no_accelerometer_is_refused(tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        draft(tmp_path / "none")
    with pytest.raises(SourceError, match=r"no file under .* is a text table"):
        draft(tmp_path)
    layouts.unpacked({"people.csv": b"code,weight,height,age\n1,70,170,30\n2,80,180,40\n", "a.bin": b"\0\1"}, tmp_path)
    with pytest.raises(SourceError, match=r"people\.csv: no three columns look like an accelerometer"):
        draft(tmp_path)


@pytest.mark.data
def test_real_files_are_guessed_as_their_readers_know_them(data):
    found = draft(data / "motionsense" / "sample").guesses
    assert found["acc"].value == {
        "columns": [f"userAcceleration.{axis}" for axis in "xyz"],
        "add": [f"gravity.{axis}" for axis in "xyz"],
        "unit": "g",
    }
    assert found["gyro"].value["unit"] == "rad/s"
    assert found["labels"].value == ["dws", "jog", "ups", "wlk"]
    found = draft(data / "realworld").guesses
    assert found["time"].value == {"column": "attr_time", "unit": "ms"}
    assert (found["acc"].value["unit"], found["gyro"].value["unit"]) == ("m/s2", "rad/s")
    assert "(?P<sensor>" in found["files"].value
