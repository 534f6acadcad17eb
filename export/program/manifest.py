"""A program's manifest: its graphs with their inputs and outputs, and how a round calls them.

Without torch: devices read it. Names of tensors are paths: `client/params/…`, `client/buffers/…` and
`client/memory/…` are what a client keeps, `broadcast/…` what came, `state/…` what the method's loss needs in the round,
`momenta/…` the optimizer's, `batch/x`, `batch/y` and `batch/mask` a mini-batch, `before/…` and `after/…` the sums over
all examples with the received and the trained model, `upload/…` what travels, `statistics/…` what scores are made of,
`reference/…` what tensors of an upload began from that each round moves on,
`served/params/…` and `served/buffers/…` the one network that a client, or the server's model, serves with.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from federation.plan import TrainingConfig
from gaitway.strict_numbers import StrictNumbers

FORMAT: Final = "gaitway.program/1"
OPSET: Final = 18
IR_VERSION = 9
OUTPUT = "next/"
"""Before the name of each output of a graph: a graph has no two values of one name."""
GRAPHS = (
    "initial",
    "receive",
    "step",
    "statistics",
    "evaluate",
    "upload",
    "reference",
    "serving",
    "global_model",
    "model",
)
MAX_STEPS = 8
"""Graphs of a step: one for each set of parameters that a phase trains."""

# ONNX's operators that a graph may have: none with a body of its own, none that reads or writes anything.
OPERATORS = frozenset(
    {
        *("Abs", "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Pow", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Sign"),
        *("Round", "Floor", "Max", "Min", "Sigmoid", "Tanh", "Relu", "Softmax", "LogSoftmax", "LayerNormalization"),
        *("And", "Or", "Xor", "Not", "Where", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Cast", "Identity", "MatMul", "Conv"),
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "TopK"),
        *("Reshape", "Transpose", "Concat", "Split", "Slice", "Pad", "Expand", "Range"),
        *("Gather", "GatherElements", "ScatterElements", "ScatterND"),
    }
)

DTYPES: dict[str, Literal["float32", "float64", "int32", "int64", "bool"]] = {
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
}
Name = Annotated[str, Field(min_length=1, max_length=512)]
Side = Annotated[int, Field(ge=0, le=1 << 31)]


class ManifestRecord(StrictNumbers, BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorType(ManifestRecord):
    """Type and shape of one tensor."""

    dtype: Literal["float32", "float64", "int32", "int64", "bool"]
    shape: Annotated[tuple[Side, ...], Field(max_length=8)]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class GraphEntry(ManifestRecord):
    """One graph: its file in the archive, and its inputs and outputs by their paths.

    `passed` are the outputs that are inputs as they came; where nothing is computed there is no file.
    """

    file: Name | None = Field(default=None, pattern=r"^[a-z0-9_]{1,40}\.onnx$")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    nodes: int = Field(default=0, ge=0)
    inputs: dict[Name, TensorType] = Field(default_factory=dict)
    outputs: dict[Name, TensorType] = Field(default_factory=dict)
    passed: dict[Name, Name] = Field(default_factory=dict)


class PhaseEntry(ManifestRecord):
    """A stretch of local training with a fresh optimizer: epochs of the graph `step`, at `rate` times the plan's lr."""

    step: Name
    epochs: int = Field(ge=0, le=10_000)
    rate: float = Field(ge=0, le=1e6, allow_inf_nan=False)
    plain_sgd: bool = False
    """Whether its steps are plain gradient steps, whatever the plan's optimizer."""
    momenta: dict[Name, TensorType]
    """All of them begin at zero."""


class Manifest(ManifestRecord):
    """Everything that a host needs besides the client, the broadcast and the examples."""

    format: Literal["gaitway.program/1"] = FORMAT
    opset: Literal[18] = OPSET
    model: dict[str, Any]
    method: dict[str, Any]
    task: dict[str, Any]
    training: TrainingConfig
    rounds: int | None = None
    """Of the federation, for a schedule of learning rates."""
    x: TensorType
    """A mini-batch of examples, as the network takes them: shorter ones are padded and masked."""
    y: TensorType
    statistics_batch: int = Field(ge=1, le=65_536)
    evaluation_batch: int = Field(ge=1, le=65_536)
    client: dict[Name, TensorType]
    """What a client keeps between rounds, `client/…`; the graph `initial` gives what `receive` does not."""
    noise: tuple[Name, ...]
    """Those of them that hold where dropout's masks begin, set anew in each round (`federation.seeds.noise_seed`)."""
    broadcast: dict[Name, TensorType]
    upload: dict[Name, TensorType]
    sums: dict[Name, TensorType]
    """What is summed over all examples, without `before/` or `after/`; all of them begin at zero."""
    sums_at: tuple[Literal["before", "after"], ...]
    phases: Annotated[tuple[PhaseEntry, ...], Field(max_length=64)]
    uses_partial_work: bool = False
    """Whether what a straggler did is aggregated unless the round's settings say otherwise."""
    served: dict[Name, TensorType] = Field(default_factory=dict)
    """The network that a client serves with, by names of the graph `model`; none: devices have no use for one."""
    has_global_model: bool = False
    untrained_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """`digest_of` the server's model as the plan's seed gives it."""
    answers_alike: bool = False
    """Whether the graph `model` answers an example as `evaluate` does: not where scores are a method's own, or an
    example's depends on its batch."""
    graphs: dict[Name, GraphEntry]

    @model_validator(mode="after")
    def _graphs_that_are_called_are_there(self) -> Manifest:
        steps = {phase.step for phase in self.phases}
        unserved = () if self.served else ("serving", "global_model", "model")
        wanted = {name for name in GRAPHS if name != "step" and name not in unserved} | steps
        if set(self.graphs) != wanted or len(steps) > MAX_STEPS:
            raise ValueError(f"graphs are {sorted(self.graphs)}; expected {sorted(wanted)}")
        return self


def digest_of(values: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of arrays by their names, types, shapes and bytes, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(values):
        value = np.ascontiguousarray(values[name])
        found.update(f"{name} {value.dtype.name} {value.shape}\n".encode())
        found.update(value.tobytes())
    return found.hexdigest()
