"""Pretraining is a run of the simulation, in one place or as a federation, whose weights another one starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from export.__main__ import app as export_app
from models.checkpoint import load_checkpoint
from sim.cli.app import app
from sim.results.run_directory import RunDirectory
from sim.run import build_simulation, load_data, run
from tests.sim.small_runs import DATA, needs_fork, settings_for

HART = ["model.feature_dim=16", "model.blocks=1", "model.mlp=16", "model.head_width=8", "model.heads=2"]
ALP = [*HART, "model.prototypes=[4]"]
DECODER = ["task.decoder_kernels=[3]", "task.decoder_mlp=16"]


def invoke(*words: str, sets: list[str]) -> str:
    given = [word for text in [*DATA, *sets] for word in ("--set", text)]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*words, *given])
    assert done.exit_code == 0, done.output
    return done.output


def state_of(path: Path) -> dict[str, Tensor]:
    return load_checkpoint(path)[0].state_dict()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.ci
def test_pretraining_is_the_centralized_run_of_its_task(cache: Path, tmp_path: Path) -> None:
    common = ["--data", "synthetic", "--model", "hart", "--cache", str(cache), "--batch", "32", "--lr", "3e-3"]
    said = invoke("pretrain", *common, "--epochs", "6", "--out", f"{tmp_path}/mae.safetensors", sets=[*HART, *DECODER])
    assert "start a federation from them with --init" in said
    task = ["--task", "masked_reconstruction", "--method", "centralized", "--rounds", "6", "--out", f"{tmp_path}/run"]
    invoke("run", *common, *task, sets=[*HART, *DECODER])
    rounds = [RunDirectory(tmp_path / name).rounds for name in ("mae", "run")]
    scores = [[record.global_ and record.global_["mse"] for record in each] for each in rounds]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 6
    assert (scores[0][-1] or 9) < 0.9 * (scores[0][0] or 0)
    states = [state_of(tmp_path / path) for path in ("mae.safetensors", "run/models/global.safetensors")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert "mean squared error" in (tmp_path / "run" / "report.html").read_text()
    before = (tmp_path / "mae.safetensors").read_bytes()
    invoke("pretrain", *common, "--epochs", "6", "--out", f"{tmp_path}/mae.safetensors", sets=[*HART, *DECODER])
    assert (tmp_path / "mae.safetensors").read_bytes() == before  # what is done is not done again


@pytest.mark.ci
def test_with_alp_the_global_prototypes_are_the_local_ones_of_the_epoch_before(cache: Path, tmp_path: Path) -> None:
    """As after a round of a single client: k-means of G points into G clusters gives the points."""
    out = tmp_path / "alp.safetensors"
    common = ["--data", "synthetic", "--model", "hart_alp", "--cache", str(cache)]
    invoke("pretrain", *common, "--epochs", "2", "--out", str(out), sets=[*ALP, *DECODER])
    (client,) = (path for path in (tmp_path / "alp" / "models").iterdir() if path.name != "global.safetensors")
    trained, served = state_of(client), state_of(out)
    torch.testing.assert_close(served["blocks.0.alp.global_prototypes"], trained["blocks.0.alp.local_prototypes"])
    assert torch.equal(served["blocks.0.alp.local_prototypes"], served["blocks.0.alp.global_prototypes"])
    assert not torch.equal(trained["blocks.0.alp.local_prototypes"], trained["blocks.0.alp.global_prototypes"])


@pytest.mark.parametrize(
    ("method", "model"), [pytest.param("fedavg", "hart", marks=pytest.mark.ci), ("fedali", "hart_alp")]
)
def test_a_federation_starts_from_another_ones_encoder(method: str, model: str, cache: Path, tmp_path: Path) -> None:
    out, sets = tmp_path / "run", ALP if model == "hart_alp" else HART
    given: dict[str, Any] = {"model": model, "set": sets}
    fresh = settings_for(method, **given)
    data = load_data(fresh, None, cache, None)
    masked = settings_for(method, task="masked_reconstruction", model=model, rounds=2, set=sets + DECODER)
    summary = run(masked, data, out)
    assert 0 < summary["global"]["mse"] < 2
    checkpoint = out / "models" / "global.safetensors"
    export = ["onnx", "--checkpoint", str(checkpoint), "--out", str(tmp_path / "model.onnx")]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(export_app, export)
    assert done.exit_code == 2
    assert "nobody has trained its head" in done.output
    started = build_simulation(settings_for(method, init=out, **given), data)
    random, theirs = build_simulation(fresh, data).initial, state_of(out / "models" / "global.safetensors")
    assert any(not torch.equal(theirs[name], value) for name, value in random.params.items() if "head." not in name)
    for name, value in started.initial.params.items():
        assert torch.equal(value, random.params[name] if name.startswith("head.") else theirs[name]), name
    for name, value in started.initial.buffers.items():
        if name.endswith("prototypes"):
            assert torch.equal(value, theirs["blocks.0.alp.local_prototypes"])  # both sets start from the pretrained
    if method == "fedali":
        centres = started.state["prototypes"]
        assert torch.equal(centres["blocks.0.alp."], theirs["blocks.0.alp.global_prototypes"])
        assert not torch.equal(centres["blocks.0.alp."], random.buffers["blocks.0.alp.global_prototypes"])


@needs_fork
@pytest.mark.ci
def test_engines_mask_the_same(cache: Path) -> None:
    settings = settings_for("fedavg", task="masked_reconstruction", model="hart", set=HART + DECODER)
    data = load_data(settings, None, cache, None)
    scores = []
    for engine in ("serial", "stacked", "processes"):
        again = settings.model_copy(update={"engine": engine, "workers": 2})
        scores.append([record["global"]["mse"] for record in build_simulation(again, data).run_rounds()])
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
    assert scores[2] == scores[0]


def test_another_network_is_refused(cache: Path, tmp_path: Path) -> None:
    words = ["pretrain", "--data", "synthetic", "--model", "har_cnn", "--out", str(tmp_path / "x"), "--cache"]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*words, str(cache)])
    assert done.exit_code == 2
    assert "models of these windows that do: hart, hart_alp" in done.output
