"""A model per family, trained for seconds on waves of different pitch, and its export; shared by the tests here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from export.onnx_export import ExportReport, export_onnx
from export.runtime import ModelMetadata
from gaitway.input_spec import InputSpec
from models import build

MEAN, STD = (1.0, -2.0, 9.0, 0.0, 0.1, 0.0), (3.0, 3.0, 4.0, 1.0, 1.5, 1.0)
SIZES: dict[str, dict[str, Any]] = {
    "har_cnn": {"channels": [16, 32]},
    "har_cnn_alp": {"channels": [16, 32], "prototypes": [20]},
    "hart_alp": {"blocks": 1, "prototypes": [40], "head_width": 64},
}


def waves(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return raw windows (count, 128, 6) whose class 0 to 3 is their pitch, and the classes."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 4, size=count)
    time, phase = np.arange(128)[None, :, None] / 50, random.uniform(0, 6.28, size=(count, 1, 6))
    x = np.sin(2 * np.pi * np.array([0.6, 1.4, 2.5, 4.0])[y][:, None, None] * time + phase)
    x = x + 0.2 * random.normal(size=x.shape)
    return (x * STD + MEAN).astype(np.float32), y


def metadata(name: str, **changes: Any) -> ModelMetadata:
    values: dict[str, Any] = {"labels": ("rest", "walk", "jog", "run"), "input": InputSpec.windows(MEAN, STD)}
    values |= {"model": name, "method": "fedali", "round": 7, "scores": {"macro_f1": 0.5}}
    return ModelMetadata(**(values | changes))


def trained(name: str, steps: int = 60) -> nn.Module:
    torch.manual_seed(0)
    model = build(name, classes=4, dropout=0.0, **SIZES[name])
    raw, y = waves(64 * steps, 1)
    x = torch.from_numpy((raw - np.float32(MEAN)) / np.float32(STD))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for i in range(0, len(x), 64):
        loss = nn.functional.cross_entropy(model(x[i : i + 64]).logits, torch.from_numpy(y[i : i + 64]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@dataclass(frozen=True)
class Exported:
    name: str
    module: nn.Module
    path: Path
    report: ExportReport


@pytest.fixture(
    scope="session",
    params=["har_cnn", *(pytest.param(name, marks=pytest.mark.ci) for name in SIZES if name != "har_cnn")],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A trained model of each family, exported with int8 on 300 labelled windows."""
    name: str = request.param
    path = tmp_path_factory.mktemp(name) / "model.onnx"
    module = trained(name)
    x, y = waves(300, 2)
    report = export_onnx(module, path, metadata=metadata(name), examples=x, labels=y, int8=True)
    return Exported(name, module, path, report)
