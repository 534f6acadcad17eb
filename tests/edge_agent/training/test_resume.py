"""A device that is killed, between two rounds or within one, resumes with all that its method keeps on it."""

from __future__ import annotations

import queue
import shutil
from pathlib import Path

import pytest

from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import CLIENTS, forget_update, load_agent, save_round
from edge_agent.training import trainer
from edge_agent.training.job import CLIENT_STATE, UPDATE, Job, JobEnded, JobLine, TrainingProcess
from federation import wire
from federation.plan import Plan
from federation.records import Tree, Update
from har_pipeline import ClientWindows
from tests.edge_agent.factories import DEVICE, INSTANCE, make_plan
from tests.edge_agent.reference import Federation, a_job, assert_same

PLANS = {
    "scaffold": make_plan("scaffold", optimizer="sgd"),  # keeps its control variate in the memory
    "fedproto": make_plan("fedproto"),  # keeps the prototypes that it predicts with
    "ditto": make_plan("ditto"),  # keeps a second model
}


class Expected:
    """Two rounds of one client, as the simulation computes them."""

    def __init__(self, plan: Plan, windows: ClientWindows) -> None:
        federation = Federation(plan)
        method, training, initial = federation.method, plan.training, federation.joined
        self.first = federation.round(initial, windows, 1)
        state = method.server_init(initial.params, initial.buffers, training)
        update = Update(DEVICE, len(windows), 1, self.first.upload)
        self.broadcast = federation.broadcast = method.broadcast(method.aggregate(state, [update]), DEVICE)
        self.second = federation.round(self.first.client, windows, 2)


def killed_after_round_one(folder: Path, plan: Plan) -> None:
    """Train round 1, have it accepted, and leave what a kill in round 2 leaves in the folder."""
    store, job = StateStore(folder), a_job(folder, plan)
    store.put(identity=f"{INSTANCE}/har_cnn")
    trainer.train(trainer.build_context(job))
    kept = save_round(store, job)
    forget_update(store, kept.update_id, "accepted", "")
    store.close()
    write_file(folder / CLIENTS / "r2-half-written", b"half")
    write_file(folder / "jobs" / "r2-train" / UPDATE, b"half")


def second_job(folder: Path, plan: Plan, broadcast: Tree) -> Job:
    """Start anew from the data folder alone, and take round 2."""
    store = StateStore(folder)
    assert [number for number, _ in load_agent(store).done] == [1]
    state = store.get("client_state")
    store.close()
    assert [path.name for path in (folder / CLIENTS).iterdir()] == [Path(state).name]
    return a_job(folder, plan, round_number=2, state=state, broadcast=broadcast)


def assert_second(job: Job, expected: Expected) -> None:
    for name, tree in ((UPDATE, expected.second.upload), (CLIENT_STATE, dict(expected.second.client._asdict()))):
        assert_same(wire.decode((job.out / name).read_bytes(), limit_bytes=1 << 24), tree)


@pytest.mark.parametrize("method", PLANS)
def test_the_round_after_a_kill_is_that_of_a_client_that_was_never_killed(
    method: str, device: Path, prepared: ClientWindows, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(device, tmp_path / "device"))
    expected = Expected(PLANS[method], prepared)
    killed_after_round_one(folder, PLANS[method])
    job = second_job(folder, PLANS[method], expected.broadcast)
    trainer.train(trainer.build_context(job))
    assert_second(job, expected)
    anew = Federation(PLANS[method])
    anew.broadcast = expected.broadcast
    forgetful = anew.round(anew.joined, prepared, 2).client
    remembering = expected.second.client
    assert wire.encode(dict(forgetful._asdict())) != wire.encode(dict(remembering._asdict()))


@pytest.mark.ci
def test_a_training_process_that_is_killed_after_an_epoch_is_run_again(
    device: Path, prepared: ClientWindows, tmp_path: Path
) -> None:
    folder, plan = Path(shutil.copytree(device, tmp_path / "device")), PLANS["ditto"]
    expected = Expected(plan, prepared)
    killed_after_round_one(folder, plan)
    first = started(second_job(folder, plan, expected.broadcast), "epoch")
    first.stop(0.0)  # SIGTERM, and SIGKILL at once

    again = second_job(folder, plan, expected.broadcast)
    assert not (again.out / UPDATE).exists()
    started(again, "trained").stop(0.0)  # all is on disk; its export is not asked for here
    assert_second(again, expected)


def started(job: Job, until: str) -> TrainingProcess:
    """Run the training process until it says so."""
    posted: queue.SimpleQueue[JobLine | JobEnded] = queue.SimpleQueue()
    process, event = TrainingProcess(job, 120.0, posted.put), ""
    while event != until:
        line = posted.get(timeout=60)
        assert isinstance(line, JobLine), line
        event = line.record["event"]
    return process
