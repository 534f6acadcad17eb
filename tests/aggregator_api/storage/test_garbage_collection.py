"""Blobs that no row needs go; whatever a round, a device or a model version needs stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.models import ModelVersionRow, UpdateRow
from tests.aggregator_api.bench import Bench, wait_for

LONG_AGO = 1_000_000.0


def age(bench: Bench) -> None:
    """Make every blob old."""
    for path in Path(bench.runtime.blobs.root).glob("??/*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def collected(bench: Bench, **options: Any) -> int:
    runtime = bench.runtime
    return garbage_collection.collect(runtime.database, runtime.blobs, grace_s=3600.0, **options).blobs


def updates(bench: Bench) -> list[str]:
    with bench.runtime.database.read() as session:
        return list(session.scalars(select(UpdateRow.sha256).where(UpdateRow.status == "accepted")))


def test_updates_of_an_open_round_stay_and_go_once_it_has_ended(collecting: Bench) -> None:
    blobs = collecting.runtime.blobs
    collecting.upload(collecting.update_of("a"))
    age(collecting)
    assert collected(collecting) == 0
    collecting.upload(collecting.update_of("b"))
    wait_for(lambda: collecting.now().round == 2)
    used = updates(collecting)
    assert len(used) == 2
    assert blobs.has(updates(collecting)[1])  # it is young
    age(collecting)
    collected(collecting)  # as the server itself may at the same moment
    assert not any(blobs.has(name) for name in used)
    with collecting.runtime.database.read() as session:
        for version in session.scalars(select(ModelVersionRow)):
            assert blobs.has(version.state_sha256)
            assert blobs.has(version.broadcast_sha256)


def test_nothing_that_is_young_goes_and_a_dry_run_removes_nothing(collecting: Bench) -> None:
    blob = collecting.runtime.blobs.put(b"nobody's")
    assert collected(collecting) == 0
    age(collecting)
    assert collected(collecting, dry_run=True) == 1
    assert collecting.runtime.blobs.has(blob.sha256)
    assert collected(collecting) == 1
    assert not collecting.runtime.blobs.has(blob.sha256)


def test_a_server_that_stops_leaves_garbage_to_the_next_collection(collecting: Bench) -> None:
    for number in range(3):
        collecting.runtime.blobs.put(bytes([number]))
    age(collecting)
    stops = iter([False, True])
    assert collected(collecting, is_over=lambda: next(stops)) == 1
    assert collected(collecting) == 2


def test_a_blob_that_is_put_again_is_young(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path.as_uri())
    blob = blobs.put(b"state")
    path = tmp_path / blob.sha256[:2] / blob.sha256
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert list(blobs.older_than(LONG_AGO + 1)) == [blob]
    blobs.put(b"state")
    assert list(blobs.older_than(LONG_AGO + 1)) == []


def test_a_blob_that_is_needed_after_all_comes_back(collecting: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    collecting.upload(collecting.update_of("a"))
    age(collecting)
    monkeypatch.setattr(garbage_collection, "referenced", lambda _session: set())  # read before the rows were written
    assert collected(collecting) == 0
    assert all(collecting.runtime.blobs.has(name) for name in updates(collecting))


def test_what_a_killed_collection_left_aside_comes_back(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path.as_uri())
    blob = blobs.put(b"update")
    os.replace(tmp_path / blob.sha256[:2] / blob.sha256, tmp_path / "incoming" / f"{blob.sha256}.aside")
    blobs.forget_unfinished(LONG_AGO)
    assert blobs.read(blob.sha256) == b"update"


def test_the_command_says_what_it_would_remove(waiting: Bench, tmp_path: Path) -> None:
    folder = waiting.runtime.settings.data_dir
    waiting.runtime.blobs.put(b"nobody's")
    age(waiting)
    for option, words in (("--dry-run", "would be"), ("", "were")):
        result = CliRunner().invoke(app, ["gc", "--data-dir", str(folder), *filter(None, [option])])
        assert f"1 blobs of 8 bytes {words} removed" in result.output
