"""Exports of phones' apps, as zip, folder and JSON: the windows are those of what Sensor Logger pushes."""

from __future__ import annotations

import csv
import json
import queue
import re
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.sensors import PhoneSection, SensorsSection
from edge_agent.errors import SensorError
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import files, open_source
from edge_agent.storage.window_store import WindowStore
from har_pipeline import ClientWindows, dataset_labels, prepare
from har_pipeline.apps.reader import AppReader
from har_pipeline.readers import READERS
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import BEGAN_S, SETTINGS, expected_windows, outcome, walk
from tests.har_pipeline.apps import exports
from tests.har_pipeline.layouts import unpacked

LABELS = dataset_labels("synthetic")
NAMES = {"accelerometer": "Accelerometer", "gravity": "Gravity", "gyroscope": "Gyroscope"}


def tables(
    platform: str = "android", standardisation: str = "false", sign: float = 1.0, seconds: float = 12.0
) -> dict[str, list[dict[str, Any]]]:
    """Rows by sensor as the app exports them; an activity is annotated after four seconds."""
    times_s, sensors = walk(seconds)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, values in sensors.items():
        factor = sign if name != "gyroscope" else 1.0
        found[NAMES[name]] = [
            {"time": str(round(t * 1e9)), "seconds_elapsed": str(t - BEGAN_S), "z": z, "y": y, "x": x}
            for t, (x, y, z) in zip(times_s, factor * values, strict=True)
        ]
    when = round((BEGAN_S + 4) * 1e9)
    found["Annotation"] = [{"time": when, "seconds_elapsed": 4.0, "text": LABELS[0], "millisecond_press_duration": 9}]
    found["Metadata"] = [{"version": 3, "platform": platform, "standardisation": standardisation}]
    return found


def as_folder(folder: Path, found: dict[str, list[dict[str, Any]]]) -> Path:
    folder.mkdir(parents=True)
    for name, rows in found.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def as_zip(path: Path, found: dict[str, list[dict[str, Any]]]) -> Path:
    folder = as_folder(path.with_suffix(""), found)
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"{folder.name}/{file.name}")
            file.unlink()
    folder.rmdir()
    return path


def as_json(path: Path, found: dict[str, list[dict[str, Any]]]) -> Path:
    rows = [{"sensor": name, **row} for name, each in found.items() for row in each]
    path.write_text(json.dumps(rows, indent=1))
    return path


def taken(folder: Path, path: Path, **phone: Any) -> tuple[ClientWindows, Event]:
    """Run the source until it is done, and read what it kept."""
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    own = {"sensors": SensorsSection(source="app_export", path=path), "phone": PhoneSection(**phone)}
    source = open_source(make_config(folder).model_copy(update=own), posted.put)
    source.start(make_plan())
    event = outcome(posted)
    source.stop(5.0)
    with closing(WindowStore(folder)) as store:
        return store.read("c", SETTINGS, LABELS), event


def expected() -> np.ndarray:
    times_s, sensors = walk(12.0)
    names = np.where(times_s < BEGAN_S + 4, "", LABELS[0])
    return np.stack([w.x for w in expected_windows(times_s, sensors, names, LABELS) if w.y == 0])


@pytest.mark.parametrize("write", [as_folder, as_zip, as_json])
def test_an_export_gives_the_windows_of_its_samples_once(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / {as_folder: "one", as_zip: "one.zip", as_json: "one.json"}[write], tables())
    found, event = taken(tmp_path / "data", path)
    assert isinstance(event, DataReady), event
    np.testing.assert_allclose(found.x, expected(), atol=2e-5)
    again, event = taken(tmp_path / "data", path)
    assert len(again) == len(found)
    assert isinstance(event, DataReady)


@pytest.mark.parametrize(
    ("platform", "standardisation", "sign", "signs"),
    [("ios", "false", -1.0, "ios"), ("ios", "true", 1.0, "standardised"), ("android", "false", 1.0, "android")],
)
def test_the_export_says_itself_whose_signs_it_has(
    tmp_path: Path, platform: str, standardisation: str, sign: float, signs: str
) -> None:
    path = as_folder(tmp_path / "one", tables(platform, standardisation, sign))
    reader = READERS["sensor_logger"]
    assert isinstance(reader, AppReader)
    (export,) = reader.open(path, reader.options(None)).exports
    assert export.about == signs
    found, _ = taken(tmp_path / "data", path, platform="ios" if sign > 0 else "android")
    np.testing.assert_allclose(found.x, expected(), atol=2e-5)


def test_a_folder_of_exports_is_taken_one_by_one_and_a_new_one_later(tmp_path: Path) -> None:
    as_zip(tmp_path / "all" / "b.zip", tables())
    as_json(tmp_path / "all" / "a.json", tables())
    found, _ = taken(tmp_path / "data", tmp_path / "all")
    assert len(found) == 2 * len(expected())
    assert len(set(found.session.tolist())) == 2
    as_folder(tmp_path / "all" / "c", tables())
    assert len(taken(tmp_path / "data", tmp_path / "all")[0]) == 3 * len(expected())


def test_exports_of_several_apps_lie_side_by_side(tmp_path: Path) -> None:
    as_zip(tmp_path / "all" / "b.zip", tables())
    unpacked(exports.phyphox(), tmp_path / "all" / LABELS[0])
    found, event = taken(tmp_path / "data", tmp_path / "all")
    assert isinstance(event, DataReady)
    other = prepare("phyphox", tmp_path / "all", options={"labels": LABELS}).clients["me_phone"]
    assert len(found) == len(expected()) + len(other)


def test_an_interrupted_import_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole = as_folder(tmp_path / "one", tables()), files.app_recordings

    def breaks(*given: Any) -> Any:
        for recording in whole(*given):
            half = 5 * len(recording.times_s) // 6
            part = slice(0, half)
            activity = np.asarray(recording.activity)[part]
            yield recording._replace(times_s=recording.times_s[part], values=recording.values[part], activity=activity)
            if recording.sensor == "gyro":
                raise SensorError("the card was pulled")

    monkeypatch.setattr(files, "app_recordings", breaks)
    monkeypatch.setattr("edge_agent.sensors.window_writer.BATCH", 1)
    some, event = taken(tmp_path / "data", path)
    assert event == SensorFailed("the card was pulled")
    assert 0 < len(some) < len(expected())
    monkeypatch.undo()
    assert len(taken(tmp_path / "data", path)[0]) == len(expected())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"sensor": "Gyroscope", "time": "soon"}]', "no accelerometer"),
        (b'[{"sensor": "Gyroscope", "time"', "not an array of records"),
        (b'[{"sensor": 1}' + b"[" * 200_000, "not an array of records|nested too deeply"),
        (b'[{"sensor": "' + b"x" * 200_000, "not an array of records"),
        (b"PK", "holds nothing"),
    ],
)
def test_what_is_no_export_is_an_error_in_words(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    _, event = taken(tmp_path / "data", path)
    assert isinstance(event, SensorFailed)
    assert re.search(words, event.reason)


def test_a_broken_zip_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK\x03\x04 and nothing more")
    _, event = taken(tmp_path / "data", broken)
    assert isinstance(event, SensorFailed)
    assert "broken.zip" in event.reason
    (tmp_path / "empty").mkdir()
    _, event = taken(tmp_path / "data", tmp_path / "empty")
    assert isinstance(event, SensorFailed)
    assert "holds nothing" in event.reason


def test_without_metadata_the_settings_say_whose_signs_they_are_and_nobody_guesses(tmp_path: Path) -> None:
    found = tables(sign=-1.0)
    del found["Metadata"]
    path = as_folder(tmp_path / "one", found)
    _, event = taken(tmp_path / "data", path)
    assert isinstance(event, SensorFailed)
    assert "whose signs are opposite; give option platform" in event.reason
    windows, _ = taken(tmp_path / "data", path, platform="ios")
    np.testing.assert_allclose(windows.x, expected(), atol=2e-5)


def test_wrong_units_end_the_import(tmp_path: Path) -> None:
    found = tables()
    for row in found["Gravity"]:
        row.update({axis: row[axis] / 9.80665 for axis in "xyz"})
    _, event = taken(tmp_path / "data", as_folder(tmp_path / "one", found))
    assert isinstance(event, SensorFailed)
    assert "looks like g" in event.reason
