"""The device's memory, and what a restart makes of it."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.settings import Config
from edge_agent.errors import DamagedError, StoreError
from edge_agent.machine.agent import step
from edge_agent.machine.commands import FetchBlob, PublishStatus, SendBegin
from edge_agent.machine.events import Announced, Connected, DataReady, Invited
from edge_agent.machine.state import Policy, identity
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import FILE_NAME, AdoptionRecord, StateStore
from edge_agent.supervisor.persistence import (
    SEQUENCE,
    forget_update,
    load_agent,
    next_sequence,
    reset_agent,
    save_round,
)
from edge_agent.supervisor.status import summary
from edge_agent.training.job import CLIENT_STATE, RESULT, UPDATE, Job
from federation.protocol.messages import MAX_AHEAD_MS, BlobPointer, read, write
from phone import APP
from tests.edge_agent.factories import DEVICE, announcement, invitation, make_config, make_plan
from tests.phone.test_javascript import by_node

RESULT_JSON: dict[str, Any] = {
    "examples": 40,
    "steps": 6,
    "class_counts": [40, 0, 0, 0, 0, 0],
    "metrics": {"train_loss": 0.5, "macro_f1_after": 0.75},
    "seconds": 1.5,
}


def make_job(config: Config, round_number: int = 1, base: str = "a" * 64) -> Job:
    folder = config.agent.data_dir
    job = Job(
        kind="train",
        federation="demo",
        device=DEVICE,
        round=round_number,
        plan=make_plan(),
        network=make_plan().model,
        chunk_bytes=4096,
        store=folder,
        client=DEVICE,
        pipeline={},
        broadcast=folder / "blobs" / base,
        model=BlobPointer(sha256=base, size=10, url=f"/v1/blobs/{base}"),
        client_state=None,
        out=folder / "jobs" / "r1-train",
        threads=1,
        nice=0,
        memory_mb=0,
        round_s=600.0,
        checkpoints=folder / "checkpoints",
        precision="lossless",
        compression="none",
    )
    for name, data in ((UPDATE, b"update"), (CLIENT_STATE, b"client"), (RESULT, json.dumps(RESULT_JSON).encode())):
        write_file(job.out / name, data)
    with closing(StateStore(folder)) as store:
        if not store.get("identity"):
            store.put(identity=identity(announcement(), None))
    return job


def test_a_file_that_is_no_database_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(DamagedError, match=r"n't replaced automatically.*outbox; windows and models stay"):
        StateStore(tmp_path)


def test_a_restart_resends_the_outbox_and_does_not_train_again(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    a = announcement(1)
    store.reset(identity=identity(a, None))
    kept = save_round(store, make_job(make_config(tmp_path)))
    store.close()

    again = StateStore(tmp_path)
    agent, commands = load_agent(again), []
    for event in (Connected(), Invited(invitation(1)), Announced(a), DataReady(40)):
        result = step(Policy(DEVICE), agent, event, 0.0)
        agent, commands = result.agent, commands + list(result.commands)
    assert SendBegin(kept.update_id) in commands
    assert not [command for command in commands if isinstance(command, FetchBlob)]
    assert [c.status.state for c in commands if isinstance(c, PublishStatus)][-1] == "uploading"
    assert again.outbox()[kept.update_id].read_bytes() == b"update"
    again.close()


def test_the_manifest_describes_the_update_and_its_id_depends_on_the_bytes_alone(tmp_path: Path) -> None:
    store, config = StateStore(tmp_path), make_config(tmp_path)
    first = save_round(store, make_job(config))
    manifest = store.manifest(first.update_id)
    assert (manifest.size, manifest.examples, manifest.steps, manifest.chunk_bytes) == (6, 40, 6, 4096)
    assert (manifest.client, manifest.round, manifest.base_version) == (DEVICE, 1, "a" * 64)
    assert read(type(manifest), write(manifest)) == manifest
    assert save_round(store, make_job(config)).update_id == first.update_id
    assert len(store.outbox()) == 1
    store.close()


def test_an_answered_update_is_forgotten_with_its_file_and_the_round_is_not(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    kept = save_round(store, make_job(make_config(tmp_path)))
    path = store.outbox()[kept.update_id]
    forget_update(store, kept.update_id, "accepted", "")
    assert (store.outbox(), path.exists()) == ({}, False)
    assert [(row.round, row.status) for row in store.rounds()] == [(1, "accepted")]
    assert load_agent(store).done == {(1, "a" * 64)}
    with pytest.raises(StoreError, match="not in the outbox"):
        store.manifest(kept.update_id)
    store.close()


def test_only_the_latest_client_state_stays(tmp_path: Path) -> None:
    store, config = StateStore(tmp_path), make_config(tmp_path)
    save_round(store, make_job(config))
    save_round(store, make_job(config, 2, "b" * 64))
    assert [path.read_bytes() for path in (tmp_path / "clients").iterdir()] == [b"client"]
    assert (tmp_path / store.get("client_state")).is_file()
    store.close()


def test_the_summary_has_a_row_for_each_trained_round(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    save_round(store, make_job(make_config(tmp_path)))
    store.leave_out(2, "b" * 64, "killed")
    store.note_adoption(AdoptionRecord(1, "personalized", False, "not adopted, worse", {}, 0.0))
    found = summary(store, DEVICE)
    assert [row["round"] for row in found["rounds"]] == [1]
    assert (found["rounds"][0]["macro_f1_after"], found["rounds"][0]["macro_f1_before"]) == (0.75, None)
    assert (found["model"], found["adoption"]) == (None, ["not adopted, worse"])
    store.close()


def test_starting_over_forgets_rows_and_files(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    save_round(store, make_job(make_config(tmp_path)))
    reset_agent(store, "other", 1)
    agent = load_agent(store)
    assert (agent.identity, agent.outbox, agent.done) == ("other", (), frozenset())
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == set()
    store.close()


NOW_MS = 1_800_000_000_000
CASES = {
    0: NOW_MS,
    NOW_MS - 5: NOW_MS,
    NOW_MS: NOW_MS + 1,
    NOW_MS + MAX_AHEAD_MS: NOW_MS + MAX_AHEAD_MS + 1,
    NOW_MS + MAX_AHEAD_MS + 1: NOW_MS,
    2**53 - 1: NOW_MS,
}
"""What the last number was, and what the next one is."""


def test_a_device_goes_on_after_a_wrong_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)
    with closing(StateStore(tmp_path)) as store:
        for last, following in CASES.items():
            store.put(**{SEQUENCE: str(last)})
            assert next_sequence(store) == following


def test_a_phone_goes_on_after_a_wrong_clock(tmp_path: Path) -> None:
    script = tmp_path / "numbers.mjs"
    script.write_text(
        f'import {{ nextSequence }} from "{(APP / "protocol" / "contribution.js").as_uri()}";\n'
        'import { readFileSync } from "node:fs";\n'
        'const numbers = JSON.parse(readFileSync(0, "utf8"));\n'
        f"console.log(JSON.stringify(numbers.map((sequence) => nextSequence({{ sequence }}, {NOW_MS}))));\n"
    )
    assert by_node(script, list(CASES)) == list(CASES.values())
