"""A device's numbers: kept with their windows, divided by stretch, compared by time, and saved from a broken file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import LabelError
from edge_agent.serving.model_runs import ExampleKind, Windows
from edge_agent.storage.labels import vocabulary
from edge_agent.storage.repair import FILE_NAME, open_checked
from edge_agent.storage.window_store import SUSPECT, WindowStore
from edge_agent.training.comparison import STRETCH_S
from edge_agent.training.local_data import read_local_data, read_split, stored_examples
from federation.plan import DataSpec, Plan
from har_pipeline import PipelineSettings
from tests.edge_agent.factories import make_plan
from tests.edge_agent.window_factories import window

SETTINGS = PipelineSettings()


def learning_numbers() -> Plan:
    plan = make_plan()
    training = plan.training.model_copy(update={"classes": 1})
    update = {"labels": ("speed (km/h)",), "task": {"name": "regression"}, "training": training}
    return plan.model_copy(update={**update, "data": DataSpec(normalization="none")})


@pytest.fixture
def store(tmp_path: Path) -> WindowStore:
    """Two stretches of 20 and 10 windows; every fifth has no number."""
    store = WindowStore(tmp_path)
    windows = [window(-1, n, session=int(n >= 20))._replace(number=np.nan if n % 5 == 4 else n / 2) for n in range(30)]
    store.add(windows, (), SETTINGS, WindowsSection(), origin="iio")
    return store


def test_only_windows_with_a_number_are_learnt_and_each_stretch_is_divided(store: WindowStore) -> None:
    plan = learning_numbers()
    outline = stored_examples(store, "me", SETTINGS, plan, samples=False)
    assert (len(outline), set(outline.y)) == (24, {0, 1})
    data = read_local_data(store, "me", SETTINGS, plan)
    np.testing.assert_array_equal(data.train.targets, data.train.x[:, 0, 0] / 2)
    np.testing.assert_array_equal(data.holdout.targets, data.holdout.x[:, 0, 0] / 2)
    assert sorted(data.holdout.x[:, 0, 0].tolist()) == [16.0, 17.0, 18.0, 27.0, 28.0]  # the last fifth of each
    split = read_split(store, "me", SETTINGS, plan)
    np.testing.assert_array_equal(split.labelled.targets, split.labelled.number)


def test_neighbours_err_together_whatever_their_numbers(store: WindowStore) -> None:
    """As many votes in the paired test as there are stretches of 10 s, not as windows."""
    plan = learning_numbers()
    windows = read_split(store, "me", SETTINGS, plan).labelled
    assert len(np.unique(windows.targets)) == 24
    groups = Windows.of(windows, None, ExampleKind.of(plan, "windows"), plan.labels).groups
    assert len(groups) <= 30 * 2.56 / STRETCH_S + 2


def test_numbers_are_saved_from_a_broken_file_and_go_with_their_windows(store: WindowStore, tmp_path: Path) -> None:
    with store.reading() as db:
        assert db.execute("SELECT COUNT(*) FROM numbers").fetchone() == (24,)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    file = tmp_path / FILE_NAME
    data = bytearray(file.read_bytes())
    at = len(data) // 2 // 4096 * 4096
    data[at : at + 4096] = b"\xff" * 4096
    file.write_bytes(data)
    (tmp_path / SUSPECT).touch()
    fresh, words = open_checked(tmp_path)
    assert "could be saved" in words
    saved = stored_examples(fresh, "me", SETTINGS, learning_numbers())
    assert len(saved) > 4
    np.testing.assert_array_equal(saved.number, saved.x[:, 0, 0] / 2)
    fresh.drop_origin("iio")
    with fresh.reading() as db:
        assert db.execute("SELECT COUNT(*) FROM numbers").fetchone() == (0,)


def test_there_is_nothing_to_label(store: WindowStore) -> None:
    store.put(labels="[]")
    with pytest.raises(LabelError, match="this federation learns a number"):
        vocabulary(store)
