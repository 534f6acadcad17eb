"""A model's checkpoint and its ONNX file, with the logits that they had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from export.gates import generated_windows
from export.onnx_export import export_onnx, metadata_of
from export.runtime import Session
from gaitway.input_spec import InputSpec
from models import build
from models.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint

METADATA = "model.json"
"""What both files say of themselves."""
OPTIONS: dict[str, Any] = {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "prototypes": [8]}
INFO = CheckpointInfo(
    model="har_cnn_alp", options=OPTIONS, labels=("still", "walking", "jogging"),
    input=InputSpec.windows((0.5, -0.5, 9.5, 0.0, 0.1, 0.0), (2.0, 2.0, 3.0, 1.0, 1.5, 1.0)),
    method="fedali", round=3, federation="walk", parent_sha256="ab" * 32,
    scores={"macro_f1": 0.5},
)  # fmt: skip


def write(out: Path, scratch: Path) -> None:
    """Write model.safetensors, model.onnx, model.json and logits.json."""
    from tests.samples.make import dump

    torch.manual_seed(3)
    save_checkpoint(out / "model.safetensors", build(INFO.model, classes=3, **OPTIONS), INFO)
    module, info = load_checkpoint(out / "model.safetensors")
    export_onnx(module, scratch / "model.onnx", metadata=metadata_of(info), examples=generated_windows(256))
    (out / "model.onnx").write_bytes((scratch / "model.onnx").read_bytes())
    properties = Session.load(out / "model.onnx").metadata.to_properties()
    dump(out / METADATA, {"model.safetensors": json.loads(info.to_json()), "model.onnx": properties})
    found = {"model.safetensors": by_torch(out), "model.onnx": by_onnx(out)}
    dump(out / "logits.json", {name: np.round(logits.astype(float), 6).tolist() for name, logits in found.items()})


def windows() -> NDArray[np.float32]:
    """Return three raw windows (3, 128, 6), in m/s² and rad/s, that depend on no generator."""
    steps = np.arange(3 * 128 * 6).reshape(3, 128, 6)
    return (steps * 7 % 101 / 16 - 3).astype(np.float32)


def by_torch(folder: Path) -> NDArray[np.float32]:
    """Return the checkpoint's logits (3, 3), of the windows together."""
    module, info = load_checkpoint(folder / "model.safetensors")
    x = (windows() - np.array(info.input.mean, np.float32)) / np.array(info.input.std, np.float32)
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(x)).logits)


def by_onnx(folder: Path) -> NDArray[np.float32]:
    """Return the ONNX file's logits (3, 3)."""
    return np.asarray(Session.load(folder / "model.onnx").predict(windows()).logits)
