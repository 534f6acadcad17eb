"""Recorded files of any layout as a source: folders, sensors apart, clocks that overlap, labels that are unknown."""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.sensors import SensorsSection, WindowsSection
from edge_agent.config.settings import Config
from edge_agent.doctor.check_result import Level
from edge_agent.doctor.sensors import check_sensors
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import open_source
from edge_agent.sensors.files import CsvSource, FileGroup
from edge_agent.sensors.replay import PacedSink
from edge_agent.storage.window_store import SKIPPED, WindowStore
from edge_agent.supervisor.status import collected_windows
from federation.plan import Plan
from har_pipeline import ClientWindows, dataset_labels
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import SETTINGS, expected_windows, outcome, walk

LABELS = dataset_labels("synthetic")
BY_COLUMN = r"""
separator = ";"
time = { column = "t", unit = "ms" }
acceleration = "specific force"
acc = { columns = ["ax", "ay", "az"], unit = "g" }
gyro = { columns = ["gx", "gy", "gz"], unit = "deg/s" }
activity = "what"
"""
BY_PATH = BY_COLUMN.replace('activity = "what"', "") + r"files = '(?P<activity>[a-z]+)/[^/]+\.csv'" + "\n"
APART = r"""
files = '(?P<sensor>acc|gyro)/[^/]+\.csv'
time = { column = 1 }
header = false
acceleration = "specific force"
acc = { columns = [2, 3, 4] }
gyro = { columns = [2, 3, 4] }
activity = { fixed = "walking" }
"""
WALKING = LABELS.index("walking")


def rows(began_s: float = 1.0, seconds: float = 30.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    times_s, sensors = walk(seconds, began_s=began_s)
    return times_s, sensors["accelerometer"] + sensors["gravity"], sensors["gyroscope"]


def write(path: Path, activity: str = "walking", began_s: float = 1.0) -> Path:
    """A walk of thirty seconds in milliseconds, g and degrees."""
    times_s, acc, gyro = rows(began_s)
    table = np.hstack([times_s[:, None] * 1e3, acc / 9.80665, gyro * 180 / np.pi])
    lines = [";".join([*map(repr, map(float, row)), activity]) for row in table]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["t;ax;ay;az;gx;gy;gz;what", *lines]) + "\n")
    return path


def configured(folder: Path, path: Path, description: str, **sensors: str) -> Config:
    described = folder / "data.toml"
    described.parent.mkdir(parents=True, exist_ok=True)
    described.write_text(description)
    own = SensorsSection(source="csv", path=path, description=described, **sensors)
    return make_config(folder / "data").model_copy(update={"sensors": own})


class Taken:
    """What came of running the source once."""

    def __init__(self, config: Config) -> None:
        posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        source = open_source(config, posted.put)
        source.start(make_plan())
        self.event = outcome(posted)
        source.stop(5.0)
        self.folder = config.agent.data_dir
        with closing(WindowStore(self.folder)) as store:
            self.windows: ClientWindows = store.read("c", SETTINGS, LABELS)
            self.counts, self.skipped = store.counts(), json.loads(store.get(SKIPPED) or "{}")


def test_units_and_columns_are_those_of_the_description(tmp_path: Path) -> None:
    found = Taken(configured(tmp_path, write(tmp_path / "walk.csv"), BY_COLUMN))
    times_s, sensors = walk(30.0, began_s=1.0)
    expected = expected_windows(times_s, sensors, "walking", LABELS)
    np.testing.assert_allclose(found.windows.x, np.stack([window.x for window in expected]), atol=2e-5)
    assert found.windows.y.tolist() == [WALKING] * len(expected)
    assert isinstance(found.event, DataReady)


def test_without_a_gyroscope_its_channels_are_zero_and_the_accelerometers_as_ever(tmp_path: Path) -> None:
    path = write(tmp_path / "walk.csv")
    both = Taken(configured(tmp_path / "both", path, BY_COLUMN))
    alone = Taken(configured(tmp_path / "alone", path, re.sub(r"gyro = .*\n", "", BY_COLUMN)))
    np.testing.assert_array_equal(alone.windows.x[..., :3], both.windows.x[..., :3])
    assert not alone.windows.x[..., 3:].any()
    assert both.windows.x[..., 3:].any()


def test_a_folder_is_descended_into_and_whole_files_are_labelled_by_their_path(tmp_path: Path) -> None:
    for path in ("walking/a.csv", "deep/er/sitting/b.csv", "sitting/c.csv"):
        write(tmp_path / "all" / path)
    (tmp_path / "all" / "notes.txt").write_text("not a recording")
    found = Taken(configured(tmp_path, tmp_path / "all", BY_PATH))
    assert found.counts == {"sitting": 44, "walking": 22}


def test_both_sensors_in_files_of_their_own_are_one_recording(tmp_path: Path) -> None:
    times_s, acc, gyro = rows()
    for name, values in (("acc", acc), ("gyro", gyro)):
        path = tmp_path / "all" / name / "one.csv"
        path.parent.mkdir(parents=True)
        np.savetxt(path, np.hstack([times_s[:, None], values]), delimiter=",", fmt="%.17g")
    found = Taken(configured(tmp_path, tmp_path / "all", APART))
    expected = expected_windows(*walk(30.0, began_s=1.0), "walking", LABELS)
    np.testing.assert_allclose(found.windows.x, np.stack([window.x for window in expected]), atol=2e-5)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("acc", "gyro"):
            archive.write(tmp_path / "all" / name / "one.csv", f"{name}/one.csv")
    packed = Taken(configured(tmp_path / "2", tmp_path / "all.zip", APART))
    np.testing.assert_array_equal(packed.windows.x, found.windows.x)


def test_recordings_whose_clocks_overlap_stay_apart_and_cost_no_training_window(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "all" / f"{number}.csv", began_s=1.0 + 0.3 * number)
    found = Taken(configured(tmp_path, tmp_path / "all", BY_COLUMN))
    sessions = found.windows.session
    assert [int((sessions == each).sum()) for each in sorted(set(sessions.tolist()))] == [22] * 4
    one = Taken(configured(tmp_path / "one", tmp_path / "all" / "0.csv", BY_COLUMN))
    np.testing.assert_array_equal(found.windows.x[:22], one.windows.x)
    # a fifth of the 88 is for testing, and only the windows that touch the cut are lost: 88 - 18 - 1
    assert isinstance(found.event, DataReady)
    assert found.event.examples == len(found.event.keys) == 69


def test_an_unknown_activity_leaves_its_file_out_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "all" / "a.csv", "idle")
    write(tmp_path / "all" / "b.csv", "walking")
    config = configured(tmp_path, tmp_path / "all", BY_COLUMN)
    found = Taken(config)
    assert (found.counts, isinstance(found.event, DataReady)) == ({"walking": 22}, True)
    assert list(found.skipped) == ["a.csv"]
    (reason,) = found.skipped["a.csv"]
    assert "a.csv, line 2: activity 'idle' isn't a label" in reason
    assert "labels.ignore" in reason
    assert Taken(config).skipped == found.skipped  # also after a restart
    assert any(
        "Left out of a.csv: a.csv, line 2" in words for words in collected_windows(found.folder, WindowsSection()).words
    )
    told = [each for each in check_sensors(config, running=True) if "the agent left out part of a.csv" in each.message]
    assert [each.level for each in told] == [Level.WARNING]
    ignoring = Taken(configured(tmp_path, tmp_path / "all", BY_COLUMN + '[labels]\nignore = ["idle"]\n'))
    assert (ignoring.counts, ignoring.skipped) == ({"": 22, "walking": 22}, {})  # b.csv is in once, not twice


def test_damaged_files_are_left_out_and_said_and_cost_no_other(tmp_path: Path) -> None:
    write(tmp_path / "all" / "a.csv").write_text("")
    write(tmp_path / "all" / "b.csv")
    standing = write(tmp_path / "all" / "c.csv")
    times = [float(line.split(";")[0]) for line in standing.read_text().splitlines()[1:]]
    stands = f"{times[-1]!r};0;0;1;0;0;0;walking\n" * 100  # a clock that stands still is met when windows were made
    standing.write_text(standing.read_text() + stands)
    config = configured(tmp_path, tmp_path / "all", BY_COLUMN)
    found = Taken(config)
    assert (found.counts, isinstance(found.event, DataReady)) == ({"walking": 22}, True)
    assert found.skipped.keys() == {"a.csv", "c.csv"}
    assert "a.csv is empty" in found.skipped["a.csv"][0]
    assert "carry the same time" in found.skipped["c.csv"][0]
    told = {
        each.message: each.level for each in check_sensors(config, running=True) if "a.csv is empty" in each.message
    }
    assert set(told.values()) == {Level.WARNING}
    write(tmp_path / "all" / "a.csv")
    assert Taken(config).counts == {"walking": 44}  # a file that was repaired is taken


def test_a_replay_that_was_interrupted_begins_that_file_again_and_no_file_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(tmp_path / "all" / f"{name}.csv")
    config = configured(tmp_path, tmp_path / "all", BY_COLUMN)
    replayed: list[str] = []
    whole = CsvSource.replay

    def killed(self: CsvSource, part: FileGroup, plan: Plan, sink: PacedSink, stop: threading.Event) -> list[str]:
        replayed.append(part.name)
        left_out = whole(self, part, plan, sink, stop)
        if replayed == ["a.csv", "b.csv"]:
            raise OSError("pulled out")
        return left_out

    monkeypatch.setattr(CsvSource, "replay", killed)
    assert isinstance(Taken(config).event, SensorFailed)
    found = Taken(config)
    assert (replayed, found.counts) == (["a.csv", "b.csv", "b.csv"], {"walking": 44})


def test_sessions_that_take_turns_in_one_file_and_a_clock_that_begins_anew_are_recordings_of_their_own(
    tmp_path: Path,
) -> None:
    one, two = (write(tmp_path / name).read_text().splitlines() for name in ("one", "two"))
    mixed = [
        f"{row};{who}" for first, second in zip(one[1:], two[1:], strict=True) for row, who in ((first, 1), (second, 2))
    ]
    (tmp_path / "mixed.csv").write_text("\n".join([f"{one[0]};who", *mixed]) + "\n")
    found = Taken(configured(tmp_path / "1", tmp_path / "mixed.csv", 'session = "who"\n' + BY_COLUMN))
    assert np.unique(found.windows.session, return_counts=True)[1].tolist() == [22, 22]
    (tmp_path / "again.csv").write_text("\n".join([*one, *one[1:]]) + "\n")
    again = Taken(configured(tmp_path / "2", tmp_path / "again.csv", BY_COLUMN))
    assert np.unique(again.windows.session, return_counts=True)[1].tolist() == [22, 22]
    np.testing.assert_array_equal(again.windows.x[:22], again.windows.x[22:])


def test_only_the_client_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    for client in ("anna", "bert"):
        write(tmp_path / "all" / client / "a.csv")
    description = r"files = '(?P<client>[a-z]+)/[^/]+\.csv'" + BY_COLUMN
    assert Taken(configured(tmp_path, tmp_path / "all", description, client="anna")).counts == {"walking": 22}
    assert Taken(configured(tmp_path / "2", tmp_path / "all", description)).counts == {"walking": 44}


@pytest.mark.parametrize(
    ("description", "text", "words"),
    [
        (None, "", r"needs \[sensors\] description.*har_pipeline describe PATH"),
        ("acc = 1", "", r"data\.toml: acc"),
        (BY_COLUMN, "a,b\n1,2\n", "walk.csv: no column 'what'"),
        (
            BY_COLUMN.replace(";", ","),
            "t,ax,ay,az,gx,gy,gz,what\n0,1,2,fast,3,4,5,walking\n",
            "walk.csv, line 2: 'fast'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_file_and_the_line_by_the_source_and_the_doctor(
    tmp_path: Path, description: str | None, text: str, words: str
) -> None:
    (tmp_path / "walk.csv").write_text(text)
    config = configured(tmp_path, tmp_path / "walk.csv", description or "")
    if description is None:
        config = config.model_copy(update={"sensors": config.sensors.model_copy(update={"description": None})})
    event = Taken(config).event
    assert isinstance(event, SensorFailed)
    assert re.search(words, event.reason), event.reason
    (told,) = [each for each in check_sensors(config, running=False) if each.level is Level.FAILURE]
    assert told.message == event.reason


def test_a_device_without_pandas_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    event = Taken(configured(tmp_path, write(tmp_path / "walk.csv"), BY_COLUMN)).event
    assert isinstance(event, SensorFailed)
    assert event.reason == "[sensors] source = 'csv' needs pandas: pip install pandas"


def test_another_rate_than_the_described_one_is_kept_for_status_and_doctor(tmp_path: Path) -> None:
    found = Taken(configured(tmp_path, write(tmp_path / "walk.csv"), "rate_hz = 200\n" + BY_COLUMN))
    with closing(WindowStore(found.folder)) as store:
        noted = json.loads(store.get("findings"))
    assert {severity for severity, _ in noted} == {"warning"}
    assert sum("about half of it, declared 200 Hz" in words for _, words in noted) == 2
