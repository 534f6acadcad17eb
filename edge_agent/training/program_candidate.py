"""Turns a client trained by a program into files of a candidate model, without torch.

The checkpoint is what `models.checkpoint` reads; the ONNX file is the program's own graph with the numbers laid in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.errors import JobError
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import preparation_from_json
from edge_agent.training.job import CHECKPOINT, MODEL, Job
from edge_agent.training.local_data import LocalData, noun
from edge_agent.training.runtime import FileParity, parity_examples
from export.program.runtime import VERSION, Arrays, TrainingProgram
from export.program.standalone import standalone_model
from export.runtime import GateError, ModelMetadata, Session
from federation.protocol import arrays
from federation.protocol.wire_format import metadata_in
from gaitway.input_spec import InputSpec

METADATA = "gaitway"
CHECKPOINT_SCHEMA = 2
"""Of `models.checkpoint`, which needs torch."""
PARITY_EXAMPLES = 64
MAX_LOGIT_DELTA = 1e-4
PARAMS, BUFFERS = "served/params/", "served/buffers/"


def save_candidate(
    job: Job, spec: InputSpec, program: TrainingProgram, served: Arrays, folder: Path, round_number: int
) -> None:
    """Write a checkpoint into a folder: everything that an export needs, also a later one. The round made the model."""
    manifest = program.manifest
    state = {name.removeprefix(PARAMS).removeprefix(BUFFERS): value for name, value in served.items()}
    for name in manifest.noise:  # dropout's counters, which a model that serves never reads
        kind = manifest.client[name]
        state[name.removeprefix("client/buffers/")] = np.zeros(kind.shape, kind.dtype)
    folder.mkdir(exist_ok=True)
    write_checkpoint(job, folder / CHECKPOINT, state, spec, round_number, manifest.model["options"])


def write_checkpoint(
    job: Job, path: Path, state: Arrays, spec: InputSpec, round_number: int, options: Mapping[str, Any] | None = None
) -> None:
    """Write a network's parameters and buffers as `models.checkpoint` reads them; options: all of the network's."""
    info = {
        "schema": CHECKPOINT_SCHEMA,
        "classes": len(job.plan.labels),
        "model": job.network.name,
        "options": dict(job.network.options if options is None else options),
        "labels": list(job.plan.labels),
        "input": spec.to_json(),
        "method": str(job.plan.method.get("name", "")),
        "round": round_number,
        "federation": job.federation,
        "parent_sha256": job.model.sha256,
        "scores": {},
        "task": dict(job.plan.task),
    }
    write_file(path, arrays.encode(state, metadata={METADATA: json.dumps(info)}))


def export_candidate(
    job: Job, data: LocalData, path: Path, folder: Path, program: TrainingProgram | None = None
) -> None:
    """Write checkpoint, ONNX model and parity report into a folder, from the checkpoint at `path`.

    Raises:
        JobError: if the program is gone.
        GateError: if the file does not answer as the program does on the device's own windows.
        WireError: if the checkpoint is damaged.
    """
    if program is None:
        from edge_agent.training.program_runtime import open_program

        program = open_program(job)
    raw = path.read_bytes()
    state, info = arrays.read_kept(raw), json.loads(metadata_in(raw).get(METADATA, "null"))
    if not isinstance(info, dict):
        raise JobError(f"the checkpoint in {path} doesn't describe itself")
    served = {name: state[name.removeprefix(PARAMS).removeprefix(BUFFERS)] for name in program.manifest.served}
    spec = InputSpec.from_json(info["input"])
    values = served | _statistics(spec, program)
    model = standalone_model(program.graph("model"), values, _properties(info, spec))
    examples = parity_examples(data, PARITY_EXAMPLES).astype(np.float32)
    origin = f"{noun(preparation_from_json(job.pipeline))} of this device, against the program"
    parity = FileParity.of(Session.load(model).predict(examples).logits, _logits(program, values, examples), origin)
    # written so that a NaN fails
    if not parity.max_abs_diff <= MAX_LOGIT_DELTA or parity.argmax_agreement < 1:
        raise GateError(
            f"the model's file and the program differ on {len(examples)} examples: |Δ logits| "
            f"{parity.max_abs_diff:.2e} (at most {MAX_LOGIT_DELTA:.0e}), equal argmax {parity.argmax_agreement:.2%}"
        )
    folder.mkdir(exist_ok=True)
    if path != folder / CHECKPOINT:
        write_file(folder / CHECKPOINT, raw)
    write_file(folder / MODEL, model)
    parity.write(folder)


def served_logits(program: TrainingProgram, served: Arrays, spec: InputSpec, x: np.ndarray) -> np.ndarray:
    """Return what a network `served/…` answers to raw examples x (n, ...): its logits."""
    return _logits(program, served | _statistics(spec, program), x.astype(np.float32, copy=False))


def _logits(program: TrainingProgram, values: Arrays, x: np.ndarray) -> np.ndarray:
    return np.concatenate([program.run("model", values | {"x": example[None]})["logits"] for example in x])


def _statistics(spec: InputSpec, program: TrainingProgram) -> Arrays:
    kinds = program.manifest.graphs["model"].inputs
    found = {"input/mean": spec.mean, "input/std": spec.std}
    return {
        name: np.asarray(numbers, np.float32).reshape(kinds[name].shape)
        for name, numbers in found.items()
        if name in kinds
    }


def _properties(info: dict[str, Any], spec: InputSpec) -> dict[str, str]:
    metadata = ModelMetadata(
        labels=tuple(info["labels"]),
        input=spec,
        model=info["model"],
        method=info["method"],
        round=info["round"],
        federation=info["federation"],
        parent_sha256=info["parent_sha256"],
        versions={"onnxruntime": VERSION},
        task=info["task"],
    )
    metadata.check()
    return metadata.to_properties()
