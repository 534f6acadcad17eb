"""Weights from a file: only those of the same network, and of its present placement."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gaitway.input_spec import InputSpec
from models import CheckpointError, build
from models.checkpoint import CheckpointInfo, save_checkpoint
from sim.errors import SettingsError
from sim.experiment.initialization import Initialization, initialization, initialize
from sim.run import resolve
from tests.sim.small_runs import settings_for

HART = {"feature_dim": 16, "blocks": 1, "mlp": 16, "head_width": 8, "prototypes": [4]}
INFO = CheckpointInfo("hart_alp", HART, ("a", "b"), InputSpec.windows((0.0,) * 6, (1.0,) * 6))


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "mae.safetensors", build("hart_alp", classes=2, **HART), INFO)
    given = {"model": "hart_alp", "init": tmp_path / "mae.safetensors"}
    with pytest.raises(SettingsError, match=r"contains a hart_alp whose .* start from a checkpoint of the same model"):
        _ = resolve(settings_for("fedali", **given, set=["model.feature_dim=32", "model.blocks=1"])).networks


def test_weights_of_the_earlier_placement_are_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.safetensors"
    state = {n: t for n, t in build("hart_alp", classes=2, **HART).state_dict().items() if "beta_scale" not in n}
    save_file(state, old, metadata={"gaitway": INFO.to_json()})
    sets = [f"model.{key}={value}" for key, value in HART.items()]
    with pytest.raises(CheckpointError, match=r"old\.safetensors: a hart_alp of an earlier version"):
        _ = resolve(settings_for("fedali", model="hart_alp", init=old, set=sets)).networks


def test_a_published_file_of_before_zips_is_taken_and_others_are_refused_in_words(tmp_path: Path) -> None:
    """torchvision's mobilenet_v2-b0353104.pth is such a file."""
    path, published, network = (
        tmp_path / "weights.pth",
        *(build("mobilenet_v2", classes=2, norm="frozen", width=0.25) for _ in range(2)),
    )
    state = {name: value for name, value in published.state_dict().items() if not name.startswith("head.")}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    initialize(network, Initialization(path=path, sha256=""))
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    path.write_text("no weights")
    with pytest.raises(CheckpointError, match="neither a safetensors file nor one of torch"):
        initialize(network, Initialization(path=path, sha256=""))


def test_of_a_runs_directory_the_global_model_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "models" / "global.safetensors"
    with pytest.raises(SettingsError, match=r"global\.safetensors: no such file; .* directory of a run whose method"):
        initialization(tmp_path)
    save_checkpoint(path, build("hart_alp", classes=2, **HART), INFO)
    assert initialization(tmp_path) == initialization(path)
