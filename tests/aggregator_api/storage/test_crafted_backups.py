"""A backup that somebody has changed: whatever its description names, nothing is read or written outside."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings
from aggregator_api.maintenance.backup import DESCRIPTION, back_up, read_description
from aggregator_api.maintenance.restore import restore
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import tiny_plan


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untouched")
    Bench(folder / "data", tiny_plan()).stop()
    back_up(Settings(data_dir=folder / "data"), folder / "backup")
    return folder / "backup"


@pytest.fixture
def backup(untouched: Path, tmp_path: Path) -> Path:
    return shutil.copytree(untouched, tmp_path / "backup")


def change(backup: Path, **values: object) -> None:
    path = backup / DESCRIPTION
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def listing(folder: Path, *without: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not any(path.is_relative_to(one) for one in without)}


OUTSIDE = (
    "../escaped",
    "/tmp/escaped",
    "authority/../../escaped",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "identity.pem\n",
    "\0",
)


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("field", ["keys", "identity"])
def test_a_name_that_leads_outside_is_refused(backup: Path, tmp_path: Path, field: str, name: str) -> None:
    identity = read_description(backup).identity
    change(backup, **({"keys": [identity, name]} if field == "keys" else {"identity": name, "keys": [name]}))
    (tmp_path / "escaped").unlink(missing_ok=True)
    before = listing(tmp_path)
    with pytest.raises(ConfigError, match="is damaged"):
        restore(Settings(data_dir=tmp_path / "again"), backup)
    assert listing(tmp_path) == before


@pytest.mark.ci
@given(keys=st.lists(st.text(max_size=20), min_size=1, max_size=3), identity=st.text(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_description_says_nothing_lands_outside(backup: Path, keys: list[str], identity: str) -> None:
    outside = backup.parent
    change(backup, keys=keys, identity=identity)
    before = listing(outside, outside / "again")
    target = outside / "again" / uuid4().hex
    try:
        restore(Settings(data_dir=target), backup)
    except ConfigError:
        assert not any(path.is_file() for path in target.rglob("*"))
    assert listing(outside, outside / "again") == before


@pytest.mark.parametrize("what", ["identity", "database", "blob", "folder of blobs", "description"])
def test_links_in_a_backup_are_not_followed(backup: Path, tmp_path: Path, what: str) -> None:
    blob = next((backup / "blobs").glob("??/*"))
    path = {
        "identity": backup / read_description(backup).identity,
        "database": backup / "gaitway.sqlite3",
        "blob": blob,
        "folder of blobs": blob.parent,
        "description": backup / DESCRIPTION,
    }[what]
    elsewhere = tmp_path / "elsewhere"
    os.rename(path, elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="is a link"):
        restore(Settings(data_dir=tmp_path / "again"), backup)


def test_only_blobs_are_taken_for_blobs(backup: Path, tmp_path: Path) -> None:
    (backup / "blobs" / "xx").mkdir()
    (backup / "blobs" / "xx" / "authorized_keys").write_text("mine")
    restore(Settings(data_dir=tmp_path / "again"), backup)
    assert not (tmp_path / "again" / "blobs" / "xx").exists()


def test_a_huge_description_is_not_read_whole(backup: Path) -> None:
    with (backup / DESCRIPTION).open("ab") as file:
        file.truncate(1 << 34)
    with pytest.raises(ConfigError, match="is damaged"):
        read_description(backup)
