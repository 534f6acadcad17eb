"""Which candidate becomes the device's model, and which files stay; the models are graphs of two nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.jobs import CHECKPOINT, MODEL, PARITY, RESULT
from edge_agent.judging import Shelf, Verdict, judge
from edge_agent.store import Store
from export.runtime import ModelMetadata
from har_pipeline import ClientWindows

LABELS = ("walk", "run", "sit")
PARITY_JSON = {"max_abs_diff": 1e-6, "argmax_agreement": 1.0, "windows": 12, "batch_agreement": None}


def holdout(count: int = 12) -> ClientWindows:
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
    helper.set_model_props(model, ModelMetadata(LABELS, (0.0,) * 6, (1.0,) * 6).to_properties())
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / MODEL))
    (folder / CHECKPOINT).write_bytes(b"checkpoint")
    (folder / PARITY).write_text(json.dumps(PARITY_JSON))
    return folder


def judged(folder: Path, present: float | None, margin: float = 0.05, windows: ClientWindows | None = None) -> Verdict:
    now: dict[str, Any] | None = None if present is None else {"macro_f1": present}
    mine = holdout() if windows is None else windows
    return judge(folder, 2, "train", mine, now, margin=margin)


def test_the_first_model_that_runs_is_adopted_with_its_score(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path, confuses=1), None)
    assert verdict.good
    assert verdict.model is not None
    # of three classes one is always right, one always wrong, and the third gets 4 right of 8 found: F1 2/3
    assert verdict.model["macro_f1"] == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert verdict.model["parity"] == PARITY_JSON


@pytest.mark.parametrize(("margin", "good"), [(0.4, False), (0.5, True)])
def test_a_worse_model_is_adopted_only_within_the_margin(tmp_path: Path, margin: float, good: bool) -> None:
    verdict = judged(candidate(tmp_path, confuses=1), 1.0, margin)  # 0.444 worse
    assert verdict.good is good
    assert "0.556 on the holdout against 1.000" in verdict.reason
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


def test_without_a_holdout_the_smoke_run_decides(tmp_path: Path) -> None:
    verdict = judged(candidate(tmp_path), 1.0, windows=holdout(0))
    assert verdict.good
    assert verdict.model is not None
    assert verdict.model["macro_f1"] is None


def test_the_last_two_good_models_stay_and_a_refused_one_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shelf, paths = Shelf(store), []
    for number in range(3):
        folder = candidate(tmp_path / "jobs" / str(number), scale=1.0 + number)
        shelf.settle(judge(folder, number, "train", holdout(), shelf.present(), margin=0.0))
        present = shelf.present()
        assert present is not None
        assert (present["round"], present["source"]) == (number, "personalized")
        paths.append(Path(present["path"]))
    worse = candidate(tmp_path / "jobs" / "3", confuses=2)
    shelf.settle(judge(worse, 3, "adopt", holdout(), shelf.present(), margin=0.0))
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
    store = Store(tmp_path)
    shelf = Shelf(store)
    for release in (3, 4):
        folder = candidate(tmp_path / "jobs" / str(release), scale=float(release))
        verdict = judge(folder, release, "adopt", holdout(), shelf.present(), margin=0.0)
        shelf.settle(verdict._replace(release=release))
    for release, used in ((9, 4), (4, 3), (4, 3), (3, None)):
        shelf.leave(release)
        present = shelf.present()
        assert (present["rollout"] if present else None) == used
    assert list((tmp_path / "models").iterdir()) == []
    assert "release 4 was withdrawn by the server" in store.adoptions()[-3].reason
    store.close()
