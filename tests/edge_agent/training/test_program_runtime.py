"""The training process without torch: a round, a kill, a time that is over and a model ends as with torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_agent.errors import JobError, NonRetryableJobError
from edge_agent.supervisor.persistence import manifest_of
from edge_agent.training import trainer
from edge_agent.training.job import CHECKPOINT, CLIENT_STATE, GLOBAL, MODEL, PARITY, RESULT, UPDATE, Job
from export.runtime import Session
from federation import wire
from federation.plan import Augmentation, DataStatistics, Plan
from federation.records import Client, Tree
from federation.records.tree import map_tree
from federation.training.client_round import steps_of
from federation.wire.schema import check_tree, upload_schema
from har_pipeline import ClientWindows
from models.checkpoint import load_checkpoint
from tests.edge_agent.factories import INSTANCE, make_plan
from tests.edge_agent.reference import Federation, a_job, assert_close, assert_same
from tests.edge_agent.training.test_limits import Killed, at_once, longer

TOLERANCE = 1e-4
"""Sums are in another order. Of SGD: Adam makes steps of a gradient that is nothing but rounding."""
DITTO = make_plan("ditto", optimizer="sgd")


def read(job: Job, name: str) -> Tree:
    return wire.decode((job.out / name).read_bytes(), limit_bytes=1 << 24)


def later(plan: Plan) -> Tree:
    """The broadcast of a later round: other parameters than those of the start."""
    broadcast = Federation(plan).broadcast
    return dict(map_tree(lambda value: value + 0.01 if value.is_floating_point() else value, broadcast))


def test_two_rounds_without_torch_are_those_with_torch_up_to_rounding(device: Path, prepared: ClientWindows) -> None:
    federation = Federation(DITTO)
    job = a_job(device, DITTO, runtime="onnx")
    trainer.train(trainer.build_context(job))
    first = federation.round(federation.joined, prepared, 1)
    update = read(job, UPDATE)
    assert_close(update, first.upload, TOLERANCE)
    check_tree(update, upload_schema(federation.method, DITTO.training, federation.initial))

    (device / "kept").write_bytes((job.out / CLIENT_STATE).read_bytes())
    second = a_job(device, DITTO, round_number=2, state="kept", runtime="onnx")
    trainer.train(trainer.build_context(second))
    kept = Client(**{"memory": {}, **read(job, CLIENT_STATE)})
    expected = federation.round(kept, prepared, 2)
    assert_close(read(second, UPDATE), expected.upload, TOLERANCE)
    assert_close(read(second, CLIENT_STATE), dict(expected.client._asdict()), TOLERANCE)

    result = json.loads((second.out / RESULT).read_bytes())
    assert result["steps"] == steps_of(federation.setup, result["examples"])
    with_torch = a_job(device, DITTO, round_number=2, state="kept")
    trainer.train(trainer.build_context(with_torch))
    same = json.loads((with_torch.out / RESULT).read_bytes())
    assert result["metrics"] == pytest.approx(same["metrics"], abs=0.02)
    assert result["class_counts"] == same["class_counts"]
    assert manifest_of(second, result, second.out / UPDATE, INSTANCE).runtime == "onnx"
    assert b"runtime" not in manifest_of(with_torch, same, second.out / UPDATE, INSTANCE).model_dump_json().encode()


def test_windows_are_changed_as_they_were_measured_by_either_runtime(device: Path, prepared: ClientWindows) -> None:
    """In m/s² and rad/s, though the network takes them normalized by the federation's statistics."""
    x = prepared.x.reshape(-1, 6).astype(np.float64)
    sums = {"count": len(x), "total": tuple(x.sum(0).tolist()), "square": tuple((x**2).sum(0).tolist())}
    plan = make_plan(optimizer="sgd")
    data = plan.data.model_copy(
        update={"normalization": "federated", "statistics": DataStatistics.model_validate(sums)}
    )
    plan = plan.model_copy(update={"data": data})
    change = Augmentation(rotation=0.8, degrees=60, sensor_loss=0.4)
    changed = plan.model_copy(update={"training": plan.training.model_copy(update={"augmentation": change})})
    sent = {}
    for name, runtime, each in (("torch", "torch", changed), ("onnx", "onnx", changed), ("plain", "onnx", plan)):
        job = a_job(device, each, runtime=runtime)
        trainer.train(trainer.build_context(job))
        sent[name] = read(job, UPDATE)
    assert_close(sent["onnx"], sent["torch"], TOLERANCE)
    with pytest.raises(AssertionError):
        assert_close(sent["plain"], sent["torch"], 10 * TOLERANCE)


def test_training_that_is_cut_off_goes_on_to_the_same_bits(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, told = longer(DITTO), list[dict[str, object]]()
    whole = a_job(device, plan, runtime="onnx")
    trainer.train(trainer.build_context(whole))
    expected = read(whole, UPDATE), read(whole, CLIENT_STATE)
    for path in whole.checkpoints.iterdir():
        path.unlink()

    def emit(**record: object) -> None:
        told.append(record)
        if len(told) == 2:
            raise Killed

    monkeypatch.setattr(trainer, "emit", emit)
    with pytest.raises(Killed):
        trainer.train(trainer.build_context(whole))
    assert [path.suffix for path in whole.checkpoints.iterdir()] == [".epoch"]
    trainer.train(trainer.build_context(whole))
    assert [record.get("epoch") for record in told] == [1, 2, 3, 4, None]
    for name, tree in zip((UPDATE, CLIENT_STATE), expected, strict=True):
        assert_same(read(whole, name), tree)


def test_a_round_whose_time_is_over_sends_what_was_done_or_is_left_out(device: Path, prepared: ClientWindows) -> None:
    plan = longer(make_plan("scaffold", optimizer="sgd"), partial="use")
    job = at_once(a_job(device, plan, runtime="onnx"))
    trainer.train(trainer.build_context(job))
    result = json.loads((job.out / RESULT).read_bytes())
    assert (result["steps"], result["metrics"]["epochs"]) == (1, 0.0)
    straggler = Federation(plan)
    assert_close(read(job, UPDATE), straggler.round(straggler.joined, prepared, 1, max_steps=1).upload, TOLERANCE)
    with pytest.raises(NonRetryableJobError, match=r"over after 1 of \d+ steps, and this federation drops"):
        trainer.train(trainer.build_context(at_once(a_job(device, longer(DITTO, partial="drop"), runtime="onnx"))))


def test_the_models_that_a_round_leaves_are_those_that_torch_reads_and_exports(device: Path) -> None:
    job = a_job(device, DITTO, round_number=2, broadcast=later(DITTO), runtime="onnx")
    trainer.run(job)
    for folder, number in ((job.out / GLOBAL, 1), (job.out, 2)):
        module, info = load_checkpoint(folder / CHECKPOINT)
        session = Session.load(folder / MODEL)
        assert (info.method, info.round, session.metadata.round) == ("ditto", number, number)
        x = trainer.read_data(job)[1].holdout.x[:20]
        spec = info.input
        features, logits = module(*[trainer_input(x, spec.mean, spec.std)])[:2]
        answered = session.predict(x)
        np.testing.assert_allclose(answered.logits, logits.detach().numpy(), atol=1e-4)
        np.testing.assert_allclose(answered.embedding, features.detach().numpy(), atol=1e-4)
        assert session.predict(x[:0]).logits.shape == (0, 6)
        assert json.loads((folder / PARITY).read_bytes())["argmax_agreement"] == 1.0
    adopt = a_job(device, DITTO, "adopt", 1, runtime="onnx")
    assert not trainer.build_context(adopt).is_trained()
    assert trainer.build_context(job).is_trained()


def trainer_input(x: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> object:
    import torch

    return torch.from_numpy(((x - np.array(mean, np.float32)) / np.array(std, np.float32)).astype(np.float32))


def test_int8_without_torch_is_read_by_the_server_and_leaves_its_residual(device: Path) -> None:
    job = a_job(device, DITTO, runtime="onnx").model_copy(update={"precision": "int8"})
    trainer.train(trainer.build_context(job))
    kept = read(job, CLIENT_STATE)
    assert kept["memory"]["residual"]["params"]
    (device / "kept").write_bytes((job.out / CLIENT_STATE).read_bytes())
    _, residual = trainer.build_context(a_job(device, DITTO, state="kept", runtime="onnx")).load_client()
    assert residual.keys() == {f"params/{name}" for name in kept["memory"]["residual"]["params"]}


def test_a_program_that_is_missing_damaged_of_another_plan_or_too_large_is_refused(device: Path) -> None:
    job = a_job(device, DITTO, runtime="onnx")
    assert job.program is not None
    with pytest.raises(JobError, match="no program of this federation"):
        trainer.build_context(job.model_copy(update={"program": None}))
    other = job.program.with_name("0" * 64)
    other.write_bytes(job.program.read_bytes())
    with pytest.raises(JobError, match="damaged"):
        trainer.build_context(job.model_copy(update={"program": other}))
    with pytest.raises(NonRetryableJobError, match="another network or method"):
        trainer.build_context(job.model_copy(update={"plan": make_plan("fedavg")}))
    with pytest.raises(NonRetryableJobError, match="other training settings"):
        trainer.build_context(job.model_copy(update={"plan": make_plan("ditto", seed=2)}))
