"""Any CSV file as a sensor: columns, units, times, labels, sessions; and what is said of a broken one."""

from __future__ import annotations

import queue
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.sensors import CsvSection, SensorsSection
from edge_agent.errors import SensorError
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import open_source
from edge_agent.sensors.csv import ROWS, read_rows
from edge_agent.storage.window_store import WindowStore
from har_pipeline import ClientWindows, dataset_labels
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import SETTINGS, expected_windows, outcome, walk

LABELS = dataset_labels("synthetic")
OWN = CsvSection(
    time="t",
    acc=("ax", "ay", "az"),
    gyro=("gx", "gy", "gz"),
    activity="what",
    session="trial",
    separator=";",
    time_unit="ms",
    acc_unit="g",
    gyro_unit="deg/s",
)


def taken(folder: Path, path: Path, columns: CsvSection) -> tuple[ClientWindows, Event, dict[str, int]]:
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    own = {"sensors": SensorsSection(source="csv", path=path), "csv": columns}
    source = open_source(make_config(folder).model_copy(update=own), posted.put)
    source.start(make_plan())
    event = outcome(posted)
    source.stop(5.0)
    with closing(WindowStore(folder)) as store:
        return store.read("c", SETTINGS, LABELS), event, store.counts()


def write(path: Path, columns: CsvSection, trials: tuple[float, ...] = (0.0,), activity: str = LABELS[2]) -> Path:
    """Write walks of thirty seconds in the units and columns of `columns`."""
    lines = [columns.separator.join((columns.time, *columns.gyro, "extra", *columns.acc, "what", "trial"))]
    factor = {"ms": 1e3, "s": 1.0, "us": 1e6, "ns": 1e9}[columns.time_unit]
    acc_unit, gyro_unit = (
        (9.80665 if columns.acc_unit == "g" else 1.0),
        (np.pi / 180 if "deg" in columns.gyro_unit else 1),
    )
    for began_s in trials:
        times_s, sensors = walk(30.0, began_s=began_s + 1.0)
        acc = (sensors["accelerometer"] + sensors["gravity"]) / acc_unit
        for t, a, g in zip(times_s, acc, sensors["gyroscope"] / gyro_unit, strict=True):
            cells = [repr(float(v)) for v in (t * factor, *g, 0.0, *a)]
            lines.append(columns.separator.join((*cells, activity, str(began_s))))
    path.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "columns", [OWN, OWN.model_copy(update={"time_unit": "s", "acc_unit": "m/s2", "separator": ","})]
)
def test_units_and_columns(tmp_path: Path, columns: CsvSection) -> None:
    found, event, _ = taken(tmp_path / "data", write(tmp_path / "walk.csv", columns), columns)
    times_s, sensors = walk(30.0, began_s=1.0)
    assert len(times_s) > ROWS
    expected = expected_windows(times_s, sensors, LABELS[2], LABELS)
    np.testing.assert_allclose(found.x, np.stack([window.x for window in expected]), atol=2e-5)
    assert found.y.tolist() == [2] * len(expected)
    assert isinstance(event, DataReady)


def test_rows_without_a_column_of_activities_are_unlabelled(tmp_path: Path) -> None:
    columns = OWN.model_copy(update={"activity": None})
    found, event, counts = taken(tmp_path / "data", write(tmp_path / "walk.csv", columns), columns)
    assert (len(found), event, counts) == (0, DataReady(0), {"": 22})


def test_sessions_are_not_joined_and_files_of_a_folder_come_by_name(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    write(tmp_path / "all" / "b.csv", OWN, (0.0, 30.0))
    write(tmp_path / "all" / "a.csv", OWN, (500.0,))
    found, _, _ = taken(tmp_path / "data", tmp_path / "all", OWN)
    assert [len(found.y[found.session == each]) for each in sorted(set(found.session.tolist()))] == [22, 22, 22]
    assert found.start_s[0] > 500


HEAD = "t,ax,ay,az,gx,gy,gz\n"
PLAIN = CsvSection(time="t", acc=("ax", "ay", "az"), gyro=("gx", "gy", "gz"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "line 1: no column t, ax"),
        ("", "line 1: no column t, ax"),
        (HEAD + "0,1,2,3,4,5,6\n1,2,3\n", "line 3: 3 cells; expected 7"),
        (HEAD + "0,1,2,3,4,5,6\n1,2,fast,3,4,5,6\n", "line 3: 'fast' in column ay is no number"),
        (HEAD + '0,1,2,3,4,5,"' + "x" * 200_000, "not a CSV file"),
    ],
)
def test_what_is_wrong_is_named_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broken.csv").write_text(text)
    with pytest.raises(SensorError, match=words):
        list(read_rows(tmp_path / "broken.csv", PLAIN))


def test_an_empty_cell_is_a_lost_sample(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text(HEAD + "0,1,2,3,4,5,6\n\n1,1,,3,4,5,6\n")
    (rows,) = read_rows(tmp_path / "some.csv", PLAIN)
    assert np.isnan(rows.numbers[1]).tolist() == [False, False, True, False, False, False, False]


def test_an_unknown_activity_and_a_missing_file_end_the_source(tmp_path: Path) -> None:
    _, event, _ = taken(tmp_path / "data", write(tmp_path / "walk.csv", OWN, activity="flying"), OWN)
    assert isinstance(event, SensorFailed)
    assert "walk.csv, line 2: activity 'flying' is no label" in event.reason
    _, event, _ = taken(tmp_path / "data", tmp_path / "none.csv", OWN)
    assert isinstance(event, SensorFailed)
    assert "expected a file or a folder" in event.reason
