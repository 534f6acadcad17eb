"""Exports a trained model: makes the graph, runs the gates, and only then writes the file."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from torch import nn

from export.fixed_shapes import with_accelerated_operators
from export.gates import (
    BATCHES,
    Floats,
    Int8Quality,
    Labels,
    Parity,
    check_count,
    check_int8,
    check_parity,
    latency_ms,
    score_of,
)
from export.graph import ExportModule, float32_graph, int8_graph, ready_graph, with_weights
from export.runtime import EMBEDDING_COLUMNS, GateError, InputError, ModelMetadata, Session
from federation.errors import SettingsError
from federation.tasks import task_from_json
from federation.tasks.task import Task
from gaitway.files import written_whole
from models.checkpoint import CheckpointInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class File:
    """One written file: its size, and the median latency of one example on one thread here."""

    path: str
    bytes: int
    latency_ms: float


@dataclass(frozen=True)
class BatchEvaluation:
    """The exported, batch-independent ALP against the paper's batch-coupled plan (batches of 64) in torch."""

    argmax_agreement: float
    score_row: float | None
    score_plan: float | None


@dataclass(frozen=True)
class ExportReport:
    """What was written and how it did; `examples_from` says what the gates ran on, `metric` what a score is."""

    float32: File
    examples: int
    examples_from: str
    parity: Parity
    batches: tuple[int, ...]
    metric: str
    score: float | None
    alp: BatchEvaluation | None
    int8: File | None = None
    int8_quality: Int8Quality | None = None
    fixed: File | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return asdict(self)


def export_onnx(
    module: nn.Module,
    path: Path | str,
    *,
    metadata: ModelMetadata,
    examples: NDArray[Any],
    labels: NDArray[Any] | None = None,
    examples_from: str = "the caller",
    int8: bool = False,
    allow_few: bool = False,
) -> ExportReport:
    """Write `path`, and with int8 also `path` with the suffix `.int8.onnx`, if every gate passes.

    examples (n, *metadata.input.shape) raw, in its units, n ≥ 256 (16 images that are segmented) unless allow_few;
    labels (n,) class numbers, or (n, height, width) of pixels, or (n,) numbers as the task has them, or None.
    The module is not changed. Raises GateError or InputError, and then leaves no file behind.
    """
    path = Path(path)
    metadata = with_columns(metadata, module)
    metadata.check()
    task = _task_of(metadata)
    x, y = _checked(examples, labels, metadata, task)
    check_count(x, allow_few, metadata.answered.min_gate_examples)
    deployed = ExportModule(module, metadata)
    graph = float32_graph(deployed, metadata)
    content = {path: graph.SerializeToString()}
    exact = Session.load(content[path])
    reference = deployed.logits(x)
    parity = check_parity(exact, x, reference, task)
    quality, quantized, int8_path = None, None, path.with_suffix(".int8.onnx")
    if int8:
        content[int8_path] = int8_graph(graph).SerializeToString()
        quantized = Session.load(content[int8_path])
        quality = check_int8(quantized, exact, x, y, task)
    sizes = {p: len(data) for p, data in content.items()}
    _write_all(content)
    report = ExportReport(
        float32=File(str(path), sizes[path], latency_ms(exact, x)),
        examples=len(x),
        examples_from=examples_from,
        parity=parity,
        batches=BATCHES,
        metric=task.primary_metric,
        score=None if y is None else score_of(task, reference, y),
        alp=_against_batches(deployed, x, y, reference, task),
    )
    if quantized:
        file = File(str(int8_path), sizes[int8_path], latency_ms(quantized, x))
        return replace(report, int8=file, int8_quality=quality)
    return report


def export_fixed_shapes(
    module: nn.Module, path: Path, *, metadata: ModelMetadata, examples: NDArray[Any], allow_few: bool = False
) -> File:
    """Write `path` with the suffix `.fixed.onnx`, one example at a time for phones' accelerators, if the gate passes.

    Arguments and errors are those of `export_onnx`.
    """
    path, metadata = path.with_suffix(".fixed.onnx"), with_columns(metadata, module)
    metadata.check()
    task = _task_of(metadata)
    x, _ = _checked(examples, None, metadata, task)
    check_count(x, allow_few, metadata.answered.min_gate_examples)
    deployed = ExportModule(module, metadata)
    graph = with_accelerated_operators(float32_graph(deployed, metadata, fixed=True))
    data = graph.SerializeToString()
    session = Session.load(data)
    check_parity(session, x, deployed.logits(x), task)
    _write_all({path: data})
    return File(str(path), len(data), latency_ms(session, x))


@dataclass(frozen=True)
class ExportedNetwork:
    """An ONNX file that may come from elsewhere, and the network that it was exported of."""

    path: Path
    module: nn.Module


def export_variants(
    modules: Mapping[Path, nn.Module],
    *,
    metadata: Mapping[Path, ModelMetadata],
    examples: NDArray[Any],
    examples_from: str = "the caller",
    allow_few: bool = False,
    exported: ExportedNetwork | None = None,
) -> dict[Path, ExportReport]:
    """Write a file for each of some networks that differ in weights alone, such as their heads: one graph is exported.

    exported: an export of another such network, whose graph is used if it is one, and with it all gates are passed.
    Every file passes the gates of `export_onnx`, whose arguments these are. Raises GateError or InputError, and then
    leaves no file behind.
    """
    make = partial(
        _variants, modules, metadata=metadata, examples=examples, examples_from=examples_from, allow_few=allow_few
    )
    graph = ready_graph(exported.path) if exported else None
    if exported is not None and graph is not None:
        try:
            return make(first=(graph, exported.module))
        except (GateError, InputError, RuntimeError) as error:
            log.info("the network's ONNX file is not used, so its graph is exported again: %s", error)
    return make()


def _variants(
    modules: Mapping[Path, nn.Module],
    *,
    metadata: Mapping[Path, ModelMetadata],
    examples: NDArray[Any],
    examples_from: str,
    allow_few: bool,
    first: tuple[ModelProto, nn.Module] | None = None,
) -> dict[Path, ExportReport]:
    metadata = {path: with_columns(metadata[path], module) for path, module in modules.items()}
    any_of_them = next(iter(metadata.values()))
    any_of_them.check()
    task = _task_of(any_of_them)
    x, _ = _checked(examples, None, any_of_them, task)
    check_count(x, allow_few, any_of_them.answered.min_gate_examples)
    deployed = {path: ExportModule(module, metadata[path]) for path, module in modules.items()}
    if first is None:
        began = next(iter(deployed.values()))
        graph, variant = float32_graph(began, any_of_them), _variant
    else:
        graph, began, variant = first[0], ExportModule(first[1], any_of_them), with_weights
    content, reports = {}, {}
    for path, module in deployed.items():
        content[path] = variant(graph, began, module, metadata[path]).SerializeToString()
        exact, reference = Session.load(content[path]), module.logits(x)
        reports[path] = ExportReport(
            float32=File(str(path), len(content[path]), latency_ms(exact, x)),
            examples=len(x),
            examples_from=examples_from,
            parity=check_parity(exact, x, reference, task),
            batches=BATCHES,
            metric=task.primary_metric,
            score=None,
            alp=_against_batches(module, x, None, reference, task),
        )
    _write_all(content)
    return reports


def _variant(graph: ModelProto, first: ExportModule, other: ExportModule, metadata: ModelMetadata) -> ModelProto:
    try:
        return with_weights(graph, first, other, metadata)
    except GateError:  # the exporter has folded a weight into another: this one needs a graph of its own
        return float32_graph(other, metadata)


def metadata_of(info: CheckpointInfo) -> ModelMetadata:
    """Return what the exported file says about itself, from what its checkpoint says."""
    return ModelMetadata(
        labels=info.labels, input=info.input, model=info.model, method=info.method, round=info.round,
        federation=info.federation, parent_sha256=info.parent_sha256, scores=info.scores, task=info.task,
    )  # fmt: skip


def with_columns(metadata: ModelMetadata, module: nn.Module) -> ModelMetadata:
    """Say which columns of the embedding don't depend on how the phone lies or on a gyroscope, if the network does."""
    columns: dict[str, Any] = {name: tuple(getattr(module, name, ())) for name in EMBEDDING_COLUMNS}
    return replace(metadata, **columns)


def _task_of(metadata: ModelMetadata) -> Task:
    try:
        return task_from_json(metadata.task)
    except SettingsError as error:
        raise GateError(f"the model's task: {error}") from None


def _against_batches(
    deployed: ExportModule, x: Floats, y: Labels | None, row: Floats, task: Task
) -> BatchEvaluation | None:
    """Compare with the paper's evaluation; None for a model without ALP."""
    if deployed.alp_layers == 0:
        return None
    plan = deployed.logits(x, "plan")
    scores = (None, None) if y is None else (score_of(task, row, y), score_of(task, plan, y))
    return BatchEvaluation(task.agreement(row, plan), *scores)


def _checked(
    examples: NDArray[Any], labels: NDArray[Any] | None, metadata: ModelMetadata, task: Task
) -> tuple[Floats, Labels | None]:
    x = np.ascontiguousarray(examples, dtype=np.float32)
    if x.shape[1:] != metadata.input.shape or not np.isfinite(x).all():
        raise InputError(f"examples {x.shape}: expected finite {metadata.input.describe()}")
    if labels is None:
        return x, None
    if metadata.measures:
        numbers = np.asarray(labels, dtype=np.float64)
        if numbers.shape != (len(x),) or not np.isfinite(numbers).all():
            raise InputError(f"labels {numbers.shape}: expected {(len(x),)} finite numbers, of {metadata.labels[0]}")
        return x, numbers
    y = np.asarray(labels, dtype=np.int64)
    counted = y if task.outside is None else y[y != task.outside]
    shape = (len(x), *metadata.answer_shape)
    if y.shape != shape or (counted.size and not 0 <= counted.min() <= counted.max() < len(metadata.labels)):
        raise InputError(f"labels {y.shape}: expected {shape} class numbers from 0 to {len(metadata.labels) - 1}")
    return x, y


def _write_all(content: dict[Path, bytes]) -> None:
    """Write temporary files, sync, and rename them all once all are written."""
    with ExitStack() as stack:
        for path, data in content.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(written_whole(path))
            file.write(data)
            file.flush()  # no space for one of them: rename none


__all__ = [
    "BatchEvaluation",
    "ExportReport",
    "ExportedNetwork",
    "File",
    "GateError",
    "export_fixed_shapes",
    "export_onnx",
    "export_variants",
    "metadata_of",
]
