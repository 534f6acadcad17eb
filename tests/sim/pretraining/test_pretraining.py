"""Pretraining resumes after a crash to the same weights, and a federation starts from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from federation import wire
from federation.plan import ModelSpec
from federation.training.forward import initial_model
from federation.tree import flatten
from gaitway.input_spec import InputSpec
from har_pipeline import ChannelStatistics
from models import CheckpointError, build
from models.checkpoint import CheckpointInfo, load_checkpoint
from sim.cli.app import app
from sim.errors import RunDirectoryError, SettingsError
from sim.pretraining import PretrainingSettings, pretrain
from sim.run import build_simulation, load_data
from tests.sim.small_runs import DATA, settings_for

HART = {"feature_dim": 16, "blocks": 1, "mlp": 16, "head_width": 8, "prototypes": [4]}
WINDOWS = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 128, 6)).astype(np.float32))
STATISTICS = ChannelStatistics.of(WINDOWS.numpy())


class KilledError(Exception):
    """Stands for kill -9."""


def settings_of(**given: object) -> PretrainingSettings:
    model = ModelSpec(name="hart_alp", options=HART)
    return PretrainingSettings.model_validate({"data": "x", "model": model, "epochs": 3, "batch_size": 5, **given})


def losses_of(out: Path, settings: PretrainingSettings, *, killed_after: int = 99) -> list[float]:
    losses: list[float] = []

    def note(epoch: int, loss: float) -> None:
        losses.append(loss)
        if epoch == killed_after:
            raise KilledError

    pretrain(settings, WINDOWS, ("a", "b"), STATISTICS, out, note)
    return losses


def test_it_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole = losses_of(tmp_path / "whole.safetensors", settings_of())
    assert whole[-1] < whole[0]
    out = tmp_path / "killed.safetensors"
    with pytest.raises(KilledError):
        losses_of(out, settings_of(), killed_after=2)
    assert not out.exists()
    assert losses_of(out, settings_of()) == whole[2:]
    assert not list(tmp_path.glob("*.progress"))
    states = [load_checkpoint(tmp_path / f"{name}.safetensors")[0].state_dict() for name in ("whole", "killed")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_the_prototypes_that_training_aligns_with_are_the_local_ones_of_the_epoch_before(tmp_path: Path) -> None:
    """As after a round of a single client: k-means of G points into G clusters gives the points."""
    built = initial_model(lambda: build("hart_alp", classes=2, **HART), 0)
    before, found = built.state_dict()["blocks.0.alp.global_prototypes"], []
    for epochs in (1, 2):
        out = tmp_path / f"{epochs}.safetensors"
        with pytest.raises(KilledError):
            losses_of(out, settings_of(), killed_after=epochs)
        data = out.with_name(out.name + ".progress").read_bytes()
        body = data[8 + int.from_bytes(data[:8], "little") :]
        state = flatten(wire.decode(body, limit_bytes=len(body))["model"])
        found.append([state[f"encoder.blocks.0.alp.{kind}_prototypes"] for kind in ("local", "global")])
    (local, shared), (later_local, later_shared) = found
    assert torch.equal(shared, local)
    assert torch.equal(later_shared, later_local)
    assert not torch.equal(shared, before)
    assert not torch.equal(later_shared, shared)


def test_progress_of_other_settings_or_damaged_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with pytest.raises(KilledError):
        losses_of(out, settings_of(), killed_after=1)
    with pytest.raises(RunDirectoryError, match=r"is of other settings: .*choose another --out or delete it"):
        losses_of(out, settings_of(lr=0.5))
    progress = tmp_path / "out.safetensors.progress"
    progress.write_bytes(progress.read_bytes()[:-9])
    with pytest.raises(RunDirectoryError, match=r"progress is damaged .* delete it to begin again"):
        losses_of(out, settings_of())


def test_only_hart_is_pretrained(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="only hart and hart_alp are pretrained, cnn came"):
        losses_of(tmp_path / "out", settings_of(model=ModelSpec(name="cnn")))


def test_a_federation_starts_from_the_weights_but_for_the_head(tmp_path: Path) -> None:
    arguments = ["pretrain", "--data", "synthetic", "--model", "hart_alp", "--epochs", "1", "--out"]
    arguments += [str(tmp_path / "mae.safetensors"), "--cache", str(tmp_path / "cache")]
    arguments += [word for text in [*DATA, *(f"model.{k}={v}" for k, v in HART.items())] for word in ("--set", text)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    sets = [f"model.{key}={value}" for key, value in HART.items()]
    given = {"model": "hart_alp", "set": sets}
    fresh = settings_for("fedali", **given)
    data = load_data(fresh, None, tmp_path / "cache", None)
    started = build_simulation(settings_for("fedali", init=tmp_path / "mae.safetensors", **given), data).initial
    random = build_simulation(fresh, data).initial
    theirs = load_checkpoint(tmp_path / "mae.safetensors")[0].state_dict()
    for name, value in started.params.items():
        if name.startswith("head."):
            assert torch.equal(value, random.params[name]), name
        else:
            assert torch.equal(value, theirs[name]), name
    prototypes = [value for name, value in started.buffers.items() if name.endswith("prototypes")]
    assert torch.equal(*prototypes)  # both sets start from the pretrained one


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    losses_of(tmp_path / "mae.safetensors", settings_of(epochs=1))
    given = {"model": "hart_alp", "init": tmp_path / "mae.safetensors"}
    with pytest.raises(SettingsError, match=r"holds a hart_alp whose .* start from a checkpoint of the same model"):
        build_simulation(settings_for("fedali", **given, set=["model.feature_dim=32", "model.blocks=1"]), None)


def test_weights_of_the_earlier_placement_are_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.safetensors"
    state = {n: t for n, t in build("hart_alp", classes=2, **HART).state_dict().items() if "beta_scale" not in n}
    info = CheckpointInfo("hart_alp", HART, ("a", "b"), InputSpec.windows((0.0,) * 6, (1.0,) * 6))
    save_file(state, old, metadata={"gaitway": info.to_json()})
    sets = [f"model.{key}={value}" for key, value in HART.items()]
    with pytest.raises(CheckpointError, match=r"old\.safetensors: a hart_alp of an earlier version"):
        build_simulation(settings_for("fedali", model="hart_alp", init=old, set=sets), None)
