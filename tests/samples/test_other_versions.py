"""What another version has written, which this one cannot read, is refused in words that say so, and left as it is."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import onnx
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sqlalchemy import text

from aggregator_api.core.errors import ConfigError
from aggregator_api.storage.db.database import Database
from edge_agent.errors import DamagedError, StoreError
from edge_agent.storage.database import VERSION
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from export.runtime import ModelFileError, Session
from federation.errors import WireError
from federation.protocol import messages
from federation.protocol.messages import Announcement
from federation.protocol.signing import unwrap
from models.checkpoint import load_checkpoint
from models.errors import CheckpointError
from sim.cli.options import read_plan
from sim.errors import RunDirectoryError, SettingsError
from sim.results.run_directory import RunDirectory
from sim.rounds import checkpoint
from tests.samples import FOLDER, VERSIONS


def test_a_message_of_a_later_version_is_refused() -> None:
    body = json.loads(unwrap((FOLDER / VERSIONS[-1] / "messages" / "announcement").read_bytes()).body)
    with pytest.raises(WireError, match="not a valid Announcement: schema_version: Input should be 1"):
        messages.read(Announcement, json.dumps({**body, "schema_version": 2}).encode())
    with pytest.raises(WireError, match="not a valid Announcement: colour: Extra inputs are not permitted"):
        messages.read(Announcement, json.dumps({**body, "colour": "red"}).encode())


def test_a_plan_with_an_unknown_key_is_refused(sample: Path, tmp_path: Path) -> None:
    values = json.loads((sample / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**values, "colour": "red"}))
    with pytest.raises(SettingsError, match="colour"):
        read_plan(tmp_path / "plan.json")


def test_a_run_of_another_version_is_refused(sample: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sample / "run", tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "schema": config["schema"] + 1}))
    with pytest.raises(RunDirectoryError, match="another version's"):
        RunDirectory(run)
    data = (run / "checkpoint.bin").read_bytes()
    (run / "checkpoint.bin").write_bytes(b"gaitway9" + data[8:])
    with pytest.raises(RunDirectoryError, match="does not begin as a checkpoint of this version does"):
        checkpoint.load(run / "checkpoint.bin", "cpu")


def test_a_model_of_another_version_is_refused(sample: Path, tmp_path: Path) -> None:
    with safe_open(sample / "model.safetensors", framework="pt") as file:
        info = json.loads(file.metadata()["gaitway"])
    tensors = load_file(sample / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors", {"gaitway": json.dumps({**info, "schema": info["schema"] + 1})})
    with pytest.raises(CheckpointError, match="expected an object with schema"):
        load_checkpoint(tmp_path / "model.safetensors")
    model = onnx.load(sample / "model.onnx")
    for entry in model.metadata_props:
        entry.value = entry.value.replace("gaitway-model/1", "gaitway-model/2")
    with pytest.raises(ModelFileError, match="gaitway-model/1"):
        Session.load(model.SerializeToString())


@pytest.mark.parametrize("store", [StateStore, WindowStore])
def test_a_devices_database_of_another_version_is_refused(sample: Path, tmp_path: Path, store: type) -> None:
    folder = Path(shutil.copytree(sample / "device", tmp_path / "device"))
    path = folder / ("agent.sqlite" if store is StateStore else "windows.sqlite")
    for version, words in (
        (VERSION + 1, "of a later version of this program"),
        (VERSION - 1, "made by a version before 0.3.0"),
    ):
        db = sqlite3.connect(path)
        db.execute(f"PRAGMA user_version={version}")
        db.close()
        with pytest.raises(StoreError, match=words) as refused:
            store(folder)
        assert not isinstance(refused.value, DamagedError), "a damaged one may be set aside"


def test_a_servers_database_of_a_later_version_is_refused(empty_database: Database) -> None:
    empty_database.migrate()
    with empty_database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="is of a newer version of this program"):
        empty_database.migrate()
