"""Inference with an exported model: numpy and ONNX Runtime only, for devices without torch.

The file says everything that is needed (labels, rate, window, normalisation is inside the graph), and `Session.load`
refuses one that does not. Errors: ExportError > ModelFileError, InputError; GateError is the exporter's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, get_origin

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from gaitway.errors import GaitwayError

SCHEMA = "gaitway-har/1"
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
_BATCH = 256
_OUTPUTS = ("logits", "embedding")
# JSON has one kind of number: 50 and 50.0 are the same rate.
_KINDS: dict[Any, Any] = {tuple: tuple, dict: dict, str: str, int: int, float: (int, float)}
_LOAD_ERRORS = (
    ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.InvalidGraph, ort_errors.InvalidProtobuf,
    ort_errors.NotImplemented, ort_errors.RuntimeException, ort_errors.NoSuchFile,
)  # fmt: skip

Floats = NDArray[np.float32]


class ExportError(GaitwayError):
    """Root of everything that this package raises on purpose."""


class ModelFileError(ExportError):
    """The file is not a model of this schema, or contradicts its own metadata."""


class InputError(ExportError, ValueError):
    """Windows have another shape than the model's, or are not finite."""


@dataclass(frozen=True)
class ModelMetadata:
    """What an exported file says about itself, in ONNX metadata properties, one JSON value each.

    `mean` and `std` (6 numbers, m/s² and rad/s) are for information: the graph applies them.
    """

    labels: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    model: str = ""
    method: str = ""
    round: int = 0
    federation: str = ""
    parent_sha256: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rate_hz: float = 50.0
    window: int = 128
    stride: int = 64
    channels: tuple[str, ...] = CHANNELS
    units: tuple[str, ...] = ("m/s^2", "m/s^2", "m/s^2", "rad/s", "rad/s", "rad/s")
    gravity: str = "included"

    def to_properties(self) -> dict[str, str]:
        """Return the metadata properties, `schema` among them."""
        return {"schema": SCHEMA} | {name: json.dumps(value) for name, value in asdict(self).items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "ModelMetadata":
        """Read and check the properties of a file; raises ModelFileError."""
        if properties.get("schema") != SCHEMA:
            raise ModelFileError(f"schema is {properties.get('schema')!r}; expected {SCHEMA!r}")
        names = [f.name for f in fields(cls)]
        missing = [name for name in names if name not in properties]
        if missing:
            raise ModelFileError(f"metadata lacks {', '.join(missing)}")
        try:
            values = {name: json.loads(properties[name]) for name in names}
        except ValueError as error:
            raise ModelFileError(f"metadata is not JSON: {error}") from None
        tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        for name, annotation in cls.__annotations__.items():
            origin: Any = get_origin(annotation)
            kind = _KINDS[annotation if origin is None else origin]
            _require(isinstance(tuples[name], kind), name, tuples[name])
        metadata = cls(**tuples)
        metadata.check()
        return metadata

    def check(self) -> None:
        """Raise ModelFileError where the fields do not describe windows of six channels."""
        _require(len(self.labels) > 1 and all(isinstance(n, str) for n in self.labels), "labels", self.labels)
        _require(self.channels == CHANNELS, "channels", self.channels)
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            ok = len(numbers) == len(CHANNELS) and all(isinstance(n, (int, float)) for n in numbers)
            _require(ok and bool(np.isfinite(numbers).all()), name, numbers)
        _require(min(self.std) > 0, "std", self.std)
        for name, size in (("window", self.window), ("stride", self.stride)):
            _require(size > 0, name, size)
        _require(self.rate_hz > 0, "rate_hz", self.rate_hz)


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise ModelFileError(f"metadata {name} is {value!r}; that does not describe a model of {SCHEMA!r}")


class Prediction(NamedTuple):
    """Of n windows: the likeliest labels (n), logits and probabilities (n, C), embedding (n, D)."""

    labels: tuple[str, ...]
    logits: Floats
    probabilities: Floats
    embedding: Floats


class Session:
    """A loaded model; `metadata` describes it."""

    def __init__(self, session: onnxruntime.InferenceSession, metadata: ModelMetadata) -> None:
        self._session = session
        self.metadata = metadata

    @classmethod
    def load(cls, source: Path | str | bytes, *, threads: int = 1) -> "Session":
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
        except _LOAD_ERRORS as error:
            raise ModelFileError(f"{name}: ONNX Runtime cannot load it: {error}") from None
        try:
            metadata = ModelMetadata.from_properties(properties)
            _check_graph(session, metadata)
        except ModelFileError as error:
            raise ModelFileError(f"{name}: {error}") from None
        return cls(session, metadata)

    def predict(self, windows: NDArray[Any]) -> Prediction:
        """Classify raw windows (n, 128, 6) in m/s² and rad/s; raises InputError."""
        x = self._checked(windows, (self.metadata.window, len(CHANNELS)))
        # An empty batch gives (0, C) and (0, D). What follows the run costs a small network as much as the run does.
        outputs = [self._session.run(_OUTPUTS, {"x": x[i : i + _BATCH]}) for i in range(0, max(1, len(x)), _BATCH)]
        logits, embedding = outputs[0] if len(outputs) == 1 else map(np.concatenate, zip(*outputs, strict=True))
        labels = tuple(self.metadata.labels[i] for i in logits.argmax(axis=1))
        return Prediction(labels, logits, _softmax(logits), embedding)

    def _checked(self, values: NDArray[Any], tail: tuple[int, ...]) -> Floats:
        x = np.ascontiguousarray(values, dtype=np.float32)
        if x.shape[1:] != tail:
            raise InputError(f"shape {x.shape}; expected (n, {', '.join(map(str, tail))}) in m/s² and rad/s")
        if not np.isfinite(x).all():
            raise InputError("values that are not finite; drop or repair such samples first")
        return x


def _check_graph(session: onnxruntime.InferenceSession, metadata: ModelMetadata) -> None:
    inputs = {i.name: (i.type, i.shape) for i in session.get_inputs()}
    shape = inputs.get("x", ("", []))
    wanted = [metadata.window, len(CHANNELS)]
    if list(inputs) != ["x"] or shape[0] != "tensor(float)" or shape[1][1:] != wanted:
        raise ModelFileError(f"inputs are {inputs}; expected x: float32 [batch, {wanted[0]}, {wanted[1]}]")
    if not isinstance(shape[1][0], str):
        raise ModelFileError(f"the batch of input x is fixed at {shape[1][0]}; expected it to be free")
    outputs = {o.name: o.shape for o in session.get_outputs()}
    if set(outputs) != {"logits", "embedding"} or outputs["logits"][1:] != [len(metadata.labels)]:
        raise ModelFileError(
            f"outputs are {outputs}; expected logits [batch, {len(metadata.labels)}] and embedding [batch, D]"
        )


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    probabilities: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities
