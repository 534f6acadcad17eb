"""Cross-validation of a round, the global model that it leaves beside its own, and the one for a device without labels.

What is trained here is a network of a few weights: seconds.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import NonRetryableJobError
from edge_agent.storage.window_store import FILE_NAME, WindowStore
from edge_agent.supervisor.persistence import manifest_of
from edge_agent.training import cross_validation, torch_runtime, trainer
from edge_agent.training.cross_validation import NOT_VALIDATED, CrossValidation
from edge_agent.training.job import CHECKPOINT, CROSS_VALIDATION, GLOBAL, MIDWAY, MODEL, RESULT, UPDATE
from edge_agent.training.local_data import MIN_MEASURED, read_split, read_unlabelled_data
from export.runtime import Session
from federation.plan import Plan, SecureSettings
from federation.records import Client, Examples, Tree
from federation.records.tree import map_tree
from federation.training.local_round import Setup
from har_pipeline import ClientWindows, Window, dataset_labels, dataset_settings, session_folds
from har_pipeline.splits import overlaps
from models.checkpoint import load_checkpoint
from tests.edge_agent.factories import DEVICE, INSTANCE, PLANS, make_plan
from tests.edge_agent.reference import Federation, a_job

WINDOW_S = 2.56


def in_three_sessions(folder: Path) -> None:
    """Make three sessions of each activity's windows, one after another."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        rows = db.execute("SELECT id, activity FROM windows ORDER BY start_s").fetchall()
        counts = Counter(activity for _, activity in rows)
        seen: Counter[str] = Counter()
        for identity, activity in rows:
            session = 3 * seen[activity] // counts[activity]
            seen[activity] += 1
            db.execute("UPDATE windows SET session = ? WHERE id = ?", (10 * session, identity))


def later(plan_name: str = "fedavg") -> dict[str, object]:
    """The broadcast of a later round: other parameters than those of the start."""
    federation = Federation(PLANS[plan_name])
    return dict(map_tree(lambda value: value + 0.01 if value.is_floating_point() else value, federation.broadcast))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=80), st.integers(2, 5), st.floats(1.28, 9.0))
def test_folds_are_contiguous_in_time_cover_all_and_share_no_sample_with_their_training(
    y: list[int], count: int, hop_s: float
) -> None:
    order = np.random.default_rng(0).permutation(len(y))
    start_s = hop_s * np.arange(len(y))
    windows = ClientWindows("c", np.zeros((len(y), 1, 6)), np.array(y), start_s, np.zeros(len(y), int)).select(order)
    tested = np.zeros(len(y), int)
    for split in session_folds(windows, count, WINDOW_S):
        tested[split.test] += 1
        assert not overlaps(windows.start_s[split.train], windows.start_s[split.test], WINDOW_S).any()
        assert len(np.unique(windows.y[split.train])) > 1
        for label in np.unique(windows.y[split.test]):
            begins = np.sort(windows.start_s[windows.y == label])
            mine = windows.start_s[split.test][windows.y[split.test] == label]
            # no window of the class that lies between two of the part is of another part
            assert ((begins >= mine.min()) & (begins <= mine.max())).sum() == len(mine)
    assert tested.max(initial=0) <= 1


def test_a_session_is_left_out_whole_and_a_class_of_one_session_in_parts() -> None:
    # class 0 in sessions 0, 1 and 2; class 1 in session 3 alone
    y, session = np.repeat([0, 1], [30, 12]), np.repeat([0, 1, 2, 3], [10, 10, 10, 12])
    windows = ClientWindows("c", np.zeros((42, 1, 6)), y, 2.56 * np.arange(42), session)
    found = session_folds(windows, 3, WINDOW_S)
    assert [np.unique(session[split.test][y[split.test] == 0]).tolist() for split in found] == [[0], [1], [2]]
    assert [np.flatnonzero(y[split.test] == 1).size for split in found] == [4, 4, 4]
    for split in found:
        assert not set(session[split.train][y[split.train] == 0]) & set(session[split.test][y[split.test] == 0])


@pytest.mark.ci
def test_a_device_with_several_sessions_leaves_answers_of_models_that_have_not_seen_the_session(
    device: Path, tmp_path: Path
) -> None:
    plan = PLANS["fedavg"]
    device = Path(shutil.copytree(device, tmp_path / "device"))
    in_three_sessions(device)
    job = a_job(device, plan, round_number=2, broadcast=later())
    context = trainer.build_context(job)
    seen: list[set[float]] = []
    inner = torch_runtime.train_one

    def watched(setup: Setup, client: Client, broadcast: Tree, examples: Examples, **names: Any) -> Any:
        seen.append({round(float(value), 4) for value in examples.x[:, 0, 0]})
        assert client is context.initial  # what the method keeps has seen the fold
        return inner(setup, client, broadcast, examples, **names)

    with pytest.MonkeyPatch.context() as patch:
        trained = trainer.train(context)
        patch.setattr(torch_runtime, "train_one", watched)
        assert not (job.out / CROSS_VALIDATION).exists()  # the update does not wait for it
        patch.setattr(torch_runtime.TorchRuntime, "load_client", None)  # the supervisor has moved its file by now
        trainer.validate(context, trained, time.monotonic() + job.round_s)
    assert len(seen) == cross_validation.FOLDS
    kept = CrossValidation.read(job.out / CROSS_VALIDATION)
    assert kept is not None
    with closing(WindowStore(device)) as store:
        windows = read_split(store, DEVICE, context.settings, plan).labelled
    answers = kept.answers_to(windows)
    assert (answers != NOT_VALIDATED).mean() > 0.9
    assert (answers == windows.y).mean() > 0.2  # of six classes: they have learnt something
    between = CrossValidation.read(job.out / MIDWAY / CROSS_VALIDATION)
    assert between is not None
    assert (between.answers_to(windows) != NOT_VALIDATED).mean() > 0.9
    # and the global model lies beside the round's own, of the round that made it
    _, info = load_checkpoint(job.out / GLOBAL / CHECKPOINT)
    assert (info.round, load_checkpoint(job.out / CHECKPOINT)[1].round) == (1, 2)


@pytest.mark.ci
def test_the_weights_midway_and_both_gains_are_left_beside_the_rounds_own(device: Path) -> None:
    context = trainer.build_context(a_job(device, PLANS["fedavg"], round_number=2, broadcast=later()))
    trainer.train(context)
    out = context.job.out
    own, shared, between = (
        load_checkpoint(path / CHECKPOINT)[0].state_dict() for path in (out, out / GLOBAL, out / MIDWAY)
    )
    for name, value in between.items():
        torch.testing.assert_close(value, (own[name] + shared[name]) / 2 if value.is_floating_point() else own[name])
    gains = json.loads((out / RESULT).read_bytes())["gains"]
    assert {name: (len(report), report[0]) for name, report in gains.items()} == {
        "personalized": (15, 1), "midway": (15, 1)
    }  # fmt: skip
    # by hand: the mean over the classes of the difference in recall
    holdout = context.data.holdout
    right = {}
    for name, folder in (("own", out), ("shared", out / GLOBAL)):
        module, _ = load_checkpoint(folder / CHECKPOINT)
        with torch.no_grad():
            logits = module(torch.from_numpy(context.data.normalized(holdout)))[1]
        right[name] = logits.argmax(1).numpy() == holdout.y
    gain = np.mean(
        [right["own"][holdout.y == c].mean() - right["shared"][holdout.y == c].mean() for c in set(holdout.y)]
    )
    assert gains["personalized"][1] == pytest.approx(10_000 * gain, abs=1)


def test_no_fold_is_begun_that_would_end_after_the_rounds_time(device: Path) -> None:
    context = trainer.build_context(a_job(device, PLANS["fedavg"], round_number=2, broadcast=later()))
    with closing(WindowStore(device)) as store:
        windows = read_split(store, DEVICE, context.settings, PLANS["fedavg"]).labelled
    ticks = iter(range(0, 1000, 10))
    found = cross_validation.cross_validate(
        lambda fold: {"personalized": np.full(len(fold.holdout), NOT_VALIDATED)},
        windows, dataset_settings("synthetic"), context.job.plan, deadline=25.0, clock=lambda: next(ticks),
    )  # fmt: skip
    assert found == {}


def test_what_nobody_has_trained_is_no_global_model(device: Path) -> None:
    context = trainer.build_context(a_job(device, PLANS["fedavg"], kind="adopt"))
    assert trainer.adopt(context)  # somebody released it; the holdout will tell
    unmeasured = context.data._replace(holdout=context.data.holdout.select(np.zeros(0, np.int64)))
    context.data = unmeasured
    with pytest.raises(NonRetryableJobError, match="initial, untrained"):
        trainer.adopt(context)
    job = a_job(device, PLANS["fedavg"])
    context = trainer.build_context(job)
    trainer.validate(context, trainer.train(context), time.monotonic() + job.round_s)
    assert not (job.out / GLOBAL).exists()
    assert not (job.out / CROSS_VALIDATION).exists()


@pytest.mark.ci
def test_a_device_without_labels_exports_the_global_model_with_its_own_sensors_statistics(tmp_path: Path) -> None:
    labels, settings = dataset_labels("synthetic"), dataset_settings("synthetic")
    x = np.random.default_rng(0).normal(3.0, 2.0, (MIN_MEASURED, 128, 6)).astype(np.float32)
    plan = make_plan()
    store = WindowStore(tmp_path)
    count = MIN_MEASURED
    windows = [Window(each, -1, 2.56 * at, 0) for at, each in enumerate(x)]
    store.add(windows, labels, settings, WindowsSection(), origin="live")
    data = read_unlabelled_data(store, DEVICE, settings, plan)
    store.close()
    assert len(data.train) == count
    np.testing.assert_allclose(data.mean, x.mean((0, 1)), rtol=1e-4)
    job = a_job(tmp_path, plan, kind="adopt", round_number=3, broadcast=later())
    trainer.run(job)
    assert json.loads(Session.load(job.out / MODEL).metadata.to_properties()["input"])["mean"][0] == pytest.approx(
        float(x[..., 0].mean()), rel=1e-4
    )


CLEAR = PLANS["fedavg"]
SECURE = CLEAR.model_copy(update={"secure": SecureSettings(mode="masked")})


def trained(device: Path, plan: Plan) -> tuple[trainer.Job, dict[str, object]]:
    job = a_job(device, plan, round_number=2, broadcast=later())
    trainer.train(trainer.build_context(job))
    return job, json.loads((job.out / RESULT).read_bytes())


def test_the_manifest_has_the_gains_of_the_round(device: Path) -> None:
    job, result = trained(device, CLEAR)
    manifest = manifest_of(job, result, job.out / UPDATE, INSTANCE)
    assert set(manifest.gains) == {"personalized", "midway"}
    assert {name: list(report) for name, report in manifest.gains.items()} == result["gains"]


def test_a_secure_sum_has_them_behind_the_models_numbers(device: Path) -> None:
    job, result = trained(device, SECURE)
    gains = result["gains"]
    assert isinstance(gains, dict)
    numbers = np.frombuffer((job.out / UPDATE).read_bytes(), "<i8")
    assert numbers[-30:].tolist() == gains["personalized"] + gains["midway"]
    assert numbers[-31] == result["examples"]


def test_a_federation_of_very_many_classes_has_no_gains(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "MAX_CLASSES", 5)
    job, result = trained(device, CLEAR)
    assert manifest_of(job, result, job.out / UPDATE, INSTANCE).gains == {}
