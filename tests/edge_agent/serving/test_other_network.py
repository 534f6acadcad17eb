"""A network of the device's own beside the heads: it is served where it is right more often, and said in words."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.machine.commands import Evaluate
from edge_agent.serving import heads, model_runs
from edge_agent.serving.choice import Rules
from edge_agent.serving.heads import add_network, comparable, evaluate_heads
from edge_agent.serving.model_registry import ModelRegistry, Verdict
from edge_agent.serving.model_runs import ExampleKind, Model, ModelEvaluation, Windows
from edge_agent.storage.data_folder import sha256_of, write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.training.job import CHECKPOINT, HEADS, MODEL, PARITY
from edge_agent.training.local_data import SplitWindows
from export.runtime import Session
from gaitway.tasks import DEFAULT_TASK
from tests.edge_agent.serving.test_acceptance import candidate
from tests.edge_agent.serving.test_heads import LABELS, windows


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network as another agent's process has exported it."""
    return candidate(tmp_path_factory.mktemp("network")) / MODEL


def another_agent(folder: Path, exported: Path, **changes: Any) -> Path:
    """The data folder of an agent that uses an exported network."""
    path = folder / "models" / "m.onnx"
    write_file(path, exported.read_bytes())
    write_file(path.with_suffix(".safetensors"), b"weights")
    model = {"round": 7, "source": "personalized", "sha256": sha256_of(path), "score": 0.9, "metric": "macro_f1"}
    model |= {"path": str(path), "checkpoint": str(path.with_suffix(".safetensors")), "parity": {"windows": 3}}
    with closing(StateStore(folder)) as store:
        store.put(model=json.dumps({**model, **changes}))
    return folder


def test_the_network_in_use_is_copied_beside_the_heads(tmp_path: Path, exported: Path) -> None:
    folder, labels = another_agent(tmp_path / "cnn", exported), Session.load(exported).metadata.labels
    assert add_network(tmp_path / HEADS, folder, labels, 1) == ""
    assert sha256_of(tmp_path / HEADS / "network" / MODEL) == sha256_of(exported)
    assert json.loads((tmp_path / HEADS / "network" / PARITY).read_bytes()) == {"windows": 3, "round": 7}


def test_why_there_is_none_is_said_and_nothing_is_left(tmp_path: Path, exported: Path) -> None:
    labels = Session.load(exported).metadata.labels
    cases = {
        "no agent has run there yet": (tmp_path / "nobody", labels),
        "it uses no network yet": (another_agent(tmp_path / "heads", exported, head="shared"), labels),
        "and not sitting": (another_agent(tmp_path / "others", exported), ("sitting",)),
    }
    for words, (folder, wanted) in cases.items():
        assert words in add_network(tmp_path / HEADS, folder, wanted, 1)
        assert not (tmp_path / HEADS / "network").exists()


def verdict_where(
    right: dict[str, list[int]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: Evaluate = Evaluate(3, "adopt", 0, None),
    present: Model | None = None,
    held: Collection[str] = (),
) -> Verdict:
    """Judge heads and a network that are right on these of twelve windows, each in a stretch of its own.

    held: names of models that the device has already.
    """
    many = windows(6, step_s=10.0)
    for name in set(right) - set(held):
        for file, content in ((MODEL, name.encode()), (CHECKPOINT, b"weights"), (PARITY, b'{"round": 7}')):
            write_file(folder / HEADS / name / file, content)

    def run(path: Path, model: Model, asked: Windows) -> ModelEvaluation:
        y = asked.holdout.windows.y
        answers = np.where(np.array(right[path.parent.name]) > 0, y, 1 - y)
        return ModelEvaluation(model, *DEFAULT_TASK().judge(y, answers, LABELS, "windows"))

    monkeypatch.setattr(heads, "run_model", run)
    monkeypatch.setattr(model_runs, "run_model", run)
    able = Windows.of(comparable(SplitWindows(many, many)), None, ExampleKind(), LABELS)
    return evaluate_heads(folder, asked, able, present, Rules(labels=LABELS))


MOST, ONE_MORE, ALL = [1] * 8 + [0] * 4, [1] * 9 + [0] * 3, [1] * 12


@pytest.mark.parametrize(("network", "used"), [(ALL, "network"), (ONE_MORE, "network"), (MOST, "personalized")])
def test_it_serves_where_it_is_right_more_often_and_becomes_the_model_in_use(
    network: list[int], used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdict_where({"shared": MOST, "personalized": MOST, "network": network}, tmp_path / "job", monkeypatch)
    assert (found.answer, found.model and found.model["head"]) == ("adopted", used)
    assert found.compared
    assert [row["head"] for row in found.compared["models"]] == ["shared", "personalized", "network"]
    if used == "network":
        assert "network of its own, of round 7: adopted. The network of its own: " in found.reason
    else:
        assert "the network of its own: 6" in found.reason
    with closing(StateStore(tmp_path / "agent")) as store:
        registry = ModelRegistry(store)
        registry.commit(found)
        present = registry.present()
        assert present
        assert Path(present["path"]).read_bytes() == used.encode()
        if used == "network":
            assert (registry.newest_head(), present["source"]) == (None, "network")
            after = verdict_where({"shared": ALL, "network": MOST}, tmp_path / "next", monkeypatch)
            registry.commit(after)
            head = registry.newest_head()
            assert head
            assert head["head"] == "shared"


def test_a_released_version_is_refused_only_where_its_best_head_is_worse_beyond_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = {"source": "global", "head": "shared", "round": 2, "sha256": "p", "path": str(tmp_path / "now" / MODEL)}
    answers = {}
    for name, wrong in (("a little", 2), ("much", 8)):
        right = {"shared": [0] * wrong + [1] * (12 - wrong), "now": ALL}
        folder = tmp_path / name
        found = verdict_where(right, folder, monkeypatch, Evaluate(3, "adopt", 7, None), present, {"now"})
        answers[name] = found.answer
    assert answers == {"a little": "kept", "much": "refused"}
