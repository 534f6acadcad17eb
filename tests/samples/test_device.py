"""A device resumes from the folder that any version has written: rounds, outbox, windows, labels, key, credentials."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.storage.labels import undo
from edge_agent.storage.state_store import AdoptionRecord, StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.supervisor.persistence import load_agent, load_plan
from tests.edge_agent.window_factories import LABELS, SETTINGS, window
from tests.samples.device import told
from tests.samples.meaning import lost


@pytest.fixture
def folder(sample: Path, tmp_path: Path) -> Path:
    """A copy of the device's folder."""
    return Path(shutil.copytree(sample / "device", tmp_path / "device"))


def test_a_devices_folder_says_the_same(sample: Path, folder: Path) -> None:
    assert lost(json.loads((sample / "device.json").read_text()), json.loads(json.dumps(told(folder)))) == []


@pytest.mark.parametrize("store", [StateStore, WindowStore])
def test_its_tables_are_those_of_a_new_device(folder: Path, tmp_path: Path, store: type) -> None:
    assert columns(store(folder)) == columns(store(tmp_path / "new"))


def columns(store: StateStore | WindowStore) -> set[tuple[str, str, str]]:
    """Return table, column and type of all columns in a store's file, which is closed."""
    store.close()
    db = sqlite3.connect(store.path)
    query = "SELECT t.name, c.name, c.type FROM sqlite_master t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'"
    found = {tuple(row) for row in db.execute(query)}
    db.close()
    assert len(found) > 10
    return found


def test_a_device_starts_where_it_was(sample: Path, folder: Path) -> None:
    kept = json.loads((sample / "device.json").read_text())
    store = StateStore(folder)
    agent, plan = load_agent(store), load_plan(store)
    store.close()
    assert (agent.identity, agent.epoch) == (kept["identity"], kept["epoch"])
    assert agent.done == {(row["round"], row["base"]) for row in kept["rounds"]}
    assert None not in (agent.offer, agent.report, agent.adoption)
    assert plan is not None
    assert lost(kept["plan"], plan.model_dump(mode="json")) == []


def test_a_device_writes_on_into_its_databases(folder: Path) -> None:
    state = StateStore(folder)
    before = len(state.rounds()), len(state.adoptions())
    (update_id,) = state.outbox()
    path = folder / "outbox" / "other"
    state.keep_update(
        state.manifest(update_id).model_copy(update={"update_id": "other"}), path, {}, client_state="clients/other"
    )
    state.forget_update(update_id, "accepted", "")
    state.leave_out(9, "ab" * 32, "why")
    state.note_adoption(AdoptionRecord(9, "global", False, "why", {}, 1.0))
    assert list(state.outbox()) == ["other"]
    assert (len(state.rounds()), len(state.adoptions())) == (before[0] + 1, before[1] + 1)
    state.close()
    windows = WindowStore(folder)
    counts = windows.counts()
    assert undo(windows).windows > 0
    assert windows.counts() != counts
    windows.add([window(0, 20)], LABELS, SETTINGS, WindowsSection(), origin="csv")
    assert sum(windows.counts().values()) == sum(counts.values()) + 1
    windows.close()
