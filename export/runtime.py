"""Inference with an exported model: numpy and ONNX Runtime only, for devices without torch.

A model classifies examples, segments images, or predicts a number: its metadata's `task` says which.

The file describes itself completely (labels and input; normalization is inside the graph), and `Session.load` rejects
one that doesn't. Errors: ExportError > ModelFileError, InputError; GateError is the exporter's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from gaitway.errors import GaitwayError
from gaitway.input_spec import InputSpec, InputSpecError
from gaitway.tasks import DEFAULT_TASK, TASKS, TargetKind, TaskDefinition, task_of

SCHEMA = "gaitway-model/1"
_KINDS: dict[str, Any] = {
    "labels": list, "input": dict, "round": int, "scores": dict, "versions": dict, "task": dict,
    "orientation_free_columns": list, "gravity_columns": list, "acceleration_columns": list,
}  # fmt: skip
"""Of the JSON values in a file; the others are strings."""
EMBEDDING_COLUMNS = ("orientation_free_columns", "gravity_columns", "acceleration_columns")
_OPTIONAL_FIELDS = frozenset({"task", *EMBEDDING_COLUMNS})
"""What files of the first releases do not have; the default is what they meant."""
_OUTPUTS = ("logits", "embedding")
LOAD_ERRORS = (
    ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.InvalidGraph, ort_errors.InvalidProtobuf,
    ort_errors.NotImplemented, ort_errors.RuntimeException, ort_errors.NoSuchFile,
)  # fmt: skip

Floats = NDArray[np.float32]


class ExportError(GaitwayError):
    """Base of every error that this package raises on purpose."""


class ModelFileError(ExportError):
    """The file is not a model of this schema, or contradicts its own metadata."""


class GateError(ExportError):
    """The exported model didn't pass a gate; no file was written."""


class InputError(ExportError, ValueError):
    """Examples have another shape than the model's, or are not finite."""


@dataclass(frozen=True)
class ModelMetadata:
    """What an exported file says about itself, in ONNX metadata properties, one JSON value each.

    `input` describes raw examples; its mean and std are for information: the graph applies them. Columns are those of
    `embedding` that are the same however the phone is turned, and the standardized means of the acceleration's axes,
    which lie near 0 where the phone lies as most do; none: the network does not say.
    """

    labels: tuple[str, ...]
    input: InputSpec
    model: str = ""
    method: str = ""
    round: int = 0
    federation: str = ""
    parent_sha256: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=lambda: {"name": DEFAULT_TASK.name})
    orientation_free_columns: tuple[int, ...] = ()
    gravity_columns: tuple[int, ...] = ()
    acceleration_columns: tuple[int, ...] = ()

    @property
    def segments(self) -> bool:
        """Whether every pixel gets a class, not every example."""
        return self.answered.target is TargetKind.MASK

    @property
    def measures(self) -> bool:
        """Whether an example is answered with a number, which `labels` names with its unit."""
        return self.answered.target is TargetKind.NUMBER

    @property
    def answered(self) -> TaskDefinition:
        """The task that the model has learnt, which says how its answers are read."""
        return task_of(self.task)

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """The shape of what has a class in one example: () or (height, width)."""
        return self.answered.answer_shape(self.input.shape)

    def to_properties(self) -> dict[str, str]:
        """Return the metadata properties, `schema` among them."""
        values = asdict(self) | {"input": self.input.to_json()}
        return {"schema": SCHEMA} | {name: json.dumps(value) for name, value in values.items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ModelMetadata:
        """Read and check the properties of a file; raises ModelFileError."""
        if properties.get("schema") != SCHEMA:
            raise ModelFileError(f"schema is {properties.get('schema')!r}; expected {SCHEMA!r}")
        names = [f.name for f in fields(cls)]
        missing = [name for name in names if name not in properties and name not in _OPTIONAL_FIELDS]
        if missing:
            raise ModelFileError(f"metadata lacks {', '.join(missing)}")
        try:
            values = {name: json.loads(properties[name]) for name in names if name in properties}
        except ValueError as error:
            raise ModelFileError(f"metadata is not JSON: {error}") from None
        for name, value in values.items():
            _require(isinstance(value, _KINDS.get(name, str)), name, value)
        try:
            taken = InputSpec.from_json(values["input"])
        except InputSpecError as error:
            raise ModelFileError(f"metadata: {error}") from None
        listed = {name: tuple(values[name]) for name in ("labels", *EMBEDDING_COLUMNS) if name in values}
        metadata = cls(**(values | listed | {"input": taken}))
        metadata.check()
        return metadata

    def check(self) -> None:
        """Raise ModelFileError where labels are fewer than the task has, or input or task are none that a model has."""
        for name in EMBEDDING_COLUMNS:
            columns = getattr(self, name)
            _require(all(type(column) is int and column >= 0 for column in columns), name, columns)
        enough = len(self.labels) == 1 if self.measures else len(self.labels) >= self.answered.min_labels
        _require(enough and all(isinstance(n, str) for n in self.labels), "labels", self.labels)
        try:
            self.input.check()
        except InputSpecError as error:
            raise ModelFileError(f"metadata: {error}") from None
        _require(self.task.get("name") in TASKS and self.answered.is_served, "task", self.task)
        _require(self.answered.input_kind in (None, self.input.kind), "task", self.task)


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise ModelFileError(f"metadata {name} is {value!r}; that does not describe a model of {SCHEMA!r}")


class Prediction(NamedTuple):
    """Of n examples: the likeliest labels (n), logits and probabilities (n, C), embedding (n, D).

    Of n images that are segmented: no labels, logits and probabilities (n, C, H, W), embedding (n, D, h, w).
    Of a number: `labels` are the numbers in words, logits (n, 1), probabilities (n, 0), and `numbers` (n,) float64 in
    their own unit, which is None otherwise.
    """

    labels: tuple[str, ...]
    logits: Floats
    probabilities: Floats
    embedding: Floats
    numbers: NDArray[np.float64] | None = None

    @property
    def classes(self) -> NDArray[np.int64]:
        """The likeliest class numbers (n,), or (n, H, W) of pixels."""
        found: NDArray[np.int64] = self.logits.argmax(axis=1)
        return found


class Session:
    """A loaded model; `metadata` describes it."""

    def __init__(self, session: onnxruntime.InferenceSession, metadata: ModelMetadata) -> None:
        self._session = session
        self.metadata = metadata
        self._one_at_a_time = session.get_inputs()[0].shape[0] == 1

    @classmethod
    def load(cls, source: Path | str | bytes, *, threads: int = 1) -> Session:
        """Load a file (or its bytes); raises ModelFileError where it is not a model of this schema."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        name = "the model" if isinstance(source, bytes) else str(source)
        if not isinstance(source, bytes) and not Path(source).is_file():
            raise ModelFileError(f"{name}: no such file")
        try:
            model = source if isinstance(source, bytes) else str(source)
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            properties = session.get_modelmeta().custom_metadata_map
        except LOAD_ERRORS as error:
            raise ModelFileError(f"{name}: ONNX Runtime cannot load it: {error}") from None
        try:
            metadata = ModelMetadata.from_properties(properties)
            _check_graph(session, metadata)
        except ModelFileError as error:
            raise ModelFileError(f"{name}: {error}") from None
        return cls(session, metadata)

    def predict(self, examples: NDArray[Any]) -> Prediction:
        """Classify raw examples (n, *metadata.input.shape) in the units of `metadata.input`; raises InputError.

        Images of any size: `export.images`.
        """
        x, task = self._checked(examples), self.metadata.answered
        rows = 1 if self._one_at_a_time else task.inference_batch
        # An empty batch gives (0, C) and (0, D), by way of one example: some of ONNX Runtime's kernels refuse none.
        given = x if len(x) else np.zeros((1, *x.shape[1:]), np.float32)
        # What follows the run costs a small network as much as the run does.
        outputs = [self._session.run(_OUTPUTS, {"x": given[i : i + rows]}) for i in range(0, max(1, len(x)), rows)]
        logits, embedding = outputs[0] if len(outputs) == 1 else map(np.concatenate, zip(*outputs, strict=True))
        logits, embedding = logits[: len(x)], embedding[: len(x)]
        answers = task.answers(logits)
        labels = () if self.metadata.segments else tuple(task.words(answer, self.metadata.labels) for answer in answers)
        numbers = answers if self.metadata.measures else None
        return Prediction(labels, logits, task.probabilities(logits), embedding, numbers)

    def _checked(self, values: NDArray[Any]) -> Floats:
        x = np.ascontiguousarray(values, dtype=np.float32)
        if x.shape[1:] != self.metadata.input.shape:
            raise InputError(f"shape {x.shape}; expected {self.metadata.input.describe()}")
        if not np.isfinite(x).all():
            raise InputError("values that are not finite; drop or repair such samples first")
        return x


def _check_graph(session: onnxruntime.InferenceSession, metadata: ModelMetadata) -> None:
    inputs = {i.name: (i.type, i.shape) for i in session.get_inputs()}
    shape = inputs.get("x", ("", []))
    wanted = list(metadata.input.shape)
    if list(inputs) != ["x"] or shape[0] != "tensor(float)" or shape[1][1:] != wanted:
        raise ModelFileError(f"inputs are {inputs}; expected x: float32 [batch, {str(wanted)[1:]}")
    if not isinstance(shape[1][0], str) and shape[1][0] != 1:
        raise ModelFileError(f"the batch of input x is fixed at {shape[1][0]}; expected it to be free, or 1")
    outputs = {o.name: o.shape for o in session.get_outputs()}
    answer = [len(metadata.labels), *metadata.answer_shape]
    if set(outputs) != {"logits", "embedding"} or outputs["logits"][1:] != answer:
        sizes = ", ".join(map(str, answer))
        raise ModelFileError(
            f"outputs are {outputs}; expected logits [batch, {sizes}] and embedding [batch, D"
            f"{', height, width' if metadata.segments else ''}]"
        )


class ProgramError(ExportError):
    """A program can't be made, is invalid, or is run with invalid input."""
