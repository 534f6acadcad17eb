"""From a trained client to files that could become the device's model: a checkpoint, and ONNX behind its gates.

Only the training process imports this.
"""

from __future__ import annotations

import json

import numpy as np
from torch import nn

from edge_agent.storage.files import write_file
from edge_agent.training.job import CHECKPOINT, MODEL, PARITY, Job
from edge_agent.training.local_data import LocalData
from export.onnx_export import export_onnx, metadata_of
from federation.records import Client
from gaitway.input_spec import InputSpec
from har_pipeline import PipelineSettings
from models.checkpoint import CheckpointInfo, save_checkpoint

PARITY_WINDOWS = 256
"""The parity gate wants so many; a device that has fewer says how many it used."""


def export_candidate(job: Job, settings: PipelineSettings, data: LocalData, module: nn.Module, client: Client) -> None:
    """Write checkpoint, ONNX model and parity report into the job's folder.

    Raises:
        GateError: if ONNX Runtime does not agree with torch on the device's own windows.
    """
    module.load_state_dict({**client.params, **client.buffers})
    module.eval()
    info = CheckpointInfo(
        model=job.network.name,
        options=job.network.options,
        labels=job.plan.labels,
        method=str(job.plan.method.get("name", "")),
        round=job.round,
        federation=job.federation,
        parent_sha256=job.broadcast_sha256,
        input=InputSpec.windows(
            data.mean, data.std, window=settings.window, rate_hz=settings.rate_hz, stride=settings.stride
        ),
    )
    save_checkpoint(job.out / CHECKPOINT, module, info)
    # the latest first: those of the holdout, then training windows up to the gate's number
    windows = np.concatenate([data.holdout.x, data.train.x])[:PARITY_WINDOWS]
    few = f", fewer than the usual {PARITY_WINDOWS}" if len(windows) < PARITY_WINDOWS else ""
    origin = f"{len(windows)} windows of this device{few}"
    report = export_onnx(
        module,
        job.out / MODEL,
        metadata=metadata_of(info),
        examples=windows,
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
    write_file(job.out / PARITY, json.dumps(parity).encode())
