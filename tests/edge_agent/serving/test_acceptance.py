"""Which candidate becomes the device's model, and which files stay; the models are graphs of two nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.machine.events import Kind
from edge_agent.serving.acceptance import Verdict, evaluate
from edge_agent.serving.model_registry import ModelRegistry
from edge_agent.storage.state_store import StateStore
from edge_agent.training.job import CHECKPOINT, MODEL, PARITY, RESULT
from export.runtime import ModelMetadata
from federation.protocol.messages import VersionScore
from gaitway.input_spec import InputSpec
from har_pipeline import ClientWindows

LABELS = ("walk", "run", "sit")
CONSTANT = "always answering the most frequent class"
PARITY_JSON = {"max_abs_diff": 1e-6, "argmax_agreement": 1.0, "windows": 12, "batch_agreement": None}


def holdout(count: int = 30) -> ClientWindows:
    """Windows of class k have ones in channel k."""
    y = np.arange(count) % 3
    x = np.zeros((count, 128, 6), np.float32)
    x[np.arange(count), :, y] = 1.0
    return ClientWindows("c", x, y, np.arange(count, dtype=float), np.zeros(count, np.int64))


def candidate(folder: Path, confuses: int = 0, scale: float = 1.0) -> Path:
    """A job's folder with a model that takes the first `confuses` classes for the last."""
    weights = np.eye(6, 3, dtype=np.float32) * scale
    weights[:confuses] = weights[2]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 128, 6])]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3]),
        helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 6]),
    ]
    constants = [numpy_helper.from_array(np.array([1]), "axes"), numpy_helper.from_array(weights, "weights")]
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["embedding"], keepdims=0),
        helper.make_node("MatMul", ["embedding", "weights"], ["logits"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    helper.set_model_props(model, ModelMetadata(LABELS, InputSpec.windows((0.0,) * 6, (1.0,) * 6)).to_properties())
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / MODEL))
    (folder / CHECKPOINT).write_bytes(b"checkpoint")
    (folder / PARITY).write_text(json.dumps(PARITY_JSON))
    return folder


def score(working: int) -> VersionScore:
    """What nine devices have found of a version."""
    return VersionScore(macro_f1=800_000, most_frequent=60_000, devices=9, working=working, measured="version")


def judged(
    folder: Path,
    present: float | None,
    margin: float = 0.05,
    windows: ClientWindows | None = None,
    kind: Kind = "train",
    server_score: VersionScore | None = None,
) -> Verdict:
    now: dict[str, Any] | None = None if present is None else {"macro_f1": present}
    mine = holdout() if windows is None else windows
    return evaluate(folder, 2, kind, mine, now, margin=margin, server_score=server_score)


def test_the_first_model_that_runs_is_adopted_with_its_score(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path, confuses=1), None)
    assert verdict.good
    assert verdict.model is not None
    # of three classes one is always right, one always wrong, and the third gets 10 right of 20 found: F1 2/3
    assert verdict.model["macro_f1"] == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert verdict.model["parity"] == PARITY_JSON
    assert verdict.model["confusion"] == [[0, 0, 10], [0, 10, 0], [0, 0, 10]]
    assert verdict.model["labels"] == list(LABELS)
    assert verdict.reason == (
        "personalized model of round 2: adopted, macro-F1 0.556 on 30 holdout windows of 3 classes against 0.167 of "
        "always answering the most frequent class; there was no model before"
    )


@pytest.mark.parametrize(("margin", "good"), [(0.4, False), (0.5, True)])
def test_a_worse_model_is_adopted_only_within_the_margin(tmp_path: Path, margin: float, good: bool) -> None:
    verdict = judged(candidate(tmp_path, confuses=1), 1.0, margin)  # 0.444 worse
    assert verdict.good is good
    assert f"0.556 on 30 holdout windows of 3 classes against 0.167 of {CONSTANT}" in verdict.reason
    assert "and 1.000 of the present model" in verdict.reason
    assert verdict.answer == ("adopted" if good else "refused")
    assert ("not adopted" in verdict.reason) is not good


def test_a_model_that_gives_nan_a_broken_file_and_no_file_are_turned_down(tmp_path: Path) -> None:
    assert "NaN or infinity" in judged(candidate(tmp_path / "nan", scale=np.nan), None).reason
    broken = candidate(tmp_path / "broken")
    (broken / MODEL).write_bytes(b"nothing")
    assert "cannot load" in judged(broken, None).reason
    none = tmp_path / "none"
    none.mkdir()
    (none / RESULT).write_text('{"no_model": "the method local has no global model"}')
    assert "no global model" in judged(none, None).reason
    assert not any(judged(folder, None).good for folder in (tmp_path / "nan", broken, none))


@pytest.mark.parametrize("present", [None, 0.0, 1.0])
@pytest.mark.parametrize("kind", ["train", "adopt"])
def test_a_candidate_that_answers_one_class_is_never_adopted(tmp_path: Path, present: float | None, kind: Kind) -> None:
    verdict = judged(candidate(tmp_path, confuses=2), present, 1.0, kind=kind, server_score=score(working=9))
    assert (verdict.answer, verdict.good) == ("failed", False)
    assert "not adopted, it does not work: it answers 'sit' whatever it sees" in verdict.reason
    assert f"macro-F1 0.167 on 30 holdout windows of 3 classes against 0.167 of {CONSTANT}" in verdict.reason
    assert (verdict.score, verdict.most_frequent) == (pytest.approx(1 / 6), pytest.approx(1 / 6))


def test_on_a_skewed_holdout_a_good_candidate_is_adopted_and_a_blind_one_is_not(tmp_path: Path) -> None:
    many = np.repeat([0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 20)  # 180 windows of 'walk', 20 of 'run'
    x = np.zeros((200, 128, 6), np.float32)
    x[np.arange(200), :, many] = 1.0
    x[:30, :, 0], x[:30, :, 1] = 0.4, 0.6  # of them, 30 of the frequent class look like the rare one
    skewed = ClientWindows("c", x, many, np.arange(200, dtype=float), np.zeros(200, np.int64))
    good = judged(candidate(tmp_path / "good"), None, windows=skewed)
    assert good.model is not None
    assert good.model["confusion"] == [[150, 30, 0], [0, 20, 0], [0, 0, 0]]  # accuracy 0.85, the constant's is 0.9
    assert good.answer == "adopted"
    blind = x[np.random.default_rng(0).permutation(200)]  # what the model sees has nothing to do with the activity
    guessing = judged(candidate(tmp_path / "bad"), None, windows=replace(skewed, x=blind))
    assert guessing.answer == "failed"


SEVERAL = {
    "there are no holdout windows": holdout(0),
    "all 10 holdout windows are of one class": holdout().select(np.arange(0, 30, 3)),
    "there are 12 holdout windows, fewer than 20": holdout(12),
    "fewer than 2 classes have 5 holdout windows or more": holdout(90).select(np.r_[np.arange(0, 90, 3), 1, 2]),
}


@pytest.mark.parametrize("obstacle", SEVERAL)
def test_where_the_holdout_cannot_tell_that_is_said_and_the_servers_score_stands_in(
    tmp_path: Path, obstacle: str
) -> None:
    windows = SEVERAL[obstacle]
    folder = candidate(tmp_path)
    unknown, alone = judged(folder, 0.9, windows=windows), judged(folder, None, windows=windows)
    sound = judged(folder, 0.9, windows=windows, kind="adopt", server_score=score(working=6))
    broken = judged(folder, None, windows=windows, kind="adopt", server_score=score(working=3))
    begun = judged(folder, None, windows=windows, server_score=score(working=3))
    for verdict in (unknown, alone, sound, broken, begun):
        assert f"whether it works cannot be checked here ({obstacle})" in verdict.reason
        assert verdict.most_frequent is None
    assert [v.answer for v in (unknown, alone, sound, broken, begun)] == [
        "undecided", "adopted", "adopted", "failed", "undecided"
    ]  # fmt: skip
    assert "the server has no score of the version that it began from, so the present model stays" in unknown.reason
    assert "and there is no model yet, so it is used unchecked" in alone.reason
    assert (
        "the server's score of it stands in: by 6 of 9 devices that have measured it it works: macro-F1 0.800 on "
        f"their holdouts against 0.060 of {CONSTANT}"
    ) in sound.reason
    assert "the server's score of it speaks against it: by 3 of 9" in broken.reason
    assert "of the version that it began from speaks against it" in begun.reason


def test_a_few_windows_still_refuse_what_is_worse_than_the_present_model(tmp_path: Path) -> None:
    few = holdout(12)
    verdict = judged(
        candidate(tmp_path, confuses=1), 1.0, 0.4, windows=few, kind="adopt", server_score=score(working=9)
    )
    assert verdict.answer == "refused"


def test_without_a_holdout_there_is_no_score_and_no_table(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path), None, windows=holdout(0))
    assert verdict.model is not None
    assert [verdict.model[name] for name in ("macro_f1", "confusion", "labels")] == [None, None, None]


def test_a_candidate_that_gives_nan_without_a_holdout_is_turned_down_whatever_the_server_says(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path, scale=np.nan), None, windows=holdout(0), server_score=score(working=9))
    assert verdict.answer == "failed"


def test_the_last_two_good_models_stay_and_a_refused_one_changes_nothing(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    shelf, paths = ModelRegistry(store), []
    for number in range(3):
        folder = candidate(tmp_path / "jobs" / str(number), scale=1.0 + number)
        shelf.commit(evaluate(folder, number, "train", holdout(), shelf.present(), margin=0.0))
        present = shelf.present()
        assert present is not None
        assert (present["round"], present["source"]) == (number, "personalized")
        paths.append(Path(present["path"]))
    worse = candidate(tmp_path / "jobs" / "3", confuses=2)
    shelf.commit(evaluate(worse, 3, "adopt", holdout(), shelf.present(), margin=0.0))
    assert shelf.present() == present
    assert [path.is_file() for path in paths] == [False, True, True]
    assert len(list((tmp_path / "models").iterdir())) == 4
    assert [row.adopted for row in store.adoptions()] == [True, True, True, False]

    # the one before takes over where the newest file is damaged
    paths[2].write_bytes(b"damaged")
    fallen_back = shelf.present()
    assert fallen_back is not None
    assert Path(fallen_back["path"]) == paths[1]
    store.close()


def test_a_withdrawn_release_is_left_for_the_model_before_it_or_for_none(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    shelf = ModelRegistry(store)
    for release in (3, 4):
        folder = candidate(tmp_path / "jobs" / str(release), scale=float(release))
        verdict = evaluate(folder, release, "adopt", holdout(), shelf.present(), margin=0.0)
        shelf.commit(verdict._replace(release=release))
    for release, used in ((9, 4), (4, 3), (4, 3), (3, None)):
        shelf.revoke(release)
        present = shelf.present()
        assert (present["rollout"] if present else None) == used
    assert list((tmp_path / "models").iterdir()) == []
    assert "release 4 was withdrawn by the server" in store.adoptions()[-3].reason
    store.close()
