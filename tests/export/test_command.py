"""`python -m export`: from a checkpoint to a file that the runtime loads, and its refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from export.__main__ import app
from export.runtime import Session
from gaitway.input_spec import InputSpec
from models import build
from models.checkpoint import CheckpointInfo, save_checkpoint
from tests.export.conftest import MEAN, STD, waves


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "global.safetensors"
    options = {"channels": [8, 8]}
    info = CheckpointInfo(
        "har_cnn",
        options,
        ("rest", "walk", "jog", "run"),
        InputSpec.windows(MEAN, STD, stride=16),
        method="fedavg",
        round=9,
    )
    save_checkpoint(path, build("har_cnn", classes=4, **options), info)
    return path


def run(*arguments: Path | str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["onnx", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.mark.ci
def test_export_on_generated_windows_says_so(tmp_path: Path, checkpoint: Path) -> None:
    out, report = tmp_path / "model.onnx", tmp_path / "report.json"
    code, text = run("--checkpoint", checkpoint, "--out", out, "--report", report)
    assert code == 0, text
    assert "generated" in text
    written = json.loads(report.read_text())
    assert written["examples"] >= 256
    assert "generated" in written["examples_from"]
    described = Session.load(out).metadata
    assert (described.method, described.round, described.input.stride, described.input.mean) == ("fedavg", 9, 16, MEAN)


@pytest.mark.ci
def test_export_on_given_windows(tmp_path: Path, checkpoint: Path) -> None:
    x, y = waves(260, 5)
    np.savez(tmp_path / "w.npz", x=x, y=y)
    code, text = run("--checkpoint", checkpoint, "--out", tmp_path / "m.onnx", "--examples", tmp_path / "w.npz")
    assert code == 0, text
    assert "260 examples" in text
    assert "macro_f1" in text


def test_a_checkpoint_of_the_earlier_alp_is_refused(tmp_path: Path) -> None:
    options = {"blocks": 1, "prototypes": [4], "head_width": 8}
    state = build("hart_alp", classes=4, **options).state_dict()
    info = CheckpointInfo("hart_alp", options, ("rest", "walk", "jog", "run"), InputSpec.windows(MEAN, STD))
    old = {name: value for name, value in state.items() if not name.endswith("beta_scale")}
    save_file(old, tmp_path / "old", metadata={"gaitway": info.to_json()})
    code, text = run("--checkpoint", tmp_path / "old", "--out", tmp_path / "m.onnx")
    assert code == 2
    assert "a hart_alp of an earlier version, which had its ALP layers on the residual" in " ".join(text.split())
    assert not (tmp_path / "m.onnx").exists()


def test_refusals_leave_no_file_and_say_why(tmp_path: Path, checkpoint: Path) -> None:
    out = tmp_path / "m.onnx"
    np.savez(tmp_path / "few.npz", x=waves(5, 5)[0])
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("PK nonsense")
    for name, message in [
        ("few.npz", "at least 256"),
        ("other.npz", "with x"),
        ("plain.npy", "one array"),
        ("text.npz", "npz"),
        ("none.npz", "npz"),
    ]:
        code, text = run("--checkpoint", checkpoint, "--out", out, "--examples", tmp_path / name)
        assert code == (1 if name == "few.npz" else 2)  # a gate, and what cannot be read
        assert message in " ".join(text.split())
    code, text = run("--checkpoint", tmp_path / "none", "--out", out)
    assert (code, out.exists()) == (2, False)
    assert "no such checkpoint" in text
