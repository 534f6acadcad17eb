"""The training process: against the simulation's own calls on prepared windows, and as a process with its files."""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.metrics import f1_score

from edge_agent.errors import JobError, UnusableModelError
from edge_agent.machine.events import Event, SensorFailed
from edge_agent.sensors import open_source
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.supervisor.persistence import save_round
from edge_agent.training import trainer
from edge_agent.training.job import CHECKPOINT, CLIENT_STATE, MODEL, PARITY, RESULT, UPDATE
from export.runtime import Session
from federation import wire
from federation.plan import ModelSpec
from federation.protocol.messages import Runtime
from federation.records import Tree
from federation.training.client_round import steps_of
from federation.wire.schema import check_tree, upload_schema
from gaitway.tasks.classification import ClassSoundness, confusion, scores_of
from har_pipeline import ClientWindows, dataset_labels, dataset_settings, split_client
from models import build
from models.checkpoint import load_checkpoint
from tests.edge_agent.factories import DEVICE, INSTANCE, PLANS, make_config, make_plan
from tests.edge_agent.reference import Federation, a_job, assert_same, run_process


def test_the_device_has_the_windows_of_the_batch_preparation_bit_for_bit(device: Path, prepared: ClientWindows) -> None:
    store = WindowStore(device)
    mine = store.read(DEVICE, dataset_settings("synthetic"), dataset_labels("synthetic"))
    store.close()
    for name in ("x", "y", "start_s", "session"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(prepared, name), err_msg=name)


def test_a_client_that_the_data_set_does_not_have_is_an_error(tmp_path: Path) -> None:
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    config = make_config(tmp_path)
    sensors = config.sensors.model_copy(update={"client": "nobody"})
    open_source(config.model_copy(update={"sensors": sensors}), posted.put).start(PLANS["fedavg"])
    event = posted.get(timeout=30)
    assert isinstance(event, SensorFailed)
    assert "nobody" in event.reason


@pytest.mark.parametrize("name", PLANS)
def test_two_rounds_are_those_of_the_simulation_bit_for_bit(name: str, device: Path, prepared: ClientWindows) -> None:
    plan, job = PLANS[name], a_job(device, PLANS[name])
    federation = Federation(plan)
    trainer.train(trainer.build_context(job))
    first = federation.round(federation.initial, prepared, 1)
    update = wire.decode((job.out / UPDATE).read_bytes(), limit_bytes=1 << 24)
    assert_same(update, first.upload)
    check_tree(update, upload_schema(federation.method, plan.training, federation.initial))

    # the second round starts from the kept client, through a file
    (device / "kept").write_bytes((job.out / CLIENT_STATE).read_bytes())
    second = a_job(device, plan, round_number=2, state="kept")
    trainer.train(trainer.build_context(second))
    expected = federation.round(first.client, prepared, 2)
    assert_same(wire.decode((second.out / UPDATE).read_bytes(), limit_bytes=1 << 24), expected.upload)
    assert_same(
        wire.decode((second.out / CLIENT_STATE).read_bytes(), limit_bytes=1 << 24), dict(expected.client._asdict())
    )


def test_noise_on_gradients_is_drawn_anew_by_a_device_and_clipping_is_the_simulations(
    device: Path, prepared: ClientWindows
) -> None:
    """The plan's seed is known to all: of it no noise may come that is to hide anything."""

    def update(**given: float) -> Tree:
        plan = PLANS["fedavg"].model_copy(
            update={"training": PLANS["fedavg"].training.model_copy(update={"example_clip_norm": 0.5, **given})}
        )
        job = a_job(device, plan)
        shutil.rmtree(job.checkpoints, ignore_errors=True)  # of the round before, which would be gone on with
        trainer.train(trainer.build_context(job))
        sent = wire.decode((job.out / UPDATE).read_bytes(), limit_bytes=1 << 24)
        if not given:
            federation = Federation(plan)
            assert_same(sent, federation.round(federation.initial, prepared, 1).upload)
        return sent

    clipped, one, other = update(), update(example_noise_multiplier=1.0), update(example_noise_multiplier=1.0)
    for name, value in one["params"].items():
        assert not torch.equal(value, other["params"][name])
        assert not torch.equal(value, clipped["params"][name])


def test_the_result_counts_what_was_trained_on(device: Path, prepared: ClientWindows) -> None:
    short = PLANS["fedavg"]
    plan = short.model_copy(update={"training": short.training.model_copy(update={"epochs": 10, "lr": 0.01})})
    job = a_job(device, plan)
    trainer.train(trainer.build_context(job))
    result = json.loads((job.out / RESULT).read_bytes())
    split = split_client(prepared, "temporal", test_share=0.2, settings=dataset_settings("synthetic"))
    assert result["examples"] == len(split.train)
    assert result["class_counts"] == np.bincount(prepared.y[split.train], minlength=6).tolist()
    assert result["steps"] == steps_of(Federation(plan).setup, len(split.train))
    names = {"train_loss", "macro_f1_before", "macro_f1_after", "accuracy_before", "accuracy_after"}
    classes = {name for name in result["metrics"] if name.startswith("class_")}
    assert result["metrics"].keys() == names | classes
    assert classes >= {f"class_{k}_after" for k in np.unique(prepared.y[split.test])}
    assert result["metrics"]["accuracy_after"] > result["metrics"]["accuracy_before"] + 0.2


def measured(truth: np.ndarray, answered: np.ndarray) -> trainer.Measurement:
    found = confusion(truth, answered, 2)
    return trainer.Measurement(scores_of(found)._asdict(), ClassSoundness(found, ("a", "b")))


def test_a_device_whose_holdout_can_tell_says_whether_the_received_and_the_trained_model_work() -> None:
    truth = np.arange(40) % 2
    constant = np.asarray(DummyClassifier().fit(truth, truth).predict(truth))
    before, after = (measured(truth, answered) for answered in (constant, truth))
    f1 = f1_score(truth, constant, average="macro")
    assert trainer.holdout_metrics(before, after) == pytest.approx(
        {"macro_f1_before": f1, "accuracy_before": 0.5, "works_before": 0.0, "macro_f1_trivial": f1}
        | {"macro_f1_after": 1.0, "accuracy_after": 1.0, "works_after": 1.0}
    )


def test_the_score_of_a_class_is_told_where_the_holdout_has_it() -> None:
    found = measured(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]))
    told = trainer.holdout_metrics(found, found._replace(classes=[0.8, float("nan"), 0.5]))
    assert {name: value for name, value in told.items() if name.startswith("class_")} == {
        "class_0_after": 0.8,
        "class_2_after": 0.5,
    }


def test_a_damaged_or_foreign_broadcast_is_refused(device: Path) -> None:
    job = a_job(device, PLANS["fedavg"])
    damaged = device / "damaged"
    damaged.write_bytes(job.broadcast.read_bytes()[:-1] + b"\x01")
    with pytest.raises(JobError, match="damaged"):
        trainer.build_context(job.model_copy(update={"broadcast": damaged}))
    with pytest.raises(UnusableModelError, match=" is "):
        trainer.build_context(job.model_copy(update={"network": make_plan(hidden=24).model}))


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
@pytest.mark.parametrize("kind", ["NaN", "cut off"])
def test_a_model_that_nobody_can_use_is_told_from_one_that_is_damaged_here(
    runtime: Runtime, kind: str, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = PLANS["fedavg"]
    job = a_job(device, plan, runtime=runtime)
    tree = wire.decode(job.broadcast.read_bytes(), limit_bytes=1 << 24)
    name = next(iter(tree["params"]))
    tree["params"] = {**tree["params"], name: torch.full_like(tree["params"][name], float("nan"))}
    content = wire.encode(tree) if kind == "NaN" else wire.encode(tree)[:64]
    sha256, described = hashlib.sha256(content).hexdigest(), device / "job.json"
    path = device / sha256
    path.write_bytes(content)
    announced = job.model.model_copy(update={"sha256": sha256, "size": len(content)})
    bad = job.model_copy(update={"broadcast": path, "model": announced})
    for job_in_file, is_unusable in ((bad, True), (bad.model_copy(update={"model": job.model}), False)):
        described.write_text(job_in_file.model_dump_json())
        assert trainer.main([str(described)]) == 1
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (said["event"], said["unusable"], said["final"]) == ("error", is_unusable, is_unusable), said


def test_a_client_state_of_another_model_is_refused(device: Path) -> None:
    (device / "other").write_bytes(wire.encode(dict(Federation(make_plan(hidden=24)).initial._asdict())))
    supervised_device = trainer.build_context(a_job(device, PLANS["fedavg"], state="other"))
    with pytest.raises(JobError, match="other params"):
        supervised_device.load_client()


def test_a_client_state_with_another_memory_is_refused(device: Path) -> None:
    plan = make_plan("fedproto")
    kept = Federation(plan).initial  # has not joined: it has no prototypes yet
    (device / "other").write_bytes(wire.encode(dict(kept._asdict())))
    with pytest.raises(JobError, match="other memory"):
        trainer.build_context(a_job(device, plan, state="other")).load_client()


def test_a_device_trains_the_network_that_it_has_chosen(device: Path) -> None:
    hart = ModelSpec(name="hart", options={"feature_dim": 16, "blocks": 1, "heads": 2, "mlp": 16, "head_width": 16})
    plan = make_plan("fedproto", alternatives=(hart,))
    job = a_job(device, plan).model_copy(update={"network": hart})
    kept = trainer.train(trainer.build_context(job))
    assert kept.params.keys() == dict(build("hart", classes=6, **hart.options).named_parameters()).keys()
    update = wire.decode((job.out / UPDATE).read_bytes(), limit_bytes=1 << 24)
    check_tree(update, upload_schema(Federation(plan).method, plan.training, Federation(plan).initial))


def test_a_round_that_diverges_leaves_no_update(device: Path) -> None:
    training = PLANS["fedavg"].training.model_copy(update={"optimizer": "sgd", "lr": 100.0, "epochs": 20})
    job = a_job(device, PLANS["fedavg"].model_copy(update={"training": training}))
    (job.out / UPDATE).unlink(missing_ok=True)
    with pytest.raises(UnusableModelError, match=r"training from the server's model diverges: .* NaN"):
        trainer.train(trainer.build_context(job))
    assert not (job.out / UPDATE).exists()


def test_a_method_without_a_global_model_leaves_a_reason(device: Path) -> None:
    job = a_job(device, make_plan("local"), "adopt")
    assert not trainer.adopt(trainer.build_context(job))
    assert "no global model" in json.loads((job.out / RESULT).read_bytes())["no_model"]


@pytest.mark.ci
def test_an_export_that_was_put_off_gives_the_model_that_the_round_would_have_left(
    device: Path, prepared: ClientWindows, tmp_path: Path
) -> None:
    job = a_job(device, PLANS["fedavg"])
    trainer.run(job)
    put_off = tmp_path / "r1.safetensors"
    shutil.copy(job.out / CHECKPOINT, put_off)
    later = a_job(device, PLANS["fedavg"], "export").model_copy(update={"candidate": put_off, "out": tmp_path / "out"})
    later.out.mkdir()
    later = later.model_copy(update={"broadcast": tmp_path / "gone"})  # the next round's took its place
    trainer.run(later)
    x = prepared.x[:64]
    answers = [Session.load(one.out / MODEL).predict(x).logits for one in (job, later)]
    np.testing.assert_array_equal(*answers)
    assert json.loads((later.out / PARITY).read_bytes())["argmax_agreement"] == 1.0
    assert load_checkpoint(later.out / CHECKPOINT)[1] == load_checkpoint(put_off)[1]


@pytest.mark.ci
def test_the_process_trains_exports_and_ends(device: Path, prepared: ClientWindows) -> None:
    job = a_job(device, PLANS["fedali"])
    events, ended = run_process(job)
    assert (events, ended.reason) == (["epoch", "epoch", "trained"], "")
    parity = json.loads((job.out / PARITY).read_bytes())
    assert parity["max_abs_diff"] <= 1e-4
    assert parity["argmax_agreement"] == 1.0
    assert 0 <= parity["batch_agreement"] <= 1
    module, info = load_checkpoint(job.out / CHECKPOINT)
    state = wire.decode((job.out / CLIENT_STATE).read_bytes(), limit_bytes=1 << 24)
    assert_same(dict(module.state_dict()), {**state["params"], **state["buffers"]})
    assert (info.method, info.round, info.labels) == ("fedali", 1, PLANS["fedali"].labels)
    # the exported file takes raw windows: the normalization is inside
    logits = Session.load(job.out / MODEL).predict(prepared.x[:4]).logits
    assert np.isfinite(logits).all()

    store = StateStore(device)
    store.put(identity=f"{INSTANCE}/har_cnn")
    kept = save_round(store, job)
    assert store.manifest(kept.update_id).sha256 == wire.digest(store.outbox()[kept.update_id].read_bytes())
    store.close()


@pytest.mark.ci
def test_a_process_that_fails_says_why(device: Path, tmp_path: Path) -> None:
    empty = a_job(device, PLANS["fedavg"]).model_copy(update={"store": tmp_path, "out": tmp_path / "jobs" / "r1"})
    events, ended = run_process(empty)
    assert (events, ended.reason) == ([], f"client {DEVICE} has no training windows for this plan")
