"""The exported file against torch, its gates against models that must fail them, and its metadata."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export import gates, onnx_export
from export.gates import check_int8, check_parity, generated_windows
from export.graph import narrowed
from export.onnx_export import export_onnx
from export.runtime import GateError, InputError, ModelFileError, Session
from federation.tasks.classification import Classification
from gaitway.input_spec import InputSpec
from gaitway.tasks import DEFAULT_TASK
from gaitway.tasks.classification import macro_f1
from models import ModelOutput
from models.layers.alp import ALP, set_inference
from models.registry import alp_models
from tests.export.conftest import MEAN, STD, Exported, metadata, trained, waves

TASK = DEFAULT_TASK()


def torch_logits(module: nn.Module, raw: np.ndarray) -> np.ndarray:
    """Normalise in numpy and run the module by itself: nothing of the exporter is in this path."""
    set_inference(module, "row")
    with torch.no_grad():
        x = torch.from_numpy((raw - np.float32(MEAN)) / np.float32(STD))
        return module.eval()(x).logits.numpy()


def test_the_file_computes_what_torch_does_on_raw_windows(exported: Exported) -> None:
    x, _ = waves(64, 9)
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    wanted = torch_logits(exported.module, x)
    for size in (1, 2, 7, 64):
        logits, embedding = session.run(["logits", "embedding"], {"x": x[:size]})
        np.testing.assert_allclose(logits, wanted[:size], atol=1e-4)
        assert embedding.shape == (size, 192)


def test_an_empty_batch_has_no_answers(exported: Exported) -> None:
    for path in (exported.path, exported.path.with_name("model.int8.onnx")):
        none = Session.load(path).predict(np.zeros((0, 128, 6), np.float32))
        assert none.labels == ()
        assert none.logits.shape == none.probabilities.shape == (0, 4)
        assert len(none.embedding) == 0


def test_the_model_learned_so_the_scores_mean_something(exported: Exported) -> None:
    assert exported.report.score is not None
    assert exported.report.score > 0.8


def test_the_file_format(exported: Exported) -> None:
    graph = onnx.load(str(exported.path))
    assert [p.name for p in sorted(exported.path.parent.iterdir())] == ["model.int8.onnx", "model.onnx"]
    assert graph.ir_version <= 10
    assert [(o.domain, o.version) for o in graph.opset_import] == [("", 18)]
    shape = graph.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in shape] == ["batch", 128, 6]
    assert graph.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    properties = {p.key: p.value for p in graph.metadata_props}
    assert properties["schema"] == "gaitway-model/1"
    assert json.loads(properties["labels"]) == ["rest", "walk", "jog", "run"]
    assert json.loads(properties["versions"])["torch"] == torch.__version__
    wanted = "input model method round federation parent_sha256 scores"
    assert set(wanted.split()) < properties.keys()


def test_the_report(exported: Exported) -> None:
    report = exported.report
    assert (report.examples, report.batches) == (300, (1, 2, 7))
    assert report.parity.max_logit_delta <= 1e-4
    assert report.parity.argmax_agreement == 1.0
    assert report.float32.bytes == exported.path.stat().st_size
    assert report.int8 is not None
    assert report.int8.bytes == Path(report.int8.path).stat().st_size < 0.75 * report.float32.bytes
    assert report.int8_quality is not None
    assert report.int8_quality.argmax_agreement >= 0.99
    assert min(report.float32.latency_ms, report.int8.latency_ms) > 0
    assert (report.alp is not None) == (exported.name in alp_models())
    assert json.loads(json.dumps(report.to_json()))["examples"] == 300


def test_alp_by_row_is_compared_with_the_papers_batches(exported: Exported) -> None:
    x, y = waves(300, 2)
    if exported.report.alp is None:
        assert exported.name not in alp_models()
        return
    row = torch_logits(exported.module, x).argmax(axis=1)
    set_inference(exported.module, "plan")
    with torch.no_grad():
        normal = torch.from_numpy((x - np.float32(MEAN)) / np.float32(STD))
        plan = torch.cat([exported.module(part).logits for part in normal.split(64)]).numpy().argmax(axis=1)
    assert exported.report.alp.argmax_agreement == pytest.approx(np.mean(row == plan))
    assert exported.report.alp.score_row == pytest.approx(macro_f1(y, row))
    assert exported.report.alp.score_plan == pytest.approx(macro_f1(y, plan))


class Linear(nn.Module):
    """A small module of the models' interface."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> ModelOutput:
        features = x.mean(dim=1)
        return ModelOutput(features, self.project(features))


def broken_after_export(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let the exporter's graph differ from the torch module by `change`(weight)."""
    genuine = onnx_export.float32_graph

    def broken(deployed: Any, described: Any) -> Any:
        graph = genuine(deployed, described)
        with torch.no_grad():
            change(deployed.module.project.weight)
        return graph

    monkeypatch.setattr(onnx_export, "float32_graph", broken)


@pytest.mark.ci
@pytest.mark.parametrize("value", [1.01, float("nan")])
def test_a_graph_that_differs_from_torch_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    broken_after_export(monkeypatch, lambda weight: weight.mul_(value))
    x, _ = waves(256, 3)
    with pytest.raises(GateError, match="float32 parity on 256 examples"):
        export_onnx(Linear(), tmp_path / "m.onnx", metadata=metadata("linear"), examples=x)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_a_failing_int8_gate_leaves_neither_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ruined(graph: onnx.ModelProto) -> onnx.ModelProto:
        other = onnx.ModelProto()
        other.CopyFrom(graph)
        for tensor in other.graph.initializer:
            if tensor.name.endswith("project.weight"):
                tensor.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), tensor.name))
        return other

    monkeypatch.setattr(onnx_export, "int8_graph", ruined)
    x, _ = waves(256, 3)
    with pytest.raises(GateError, match="int8 agrees with float32"):
        export_onnx(Linear(), tmp_path / "m.onnx", metadata=metadata("linear"), examples=x, int8=True)
    assert list(tmp_path.iterdir()) == []


class FixedLogits:
    """Stands in for a session: returns given logits, whatever the windows."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits

    def predict(self, windows: np.ndarray) -> "FixedLogits":
        return FixedLogits(self.logits[: len(windows)])


def test_int8_gates_by_agreement_and_by_score() -> None:
    y = np.arange(1000) % 4
    exact = np.eye(4, dtype=np.float32)[y]
    worse = exact.copy()
    worse[: 9 * 4 : 4] = np.eye(4, dtype=np.float32)[1]
    x = np.zeros((1000, 128, 6), np.float32)
    quality = check_int8(FixedLogits(worse), FixedLogits(exact), x, None, Classification())
    assert quality.argmax_agreement == pytest.approx(0.991)
    with pytest.raises(GateError, match="macro-F1"):
        check_int8(FixedLogits(worse), FixedLogits(exact), x, y, Classification())
    worse[36:60:4] = np.eye(4, dtype=np.float32)[1]
    with pytest.raises(GateError, match=r"98\.50%"):
        check_int8(FixedLogits(worse), FixedLogits(exact), x, None, Classification())


def test_a_graph_whose_output_depends_on_the_batch_is_refused() -> None:
    class Coupled(FixedLogits):
        def predict(self, windows: np.ndarray) -> FixedLogits:
            return FixedLogits(np.full((len(windows), 4), 1e-3 if len(windows) == 7 else 0.0))

    with pytest.raises(GateError, match="depends on the batch"):
        check_parity(Coupled(np.zeros(0)), np.zeros((300, 128, 6), np.float32), np.zeros((300, 4), np.float32), TASK)


@pytest.mark.ci
def test_too_few_windows_need_a_word(tmp_path: Path) -> None:
    x, _ = waves(8, 3)
    with pytest.raises(GateError, match=r"8 examples .* at least 256"):
        export_onnx(Linear(), tmp_path / "m.onnx", metadata=metadata("linear"), examples=x)
    report = export_onnx(Linear(), tmp_path / "m.onnx", metadata=metadata("linear"), examples=x, allow_few=True)
    assert report.examples == 8
    with pytest.raises(GateError, match="0 examples"):
        export_onnx(Linear(), tmp_path / "n.onnx", metadata=metadata("linear"), examples=x[:0], allow_few=True)


def test_wrong_windows_labels_and_metadata_are_refused(tmp_path: Path) -> None:
    x, y = waves(256, 3)
    path = tmp_path / "m.onnx"
    with pytest.raises(InputError, match=r"\(256, 6, 128\)"):
        export_onnx(Linear(), path, metadata=metadata("linear"), examples=x.transpose(0, 2, 1))
    with pytest.raises(InputError, match="0 to 3"):
        export_onnx(Linear(), path, metadata=metadata("linear"), examples=x, labels=y + 1)
    with pytest.raises(ModelFileError, match="std"):
        export_onnx(
            Linear(), path, metadata=replace(metadata("linear"), input=InputSpec.windows(MEAN, (0.0,) * 6)), examples=x
        )
    with pytest.raises(ModelFileError, match="expected logits"):
        export_onnx(Linear(), path, metadata=metadata("linear", labels=("a", "b")), examples=x)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_the_module_is_not_changed_by_its_export(tmp_path: Path) -> None:
    module = trained("har_cnn_alp", steps=0).train()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    export_onnx(module, tmp_path / "m.onnx", metadata=metadata("x"), examples=waves(8, 3)[0], allow_few=True)
    assert module.training
    assert {layer.inference for layer in module.modules() if isinstance(layer, ALP)} == {"plan"}
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_generated_windows_are_physical_and_repeatable() -> None:
    x = generated_windows(50, seed=4)
    assert x.shape == (50, 128, 6)
    assert np.array_equal(x, generated_windows(50, seed=4))
    norm = np.linalg.norm(x[..., :3].mean(axis=1), axis=-1)
    assert 7 < np.median(norm) < 13
    assert np.abs(x).max() < 100


def test_gate_thresholds_are_those_of_the_specification() -> None:
    assert (TASK.min_gate_examples, TASK.min_agreement) == (256, 1)
    found = (gates.MAX_LOGIT_DELTA, gates.MIN_INT8_AGREEMENT, TASK.max_score_loss, gates.BATCHES)
    assert found == (1e-4, 0.99, 0.005, (1, 2, 7))


@pytest.mark.data
def test_the_parity_gate_holds_on_real_recordings(gaitway_data: Path, exported: Exported) -> None:
    files = sorted(gaitway_data.glob("motionsense/sample/A_DeviceMotion_data/*/sub_1.csv"))
    if not files:
        pytest.skip(f"no MotionSense sample under {gaitway_data}")
    # Attitude, gravity in g, rotation in rad/s, user acceleration in g, each xyz, after a row number.
    columns = [np.genfromtxt(file, delimiter=",", skip_header=1) for file in files]
    recordings = [np.hstack([9.80665 * (c[:, 4:7] + c[:, 10:13]), c[:, 7:10]]).astype(np.float32) for c in columns]
    x = np.stack([r[i : i + 128] for r in recordings for i in range(0, len(r) - 128, 16)])
    assert len(x) >= TASK.min_gate_examples
    check_parity(Session.load(exported.path), x, torch_logits(exported.module, x), TASK)


def _int8(exported: Exported) -> onnx.ModelProto:
    return onnx.load(exported.path.with_suffix(".int8.onnx"))


def test_every_kernel_is_stored_as_int8_and_none_in_float32(exported: Exported) -> None:
    graph = _int8(exported).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kernels = [node.input[1] for node in graph.node if node.op_type == "Conv"]
    assert bool(kernels) == exported.name.startswith("har_cnn")
    for name in kernels:
        assert name not in stored
        assert stored[f"{name}.int8"].dtype == np.int8


def test_kernels_are_widened_when_the_file_is_loaded_not_for_every_window(exported: Exported, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(_int8(exported).SerializeToString(), options, providers=["CPUExecutionProvider"])
    left = [node.name for node in onnx.load(tmp_path / "loaded.onnx").graph.node]
    assert not [name for name in left if name.endswith((".wide", ".widened"))]


def test_a_file_says_nothing_of_the_machine_that_wrote_it(exported: Exported) -> None:
    content = exported.path.read_bytes()
    for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]):
        assert str(folder).encode() not in content
    assert b"stack_trace" not in content


def test_narrowed_kernels_are_off_by_half_a_scale_at_most() -> None:
    kernel = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32) * np.float32(10.0) ** np.arange(
        -3, 2, dtype=np.float32
    ).reshape(5, 1, 1)
    kernel[2] = 0
    small, scale = narrowed(kernel)
    assert (small.dtype, small.shape, scale.shape) == (np.int8, (5, 3, 4), (5, 1, 1))
    assert (np.abs(small * scale - kernel) <= 0.501 * scale).all()
    assert np.abs(small).max(axis=(1, 2)).tolist() == [127, 127, 0, 127, 127]
