"""From a trained client to files that could become the device's model: a checkpoint, and ONNX behind its gates.

Only the training process imports this.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from torch import nn

from edge_agent.storage.files import write_file
from edge_agent.storage.images import Preparation, preparation_from_json
from edge_agent.training.job import CHECKPOINT, MODEL, PARITY, Job
from edge_agent.training.local_data import LocalData, noun
from export.onnx_export import export_onnx, metadata_of
from federation.records import Client
from models.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint

PARITY_EXAMPLES = 256
"""The parity gate wants so many; a device that has fewer says how many it used."""


def save_candidate(
    job: Job, settings: Preparation, data: LocalData, module: nn.Module, client: Client, folder: Path, round_number: int
) -> None:
    """Write a checkpoint into a folder: everything that an export needs, also a later one. The round made the model."""
    module.load_state_dict({**client.params, **client.buffers})
    module.eval()
    info = CheckpointInfo(
        model=job.network.name,
        options=job.network.options,
        labels=job.plan.labels,
        method=str(job.plan.method.get("name", "")),
        round=round_number,
        federation=job.federation,
        parent_sha256=job.model.sha256,
        input=settings.input_spec(data.mean, data.std),
        task=dict(job.plan.task),
    )
    folder.mkdir(exist_ok=True)
    save_checkpoint(folder / CHECKPOINT, module, info)


def export_candidate(job: Job, data: LocalData, path: Path, folder: Path) -> None:
    """Write checkpoint, ONNX model and parity report into a folder, from the checkpoint at `path`.

    Raises:
        GateError: if ONNX Runtime does not agree with torch on the device's own windows.
        CheckpointError: if the checkpoint is gone or damaged.
    """
    module, info = load_checkpoint(path)
    if path != folder / CHECKPOINT:
        save_checkpoint(folder / CHECKPOINT, module, info)
    # the latest first: those of the holdout, then training examples up to the gate's number
    examples = np.concatenate([data.holdout.x, data.train.x])[:PARITY_EXAMPLES]
    few = f", fewer than the usual {PARITY_EXAMPLES}" if len(examples) < PARITY_EXAMPLES else ""
    origin = f"{len(examples)} {noun(preparation_from_json(job.pipeline))} of this device{few}"
    report = export_onnx(
        module,
        folder / MODEL,
        metadata=metadata_of(info),
        examples=examples,
        examples_from=origin,
        allow_few=True,
    )
    parity = {
        "max_abs_diff": report.parity.max_logit_delta,
        "argmax_agreement": report.parity.argmax_agreement,
        "windows": report.examples,
        "windows_from": report.examples_from,
        "batch_agreement": report.alp.argmax_agreement if report.alp else None,
    }
    write_file(folder / PARITY, json.dumps(parity).encode())
