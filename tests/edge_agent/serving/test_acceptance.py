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

from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import Kind
from edge_agent.serving.acceptance import evaluate
from edge_agent.serving.model_registry import ModelRegistry, Verdict
from edge_agent.storage.files import sha256_of
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


def candidate(folder: Path, confuses: int = 0, scale: float = 1.0, noise: float = 0.0) -> Path:
    """A job's folder with a model that takes the first `confuses` classes for the last, and errs as noise has it."""
    weights = np.eye(6, 3, dtype=np.float32) * scale
    weights[:confuses] = weights[2]
    weights += noise * np.random.default_rng(confuses).normal(size=(6, 3)).astype(np.float32)
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
    return VersionScore(value=800_000, trivial=60_000, devices=9, working=working, measured="version")


def judged(
    folder: Path,
    present: Path | None = None,
    margin: float = 0.0,
    windows: ClientWindows | None = None,
    kind: Kind = "train",
    server_score: VersionScore | None = None,
    source: str = "personalized",
) -> Verdict:
    mine = holdout() if windows is None else windows
    now = None if present is None else described(present, source)
    return evaluate(folder, Evaluate(2, kind, 0, server_score), mine, now, margin=margin)


def described(folder: Path, source: str = "personalized", number: int = 1) -> dict[str, Any]:
    """A model that the device has, as the registry describes it."""
    path = folder / MODEL
    return {"source": source, "round": number, "path": str(path), "sha256": sha256_of(path)}


def test_the_first_model_that_runs_is_adopted_with_its_score(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path, confuses=1))
    assert verdict.good
    assert verdict.model is not None
    # of three classes one is always right, one always wrong, and the third gets 10 right of 20 found: F1 2/3
    assert verdict.model["score"] == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert verdict.model["parity"] == PARITY_JSON
    assert verdict.model["confusion"] == [[0, 0, 10], [0, 10, 0], [0, 0, 10]]
    assert verdict.model["labels"] == list(LABELS)
    assert verdict.reason == (
        "personalized model of round 2: adopted, macro-F1 0.556 on 30 holdout windows of 3 classes against 0.167 of "
        "always answering the most frequent class; there was no model before"
    )


PERFECT, HALF = {"confuses": 0}, {"confuses": 1}
"""Macro-F1 1.0 and 0.556."""


@pytest.mark.parametrize(
    ("windows", "new", "now", "answer"),
    [
        # the two differ on one class of three, which has 5 stretches of 60 windows: p = 1 / 2**5; and 3 of 30: 1 / 2**3
        (60, PERFECT, HALF, "adopted"),
        (30, PERFECT, HALF, "kept"),
        (60, HALF, PERFECT, "refused"),
        (30, HALF, PERFECT, "kept"),
        (60, PERFECT, PERFECT, "kept"),
    ],
)
def test_a_model_is_adopted_only_where_enough_stretches_show_that_it_is_better(
    tmp_path: Path, windows: int, new: dict[str, int], now: dict[str, int], answer: str
) -> None:
    present, mine = candidate(tmp_path / "now", **now, scale=2.0), candidate(tmp_path / "new", **new)
    verdict = judged(mine, present, windows=holdout(windows))
    assert verdict.answer == answer
    scores = {0: "1.000", 1: "0.556"}
    assert f"macro-F1 {scores[new['confuses']]} on {windows} holdout windows of 3 classes" in verdict.reason
    assert f"and {scores[now['confuses']]} of the present model" in verdict.reason
    assert ("not adopted" in verdict.reason) is (answer != "adopted")


def test_no_margin_lets_a_worse_model_in_and_a_larger_one_asks_for_a_gain(tmp_path: Path) -> None:
    good, worse = candidate(tmp_path / "good"), candidate(tmp_path / "worse", confuses=1)
    for margin in (0.0, 0.5, 1.0):
        assert judged(worse, good, margin, holdout(60)).answer == "refused"
    gains = {margin: judged(good, worse, margin, holdout(60)).answer for margin in (0.4, 0.5)}  # the gain is 0.444
    assert gains == {0.4: "adopted", 0.5: "kept"}


def test_the_present_model_is_measured_anew_whatever_was_noted_when_it_was_adopted(tmp_path: Path) -> None:
    now = described(candidate(tmp_path / "now", confuses=1)) | {"score": 1.0}
    verdict = evaluate(candidate(tmp_path / "new"), Evaluate(2, "train"), holdout(60), now)
    assert verdict.good
    assert "0.556 of the present model" in verdict.reason


def test_a_present_model_that_does_not_run_or_does_not_work_gives_way_to_one_that_does(tmp_path: Path) -> None:
    mine, broken = candidate(tmp_path / "new", confuses=1), candidate(tmp_path / "broken")
    (broken / MODEL).write_bytes(b"nothing")
    assert "the present model does not run any more" in judged(mine, broken).reason
    assert judged(mine, broken).good
    verdict = judged(mine, candidate(tmp_path / "constant", confuses=2))
    assert verdict.good
    assert "the present model does not work: it answers 'sit' whatever it sees" in verdict.reason


def test_a_released_model_need_not_be_better_but_must_not_be_worse(tmp_path: Path) -> None:
    good, same, worse = (candidate(tmp_path / name, confuses, scale) for name, confuses, scale in RELEASED)

    def answer(released: Path, present: Path, count: int) -> str:
        return evaluate(released, Evaluate(2, "adopt", release=7), holdout(count), described(present)).answer

    assert answer(same, good, 30) == "adopted"
    assert answer(worse, good, 30) == "kept"  # too few to call it worse: no failure of the release
    assert answer(worse, good, 60) == "refused"


RELEASED = (("good", 0, 1.0), ("same", 0, 2.0), ("worse", 1, 1.0))


def test_all_three_models_are_measured_on_the_same_windows_and_the_best_is_used(tmp_path: Path) -> None:
    present, mine = candidate(tmp_path / "now", confuses=1), candidate(tmp_path / "new", confuses=1, scale=2.0)
    other = described(candidate(tmp_path / "other"), "global", 9)
    verdict = evaluate(mine, Evaluate(10, "train"), holdout(60), described(present), [other])
    assert (verdict.answer, verdict.instead) == ("kept", other)
    assert "the global model of round 9, which was judged before, has 1.000 there and is used now" in verdict.reason
    assert verdict.compared is not None
    rows = {(row["source"], row["round"]): row for row in verdict.compared["models"]}
    assert verdict.compared["windows"] == 60
    assert verdict.compared["stretches"] == 15
    assert {name: round(row["score"], 3) for name, row in rows.items()} == {
        ("personalized", 10): 0.556, ("personalized", 1): 0.556, ("global", 9): 1.0
    }  # fmt: skip
    assert [rows["global", 9][name] for name in ("better", "worse", "p")] == [5, 0, 1 / 32]
    few = evaluate(mine, Evaluate(10, "train"), holdout(30), described(present), [other])
    assert (few.answer, few.instead) == ("kept", other)  # by default: nothing shows that the device's own is better


def test_a_model_that_gives_nan_a_broken_file_and_no_file_are_turned_down(tmp_path: Path) -> None:
    assert "NaN or infinity" in judged(candidate(tmp_path / "nan", scale=np.nan)).reason
    broken = candidate(tmp_path / "broken")
    (broken / MODEL).write_bytes(b"nothing")
    assert "cannot load" in judged(broken).reason
    none = tmp_path / "none"
    none.mkdir()
    (none / RESULT).write_text('{"no_model": "the method local has no global model"}')
    assert "no global model" in judged(none).reason
    assert not any(judged(folder).good for folder in (tmp_path / "nan", broken, none))


@pytest.mark.parametrize("present", [None, 1, 0])
@pytest.mark.parametrize("kind", ["train", "adopt"])
def test_a_candidate_that_answers_one_class_is_never_adopted(tmp_path: Path, present: int | None, kind: Kind) -> None:
    now = None if present is None else candidate(tmp_path / "now", present)
    verdict = judged(candidate(tmp_path, confuses=2), now, kind=kind, server_score=score(working=9))
    assert (verdict.answer, verdict.good) == ("failed", False)
    in_use = "" if now is None else " (in use: personalized model of round 1)"
    assert f"not adopted{in_use}, it does not work: it answers 'sit' whatever it sees" in verdict.reason
    assert f"macro-F1 0.167 on 30 holdout windows of 3 classes against 0.167 of {CONSTANT}" in verdict.reason
    assert (verdict.score, verdict.trivial) == (pytest.approx(1 / 6), pytest.approx(1 / 6))


def test_on_a_skewed_holdout_a_good_candidate_is_adopted_and_a_blind_one_is_not(tmp_path: Path) -> None:
    many = np.repeat([0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 20)  # 180 windows of 'walk', 20 of 'run'
    x = np.zeros((200, 128, 6), np.float32)
    x[np.arange(200), :, many] = 1.0
    x[:30, :, 0], x[:30, :, 1] = 0.4, 0.6  # of them, 30 of the frequent class look like the rare one
    skewed = ClientWindows("c", x, many, np.arange(200, dtype=float), np.zeros(200, np.int64))
    good = judged(candidate(tmp_path / "good"), windows=skewed)
    assert good.model is not None
    assert good.model["confusion"] == [[150, 30, 0], [0, 20, 0], [0, 0, 0]]  # accuracy 0.85, the constant's is 0.9
    assert good.answer == "adopted"
    blind = x[np.random.default_rng(0).permutation(200)]  # what the model sees has nothing to do with the activity
    guessing = judged(candidate(tmp_path / "bad"), windows=replace(skewed, x=blind))
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
    folder, now = candidate(tmp_path), candidate(tmp_path / "now", scale=2.0)
    unknown = judged(folder, now, windows=windows, source="global")
    alone = judged(folder, None, windows=windows)
    sound = judged(folder, now, windows=windows, kind="adopt", server_score=score(working=6))
    broken = judged(folder, None, windows=windows, kind="adopt", server_score=score(working=3))
    begun = judged(folder, None, windows=windows, server_score=score(working=3))
    for verdict in (unknown, alone, sound, broken, begun):
        assert f"whether it works cannot be checked here ({obstacle})" in verdict.reason
        assert verdict.trivial is None
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


@pytest.mark.parametrize("obstacle", SEVERAL)
def test_the_servers_score_puts_no_personal_model_in_the_place_of_a_global_one(tmp_path: Path, obstacle: str) -> None:
    mine, now = candidate(tmp_path), candidate(tmp_path / "now", scale=2.0)
    verdict = judged(mine, now, windows=SEVERAL[obstacle], server_score=score(working=9), source="global")
    assert verdict.answer == "undecided"
    assert "of what was trained here it says nothing, so the present model stays" in verdict.reason
    assert judged(mine, None, windows=SEVERAL[obstacle], server_score=score(working=9)).answer == "adopted"


def test_a_few_windows_still_keep_the_present_model_of_the_same_source_where_it_scores_higher(tmp_path: Path) -> None:
    now, folder = candidate(tmp_path / "now"), candidate(tmp_path, confuses=1)
    kinds: tuple[tuple[Kind, str], ...] = (("adopt", "global"), ("train", "personalized"))
    for kind, source in kinds:
        verdict = judged(folder, now, windows=holdout(12), kind=kind, server_score=score(working=9), source=source)
        assert verdict.answer == "kept"


def test_without_a_holdout_there_is_no_score_and_no_table(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path), windows=holdout(0))
    assert verdict.model is not None
    assert [verdict.model[name] for name in ("score", "confusion", "labels")] == [None, None, None]


def test_a_candidate_that_gives_nan_without_a_holdout_is_turned_down_whatever_the_server_says(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path, scale=np.nan), None, windows=holdout(0), server_score=score(working=9))
    assert verdict.answer == "failed"


def test_the_last_two_good_models_stay_and_a_refused_one_changes_nothing(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    shelf, paths = ModelRegistry(store), []
    for number in range(3):
        folder = candidate(tmp_path / "jobs" / str(number), scale=1.0 + number)
        shelf.commit(evaluate(folder, Evaluate(number, "train"), holdout(), None))
        present = shelf.present()
        assert present is not None
        assert (present["round"], present["source"]) == (number, "personalized")
        paths.append(Path(present["path"]))
    worse = candidate(tmp_path / "jobs" / "3", confuses=2)
    shelf.commit(evaluate(worse, Evaluate(3, "adopt"), holdout(), shelf.present()))
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
        shelf.commit(evaluate(folder, Evaluate(release, "adopt", release), holdout(), shelf.present()))
    for release, used in ((9, 4), (4, 3), (4, 3), (3, None)):
        shelf.revoke(release)
        present = shelf.present()
        assert (present["rollout"] if present else None) == used
    assert list((tmp_path / "models").iterdir()) == []
    assert "release 4 was withdrawn by the server" in store.adoptions()[-3].reason
    store.close()
