"""Pretraining is a run of the simulation, in one place or as a federation, whose weights another one starts from.

It takes all windows, made as those of the run that follows; weights of other windows are refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from export.__main__ import app as export_app
from har_pipeline import PipelineSettings, prepare
from models.checkpoint import load_checkpoint, save_checkpoint
from sim.cli.app import app
from sim.cli.options import describe
from sim.data.partitions.partition import Equal
from sim.data.repartition import repartition
from sim.data.sources.recordings import federated_data
from sim.errors import SettingsError
from sim.presets import with_defaults
from sim.results.run_directory import RunDirectory
from sim.run import build_simulation, load_data, resolve, run
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


@pytest.fixture(scope="module")
def pretrained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of an epoch on windows that each client normalized."""
    path = tmp_path_factory.mktemp("weights") / "mae.safetensors"
    words = ["--data", "synthetic", "--model", "hart", "--cache", str(cache), "--epochs", "1"]
    invoke("pretrain", *words, "--out", str(path), sets=[*HART, *DECODER])
    return path


@pytest.mark.ci
def test_pretraining_is_the_centralized_run_of_its_task(cache: Path, tmp_path: Path) -> None:
    common = ["--data", "synthetic", "--model", "hart", "--cache", str(cache), "--batch", "32", "--lr", "3e-3"]
    said = invoke("pretrain", *common, "--epochs", "6", "--out", f"{tmp_path}/mae.safetensors", sets=[*HART, *DECODER])
    assert "start a federation from them with --init" in said
    task = ["--task", "masked_reconstruction", "--method", "centralized", "--rounds", "6", "--out", f"{tmp_path}/run"]
    every = ["--validation-share", "0"]
    invoke("run", *common, *task, *every, sets=["data.test_share=0", *HART, *DECODER])
    losses = [[record.train_loss for record in RunDirectory(tmp_path / name).rounds] for name in ("mae", "run")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert (losses[0][-1] or 9) < 0.9 * (losses[0][0] or 0)
    assert f"no test examples, so no scores; training loss {losses[0][-1]:.3f}" in " ".join(said.split())
    states = [state_of(tmp_path / path) for path in ("mae.safetensors", "run/models/global.safetensors")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert "Every window is trained on and none is a test window" in (tmp_path / "run" / "report.html").read_text()
    before = (tmp_path / "mae.safetensors").read_bytes()
    invoke("pretrain", *common, "--epochs", "6", "--out", f"{tmp_path}/mae.safetensors", sets=[*HART, *DECODER])
    assert (tmp_path / "mae.safetensors").read_bytes() == before  # what is done is not done again


@pytest.mark.parametrize("model", ["hart", "hart_alp"])
def test_every_window_is_pretrained_on(model: str, cache: Path, tmp_path: Path) -> None:
    """Twice 144 windows of 3 minutes and two subjects, less those without an activity; a third was held out before."""
    common = ["--data", "synthetic", "--model", model, "--cache", str(cache), "--epochs", "1", "--batch", "32"]
    sets = [*(ALP if model == "hart_alp" else HART), *DECODER]
    invoke("pretrain", *common, "--out", f"{tmp_path}/mae.safetensors", sets=sets)
    options = {"subjects": 2, "phones": 1, "places": 1, "minutes": 3}
    windows = sum(len(each) for each in prepare("synthetic", None, options=options).clients.values())
    (record,) = map(json.loads, (tmp_path / "mae" / "rounds.jsonl").read_text().splitlines())
    clients = json.loads((tmp_path / "mae" / "clients.json").read_text())
    assert sum(client["train"] for client in clients.values()) == windows
    assert sum(client["test"] + client["validation"] for client in clients.values()) == 0
    assert sum(record["steps"].values()) == -(-windows // 32)


@pytest.mark.parametrize("clients", [2, 1])
def test_windows_without_an_activity_count_where_they_are_kept(clients: int, tmp_path: Path) -> None:
    """A third of these; they were dealt as class −1, at which counting stopped."""
    dataset = prepare("synthetic", None, options={"subjects": 2, "phones": 1, "places": 1, "minutes": 3})
    partly = {name: replace(each, y=np.where(np.arange(len(each)) % 3, each.y, -1)) for name, each in
              dataset.clients.items()}  # fmt: skip
    every = ["data.test_share=0", *HART, *DECODER]
    settings = settings_for("fedavg", task="masked_reconstruction", model="hart", rounds=1, set=every,
                            validation_share=0.0)  # fmt: skip
    data = federated_data(replace(dataset, clients=partly), settings)
    if clients == 1:
        data = repartition(data, Equal(clients=1, test="split", test_share=0), 0)
    run(settings, tmp_path / "run", data=data)
    trained = [
        client["train_per_class"] for client in json.loads((tmp_path / "run" / "clients.json").read_text()).values()
    ]
    assert len(trained) == clients
    assert sum(map(sum, trained)) == sum(len(each) for each in partly.values())
    assert sum(each[-1] for each in trained) == sum(int((each.y < 0).sum()) for each in partly.values()) > 80


@pytest.mark.parametrize(
    ("preset", "model", "made"),
    [
        ("ek2024-hhar-pretrained", "hart_alp", ("federated", {"anti_alias": "downsampling"}, {"prototypes": [4]})),
        ("motionsense-few-labels", "hart", ("client", {}, {"feature_dim": 64})),
    ],
)
def test_windows_and_network_are_those_of_the_preset_that_it_is_for(
    preset: str, model: str, made: tuple[str, dict[str, Any], dict[str, Any]], cache: Path, tmp_path: Path
) -> None:
    sets = [*DECODER, *(["model.prototypes=[4]", "model.blocks=1"] if model == "hart_alp" else [])]
    words = ["pretrain", "--for", preset, "--data", "synthetic", "--model", model, "--cache", str(cache)]
    invoke(*words, "--epochs", "1", "--out", f"{tmp_path}/mae.safetensors", sets=sets)
    config, (_, info) = RunDirectory(tmp_path / "mae").config, load_checkpoint(tmp_path / "mae.safetensors")
    assert (config.data.normalization, config.data.pipeline) == made[:2]
    assert info.normalization == made[0]
    assert info.input.filter == PipelineSettings(**made[1]).input_spec((0.0,) * 6, (1.0,) * 6).filter
    assert made[2].items() <= info.options.items()


def test_the_recordings_are_those_that_the_preset_names() -> None:
    """Of which none are at hand here: the error names where they would be."""
    words = ["pretrain", "--for", "ucihar-hart-pretrained", "--data-root", "nowhere", "--out", "x"]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, words)
    assert (done.exit_code, "motionsense+spsw, member motionsense" in done.output) == (2, True)
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["pretrain", "--for", "ek2024-hha", "--out", "x"])
    assert "unknown preset 'ek2024-hha'; did you mean" in done.output


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"normalization": "federated"}, ("normalization=client; expected this run's, normalization=federated",
                                          "give the run the file's windows: --normalization client")),
        ({"set": ["pipeline.anti_alias=downsampling"]}, ("anti_alias=always; expected this run's, anti_alias=downs",
                                                         "--set pipeline.anti_alias=always")),
        ({"set": ["pipeline.cutoff_hz=18"]}, ("cutoff_hz=22.0; expected this run's, cutoff_hz=18",)),
        ({"set": ["pipeline.rate_hz=40"]}, ("rate_hz=50.0; expected this run's, rate_hz=40",)),
    ],
)  # fmt: skip
def test_weights_of_other_windows_are_refused(
    changed: dict[str, Any], words: tuple[str, ...], pretrained: Path
) -> None:
    """With what they are, what was expected and what to do; the step between windows may differ."""
    given = {"model": "hart", "init": pretrained}
    settings_for("fedavg", **given, set=[*HART, "pipeline.stride=32"])
    with pytest.raises(SettingsError) as refused:
        settings_for("fedavg", **given, **{**changed, "set": [*HART, *changed.get("set", ())]})
    for each in (f"--init {pretrained} was trained on windows with", *words, "python -m sim pretrain --for PRESET"):
        assert each in str(refused.value)


def test_weights_of_a_preset_are_refused_with_the_command_for_it(pretrained: Path) -> None:
    with pytest.raises(SettingsError, match="sim pretrain --for ek2024-hhar-pretrained --data-root"):
        describe(with_defaults("ek2024-hhar-pretrained", {"init": pretrained}), "ek2024-hhar-pretrained", None)


def test_a_file_that_does_not_say_how_it_was_normalized_is_taken(pretrained: Path, tmp_path: Path) -> None:
    """As those of earlier versions; pooled and federated statistics are equal but for rounding."""
    model, info = load_checkpoint(pretrained)
    for name, said in (("old", ""), ("pooled", "pooled")):
        path = tmp_path / f"{name}.safetensors"
        save_checkpoint(path, model, replace(info, normalization=said))
        settings_for("fedavg", model="hart", init=path, normalization="federated", set=HART)


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
    data = load_data(resolve(fresh), None, cache, None)
    masked = settings_for(method, task="masked_reconstruction", model=model, rounds=2, set=sets + DECODER)
    summary = run(masked, out, data=data)
    assert 0 < summary["global"]["mse"] < 2
    checkpoint = out / "models" / "global.safetensors"
    export = ["onnx", "--checkpoint", str(checkpoint), "--out", str(tmp_path / "model.onnx")]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(export_app, export)
    assert done.exit_code == 2
    assert "its head is untrained" in done.output
    started = build_simulation(resolve(settings_for(method, init=out, **given)), data)
    random, theirs = build_simulation(resolve(fresh), data).initial, state_of(out / "models" / "global.safetensors")
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
    data = load_data(resolve(settings), None, cache, None)
    scores = []
    for engine in ("serial", "stacked", "processes"):
        again = settings.model_copy(update={"engine": engine, "workers": 2})
        scores.append([record["global"]["mse"] for record in build_simulation(resolve(again), data).run_rounds()])
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
    assert scores[2] == scores[0]


def test_another_network_is_refused(cache: Path, tmp_path: Path) -> None:
    words = ["pretrain", "--data", "synthetic", "--model", "har_cnn", "--out", str(tmp_path / "x"), "--cache"]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*words, str(cache)])
    assert done.exit_code == 2
    assert "models of these windows that do: hart, hart_alp" in done.output
