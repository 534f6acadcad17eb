"""A continuous federation's job: the simulation's sums bit for bit, the heads of one graph, and hostile broadcasts."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aggregator_api.federations import exports
from aggregator_api.federations.initial_state import build_initial_state
from edge_agent.machine.commands import Evaluate, PrepareWithdrawal
from edge_agent.serving.acceptance import evaluate_job
from edge_agent.serving.model_registry import ModelRegistry
from edge_agent.storage.consent import participation, withdraw
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.supervisor.persistence import load_agent, load_contribution, prepare_withdrawal, reset_agent, save_round
from edge_agent.supervisor.status import describe_served, summary
from edge_agent.training import trainer
from edge_agent.training.job import (
    CHECKPOINT,
    CLIENT_STATE,
    HEADS,
    MODEL,
    ORIENTATION,
    PARITY,
    RESULT,
    UPDATE,
    Job,
)
from edge_agent.training.local_data import preparation, stored_examples, training_windows, window_keys
from export import onnx_export
from export.onnx_export import export_onnx, metadata_of
from export.runtime import Session
from federation import wire
from federation.aggregation import pseudo_labels
from federation.aggregation.ridge_numpy import RidgeOptions
from federation.methods import METHODS
from federation.plan import Plan
from federation.records import Tree, Update
from federation.records.tree import flatten
from har_pipeline import ClientWindows, prepare
from models.checkpoint import load_checkpoint
from tests.edge_agent.factories import DEVICE, INSTANCE, make_config, make_plan
from tests.edge_agent.reference import Federation, a_job, assert_same
from tests.export.conftest import waves

pytestmark = pytest.mark.ci  # eight seconds of processor time, most of it to make one network and its graphs

NAMES = {"personalized", "personalized_any_orientation", "shared", "shared_any_orientation"}
OTHERS: dict[str, Any] = {"subjects": 2, "phones": ["phone100"], "places": ["waist", "thigh"], "minutes": 2.0}


@pytest.fixture(scope="module", params=[{"cosines": 41}, {"features": 60}], ids=["cosines", "minirocket"])
def plan(request: pytest.FixtureRequest) -> Plan:
    first = make_plan("analytic", "har_features")
    spec = first.model.model_copy(update={"options": request.param})
    training = first.training.model_copy(update={"feature_dim": 183 + sum(request.param.values())})
    data = first.data.model_copy(update={"normalization": "none"})
    return first.model_copy(update={"model": spec, "training": training, "data": data})


@pytest.fixture(scope="module")
def broadcast(plan: Plan) -> Tree:
    """The broadcast of version 1, of two other clients' sums."""
    federation, clients = Federation(plan), prepare("synthetic", None, options=OTHERS).clients
    names = [name for name in clients if name != DEVICE][:2]
    uploads = [federation.round(federation.joined, clients[name], 1).upload for name in names]
    updates = [Update(name, 1, 1, upload) for name, upload in zip(names, uploads, strict=True)]
    return federation.method.broadcast(federation.method.aggregate(federation.state, updates), "")


@pytest.fixture(scope="module")
def network(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's export of the federation's network, of which devices make their heads."""
    initial = build_initial_state(plan, max_model_bytes=1 << 28)
    folder = tmp_path_factory.mktemp("export")
    checkpoint, path = folder / CHECKPOINT, folder / MODEL
    checkpoint.write_bytes(exports.checkpoint(plan, "demo", 0, initial.broadcast, {}, is_network=True))
    module, info = load_checkpoint(checkpoint)
    export_onnx(module, path, metadata=metadata_of(info), examples=waves(256, 0)[0])  # in a server's process of its own
    return path


def run(job: Job, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run a job as its process does; returns the last thing that it said."""
    (job.out / "job.json").write_text(job.model_dump_json())
    code = trainer.main([str(job.out / "job.json")])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert (code == 0) == (not said or said[-1]["event"] != "error")
    return said[-1] if said else {}


@pytest.mark.parametrize("exporter", ["server", pytest.param("device", marks=pytest.mark.ci)])
def test_sums_are_the_simulations_bit_for_bit_and_heads_share_one_graph(
    exporter: str,
    plan: Plan,
    broadcast: Tree,
    device: Path,
    prepared: ClientWindows,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    network: Path,
) -> None:
    """Made of the server's export of the network; a device that has none exports it itself."""
    job = a_job(device, plan, "train", 2, broadcast=broadcast, continuous=True)
    shutil.rmtree(job.out / HEADS, ignore_errors=True)  # of another test
    if exporter == "server":
        monkeypatch.setattr(onnx_export, "float32_graph", lambda *_: pytest.fail("torch's exporter ran"))
        job = job.model_copy(update={"onnx_network": network})
    run(job, capsys)
    federation = Federation(plan)
    federation.broadcast = broadcast
    expected = federation.round(federation.joined, prepared, 2)
    assert_same(wire.decode((job.out / UPDATE).read_bytes(), limit_bytes=1 << 24), expected.upload)
    heads = federation.method.serving_models(expected.client)
    assert {path.name for path in (job.out / HEADS).iterdir() if path.is_dir()} == NAMES == set(heads)
    x = prepared.x[:50]
    for name, head in heads.items():
        federation.module.load_state_dict({**head.params, **head.buffers})
        with torch.no_grad():
            wanted = federation.module.eval()(torch.from_numpy(x)).logits.numpy()
        found = Session.load(job.out / HEADS / name / MODEL)
        np.testing.assert_allclose(found.predict(x).logits, wanted, atol=1e-4)
        assert (found.metadata.round, found.metadata.labels) == (1, plan.labels)
        assert json.loads((job.out / HEADS / name / PARITY).read_bytes())["max_abs_diff"] <= 1e-4
    free = federation.module.orientation_free_columns
    weight = load_checkpoint(job.out / HEADS / "shared_any_orientation" / CHECKPOINT)[0].state_dict()["head.weight"]
    assert not np.delete(weight.numpy(), free, axis=1).any()


@pytest.mark.parametrize("copies", [{}, {"rotations": 1, "degrees": 60.0, "sensor_loss": True}])
def test_a_device_without_torch_sends_the_same_sums_and_makes_the_same_heads(
    copies: dict[str, Any],
    plan: Plan,
    broadcast: Tree,
    device: Path,
    prepared: ClientWindows,
    capsys: pytest.CaptureFixture[str],
    network: Path,
) -> None:
    x, told, sent, answers, states = prepared.x[:50], {}, {}, {}, {}
    plan = plan.model_copy(update={"method": {**plan.method, **copies}})
    for runtime in ("torch", "onnx"):
        job = a_job(device, plan, "train", 2, broadcast=broadcast, continuous=True)
        job = job.model_copy(update={"onnx_network": network, "runtime": runtime, "program": None})
        run(job, capsys)
        told[runtime] = json.loads((job.out / RESULT).read_bytes())
        sent[runtime] = flatten(wire.decode((job.out / UPDATE).read_bytes(), limit_bytes=1 << 24))
        answers[runtime] = {name: Session.load(job.out / HEADS / name / MODEL).predict(x).logits for name in NAMES}
        states[runtime] = (job.out / CLIENT_STATE).read_bytes()
        orientation = json.loads((job.out / HEADS / ORIENTATION).read_bytes())
        told[runtime]["distance"] = orientation["distance"]
    assert told["onnx"]["metrics"] == pytest.approx(told["torch"]["metrics"], abs=0.02)
    assert told["onnx"]["distance"] == pytest.approx(told["torch"]["distance"], abs=1e-3)
    assert (told["onnx"]["class_counts"], told["onnx"]["steps"]) == (told["torch"]["class_counts"], 0)
    for name, value in sent["torch"].items():  # features that are rounded the other way, here and there
        assert value.dtype == sent["onnx"][name].dtype == torch.int32
        apart = (value.long() - sent["onnx"][name].long()).abs().max()
        assert 0 <= int(apart) <= 1e-4 * int(value.long().abs().max()), name
    for name in NAMES:
        np.testing.assert_allclose(answers["onnx"][name], answers["torch"][name], atol=5e-3)
        module, info = load_checkpoint(job.out / HEADS / name / CHECKPOINT)
        with torch.no_grad():
            found = module.eval()(torch.from_numpy(x)).logits.numpy()
        np.testing.assert_allclose(found, answers["onnx"][name], atol=1e-4)
        assert (info.round, info.method) == (1, "analytic")
    for kept, runtime in ((states["onnx"], "torch"), (states["torch"], "onnx")):  # a device may change its runtime
        (device / "kept").write_bytes(kept)
        job = a_job(device, plan, "adopt", 2, state="kept", broadcast=broadcast, continuous=True)
        run(job.model_copy(update={"onnx_network": network, "runtime": runtime}), capsys)
        again = Session.load(job.out / HEADS / "personalized" / MODEL).predict(x).logits
        np.testing.assert_allclose(again, answers[runtime]["personalized"], atol=5e-3)
    assert RidgeOptions()._asdict().items() <= vars(METHODS["analytic"]()).items()


def test_without_labels_its_own_windows_adapt_the_shared_head_by_either_runtime(
    plan: Plan,
    broadcast: Tree,
    device: Path,
    prepared: ClientWindows,
    capsys: pytest.CaptureFixture[str],
    network: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, x, weights = Path(shutil.copytree(device, tmp_path / "device")), prepared.x[:50], {}
    with closing(WindowStore(folder)) as store, store.writing() as db:
        db.execute("UPDATE windows SET activity = ''")
    for may_adapt in (False, True):  # it lies otherwise than most, and has 92 windows that two views name in two ways
        if may_adapt:
            monkeypatch.setattr(pseudo_labels, "MIN_WINDOWS", 50)
            monkeypatch.setattr(pseudo_labels, "MIN_AGREEMENT", 0.4)
            monkeypatch.setattr("edge_agent.training.runtime.FAR", 9.0)
        for runtime in ("torch", "onnx"):
            job = a_job(folder, plan, "adopt", 2, broadcast=broadcast, continuous=True)
            shutil.rmtree(job.out / HEADS, ignore_errors=True)  # of the tests that had the device before
            run(job.model_copy(update={"onnx_network": network, "runtime": runtime}), capsys)
            names = {path.name for path in (job.out / HEADS).iterdir() if path.is_dir()}
            assert names == {"shared", "shared_any_orientation"} | ({"adapted"} if may_adapt else set())
            verdict = evaluate_job(make_config(folder), plan, Evaluate(2, "adopt"))
            served = "adapted to own windows" if may_adapt else "for any orientation"
            assert f"shared model {served} of version 2: adopted" in verdict.reason
            if may_adapt:
                found = {name: Session.load(job.out / HEADS / name / MODEL).predict(x).logits for name in names}
                weights[runtime] = found["adapted"]
                assert np.abs(found["adapted"] - found["shared"]).max() > 0.01
            shutil.rmtree(job.out)
    np.testing.assert_allclose(weights["onnx"], weights["torch"], atol=5e-3)


def test_before_anybody_has_sent_there_are_only_heads_of_ones_own(
    plan: Plan, device: Path, network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(device, plan, continuous=True)
    run(job.model_copy(update={"onnx_network": network}), capsys)
    names = {path.name for path in (job.out / HEADS).iterdir() if path.is_dir()}
    assert names == {"personalized", "personalized_any_orientation"}


def test_both_ends_of_a_device_number_the_same_windows(
    plan: Plan, broadcast: Tree, device: Path, network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(device, plan, "train", 2, broadcast=broadcast, continuous=True)
    job = job.model_copy(update={"onnx_network": network})
    run(job, capsys)
    settings = preparation(make_config(device).sensors, plan)
    with closing(WindowStore(device)) as windows, closing(StateStore(device)) as store:
        outline = stored_examples(windows, DEVICE, settings, plan, samples=False)
        mine = training_windows(outline, plan.data, settings)
        store.put(identity=f"{INSTANCE}/har_features", device=DEVICE, federation="demo")
        kept = save_round(store, job)
        assert kept.keys == window_keys(mine)
        assert len(kept.keys) == len(mine)
        sent = load_contribution(store)
        assert sent
        assert (sent.kind, sent.keys) == ("sums", kept.keys)
        manifest = store.manifest(kept.update_id)
        assert manifest.gains == {}
        assert manifest.sequence
        assert kept.update_id.startswith(f"s{manifest.sequence}-")
        assert load_agent(store).contribution == sent

        withdraw(store)
        assert load_agent(store).outbox == ()  # nothing leaves, also after a kill before the next step
        out = prepare_withdrawal(store, PrepareWithdrawal(2, "a" * 64, "analytic", 4096))
        taken = store.manifest(out)
        assert (taken.withdraw, taken.examples, taken.size) == (True, 0, 0)
        assert taken.sequence
        assert taken.sequence > manifest.sequence
        assert list(store.outbox()) == [out] == list(load_agent(store).outbox)
        assert not participation(store).is_confirmed
        store.forget_update(out, "accepted", "")
        assert participation(store).is_confirmed
        reset_agent(store, "1" * 32 + "/har_features", 1)
        assert not load_agent(store).takes_part
        assert load_agent(store).contribution is None


def test_the_winner_is_served_and_said_in_words_with_every_heads_numbers(
    plan: Plan, broadcast: Tree, device: Path, network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(device, plan, "train", 2, broadcast=broadcast, continuous=True)
    run(job.model_copy(update={"onnx_network": network}), capsys)
    config = make_config(device)
    verdict = evaluate_job(config, plan, Evaluate(2, "train"))
    assert verdict.answer == "adopted", verdict.reason
    with closing(StateStore(device)) as store:
        ModelRegistry(store).commit(verdict)
        assert "model" in describe_served(store)
        rows = summary(store, DEVICE)["compared"]["models"]
        assert {row["head"] for row in rows} == NAMES
        assert [row["in_use"] for row in rows].count(True) == 1
        present = ModelRegistry(store).present()
        assert present
        assert Path(present["path"]).is_file()


def hostile(broadcast: Tree, kind: str) -> Tree:
    sums = dict(broadcast["sums"])
    match kind:
        case "another shape":
            sums["moment"] = sums["moment"][:-1]
        case "not positive definite":
            sums["gram"] = -sums["gram"].abs()
        case "huge":
            sums["gram"] = torch.full_like(sums["gram"], 2**62)
        case "NaN in the network":
            name = next(iter(broadcast["params"]))
            params = {**broadcast["params"], name: torch.full_like(broadcast["params"][name], float("nan"))}
            return {**broadcast, "params": params}
    return {**broadcast, "sums": sums}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("another shape", "sums/moment.*not"),
        ("not positive definite", "no head can be solved"),
        ("huge", "of 2 devices reach"),
        ("NaN in the network", "contains NaN"),
    ],
)
def test_a_hostile_broadcast_is_refused_in_words(
    kind: str, words: str, plan: Plan, broadcast: Tree, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in ("adopt", "train"):
        job = a_job(device, plan, asked, 2, broadcast=hostile(broadcast, kind), continuous=True)
        shutil.rmtree(job.out / HEADS, ignore_errors=True)  # of another test
        said = run(job, capsys)
        assert said["event"] == "error", kind
        assert re.search(words, said["reason"])
        assert said["unusable"] is True
        assert not list(job.out.glob(f"**/{MODEL}"))
