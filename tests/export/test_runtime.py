"""The session without torch: predictions, streams in any chunking, and files that it must refuse."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from export.runtime import InputError, ModelFileError, ModelMetadata, Session
from gaitway.input_spec import LowPass
from har_pipeline import PipelineSettings
from tests.export.conftest import metadata


def model_bytes(
    says: ModelMetadata | None = None,
    *,
    shape: tuple[str | int, ...] = ("batch", 128, 6),
    outputs: tuple[str, ...] = ("logits", "embedding"),
    classes: int = 4,
    edit: Callable[[dict[str, str]], object] = lambda properties: None,
) -> bytes:
    """Build by hand a graph with embedding = mean over time of x and logits = its first `classes` numbers."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axis"], [outputs[1]], keepdims=0),
        helper.make_node("Gather", [outputs[1], "first"], [outputs[0]], axis=1),
    ]
    constants = [
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("first", TensorProto.INT64, [classes], range(classes)),
    ]
    widths = dict(zip(outputs, (classes, 6), strict=True))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", w]) for n, w in widths.items()],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    properties = (says or metadata("m")).to_properties()
    edit(properties)
    onnx.helper.set_model_props(model, properties)
    return bytes(model.SerializeToString())


SESSION = Session.load(model_bytes())


def samples(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)


def test_predictions_by_hand() -> None:
    x = np.stack([np.tile(np.float32([0, 3, 1, 2, 7, 8]), (128, 1)), np.tile(np.float32([5, 0, 0, 0, 0, 0]), (128, 1))])
    result = SESSION.predict(x)
    assert result.labels == ("walk", "rest")
    np.testing.assert_allclose(result.embedding, x[:, 0], rtol=1e-6)
    np.testing.assert_allclose(result.logits, x[:, 0, :4], rtol=1e-6)
    np.testing.assert_allclose(result.probabilities[0], np.exp([0, 3, 1, 2]) / np.exp([0, 3, 1, 2]).sum(), rtol=1e-5)


def test_many_windows_and_none() -> None:
    x = np.random.default_rng(0).normal(size=(600, 128, 6))
    np.testing.assert_allclose(SESSION.predict(x).embedding, x.mean(axis=1), atol=1e-6)
    none = SESSION.predict(x[:0])
    assert none.labels == ()
    assert none.probabilities.shape == (0, 4)
    assert none.embedding.shape == (0, 6)


def test_large_logits_do_not_overflow() -> None:
    result = SESSION.predict(np.full((1, 128, 6), 1000.0))
    np.testing.assert_allclose(result.probabilities, 0.25)


@pytest.mark.parametrize("shape", [(128, 6), (2, 6, 128), (2, 127, 6)])
def test_windows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected \(n, 128, 6\)"):
        SESSION.predict(np.zeros(shape))


def test_windows_that_are_not_finite_are_refused() -> None:
    bad = samples(128)[None]
    bad[0, 3, 2] = np.nan
    with pytest.raises(InputError, match="not finite"):
        SESSION.predict(bad)


def test_metadata_name_the_filter_and_the_axes() -> None:
    """As another program reads them, in plain JSON."""
    says = json.loads(metadata("m").to_properties()["input"])
    assert (says["filter"]["name"], says["filter"]["cutoff_hz"]) == ("low-pass, windowed sinc", 22.0)
    assert says["filter"]["slower"].startswith("below 0.9 of rate_hz: least-squares interpolation")
    assert says["axes"].startswith("x right, y up, z out of the screen, right-handed")
    assert (says["rate_hz"], says["gravity"], says["units"][::5]) == (50.0, "included", ["m/s^2", "rad/s"])
    assert says["masked"] == []
    assert metadata("m").input.filter == LowPass()
    assert LowPass().describe() == (
        "low-pass 22 Hz (windowed sinc, half-width 0.13 s); sensors below 0.9 of rate_hz: least-squares "
        "interpolation, up to 0.42 of the sensor's own rate"
    )


def test_metadata_round_trip() -> None:
    says = metadata("m", scores={"macro_f1": 0.25}, federation="läufer", parent_sha256="ab" * 32)
    assert Session.load(model_bytes(says)).metadata == says


def test_a_file_says_whether_sensors_of_the_windows_rate_were_low_passed() -> None:
    """One that always low-passes is as files were before there was a choice."""
    settings = PipelineSettings(anti_alias="downsampling")
    says = metadata("m", input=settings.input_spec((0.0,) * 6, (1.0,) * 6))
    session = Session.load(model_bytes(says))
    assert PipelineSettings.of(session.metadata.input) == settings
    assert session.metadata.input.filter.describe().endswith(
        "sensors below 1.1 of rate_hz: least-squares interpolation, up to 0.42 of the sensor's own rate"
    )
    assert "anti_alias" not in json.loads(metadata("m").to_properties()["input"])["filter"]


def described(**changes: Any) -> Callable[[dict[str, str]], object]:
    """Change fields of the input's description in a file."""
    return lambda p: p.update(input=json.dumps(json.loads(p["input"]) | changes))


REFUSED: list[tuple[bytes, str]] = [
    (b"not a model", "cannot load"),
    (b"", "cannot load"),
    (model_bytes(edit=lambda p: p.clear()), "schema is None; expected 'gaitway-model/1'"),
    (model_bytes(edit=lambda p: p.update(schema="gaitway-model/2")), "gaitway-model/2"),
    (model_bytes(edit=lambda p: p.pop("input")), "lacks input"),
    (model_bytes(edit=lambda p: p.update(input="[1, 2")), "not JSON"),
    (model_bytes(edit=lambda p: p.update(labels='"ab"')), "labels"),
    (model_bytes(edit=lambda p: p.update(round='"1"')), "round"),
    (model_bytes(edit=lambda p: p.update(input="5")), "input is 5"),
    (model_bytes(edit=described(surprise=5)), "expected an object of kind, shape"),
    (model_bytes(edit=described(mean=5)), "mean"),
    (model_bytes(edit=described(mean=[1, 2, 3, 4, 5, None])), "mean"),
    (model_bytes(edit=described(std=[0] * 6)), "std"),
    (model_bytes(edit=described(stride=0)), "stride"),
    (model_bytes(edit=described(rate_hz=None)), "rate_hz"),
    (model_bytes(edit=described(kind="sound")), "kind"),
    (model_bytes(edit=described(kind="image")), "shape"),
    (model_bytes(edit=described(shape=[64, 6])), r"expected x: float32 \[batch, 64, 6\]"),
    (model_bytes(edit=described(channels=["a"])), "channels"),
    (model_bytes(edit=described(axes="x left")), "input's axes is 'x left'"),
    (model_bytes(edit=described(gravity="removed")), "gravity"),
    (model_bytes(edit=described(masked=["acc_x"])), "masked"),
    (model_bytes(edit=described(filter=None)), "filter"),
    (model_bytes(edit=described(filter={"cutoff_hz": 22})), "filter"),
    (model_bytes(edit=described(filter=asdict(LowPass(name="median")))), "filter"),
    (model_bytes(edit=described(filter=asdict(LowPass(half_width_s=0.05)))), "filter"),
    (model_bytes(edit=described(filter=asdict(LowPass()) | {"cutoff_hz": "22"})), "filter"),
    (model_bytes(edit=described(filter=asdict(LowPass()) | {"anti_alias": "downsampling"})), "filter"),
    (model_bytes(edit=described(filter=asdict(LowPass()) | {"anti_alias": "never"})), "filter"),
    (model_bytes(edit=described(channels=list("abcdef"))), "channels"),
    (model_bytes(shape=("batch", 100, 6)), r"inputs are .*100.*expected x: float32 \[batch, 128, 6\]"),
    (model_bytes(shape=(2, 128, 6)), "fixed at 2"),
    (model_bytes(classes=3), r"expected logits \[batch, 4\]"),
    (model_bytes(outputs=("logits", "features")), "outputs are"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        Session.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        Session.load(tmp_path / "none.onnx")


def test_the_runtime_does_without_torch_and_our_other_packages() -> None:
    code = "import sys, export.runtime; print(sorted({'torch', 'models', 'onnx', 'onnxscript'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_runtime_reports_its_use_to_nobody() -> None:
    """Where it may report it, it looks for a place for its id first, and says that there is none."""
    code = "import export.runtime, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    nowhere = {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"}
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"} | nowhere
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == ("1\n", "")
