"""The phone's gate is the native device's: random holdouts and models, judged by both, with the same words."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import Kind
from edge_agent.serving.acceptance import evaluate
from edge_agent.serving.model_registry import SOURCES, Verdict
from edge_agent.serving.model_runs import ExampleKind, Windows
from edge_agent.training.cross_validation import NOT_VALIDATED, CrossValidation
from edge_agent.training.job import CROSS_VALIDATION, MODEL, PARITY
from export.runtime import ModelMetadata
from federation.protocol.messages import VersionScore
from gaitway.input_spec import InputSpec
from har_pipeline import ClientWindows
from tests.phone.learning.conftest import ByNode

CASES = 400
LABELS: tuple[tuple[str, ...], ...] = (
    ("it's", 'a "b"'),
    ("walk", "run\n", "sit"),
    tuple("abcdef"),
    ("Gehen", "höher", "a\\b", "'\"", "\u00a0", "\U0001f6b6", "7", "8", "9", "10"),
)
CANDIDATE, PRESENT, OTHER, ANOTHER = range(4)
KINDS: tuple[Kind, ...] = ("train", "export", "adopt")


def save_model(path: Path, labels: tuple[str, ...], column: int) -> None:
    """A model that answers with the class that stands in a column of the window's first row."""
    constants = {
        "at": np.array([column]), "starts": np.array([0, 0]), "ends": np.array([1, 1 << 30]),
        "first": np.array([1, 2]), "depth": np.array(len(labels)), "values": np.array([0, 1], np.float32),
        "axes": np.array([1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["x", "at"], ["wide"], axis=2),
        helper.make_node("Slice", ["wide", "starts", "ends", "first"], ["one"]),
        helper.make_node("Squeeze", ["one", "first"], ["value"]),
        helper.make_node("Cast", ["value"], ["code"], to=TensorProto.INT64),
        helper.make_node("OneHot", ["code", "depth", "values"], ["logits"]),
        helper.make_node("ReduceMean", ["x", "axes"], ["embedding"], keepdims=0),
    ]
    shapes = {"x": ["batch", 128, 6], "logits": ["batch", len(labels)], "embedding": ["batch", 6]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes, "g", [infos["x"]], [infos["logits"], infos["embedding"]],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, ModelMetadata(labels, InputSpec.windows((0.0,) * 6, (1.0,) * 6)).to_properties())
    onnx.save(model, str(path))


def job_of(folder: Path, labels: tuple[str, ...], column: int) -> Path:
    """A job's folder with such a model."""
    folder.mkdir()
    save_model(folder / MODEL, labels, column)
    (folder / PARITY).write_text("{}")
    return folder


def answers(random: np.random.Generator, y: np.ndarray, classes: int) -> np.ndarray:
    """A model that errs by chance, or gives a constant answer, or a guess."""
    guess = random.integers(0, classes, len(y))
    right = random.random(len(y)) < random.choice([0, 0.2, 0.5, 0.7, 0.9, 1])
    return np.where(right, y, guess if random.random() < 0.7 else guess[:1].repeat(len(y)))


def holdout(random: np.random.Generator, classes: int) -> ClientWindows:
    """Windows of a few sessions whose classes last for a while, in any order; a model's answers are in its column."""
    count = int(random.choice([0, 3, 16, 24, 48, 120, 300]))
    shares = random.dirichlet(np.full(classes, random.choice([0.1, 1, 10])))
    y = random.choice(classes, count, p=shares).repeat(random.choice([1, 4, 12]))[:count]
    x = np.zeros((count, 128, 6), np.float32)
    for column in range(4):
        x[:, 0, column] = answers(random, y, classes)
    # of one model the others differ by a few answers only
    same = random.random((count, 2)) < random.choice([0, 0.9])
    x[:, 0, 1:3] = np.where(same, x[:, 0, :1], x[:, 0, 1:3])
    if random.random() < 0.3:
        x[:, 0, ANOTHER] = x[:, 0, OTHER]
    # some stretches end exactly where a window begins
    hops = random.choice([1.28, 1.28, 2.56, 9.9], count) if random.random() < 0.6 else np.full(count, 2.5)
    start_s = np.round(1.79e9 + np.cumsum(hops), 3)
    windows = ClientWindows("c", x, y.astype(np.int64), start_s, np.sort(random.integers(0, 3, count)))
    return windows.select(random.permutation(count))


def score(random: np.random.Generator) -> VersionScore | None:
    if random.random() < 0.4:
        return None
    value, trivial = (int(each) for each in random.integers(0, 1_000_001, 2))
    measured = "version" if random.random() < 0.5 else "updates"
    devices = int(random.integers(1, 9))
    working = int(random.integers(0, devices + 1))
    return VersionScore.model_validate(
        {"value": value, "trivial": trivial, "devices": devices, "working": working, "measured": measured}
    )


class Case:
    """One random question, and both of its forms."""

    def __init__(self, seed: int, folder: Path) -> None:
        random = np.random.default_rng(seed)
        number = int(random.integers(len(LABELS)))
        self.labels, self.folder = LABELS[number], folder / str(number)
        self.windows = holdout(random, len(self.labels))
        kind = KINDS[random.integers(len(KINDS))]
        release = int(random.choice([0, 0, 3]))
        self.asked = Evaluate(int(random.integers(2, 100)), kind, release, score(random))
        self.margin = float(random.choice([0, 0, 0.05, 1 / 3, 1e-5]))
        self.candidate = self.model(CANDIDATE, SOURCES[kind], self.asked.round)
        source = str(random.choice(["global", "personalized"]))
        self.present = self.model(PRESENT, source, 1) if random.random() < 0.8 else None
        self.labelled = holdout(random, len(self.labels)) if random.random() < 0.5 else None
        self.folds = [self.validated(random) for _ in range(4)]
        self.others = [self.model(OTHER, "personalized", 4), self.model(ANOTHER, "global", 5)][: random.integers(3)]
        for model in (self.candidate, self.present, *self.others):
            if model and random.random() < 0.06:
                model["path"] = str(self.folder / "damaged" / MODEL)

    def model(self, column: int, source: str, number: int) -> dict[str, Any]:
        path = self.folder / str(column) / MODEL
        return {"source": source, "round": number, "sha256": str(column), "path": str(path), "column": column}

    def validated(self, random: np.random.Generator) -> np.ndarray | None:
        """A model's answers out of cross-validation, if there was any: of some windows none."""
        if self.labelled is None or random.random() < 0.3:
            return None
        answered = answers(random, self.labelled.y, len(self.labels))
        return np.where(random.random(len(answered)) < random.choice([0, 0.2, 1]), NOT_VALIDATED, answered)

    def by_python(self) -> Verdict:
        job = Path(self.candidate["path"]).parent
        for model in (self.candidate, self.present, *self.others):
            if model and "damaged" not in model["path"]:
                self.keep(Path(model["path"]).parent / CROSS_VALIDATION, self.folds[model["column"]])
        return evaluate(
            job,
            self.asked,
            Windows.of(self.windows, self.labelled, ExampleKind()),
            self.present,
            self.others,
            margin=self.margin,
        )

    def keep(self, path: Path, folds: np.ndarray | None) -> None:
        path.unlink(missing_ok=True)
        if folds is not None and self.labelled is not None:
            kept = CrossValidation(3, self.labelled.session, self.labelled.start_s, folds)
            path.write_text(kept.to_json())

    def for_node(self, verdict: Verdict) -> dict[str, Any]:
        windows, asked = self.windows, self.asked
        sent = asked.server_score
        return {
            "labels": self.labels,
            "windows": timed(windows),
            "labelled": None if self.labelled is None else timed(self.labelled),
            "asked": {
                "kind": asked.kind,
                "release": asked.release,
                "serverScore": sent and sent.model_dump(mode="json"),
            },
            "margin": self.margin,
            "candidate": self.attempt(self.candidate, verdict.reason.partition("it does not work: ")[2]),
            "present": self.present and self.attempt(self.present),
            "others": [self.attempt(one) for one in self.others],
        }

    def attempt(self, model: dict[str, Any], error: str = "") -> dict[str, Any]:
        named = {name: model[name] for name in ("source", "round")}
        if "damaged" in model["path"]:
            return {"model": named, "answered": None, "error": error}
        column, known = model["column"], None
        if self.labelled is not None and model["source"] == "global":
            known = self.labelled.x[:, 0, column].astype(int).tolist()
        elif (folds := self.folds[column]) is not None:
            known = folds.tolist()
        return {"model": named, "answered": self.windows.x[:, 0, column].astype(int).tolist(), "validated": known}


def timed(windows: ClientWindows) -> dict[str, Any]:
    return {name: getattr(windows, name).tolist() for name in ("start_s", "y", "session")}


def in_python(verdict: Verdict) -> dict[str, Any]:
    """What the phone is held to."""
    compared = None
    if verdict.compared is not None:
        rows = [{name: row[name] for name in row if name != "sha256"} for row in verdict.compared["models"]]
        compared = {**verdict.compared, "models": rows}
        del compared["at"]
    names = ("metric", "score", "trivial", "checked", "windows", "classes", "confusion", "labels")
    instead = verdict.instead and {name: verdict.instead[name] for name in ("source", "round")}
    return {
        "answer": verdict.answer,
        "reason": verdict.reason,
        "instead": instead,
        "compared": compared,
        "described": verdict.model and {name: verdict.model[name] for name in names},
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for each set of labels and each column, and one that is damaged."""
    folder = tmp_path_factory.mktemp("models")
    for number, labels in enumerate(LABELS):
        (folder / str(number) / "damaged").mkdir(parents=True)
        (folder / str(number) / "damaged" / MODEL).write_bytes(b"no model")
        (folder / str(number) / "damaged" / PARITY).write_text("{}")
        for column in range(4):
            job_of(folder / str(number) / str(column), labels, column)
    return folder


@pytest.mark.ci
def test_a_phone_decides_and_says_what_a_native_device_does(models: Path, by_node: ByNode) -> None:
    cases = [Case(seed, models) for seed in range(CASES)]
    verdicts = [case.by_python() for case in cases]
    decisions = by_node("decisions_of.mjs", [case.for_node(each) for case, each in zip(cases, verdicts, strict=True)])
    for seed, (verdict, decision) in enumerate(zip(verdicts, decisions, strict=True)):
        assert decision == json.loads(json.dumps(in_python(verdict))), f"case {seed}"
    outcomes = Counter(each.answer for each in verdicts)
    # the draw is worth something only while every way out is taken
    assert outcomes.keys() == {"adopted", "kept", "refused", "failed", "undecided"}
    assert min(outcomes.values()) >= 5
    assert sum(each.instead is not None for each in verdicts) >= 5
    validated = [each for each in verdicts if "by cross-validation" in each.reason]
    assert {each.answer for each in validated} >= {"adopted", "kept", "refused", "failed"}
