"""`--init FILE`: weights that a federation starts from instead of random ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor

from federation.plan import Strict
from federation.records.head import is_base
from gaitway.input_spec import InputSpec
from har_pipeline import PipelineSettings
from models import Model
from models.checkpoint import is_torch_file, load_checkpoint, load_pretrained, read_info, read_tensors
from models.errors import CheckpointError
from sim.errors import SettingsError

_WINDOW_SETTINGS = ("rate_hz", "window", "cutoff_hz", "half_width_s", "kaiser_beta", "anti_alias")
"""What a window's samples depend on, of `PipelineSettings`."""


class Initialization(Strict):
    """A file of weights, and what it held when the run began."""

    path: Path
    sha256: str


def initialization(path: Path | None) -> Initialization | None:
    """Take down a file's digest; for a run's directory that of its global model.

    Raises:
        SettingsError: where there is no such file.
    """
    if path is None:
        return None
    if path.is_dir():
        path = global_model_of(path)
    if not path.is_file():
        raise SettingsError(
            f"--init {path}: no such file; expected a checkpoint of `sim pretrain` or `sim run`, the directory of a "
            "run whose method has a global model, or published weights"
        )
    with path.open("rb") as file:
        return Initialization(path=path, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def global_model_of(run: Path) -> Path:
    """Return where a run leaves the server's model, if its method has one."""
    return run / "models" / "global.safetensors"


def check_windows(init: Initialization | None, own: InputSpec, normalization: str, preset: str | None) -> None:
    """Refuse weights that were trained on windows which are made otherwise than a run's.

    Files that do not say how they were normalized are taken to be as the run; those of images are not looked at.

    Raises:
        SettingsError: saying what the file's windows are, what the run's are, and how to make them agree.
    """
    info = None if init is None else read_info(init.path)
    if init is None or info is None or info.input.kind != "window" or own.kind != "window":
        return
    theirs, ours = _window_options(info.input, info.normalization or normalization), _window_options(own, normalization)
    differing = [name for name, value in ours.items() if _alike(theirs[name]) != _alike(value)]
    if differing:
        given, expected = (", ".join(f"{name}={part[name]}" for name in differing) for part in (theirs, ours))
        words = " ".join(_assignment(name, theirs[name]) for name in differing)
        raise SettingsError(
            f"--init {init.path} was trained on windows with {given}; expected this run's, {expected}, because a "
            "network misreads windows that were made differently. Pretrain for this run (python -m sim pretrain --for "
            f"{preset or 'PRESET'} --data-root FOLDER --out FILE), or give the run the file's windows: {words}"
        )


def _window_options(spec: InputSpec, normalization: str) -> dict[str, Any]:
    """Return what makes a window of samples, but for the step to the next one."""
    settings = PipelineSettings.of(spec)
    return {"normalization": normalization, **{name: getattr(settings, name) for name in _WINDOW_SETTINGS}}


def _alike(value: object) -> object:
    """Return one word for the two normalizations that are equal but for rounding."""
    return "federated" if value == "pooled" else value


def _assignment(name: str, value: object) -> str:
    return f"--normalization {value}" if name == "normalization" else f"--set pipeline.{name}={value}"


def initialize(module: Model, init: Initialization) -> None:
    """Lay a file's weights over a fresh network but for its head: our checkpoint, or torchvision's layout.

    Raises:
        SettingsError: if the checkpoint's network is not of the same sizes.
        CheckpointError: if the file is neither.
    """
    if not _is_ours(init.path):
        load_pretrained(module, init.path)
        return
    given, info = load_checkpoint(init.path)
    own, theirs = _without_head(module), _without_head(given)
    for name in sorted(own.keys() | theirs.keys()):
        sizes = [tuple(state[name].shape) if name in state else None for state in (own, theirs)]
        if sizes[0] != sizes[1]:
            raise SettingsError(
                f"{init.path} contains a {info.model} whose {name} is {sizes[1]}, but this run's is {sizes[0]}; "
                "start from a checkpoint of the same model with the same options"
            )
    module.load_state_dict(theirs, strict=False)


def _without_head(module: Model) -> dict[str, Tensor]:
    return {name: value for name, value in module.state_dict().items() if is_base(name)}


def _is_ours(path: Path) -> bool:
    if is_torch_file(path):
        return False
    try:
        return "gaitway" in read_tensors(path)[1]
    except CheckpointError:  # of no such file; who looks for published weights says what it is
        return False
