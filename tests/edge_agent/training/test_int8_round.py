"""A device that uploads in int8: what one upload lost goes along with the next, once, whatever is killed between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import save_round
from edge_agent.training import trainer
from edge_agent.training.job import CLIENT_STATE, UPDATE, Job
from federation import wire
from federation.protocol.messages import Precision
from federation.records.tree import flatten
from federation.wire import uploads
from har_pipeline import ClientWindows
from tests.edge_agent.factories import INSTANCE, make_plan
from tests.edge_agent.reference import Federation, a_job, assert_same

PLAN = make_plan("scaffold", optimizer="sgd")  # its memory must not be confused with the residual


def int8_job(folder: Path, number: int, state: str = "", precision: Precision = "int8") -> Job:
    return a_job(folder, PLAN, round_number=number, state=state).model_copy(update={"precision": precision})


@pytest.fixture
def folder(device: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(device, tmp_path / "device"))


def done(job: Job) -> tuple[bytes, bytes]:
    """Run a job in this process; return the bytes of the update and of the client."""
    trainer.train(trainer.build_context(job))
    return (job.out / UPDATE).read_bytes(), (job.out / CLIENT_STATE).read_bytes()


def test_two_rounds_are_those_of_the_simulation_bit_for_bit(folder: Path, prepared: ClientWindows) -> None:
    federation = Federation(PLAN)
    delta_reference, client, residual, state = (
        federation.method.delta_reference(federation.broadcast),
        federation.joined,
        {},
        "",
    )
    for number in (1, 2):
        update, kept = done(int8_job(folder, number, state))
        expected = federation.round(client, prepared, number)
        sent = uploads.encode(expected.upload, delta_reference, residual, precision="int8")
        client, residual = expected.client, sent.residual
        assert update == sent.data
        tree = wire.decode(kept, limit_bytes=len(kept))
        assert_same(tree, uploads.with_residual(client, residual)._asdict())
        (folder / (state := f"kept{number}")).write_bytes(kept)
    assert any(float(value.abs().max()) > 0 for value in flatten(residual).values())
    assert sent.data != uploads.encode(expected.upload, delta_reference, {}, precision="int8").data


def test_a_round_that_is_done_again_after_a_kill_sends_the_same_bytes(folder: Path) -> None:
    store = StateStore(folder)
    store.put(identity=f"{INSTANCE}/har_cnn")
    first = int8_job(folder, 1)
    done(first)
    save_round(store, first)
    state = store.get("client_state")
    job = int8_job(folder, 2, state)
    once = done(job)  # and killed before it is committed: the client is still that of round 1
    shutil.rmtree(job.out)
    assert store.get("client_state") == state
    again = int8_job(folder, 2, state)
    assert done(again) == once
    kept = save_round(store, again)
    manifest = store.manifest(kept.update_id)
    assert (manifest.precision, manifest.sha256) == ("int8", wire.digest(once[0]))
    assert Path(folder, store.get("client_state")).read_bytes() == once[1]  # with the residual of what is in the outbox
    store.close()


def test_a_device_that_changes_to_lossless_sends_what_it_trained(folder: Path) -> None:
    _, kept = done(int8_job(folder, 1))
    (folder / "kept").write_bytes(kept)
    update, client = done(int8_job(folder, 2, "kept", "lossless"))
    assert "residual" not in wire.decode(client, limit_bytes=len(client))["memory"]
    client_params = wire.decode(client, limit_bytes=len(client))["params"]
    sent = wire.decode(update, limit_bytes=len(update))["params"]
    assert all(torch.equal(sent[name], value) for name, value in client_params.items())
