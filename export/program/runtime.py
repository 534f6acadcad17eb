"""Runs a program's graphs with numpy and ONNX Runtime, without torch.

Everything is a flat dict of arrays by the manifest's paths. `TrainingProgram.run` takes a graph's inputs out of one and
returns what the graph changes of it, so a round is a handful of such calls (`export.program.host`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from export.program.archive import MAX_FILE_BYTES, ProgramFile, read_program
from export.program.manifest import OUTPUT, GraphEntry, Manifest, TensorType
from export.runtime import LOAD_ERRORS, ProgramError

Arrays = dict[str, NDArray[Any]]
"""Arrays by their paths, such as `client/params/head.0.weight`."""

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
VERSION = str(onnxruntime.__version__)
"""Of ONNX Runtime, whichever of its packages is installed: the one with CUDA has another name."""
_KINDS = {"float": "float32", "double": "float64", "int32": "int32", "int64": "int64", "bool": "bool"}


class TrainingProgram:
    """A checked program; a graph is loaded when it is first run, and kept."""

    def __init__(self, file: ProgramFile, *, threads: int = 1, gpu_memory_mb: int | None = None) -> None:
        self.manifest: Manifest = file.manifest
        self._graphs, self._threads, self._gpu_memory_mb = file.graphs, threads, gpu_memory_mb
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}

    @classmethod
    def load(cls, source: Path | bytes, *, threads: int = 1, gpu_memory_mb: int | None = None) -> TrainingProgram:
        """Read a file or its bytes, to run by CUDA if memory of the GPU is given (0: as much as there is).

        Raises:
            ProgramError: if it is not a program, or not one that may be run.
        """
        if isinstance(source, bytes):
            return cls(read_program(source), threads=threads, gpu_memory_mb=gpu_memory_mb)
        try:
            with source.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ProgramError(f"{source}: {error}; expected a program") from None
        return cls(read_program(data), threads=threads, gpu_memory_mb=gpu_memory_mb)

    def runs_on_gpu(self) -> bool:
        """Whether the CUDA provider could be loaded; without its libraries ONNX Runtime goes on without a word."""
        name = self.manifest.phases[0].step if self.manifest.phases else "evaluate"
        return CUDA in self._session(name, self.manifest.graphs[name]).get_providers()

    def graph(self, name: str) -> bytes:
        """Return a graph's bytes, which were checked."""
        return self._graphs[name]

    def run(self, graph: str, values: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return what a graph makes of the values: those that it computes, and those that it passes on.

        Raises:
            ProgramError: if a value is missing, or ONNX Runtime cannot compute it.
        """
        entry = self.manifest.graphs[graph]
        try:
            passed = {name: values[source] for name, source in entry.passed.items()}
            given = {name: values[name] for name in entry.inputs}
        except KeyError as error:
            raise ProgramError(f"the graph {graph} needs {error}, which is missing") from None
        if entry.file is None:
            return passed
        session = self._session(graph, entry)
        try:
            computed = session.run([OUTPUT + name for name in entry.outputs], given)
        except LOAD_ERRORS as error:
            raise ProgramError(f"the graph {graph} cannot be run: {error}") from None
        return passed | dict(zip(entry.outputs, computed, strict=True))

    def _session(self, name: str, entry: GraphEntry) -> onnxruntime.InferenceSession:
        if name not in self._sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.log_severity_level = 3
            options.use_deterministic_compute = self._gpu_memory_mb is not None
            # the level above lays out convolutions in blocks, which the products here are not: a tenth slower
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            try:
                session = onnxruntime.InferenceSession(self._graphs[name], options, providers=self._providers())
            except LOAD_ERRORS as error:
                raise ProgramError(f"the graph {name} cannot be loaded: {error}") from None
            outputs = {OUTPUT + path: kind for path, kind in entry.outputs.items()}
            _check_ends(name, "inputs", session.get_inputs(), entry.inputs)
            _check_ends(name, "outputs", session.get_outputs(), outputs)
            self._sessions[name] = session
        return self._sessions[name]

    def _providers(self) -> list[str | tuple[str, dict[str, str]]]:
        if self._gpu_memory_mb is None:
            return [CPU]
        # float32 as on the CPU, and an algorithm of cuDNN that does not depend on how busy the GPU is
        options = {"use_tf32": "0", "cudnn_conv_algo_search": "DEFAULT", "arena_extend_strategy": "kSameAsRequested"}
        limit = {"gpu_mem_limit": str(self._gpu_memory_mb << 20)} if self._gpu_memory_mb else {}
        return [(CUDA, options | limit), CPU]


def has_cuda() -> bool:
    """Whether this ONNX Runtime was built with its CUDA provider; whether that loads, a session shows."""
    return CUDA in onnxruntime.get_available_providers()


def _check_ends(graph: str, which: str, ends: Iterable[Any], expected: Mapping[str, TensorType]) -> None:
    found = {end.name: (_KINDS.get(end.type[7:-1]), tuple(end.shape)) for end in ends}
    if found != {name: (kind.dtype, kind.shape) for name, kind in expected.items()}:
        raise ProgramError(f"the graph {graph} has other {which} than its manifest says")


def checked(values: Mapping[str, NDArray[Any]], types: Mapping[str, TensorType], what: str) -> Arrays:
    """Return exactly the values of these types, in their order.

    Raises:
        ProgramError: naming the first that is missing, unknown, of another type or shape, or not finite.
    """
    if unknown := next((name for name in values if name not in types), None):
        raise ProgramError(f"{what} has {unknown!r}, which the program does not know")
    for name, kind in types.items():
        if name not in values:
            raise ProgramError(f"{what} lacks {name!r} of shape {kind.shape}")
        value = values[name]
        if value.dtype.name != kind.dtype or value.shape != kind.shape:
            raise ProgramError(f"{what}: {name!r} is {value.dtype} {value.shape}; expected {kind.dtype} {kind.shape}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ProgramError(f"{what}: {name!r} contains NaN or infinity")
    return {name: np.asarray(values[name], order="C") for name in types}


def zeros(types: Mapping[str, TensorType]) -> Arrays:
    """Return values of zero."""
    return {name: np.zeros(kind.shape, kind.dtype) for name, kind in types.items()}
