"""From a trained client to files that could become the device's model: a checkpoint, and ONNX behind its gates.

Only the training process imports this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from edge_agent.errors import UnusableModelError
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import Preparation, preparation_from_json
from edge_agent.training.job import CHECKPOINT, HEADS, MODEL, PARITY, Job
from edge_agent.training.local_data import LocalData, noun
from export.onnx_export import ExportedNetwork, ExportReport, export_variants, metadata_of
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


def save_heads(
    job: Job,
    settings: Preparation,
    data: LocalData,
    module: nn.Module,
    clients: Mapping[str, Client],
    version: int,
) -> None:
    """Write a checkpoint for each head that the device can serve with; version: of the federation's sums in them.

    Raises:
        UnusableModelError: if one has NaN or infinity in its weights.
    """
    for name, client in clients.items():
        if not all(torch.isfinite(value).all() for value in client.params.values() if value.is_floating_point()):
            raise UnusableModelError(f"the {name} head has NaN or infinity in it: the broadcast's sums are not sound")
        (job.out / HEADS).mkdir(exist_ok=True)
        save_candidate(job, settings, data, module, client, job.out / HEADS / name, version)


def export_heads(job: Job, data: LocalData, network: nn.Module) -> None:
    """Write ONNX model and parity report beside each head's checkpoint.

    The graph is the server's export of `network`, as the federation began with it, or else exported here, once: torch's
    exporter takes a hundred times as long as all the rest.

    Raises:
        GateError: if ONNX Runtime does not agree with torch on the device's own windows.
    """
    loaded = {path.parent: load_checkpoint(path) for path in sorted((job.out / HEADS).glob(f"*/{CHECKPOINT}"))}
    if not loaded:
        return
    examples, origin = _parity_examples(job, data)
    reports = export_variants(
        {folder / MODEL: module for folder, (module, _) in loaded.items()},
        metadata={folder / MODEL: metadata_of(info) for folder, (_, info) in loaded.items()},
        examples=examples,
        examples_from=origin,
        allow_few=True,
        exported=ExportedNetwork(job.onnx_network, network) if job.onnx_network else None,
    )
    for path, report in reports.items():
        _write_parity(path.parent, report)


def export_candidates(job: Job, data: LocalData, checkpoints: Mapping[Path, Path]) -> None:
    """Write checkpoint, ONNX model and parity report into each folder, from the checkpoint that it stands for.

    The networks differ in weights alone, so torch's exporter runs once.

    Raises:
        GateError: if ONNX Runtime does not agree with torch on the device's own windows.
        CheckpointError: if a checkpoint is gone or damaged.
    """
    torch.set_num_threads(job.threads)
    loaded = {folder: load_checkpoint(path) for folder, path in checkpoints.items()}
    for folder, (module, info) in loaded.items():
        if checkpoints[folder] != folder / CHECKPOINT:
            folder.mkdir(exist_ok=True)
            save_checkpoint(folder / CHECKPOINT, module, info)
    examples, origin = _parity_examples(job, data)
    reports = export_variants(
        {folder / MODEL: module for folder, (module, _) in loaded.items()},
        metadata={folder / MODEL: metadata_of(info) for folder, (_, info) in loaded.items()},
        examples=examples,
        examples_from=origin,
        allow_few=True,
    )
    for path, report in reports.items():
        _write_parity(path.parent, report)


def _parity_examples(job: Job, data: LocalData) -> tuple[np.ndarray, str]:
    """Return the holdout's, then training examples up to the gate's number, and say where they are from."""
    examples = np.concatenate([data.holdout.x, data.train.x])[:PARITY_EXAMPLES]
    few = f", fewer than the usual {PARITY_EXAMPLES}" if len(examples) < PARITY_EXAMPLES else ""
    return examples, f"{len(examples)} {noun(preparation_from_json(job.pipeline))} of this device{few}"


def _write_parity(folder: Path, report: ExportReport) -> None:
    parity = {
        "max_abs_diff": report.parity.max_logit_delta,
        "argmax_agreement": report.parity.argmax_agreement,
        "windows": report.examples,
        "windows_from": report.examples_from,
        "batch_agreement": report.alp.argmax_agreement if report.alp else None,
    }
    write_file(folder / PARITY, json.dumps(parity).encode())
