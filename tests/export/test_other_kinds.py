"""Networks for images and for vectors: from a checkpoint to a file that the runtime loads, and back to torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner

from export.__main__ import app
from export.gates import generated_examples
from export.onnx_export import export_onnx, metadata_of
from export.runtime import InputError, ModelFileError, Session
from gaitway.input_spec import InputSpec
from models import Model, build
from models.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint

RGB = InputSpec.images((3, 12, 10), (0.2, 0.5, 0.7), (0.1, 0.3, 0.5))
IMAGE_NET: dict[str, Any] = {"input_shape": [3, 12, 10], "channels": [4, 8], "hidden": 12}
VECTOR = InputSpec.vectors((1.0, -2.0, 0.0), (2.0, 0.5, 1.0))
LABELS = ("cat", "dog", "hen")


def checkpoint(folder: Path, name: str, options: dict[str, Any], spec: InputSpec) -> Path:
    torch.manual_seed(3)
    path = folder / "model.safetensors"
    save_checkpoint(path, build(name, classes=3, **options), CheckpointInfo(name, options, LABELS, spec))
    return path


def by_hand(module: Model, raw: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Normalise in numpy and run the module by itself: nothing of the exporter is in this path."""
    with torch.no_grad():
        return module(torch.from_numpy(((raw - mean) / std).astype(np.float32))).logits.numpy()


@pytest.mark.ci
def test_an_image_network_is_exported_and_runs_without_torch(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "public_cnn", IMAGE_NET, RGB)
    out = tmp_path / "model.onnx"
    ran = CliRunner().invoke(
        app, ["onnx", "--checkpoint", str(path), "--out", str(out), "--int8"], env={"COLUMNS": "200"}
    )
    assert ran.exit_code == 0, ran.output
    session = Session.load(out)
    assert session.metadata.input == RGB
    x = np.random.default_rng(0).uniform(size=(9, 3, 12, 10)).astype(np.float32)
    mean, std = (np.array(numbers)[:, None, None] for numbers in (RGB.mean, RGB.std))
    wanted = by_hand(load_checkpoint(path)[0], x, mean, std)
    assert wanted.std(axis=0).min() > 1e-3  # the images differ, so agreement says something
    for size in (1, 2, 7, 9):
        found = session.predict(x[:size])
        np.testing.assert_allclose(found.logits, wanted[:size], atol=1e-4)
        assert found.labels == tuple(LABELS[i] for i in wanted[:size].argmax(axis=1))
    assert session.predict(x[:0]).logits.shape == (0, 3)


def test_a_network_on_vectors_is_exported(tmp_path: Path) -> None:
    module, info = load_checkpoint(checkpoint(tmp_path, "dense", {"input_shape": [3], "hidden": [6, 8]}, VECTOR))
    x = generated_examples(VECTOR, 256)
    export_onnx(module, tmp_path / "m.onnx", metadata=metadata_of(info), examples=x)
    found = Session.load(tmp_path / "m.onnx").predict(x).logits
    np.testing.assert_allclose(found, by_hand(module, x, np.array(VECTOR.mean), np.array(VECTOR.std)), atol=1e-4)


@pytest.mark.ci
def test_the_session_refuses_images_of_another_shape_and_a_file_that_says_windows(tmp_path: Path) -> None:
    module, info = load_checkpoint(checkpoint(tmp_path, "public_cnn", IMAGE_NET, RGB))
    out = tmp_path / "m.onnx"
    export_onnx(module, out, metadata=metadata_of(info), examples=generated_examples(RGB, 8), allow_few=True)
    with pytest.raises(InputError, match=r"\(1, 12, 10, 3\); expected \(n, 3, 12, 10\) in pixel / 255"):
        Session.load(out).predict(np.zeros((1, 12, 10, 3)))
    graph = onnx.load(out)
    onnx.helper.set_model_props(
        graph, replace(metadata_of(info), input=InputSpec.windows((0.0,) * 6, (1.0,) * 6)).to_properties()
    )
    with pytest.raises(ModelFileError, match=r"expected x: float32 \[batch, 128, 6\]"):
        Session.load(graph.SerializeToString())


def test_generated_examples_are_what_the_spec_says() -> None:
    pixels = generated_examples(RGB, 20, seed=1)
    assert (pixels.shape, pixels.dtype) == ((20, 3, 12, 10), np.float32)
    assert 0 <= pixels.min() < 0.05 < 0.95 < pixels.max() <= 1
    numbers = generated_examples(VECTOR, 2000)
    np.testing.assert_allclose(numbers.mean(axis=0), VECTOR.mean, atol=0.2)
    np.testing.assert_allclose(numbers.std(axis=0), VECTOR.std, rtol=0.1)
    assert generated_examples(InputSpec.windows((0.0,) * 6, (1.0,) * 6, window=64), 5).shape == (5, 64, 6)
