"""Which candidate becomes the device's model, and which files stay; the models are graphs of two nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import Kind
from edge_agent.serving.acceptance import NewModel, evaluate
from edge_agent.serving.choice import Rules
from edge_agent.serving.model_registry import SOURCES, ModelRegistry, Verdict
from edge_agent.serving.model_runs import ExampleKind, Model, Windows
from edge_agent.storage.data_folder import sha256_of
from edge_agent.storage.state_store import StateStore
from edge_agent.training.job import CHECKPOINT, MODEL, PARITY, RESULT
from export.runtime import ModelMetadata
from federation.protocol.messages import VersionScore
from federation.rounds.serving import Prior
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
    now = None if present is None else described(present, source)
    return judge(folder, Evaluate(2, kind, 0, server_score), windows, now, rules=Rules(margin=margin))


def judge(
    folder: Path,
    asked: Evaluate,
    windows: ClientWindows | None,
    present: Model | None,
    others: Sequence[Model] = (),
    rules: Rules = Rules(),
) -> Verdict:
    """Judge one candidate, by windows that are held out."""
    mine = Windows.of(holdout() if windows is None else windows, None, ExampleKind(), LABELS)
    return evaluate([NewModel(folder, SOURCES[asked.kind], asked.round)], asked, mine, present, others, rules)


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
        "personalized model of round 2: adopted. Your own model: 56 % on 30 holdout windows of 3 classes"
    )


PERFECT, HALF = {"confuses": 0}, {"confuses": 1}
"""Macro-F1 1.0 and 0.556."""


@pytest.mark.parametrize("windows", [24, 60])
@pytest.mark.parametrize(
    ("new", "now", "answer"),
    [(PERFECT, HALF, "adopted"), (HALF, PERFECT, "kept"), (PERFECT, PERFECT, "adopted")],
)
def test_of_two_personal_models_the_one_with_the_higher_score_serves_and_the_newer_one_of_equals(
    tmp_path: Path, windows: int, new: dict[str, int], now: dict[str, int], answer: str
) -> None:
    present, mine = candidate(tmp_path / "now", **now, scale=2.0), candidate(tmp_path / "new", **new)
    verdict = judged(mine, present, windows=holdout(windows))
    assert verdict.answer == answer
    scores = {0: "100 %", 1: "56 %"}
    first, second = (new, now) if answer == "adopted" else (now, new)
    assert f"{scores[first['confuses']]} on {windows} holdout windows of 3 classes; " in verdict.reason
    assert verdict.reason.endswith(scores[second["confuses"]])
    assert ("not adopted" in verdict.reason) is (answer != "adopted")


def test_a_larger_margin_asks_for_a_gain_over_the_shared_model(tmp_path: Path) -> None:
    good, worse = candidate(tmp_path / "good"), candidate(tmp_path / "worse", confuses=1)
    shared = described(worse, "global")
    # the mean recall of the shared model is two thirds
    for margin, answer in ((0.0, "adopted"), (0.3, "adopted"), (0.4, "kept")):
        found = judge(good, Evaluate(2, "train"), holdout(60), shared, rules=Rules(margin=margin))
        assert found.answer == answer
    assert judge(worse, Evaluate(2, "train"), holdout(60), described(good, "global")).answer == "kept"


def test_a_person_may_ask_for_the_personal_or_the_shared_model(tmp_path: Path) -> None:
    good, worse = candidate(tmp_path / "good"), candidate(tmp_path / "worse", confuses=1)
    asked = Evaluate(2, "train")
    personal = judge(worse, asked, None, described(good, "global"), rules=Rules(prefer="personal"))
    assert (personal.answer, "prefer is 'personal'" in personal.reason) == ("adopted", True)
    assert judge(good, asked, None, described(worse, "global"), rules=Rules(prefer="shared")).answer == "kept"
    broken = candidate(tmp_path / "broken", confuses=2)
    assert judge(broken, asked, None, described(worse, "global"), rules=Rules(prefer="personal")).answer == "failed"


def test_the_present_model_is_measured_anew_whatever_was_noted_when_it_was_adopted(tmp_path: Path) -> None:
    now = described(candidate(tmp_path / "now", confuses=1)) | {"score": 1.0}
    verdict = judge(candidate(tmp_path / "new"), Evaluate(2, "train"), holdout(60), now)
    assert verdict.good
    assert "100 % on 60 holdout windows of 3 classes; your own model of round 1: 56 %" in verdict.reason


def test_a_present_model_that_does_not_run_or_does_not_work_gives_way_to_one_that_does(tmp_path: Path) -> None:
    mine, broken = candidate(tmp_path / "new", confuses=1), candidate(tmp_path / "broken")
    (broken / MODEL).write_bytes(b"nothing")
    assert judged(mine, broken).good
    assert judged(mine, candidate(tmp_path / "constant", confuses=2)).good


def test_a_released_model_need_not_be_better_but_must_not_be_worse(tmp_path: Path) -> None:
    good, same, worse = (candidate(tmp_path / name, confuses, scale) for name, confuses, scale in RELEASED)

    def answer(released: Path, present: Path, count: int) -> str:
        return judge(released, Evaluate(2, "adopt", release=7), holdout(count), described(present)).answer

    assert answer(same, good, 30) == "adopted"
    assert answer(worse, good, 30) == "kept"  # too few to call it worse: no failure of the release
    assert answer(worse, good, 60) == "refused"


RELEASED = (("good", 0, 1.0), ("same", 0, 2.0), ("worse", 1, 1.0))


def test_all_models_are_measured_on_the_same_windows_and_the_best_is_used(tmp_path: Path) -> None:
    present, mine = candidate(tmp_path / "now", confuses=1), candidate(tmp_path / "new", confuses=1, scale=2.0)
    other = described(candidate(tmp_path / "other"), "global", 9)
    verdict = judge(mine, Evaluate(10, "train"), holdout(60), described(present), [other])
    assert (verdict.answer, verdict.instead) == ("kept", other)
    assert "The shared model: 100 % on 60 holdout windows of 3 classes; your own model: 56 %" in verdict.reason
    assert verdict.compared is not None
    rows = {(row["source"], row["round"]): row for row in verdict.compared["models"]}
    assert verdict.compared["windows"] == 60
    assert {name: round(row["score"], 3) for name, row in rows.items()} == {
        ("personalized", 10): 0.556, ("personalized", 1): 0.556, ("global", 9): 1.0
    }  # fmt: skip
    assert rows["personalized", 10]["gain"] == pytest.approx(-1 / 3)  # in mean recall
    few = judge(mine, Evaluate(10, "train"), holdout(30), described(present), [other])
    assert (few.answer, few.instead) == ("kept", other)


def test_the_model_midway_serves_where_it_is_as_good_as_the_devices_own(tmp_path: Path) -> None:
    made = {"personalized": 0, "global": 1, "midway": 0}
    folders = {
        source: candidate(tmp_path / source, confuses, scale=1.0 + number)
        for number, (source, confuses) in enumerate(made.items())
    }
    candidates = [NewModel(folder, source, 4 if source == "global" else 5) for source, folder in folders.items()]
    windows = Windows.of(holdout(60), None, ExampleKind(), LABELS)
    own = evaluate(candidates, Evaluate(5, "train"), windows, None, rules=Rules(prefer="personal"))
    assert own.model is not None
    assert (own.answer, own.model["source"]) == ("adopted", "personalized")
    verdict = evaluate(candidates, Evaluate(5, "train"), windows, None)
    assert verdict.model is not None
    assert (verdict.answer, verdict.model["source"], verdict.source) == ("adopted", "midway", "personalized")
    assert [(one.model and one.model["source"], one.answer) for one in verdict.beside] == [
        ("personalized", "kept"), ("global", "kept")
    ]  # fmt: skip
    store = StateStore(tmp_path / "store")
    registry = ModelRegistry(store)
    registry.commit(verdict)
    present = registry.present()
    assert present is not None
    assert present["source"] == "midway"
    assert {one["source"] for one in registry.others()} == {"personalized", "global"}
    store.close()


def test_what_other_devices_gain_decides_where_there_are_no_windows(tmp_path: Path) -> None:
    shared = described(candidate(tmp_path / "shared"), "global", 1)
    own = candidate(tmp_path / "own", scale=2.0)
    trained = np.ones(3, bool)
    answers = {}
    for mean in (0.1, -0.1):
        rules = Rules(priors={"personalized": Prior(mean, 0.01, np.full(3, mean))}, trained=trained)
        asked = Evaluate(2, "train", 0, score(working=9))
        answers[mean] = judge(own, asked, holdout(0), shared, rules=rules).answer
    assert answers == {0.1: "adopted", -0.1: "kept"}
    # without evidence and prior the shared model stays
    assert judge(own, Evaluate(2, "train", 0, score(working=9)), holdout(0), shared).answer == "kept"


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
    assert f"not adopted{in_use}. It does not work: it answers 'sit' whatever it sees" in verdict.reason
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
        assert f"hether it works cannot be checked here ({obstacle})" in verdict.reason
        assert verdict.trivial is None
    equal = "kept" if len(windows) else "adopted"  # a personal model that is as good stays
    assert [v.answer for v in (unknown, alone, sound, broken, begun)] == [
        "undecided", "adopted", equal, "failed", "undecided"
    ]  # fmt: skip
    assert "the server has no score of the version that it began from" in unknown.reason
    assert "so it is unchecked" in alone.reason
    assert (
        "the server's score of it stands in: by 6 of 9 devices that have measured it it works: macro-F1 0.800 on "
        f"their holdouts against 0.060 of {CONSTANT}"
    ) in sound.reason
    assert "the server's score of it is too low: by 3 of 9" in broken.reason
    assert "of the version that it began from is too low" in begun.reason


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
        shelf.commit(judge(folder, Evaluate(number, "train"), holdout(), shelf.present()))
        present = shelf.present()
        assert present is not None
        assert (present["round"], present["source"]) == (number, "personalized")
        paths.append(Path(present["path"]))
    worse = candidate(tmp_path / "jobs" / "3", confuses=2)
    shelf.commit(judge(worse, Evaluate(3, "adopt"), holdout(), shelf.present()))
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
        shelf.commit(judge(folder, Evaluate(release, "adopt", release), holdout(), shelf.present()))
    for release, used in ((9, 4), (4, 3), (4, 3), (3, None)):
        shelf.revoke(release)
        present = shelf.present()
        assert (present["rollout"] if present else None) == used
    assert list((tmp_path / "models").iterdir()) == []
    assert "release 4 was withdrawn by the server" in store.adoptions()[-3].reason
    store.close()
