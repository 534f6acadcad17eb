"""Files that a training process with torch writes: a checkpoint per epoch, and candidate models.

A trained client becomes a checkpoint, and ONNX behind its gates. Only the training process imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edge_agent.errors import JobError, UnusableModelError
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import preparation_from_json
from edge_agent.training.job import CHECKPOINT, HEADS, MODEL, Job
from edge_agent.training.limits import RoundBudget
from edge_agent.training.local_data import LocalData, noun
from edge_agent.training.runtime import FileParity, parity_examples
from export.onnx_export import ExportedNetwork, export_variants, metadata_of
from federation import wire
from federation.errors import WireError
from federation.records import Client, Tensors, Tree
from federation.records.tree import map_tree
from federation.training.local_round import EpochCheckpoint, TrainingCallback
from federation.wire.schema import schema_of
from gaitway.input_spec import InputSpec
from models.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint

Loaded = Mapping[Path, tuple[nn.Module, CheckpointInfo]]
"""Networks from their checkpoints, by the folder that each belongs to."""
PARITY_EXAMPLES = 256
"""The parity gate wants so many; a device that has fewer says how many it used."""


def save_candidate(
    job: Job, spec: InputSpec, module: nn.Module, client: Client, folder: Path, round_number: int
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
        input=spec,
        task=dict(job.plan.task),
    )
    folder.mkdir(exist_ok=True)
    save_checkpoint(folder / CHECKPOINT, module, info)


def save_heads(job: Job, spec: InputSpec, module: nn.Module, clients: Mapping[str, Client], version: int) -> None:
    """Write a checkpoint for each head that the device can serve with; version: of the federation's sums in them.

    Raises:
        UnusableModelError: if one has NaN or infinity in its weights.
    """
    for name, client in clients.items():
        if not all(torch.isfinite(value).all() for value in client.params.values() if value.is_floating_point()):
            raise UnusableModelError(f"the {name} head has NaN or infinity in it: the broadcast's sums are not sound")
        (job.out / HEADS).mkdir(exist_ok=True)
        save_candidate(job, spec, module, client, job.out / HEADS / name, version)


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
    _export(job, data, loaded, ExportedNetwork(job.onnx_network, network) if job.onnx_network else None)


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
    _export(job, data, loaded)


def _export(job: Job, data: LocalData, loaded: Loaded, exported: ExportedNetwork | None = None) -> None:
    """Write the ONNX model and the parity report of each folder's network, by examples up to the gate's number."""
    examples = parity_examples(data, PARITY_EXAMPLES)
    few = f", fewer than the usual {PARITY_EXAMPLES}" if len(examples) < PARITY_EXAMPLES else ""
    reports = export_variants(
        {folder / MODEL: module for folder, (module, _) in loaded.items()},
        metadata={folder / MODEL: metadata_of(info) for folder, (_, info) in loaded.items()},
        examples=examples,
        examples_from=f"{len(examples)} {noun(preparation_from_json(job.pipeline))} of this device{few}",
        allow_few=True,
        exported=exported,
    )
    for path, report in reports.items():
        found, batch = report.parity, report.alp.argmax_agreement if report.alp else None
        numbers = found.max_logit_delta, found.argmax_agreement, report.examples
        FileParity(*numbers, report.examples_from, batch).write(path.parent)


class EpochCheckpoints(TrainingCallback):
    """Keeps each epoch in the file, begins after the last one kept, and stops when `budget_s` seconds are used up."""

    wants_checkpoints = True

    def __init__(self, budget: RoundBudget, initial: Client, processor: str = "cpu") -> None:
        self.budget, self.initial, self.processor = budget, initial, processor

    def resume(self) -> EpochCheckpoint | None:
        """Read the file; a damaged one is as good as none. Checkpoints of other rounds are deleted."""
        self.budget.forget_others()
        try:
            data = self.budget.path.read_bytes()
            tree = wire.decode(data, limit_bytes=len(data))
            found, seconds = self._read(tree), float(tree["progress"]["seconds"])
        except (OSError, WireError, JobError, KeyError, TypeError, ValueError, RuntimeError):
            return None
        self.budget.resumed(found.epoch, seconds)
        moved: EpochCheckpoint = map_tree(self._there, found)
        return moved

    def should_stop(self, steps: int) -> bool:
        """Say after at least one step whether the time is over."""
        return self.budget.should_stop(steps)

    def on_epoch_end(self, checkpoint: EpochCheckpoint) -> None:
        """Replace the file."""
        progress = {
            "epoch": torch.tensor(checkpoint.epoch),
            "steps": torch.tensor(checkpoint.steps),
            "seconds": torch.tensor(self.budget.used_s, dtype=torch.float64),
        }
        tensors = {name: value for name, value in checkpoint._asdict().items() if name not in progress}
        write_file(self.budget.path, wire.encode({**tensors, "progress": progress}))
        self.budget.epoch_ended(checkpoint.epoch)

    def _there(self, value: Any) -> Any:
        return value.to(self.processor) if isinstance(value, Tensor) else value

    def _read(self, tree: Tree) -> EpochCheckpoint:
        progress = tree["progress"]
        return EpochCheckpoint(
            epoch=int(progress["epoch"]),
            steps=int(progress["steps"]),
            params=_like(self.initial.params, tree["params"]),
            buffers=_like(self.initial.buffers, tree.get("buffers", {})),
            momenta=tree.get("momenta", {}),
            loss=_scalar(tree["loss"]),
            examples=_scalar(tree["examples"]),
        )


def _like(expected: Tensors, found: Mapping[str, Any]) -> Tensors:
    if schema_of(dict(found)) != schema_of(expected):
        raise JobError("the checkpoint is of another network")
    return dict(found)


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.shape:
        raise JobError("the checkpoint's sums are not single numbers")
    return value
