"""Exports of every app, on both platforms and in every number format: the same movement, the same way up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline import Recording, SettingsError, SourceError, prepare, recordings
from har_pipeline.readers import APPS, READERS
from tests.har_pipeline import layouts
from tests.har_pipeline.apps import exports
from tests.har_pipeline.apps.exports import BEGAN_S, Movement, movement
from tests.har_pipeline.layouts import Files

LABELS: dict[str, Any] = {"labels": ["walking", "sitting"]}
ANDROID = {**LABELS, "acceleration": "specific force"}


def placed(files: Files, folder: str) -> Files:
    return {f"{folder}/{name}": content for name, content in files.items()}


LAYOUTS: dict[str, tuple[str, Callable[[], Files], dict[str, Any]]] = {
    "Sensor Logger, Android": ("sensor_logger", lambda: exports.sensor_logger(), LABELS),
    "Sensor Logger, Android, total": ("sensor_logger", lambda: exports.sensor_logger(total=True), LABELS),
    "Sensor Logger, iOS": ("sensor_logger", lambda: exports.sensor_logger("ios"), LABELS),
    "Sensor Logger, iOS, standardised": (
        "sensor_logger",
        lambda: exports.sensor_logger("ios", standardised=True),
        LABELS,
    ),
    "phyphox": ("phyphox", lambda: exports.phyphox(), LABELS),
    "phyphox, semicolons": ("phyphox", lambda: exports.phyphox(";"), LABELS),
    "phyphox, semicolons and decimal commas": ("phyphox", lambda: exports.phyphox(";", ","), LABELS),
    "phyphox, tabs": ("phyphox", lambda: exports.phyphox("\t"), LABELS),
    "phyphox, tabs and decimal commas": ("phyphox", lambda: exports.phyphox("\t", ","), LABELS),
    "phyphox, one table": ("phyphox", lambda: exports.phyphox(raw=True), LABELS),
    "phyphox, gravity apart": ("phyphox", lambda: exports.phyphox(linear=True), LABELS),
    "AndroSensor": ("androsensor", lambda: {"a.csv": exports.androsensor()}, LABELS),
    "AndroSensor, commas": ("androsensor", lambda: {"a.csv": exports.androsensor(",", sep_line=False)}, LABELS),
    "AndroSensor, gravity apart": ("androsensor", lambda: {"a.csv": exports.androsensor(total=False)}, LABELS),
    "Physics Toolbox": ("physics_toolbox", lambda: {"a.csv": exports.physics_toolbox()}, ANDROID),
    "Physics Toolbox, decimal commas": (
        "physics_toolbox",
        lambda: {"a.csv": exports.physics_toolbox(";", ",")},
        ANDROID,
    ),
    "Physics Toolbox, times of day": (
        "physics_toolbox",
        lambda: {"a.csv": exports.physics_toolbox(clock=True)},
        ANDROID,
    ),
    "Physics Toolbox, the other way up": (
        "physics_toolbox",
        lambda: {"a.csv": exports.physics_toolbox(sign=-1.0)},
        {**LABELS, "acceleration": "gravity points down"},
    ),
}


def samples(found: list[Recording], sensor: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mine = [each for each in found if each.sensor == sensor]
    names = [
        np.full(len(each.times_s), each.activity) if isinstance(each.activity, str) else np.asarray(each.activity)
        for each in mine
    ]
    return (
        np.concatenate([each.times_s for each in mine]),
        np.concatenate([each.values for each in mine]),
        np.concatenate(names),
    )


def assert_same(found: list[Recording], moved: Movement) -> None:
    for sensor, expected in (("acc", moved.total), ("gyro", moved.gyro)):
        times_s, values, _ = samples(found, sensor)
        np.testing.assert_allclose(times_s - times_s[0], moved.times_s, atol=2e-3)
        np.testing.assert_allclose(values, expected, atol=2e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_movement_that_was_recorded(layout, tmp_path):
    name, files, options = LAYOUTS[layout]
    layouts.unpacked(placed(files(), "anna/walking_1"), tmp_path)
    found = list(recordings(name, tmp_path, options=options))
    assert {each.client for each in found} == {"832809b8-84b8_phone" if name == "sensor_logger" else "anna_phone"}
    assert_same(found, movement())
    assert "walking" in samples(found, "acc")[2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_app_is_known_by_its_own_files_alone(layout, tmp_path):
    name, files, _ = LAYOUTS[layout]
    layouts.unpacked(placed(files(), "walking"), tmp_path)
    assert [reader.name for reader in APPS if reader.recognizes(tmp_path)] == [name]


@pytest.mark.parametrize("files", [layouts.spsw(), layouts.realworld(packed=False), layouts.hhar(seconds=1.0)])
def test_no_app_takes_the_files_of_another_for_its_own(files, tmp_path):
    layouts.unpacked(files, tmp_path)
    assert not [reader.name for reader in APPS if reader.recognizes(tmp_path)]


@pytest.mark.parametrize("name", ["sensor_logger", "phyphox"])
@pytest.mark.parametrize("form", ["zip", "deep", "tar.gz", "zip in zip in folder"])
def test_archives_give_what_the_folder_gives(name, form, tmp_path):
    files = placed(exports.sensor_logger() if name == "sensor_logger" else exports.phyphox(), "walking")
    forms = layouts.forms(files, tmp_path, "walking 2026-03-05")
    whole, packed = (prepare(name, forms[each], options=LABELS).clients for each in ("folder", form))
    (client,) = whole
    np.testing.assert_array_equal(whole[client].x, next(iter(packed.values())).x)


def test_annotations_begin_and_end_activities_and_what_means_nothing_ends_them_too(tmp_path, caplog):
    notes = ((0.0, "Up the stairs"), (3.0, "end"), (6.0, "WALKING"), (9.0, "the dog barked"))
    layouts.unpacked(exports.sensor_logger(notes=notes), tmp_path / "sitting_3")
    options = {"labels": ["walking", "stairs"], "annotations": {"up the stairs": "stairs"}}
    with caplog.at_level(logging.WARNING):
        times_s, _, names = samples(list(recordings("sensor_logger", tmp_path, options=options)), "acc")
    expected = np.select(
        [times_s < BEGAN_S + 3, times_s < BEGAN_S + 6, times_s < BEGAN_S + 9], ["stairs", "", "walking"], ""
    )
    assert (names == expected).all()
    assert "unknown annotations, after which nothing is labelled: 'the dog barked'" in caplog.text


def test_names_say_the_activity_and_the_person_where_nothing_else_does(tmp_path, caplog):
    files = {
        **placed(exports.phyphox(), "anna/Sitting 2025-06-19 21-36-15.zip/x"),
        **placed(exports.phyphox(), "bert/01/walking-fast"),
        **placed(exports.phyphox(), "walking/2"),
        **placed(exports.phyphox(), "carl/walking and sitting"),
    }
    layouts.unpacked(files, tmp_path)
    with caplog.at_level(logging.WARNING):
        found = list(recordings("phyphox", tmp_path, options=LABELS))
    assert {(each.client, str(samples([each], each.sensor)[2][0])) for each in found} == {
        ("anna_phone", "sitting"), ("bert_phone", "walking"), ("me_phone", "walking"), ("carl_phone", "")
    }  # fmt: skip
    assert "no folder or file is named after one activity: carl/walking and sitting" in caplog.text


@pytest.mark.parametrize("standardised", [False, True])
def test_an_apple_watch_and_its_phone_are_two_clients_of_one_person(standardised, tmp_path):
    files = {
        **exports.sensor_logger("ios", standardised=standardised),
        "WristMotion.csv": exports.wrist_motion(standardised=standardised, seed=1),
    }
    layouts.unpacked(files, tmp_path)
    found = list(recordings("sensor_logger", tmp_path, options=LABELS))
    assert_same([each for each in found if each.client == "832809b8-84b8_watch"], movement(seed=1))
    assert_same([each for each in found if each.client == "832809b8-84b8_phone"], movement())
    origins = {READERS["sensor_logger"].origin(each.client) for each in found}
    assert {(origin.user, origin.device) for origin in origins} == {
        ("832809b8-84b8", "watch"),
        ("832809b8-84b8", "phone"),
    }
    only = prepare("sensor_logger", tmp_path, clients=["832809b8-84b8_watch"], options=LABELS).clients
    assert list(only) == ["832809b8-84b8_watch"]


FACE_UP: dict[str, tuple[str, Callable[[], Files], dict[str, Any]]] = {
    "Sensor Logger, Android": ("sensor_logger", lambda: exports.sensor_logger(moved=exports.face_up()), LABELS),
    "Sensor Logger, iOS": ("sensor_logger", lambda: exports.sensor_logger("ios", moved=exports.face_up()), LABELS),
    "Apple Watch": (
        "sensor_logger",
        lambda: {"WristMotion.csv": exports.wrist_motion(moved=exports.face_up())},
        LABELS,
    ),
    "phyphox": ("phyphox", lambda: exports.phyphox(moved=exports.face_up()), LABELS),
    "AndroSensor": ("androsensor", lambda: {"a.csv": exports.androsensor(moved=exports.face_up())}, LABELS),
    "Physics Toolbox": (
        "physics_toolbox",
        lambda: {"a.csv": exports.physics_toolbox(moved=exports.face_up())},
        ANDROID,
    ),
}


@pytest.mark.parametrize("case", FACE_UP)
def test_a_device_that_lies_face_up_reads_9_81_upwards(case, tmp_path):
    name, files, options = FACE_UP[case]
    layouts.unpacked({f"anna/walking/{file}": content for file, content in files().items()}, tmp_path)
    (windows,) = prepare(name, tmp_path, options=options).clients.values()
    np.testing.assert_allclose(windows.x[..., :3].mean(axis=(0, 1)), [0, 0, exports.G], atol=1e-3)


def test_a_watch_alone_says_by_its_units_which_way_is_up(tmp_path):
    layouts.unpacked({"WristMotion.csv": exports.wrist_motion()}, tmp_path / "walking")
    assert_same(list(recordings("sensor_logger", tmp_path, options=LABELS)), movement())


def test_a_pause_of_phyphox_is_a_gap_in_time(tmp_path):
    layouts.unpacked(exports.phyphox(pause_s=30.0), tmp_path / "walking")
    times_s, _, _ = samples(list(recordings("phyphox", tmp_path, options=LABELS)), "acc")
    steps = np.diff(times_s)
    assert steps.max() == pytest.approx(30.01, abs=1e-3)
    assert times_s[0] == pytest.approx(BEGAN_S, abs=1e-3)


def test_uncalibrated_acceleration_serves_where_there_is_no_other(tmp_path):
    files, moved = exports.sensor_logger("ios"), movement()
    del files["Gravity.csv"]
    files["AccelerometerUncalibrated.csv"] = exports.sensor_logger_table(moved.times_s, -moved.total / exports.G)
    files["GyroscopeUncalibrated.csv"] = files.pop("Gyroscope.csv")
    layouts.unpacked(files, tmp_path)
    assert_same(list(recordings("sensor_logger", tmp_path, options=LABELS)), moved)


@pytest.mark.parametrize("platform", ["android", "ios"])
def test_acceleration_without_gravity_is_read_with_a_warning_where_there_is_no_other(platform, tmp_path, caplog):
    moved = exports.movement()
    root = layouts.unpacked(without(exports.sensor_logger(platform, moved=moved), "Gravity.csv"), tmp_path)
    with caplog.at_level(logging.WARNING):
        found = list(recordings("sensor_logger", root, options=LABELS))
        dataset = prepare("sensor_logger", root, options=LABELS)
    assert "Accelerometer is without gravity, and there is neither Gravity nor TotalAcceleration" in caplog.text
    acceleration = np.concatenate([each.values for each in found if each.sensor == "acc"])
    np.testing.assert_allclose(acceleration, moved.total - moved.gravity, atol=1e-6)
    assert {"gravity", "no_gravity"} & {each.code for each in dataset.findings}


def test_a_damaged_archive_among_good_ones_is_left_out_and_said(tmp_path, caplog):
    (tmp_path / "good.zip").write_bytes(layouts.zipped(exports.sensor_logger()))
    (tmp_path / "torn.zip").write_bytes(layouts.zipped(exports.sensor_logger())[:20_000])
    with caplog.at_level(logging.WARNING):
        found = list(recordings("sensor_logger", tmp_path, options=LABELS))
    assert_same(found, movement())
    assert "torn.zip" in caplog.text
    with pytest.raises(SourceError, match=r"torn\.zip"):
        list(recordings("sensor_logger", tmp_path / "torn.zip", options=LABELS))


def without(files: Files, *names: str) -> Files:
    return {name: content for name, content in files.items() if name not in names}


def in_g(content: bytes) -> bytes:
    header, *rows = content.decode().splitlines()
    cells = [row.split(",") for row in rows]
    scaled = [",".join([*row[:2], *(str(float(each) / exports.G) for each in row[2:])]) for row in cells]
    return "\n".join([header, *scaled, ""]).encode()


REFUSED: dict[str, tuple[str, Callable[[], Files], dict[str, Any], str]] = {
    "no gyroscope": (
        "sensor_logger",
        lambda: without(exports.sensor_logger(), "Gyroscope.csv"),
        LABELS,
        "no gyroscope",
    ),
    "no platform": (
        "sensor_logger",
        lambda: without(exports.sensor_logger(), "Metadata.csv"),
        LABELS,
        "no Metadata.csv says whether it was Android or iOS, whose signs are opposite; give option platform",
    ),
    "gravity in g": (
        "sensor_logger",
        lambda: {**exports.sensor_logger(), "Gravity.csv": in_g(exports.sensor_logger()["Gravity.csv"])},
        LABELS,
        "gravity measures 1.00, which looks like g",
    ),
    "gravity left in": (
        "sensor_logger",
        lambda: {
            **exports.sensor_logger(),
            "Accelerometer.csv": exports.sensor_logger_table(movement().times_s, movement().total),
        },
        LABELS,
        "leans to one side as if gravity were in it",
    ),
    "a watch against its metadata": (
        "sensor_logger",
        lambda: {
            "WristMotion.csv": exports.wrist_motion(),
            "Metadata.csv": exports.sensor_logger_metadata("ios", standardised=True),
        },
        LABELS,
        "gravity measures 1.00, and Metadata.csv says that units are standardised",
    ),
    "phyphox without gravity": (
        "phyphox",
        lambda: without(exports.phyphox(linear=True), "Gravity.csv"),
        LABELS,
        "acceleration lacks gravity",
    ),
    "phyphox without gyroscope": (
        "phyphox",
        lambda: without(exports.phyphox(), "Gyroscope.csv"),
        LABELS,
        "has no gyroscope",
    ),
    "AndroSensor in feet": (
        "androsensor",
        lambda: {"a.csv": exports.androsensor(unit="ft/s²")},
        LABELS,
        "'ft/s²' of ACCELEROMETER",
    ),
    "Physics Toolbox, no convention": (
        "physics_toolbox",
        lambda: {"a.csv": exports.physics_toolbox()},
        LABELS,
        "does not say whether it was Android or iOS",
    ),
    "Physics Toolbox, without gravity": (
        "physics_toolbox",
        lambda: {"a.csv": b"time,ax,ay,az,aT\n0.003,0.04,-0.007,0.05,0.07\n"},
        ANDROID,
        "has no g-force",
    ),
    "Physics Toolbox, saved by a spreadsheet": (
        "physics_toolbox",
        lambda: {"a.csv": b"time,gFx,gFy,gFz,wx,wy,wz\n" + b"48:01.8,0,0,1,0,0,0\n" * 50},
        ANDROID,
        "48:01.8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_clear_is_refused_in_words(case, tmp_path):
    name, files, options, words = REFUSED[case]
    layouts.unpacked(files(), tmp_path)
    with pytest.raises(SourceError) as caught:
        list(recordings(name, tmp_path, options=options))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("sensor_logger", {}, "labels are missing"),
        ("sensor_logger", {"labels": "walking"}, "expected a list"),
        ("sensor_logger", {"labels": ["a", "a"]}, "names an activity twice"),
        ("sensor_logger", {**LABELS, "annotations": {"up": "stairs"}}, "'stairs', which isn't a label"),
        ("sensor_logger", {**LABELS, "platform": "windows"}, "expected one of android, ios, standardised"),
        ("physics_toolbox", {**LABELS, "acceleration": "down"}, "expected one of 'specific force'"),
        ("phyphox", {**LABELS, "platform": "ios"}, "unknown option"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(name, options, words, tmp_path):
    layouts.unpacked(LAYOUTS["Sensor Logger, Android"][1](), tmp_path / "a")
    layouts.unpacked({"b.csv": exports.physics_toolbox()}, tmp_path / "b")
    layouts.unpacked(exports.phyphox(), tmp_path / "c")
    with pytest.raises(SettingsError) as caught:
        prepare(name, tmp_path, options=options)
    assert words in str(caught.value)


def test_a_column_that_is_missing_is_named(tmp_path):
    files = exports.sensor_logger()
    files["Gyroscope.csv"] = files["Gyroscope.csv"].replace(b"z,y,x", b"z,y,w")
    layouts.unpacked(files, tmp_path)
    with pytest.raises(SourceError, match=r"Gyroscope\.csv: no column 'x'"):
        list(recordings("sensor_logger", tmp_path, options=LABELS))


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    for reader in APPS:
        with pytest.raises(SourceError, match=f"no export of {reader.app} under .*; expected {reader.app}"):
            reader.open(tmp_path, reader.options(LABELS))
