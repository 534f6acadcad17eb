"""A model file of any version answers as it did, and a simulation that its version began is ended by today's code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from export.runtime import Session
from federation.records.tree import flatten
from models.checkpoint import load_checkpoint
from sim.experiment.settings import Experiment
from sim.results.run_directory import RunDirectory
from sim.rounds import checkpoint
from sim.run import load_data, resolve, run
from tests.samples.meaning import lost
from tests.samples.models import METADATA, by_onnx, by_torch
from tests.sim.small_runs import Reporter

RECORDED = {"partition_class_names", "data_sha256", "split_leaks", "findings", "versions", "hardware", "parameters"}
"""Of config.json, what is no setting."""
CLOSE = 1e-3
"""Another processor adds in another order, and an int8 level may tip over; a wrong tensor is far beyond it."""


@pytest.mark.parametrize(("name", "answers"), [("model.safetensors", by_torch), ("model.onnx", by_onnx)])
def test_a_model_answers_as_it_did(sample: Path, name: str, answers: object) -> None:
    assert callable(answers)
    wanted = json.loads((sample / "logits.json").read_text())[name]
    np.testing.assert_allclose(answers(sample), wanted, atol=1e-4)


def test_a_model_says_the_same_of_itself(sample: Path) -> None:
    kept = json.loads((sample / METADATA).read_text())
    _, info = load_checkpoint(sample / "model.safetensors")
    assert lost(kept["model.safetensors"], json.loads(info.to_json())) == []
    properties = Session.load(sample / "model.onnx").metadata.to_properties()
    assert lost(kept["model.onnx"], properties) == []


def test_an_interrupted_run_ends_as_an_undisturbed_one(sample: Path, tmp_path: Path) -> None:
    config = json.loads((sample / "run" / "config.json").read_text())
    settings = Experiment.model_validate({name: value for name, value in config.items() if name not in RECORDED})
    assert (
        lost(
            {k: v for k, v in config.items() if k not in RECORDED},
            settings.model_dump(mode="json", by_alias=True),
        )
        == []
    )
    data = load_data(resolve(settings), None, tmp_path / "cache", None)
    resumed, undisturbed = tmp_path / "resumed", tmp_path / "undisturbed"
    shutil.copytree(sample / "run", resumed)
    played = []
    reporter = Reporter(lambda kind, what: played.append(what) if kind == "round" else None)
    run(settings, resumed, [reporter], data=data)
    assert played == [2], "the first round is not played again"
    run(settings, undisturbed, data=data)
    one, other = (checkpoint.load(folder / "checkpoint.bin", "cpu") for folder in (resumed, undisturbed))
    assert one is not None
    assert other is not None
    assert one.progress.keys() == other.progress.keys()
    mine, theirs = (
        flatten({"state": each.state, **{n: c._asdict() for n, c in each.client_sets["clients"].items()}})
        for each in (one, other)
    )
    assert mine.keys() == theirs.keys()
    assert any("residual" in name for name in mine)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], atol=CLOSE, rtol=CLOSE, msg=f"{name} differs")
    first, again = (RunDirectory(folder).rounds for folder in (resumed, undisturbed))
    assert [record.round for record in first] == [1, 2]
    assert [record.train_loss for record in first] == pytest.approx([record.train_loss for record in again], rel=CLOSE)
    assert [r.personalization for r in first] == [r.personalization for r in again]


def test_a_runs_directory_says_the_same(sample: Path) -> None:
    found = RunDirectory(sample / "run")
    (record,) = found.rounds
    line = json.loads((sample / "run" / "rounds.jsonl").read_text())
    assert lost({name: line[name] for name in READ}, record.model_dump(mode="json", by_alias=True)) == []
    kept = json.loads((sample / "run" / "clients.json").read_text())
    assert lost(kept, {name: each.model_dump(mode="json") for name, each in found.clients.items()}) == []


READ = ("round", "cohort", "train_loss", "personalization", "global", "bytes_up", "bytes_down", "seconds")
"""Of a round's line, what reports show."""
