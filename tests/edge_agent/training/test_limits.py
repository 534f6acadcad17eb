"""What bounds a round on the device: its time, its memory, and a kill after any epoch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edge_agent.errors import NonRetryableJobError
from edge_agent.storage.data_folder import write_file
from edge_agent.training import trainer
from edge_agent.training.job import CLIENT_STATE, RESULT, UPDATE, Job
from edge_agent.training.limits import RoundBudget, checkpoint_path
from edge_agent.training.torch_files import EpochCheckpoints
from federation import wire
from federation.plan import Plan
from federation.training.local_round import EpochCheckpoint, LocalRound
from har_pipeline import ClientWindows
from tests.edge_agent.factories import make_plan
from tests.edge_agent.reference import Federation, a_job, assert_same, run_process


def longer(plan: Plan, epochs: int = 4, partial: str = "method") -> Plan:
    rounds = plan.rounds.model_copy(update={"partial_work": partial})
    return plan.model_copy(update={"training": plan.training.model_copy(update={"epochs": epochs}), "rounds": rounds})


PLAN = longer(make_plan("ditto"))


class Killed(BaseException):
    """Nobody handles it."""


def test_training_that_is_cut_off_goes_on_after_its_last_epoch_to_the_same_bits(
    device: Path, prepared: ClientWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Federation(PLAN)
    whole = expected.round(expected.joined, prepared, 1)
    told = list[dict[str, object]]()

    def emit(**record: object) -> None:
        told.append(record)
        if len(told) == 2:
            raise Killed

    monkeypatch.setattr(trainer, "emit", emit)
    job = a_job(device, PLAN)
    with pytest.raises(Killed):
        trainer.train(trainer.build_context(job))
    assert [path.suffix for path in job.checkpoints.iterdir()] == [".epoch"]
    trainer.train(trainer.build_context(job))
    assert [record.get("epoch") for record in told] == [1, 2, 3, 4, None]
    assert_round(job, whole)
    result = json.loads((job.out / RESULT).read_bytes())
    assert result["steps"] == 4 * -(-result["examples"] // PLAN.training.batch_size)
    assert "epochs" not in result["metrics"]


def assert_round(job: Job, whole: LocalRound) -> None:
    for name, tree in ((UPDATE, whole.upload), (CLIENT_STATE, dict(whole.client._asdict()))):
        assert_same(wire.decode((job.out / name).read_bytes(), limit_bytes=1 << 24), tree)


def test_a_checkpoint_is_of_one_round_one_base_one_seed_one_client_and_its_windows(device: Path) -> None:
    job = a_job(device, PLAN)
    windows = trainer.build_context(job).data.train
    changed = windows.x.copy()
    changed[0, 0, 0] += 1
    others = [
        job.model_copy(update={"round": 2}),
        job.model_copy(update={"model": job.model.model_copy(update={"sha256": "b" * 64})}),
        job.model_copy(update={"client_state": Path("kept")}),
        job.model_copy(update={"plan": longer(make_plan("ditto", seed=2))}),
        job.model_copy(update={"plan": longer(make_plan("fedavg"))}),
    ]
    paths = [checkpoint_path(device, each, windows) for each in [job, *others]]
    paths.append(checkpoint_path(device, job, replace(windows, x=changed)))
    assert len(set(paths)) == len(paths)
    assert checkpoint_path(device, a_job(device, PLAN), windows) == paths[0]


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_a_damaged_checkpoint_or_one_of_another_network_is_as_good_as_none(
    damage: bytes | None, device: Path, tmp_path: Path
) -> None:
    context, path = trainer.build_context(a_job(device, PLAN)), tmp_path / "x.epoch"
    other = Federation(make_plan(hidden=24)).initial
    zero = torch.zeros(())
    progress = {"epoch": torch.tensor(1), "steps": torch.tensor(3), "seconds": torch.tensor(1.0)}
    tree = {"params": other.params, "buffers": other.buffers, "loss": zero, "examples": zero, "progress": progress}
    write_file(path, wire.encode(tree) if damage is None else damage)
    write_file(tmp_path / "of-another-round.epoch", b"")
    assert EpochCheckpoints(RoundBudget(path, 1.0, lambda _: None), context.initial).resume() is None
    assert [left.name for left in tmp_path.iterdir()] == ["x.epoch"]


class Clock:
    """A second passes each time that it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_time_counts_what_interrupted_runs_have_used(device: Path, tmp_path: Path) -> None:
    context, path, told = trainer.build_context(a_job(device, PLAN)), tmp_path / "x.epoch", list[int]()
    first = EpochCheckpoints(RoundBudget(path, 100.0, told.append, Clock()), context.initial)
    zero = torch.zeros(())
    first.on_epoch_end(EpochCheckpoint(1, 3, context.initial.params, context.initial.buffers, {}, zero, zero))
    second = EpochCheckpoints(RoundBudget(path, 3.0, told.append, Clock()), context.initial)
    found = second.resume()
    assert found is not None
    assert (found.epoch, found.steps, told) == (1, 3, [1])
    assert list(found.params) == list(context.initial.params)
    assert not second.should_stop(0)
    assert not second.should_stop(3)
    assert second.should_stop(4)
    assert second.budget.stopped_at == 4


def at_once(job: Job) -> Job:
    return job.model_copy(update={"round_s": 1e-9})


def test_a_round_whose_time_is_over_sends_what_was_done_and_says_how_much(
    device: Path, prepared: ClientWindows
) -> None:
    plan = longer(make_plan("scaffold", optimizer="sgd"), partial="use")
    job = at_once(a_job(device, plan))
    trainer.train(trainer.build_context(job))
    result = json.loads((job.out / RESULT).read_bytes())
    assert (result["steps"], result["metrics"]["epochs"]) == (1, 0.0)
    straggler = Federation(plan)
    one_step = straggler.round(straggler.joined, prepared, 1, max_steps=1)
    assert_same(wire.decode((job.out / UPDATE).read_bytes(), limit_bytes=1 << 24), one_step.upload)


def test_where_partial_work_is_dropped_a_round_without_time_is_left_out_at_once(device: Path) -> None:
    job = at_once(a_job(device, longer(make_plan(), partial="drop")))
    (job.out / UPDATE).unlink(missing_ok=True)
    with pytest.raises(
        NonRetryableJobError, match=r"over after 1 of \d+ steps, and this federation drops partial work"
    ):
        trainer.train(trainer.build_context(job))
    assert not (job.out / UPDATE).exists()


@pytest.mark.slow  # where exactly memory runs out, and in what words, differs from run to run
@pytest.mark.parametrize("memory_mb", [128, 176, 192])  # with 256 a round of the CNN may end well
def test_a_round_that_needs_more_memory_than_the_cap_fails_with_that_reason_and_is_not_tried_again(
    device: Path, memory_mb: int
) -> None:
    job = a_job(device, make_plan()).model_copy(update={"memory_mb": memory_mb})
    events, ended = run_process(job)
    assert "trained" not in events
    assert (ended.final, ended.reason) == (
        True,
        f"the round needs more memory than the cap of {memory_mb} MB; raise [training] memory_mb, or 0 for no cap",
    )
