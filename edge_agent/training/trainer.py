"""The training process: one round, or the final model, and then it ends; `edge_agent.training.entrypoint` starts it.

Files go to the job's folder; what has happened goes to standard output as JSON lines {"event": …}. The client's half
of a round is `federation.training.client_round`, the same code as in the simulation.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edge_agent.errors import AgentError, JobError, NonRetryableJobError
from edge_agent.serving.soundness import Soundness
from edge_agent.storage.files import sha256_of, write_file
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.candidate import export_candidate
from edge_agent.training.checkpoints import EpochCheckpoints, checkpoint_path
from edge_agent.training.job import CLIENT_STATE, OUT_OF_MEMORY, RESULT, UPDATE, Job, memory_cap_error
from edge_agent.training.local_data import LocalData, local_data
from export.runtime import ExportError
from federation import wire
from federation.errors import FederationError
from federation.methods import method_from_json
from federation.records import Client, Examples, Tree
from federation.rounds.server_round import keeps_partial_work
from federation.training.client_round import Setup, steps_of, train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.prediction import predict
from federation.wire import uploads
from federation.wire.schema import check_tree, schema_of, size_limit, upload_schema
from gaitway.scores import scores_of
from har_pipeline import PipelineError, PipelineSettings
from models import build
from models.errors import ModelError

EXPECTED = (AgentError, FederationError, PipelineError, ModelError, ExportError, OSError)

EVALUATION_BATCH = 256
"""The simulation's default: ALP looks at the whole batch, so scores compare only at equal sizes."""


class TrainingContext(NamedTuple):
    """Everything that a job works with."""

    job: Job
    settings: PipelineSettings
    data: LocalData
    module: nn.Module
    setup: Setup
    initial: Client
    broadcast: Tree


def main(arguments: list[str]) -> int:
    """Run the job that a file describes; 0 if everything that was due is on disk."""
    job = Job.model_validate_json(Path(arguments[0]).read_bytes())
    torch.set_num_threads(job.threads)
    try:
        context = build_context(job)
        client = train(context) if job.kind == "train" else final_client(context)
        own = job.kind == "train" and job.plan.rollout.used  # nobody would use it: devices use what is released
        if client is not None and not own:
            export_candidate(
                job, context.settings, context.data, context.module, context.setup.method.serving_model(client)
            )
    except EXPECTED as error:
        emit(event="error", reason=str(error) or type(error).__name__, final=isinstance(error, NonRetryableJobError))
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        emit(event="error", reason=memory_cap_error(job.memory_mb), final=True)
        return 1
    return 0


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a RuntimeError where its allocator gets no memory
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY)


def build_context(job: Job) -> TrainingContext:
    """Read the windows and the broadcast, and build the model as the server did.

    Raises:
        JobError: if there is nothing to train on, or the broadcast is not the announced one.
        FederationError: if the broadcast does not fit the plan.
    """
    settings = PipelineSettings.from_json(job.pipeline)
    store = WindowStore(job.store)
    try:
        data = local_data(store.read(job.client, settings, job.plan.labels), job.plan.data, settings)
    finally:
        store.close()
    if not len(data.train):
        raise JobError(f"client {job.client} has no training windows for this plan")
    plan, spec, method = job.plan, job.network, method_from_json(job.plan.method)
    module = initial_model(lambda: build(spec.name, classes=len(plan.labels), **spec.options), plan.training.seed)
    initial, setup = (
        method.init_client_state(initial_client(module), plan.training),
        Setup(method, plan.training, network(module)),
    )
    return TrainingContext(job, settings, data, module, setup, initial, _broadcast(job, setup, initial))


def _broadcast(job: Job, setup: Setup, initial: Client) -> Tree:
    if sha256_of(job.broadcast) != job.broadcast_sha256:
        raise JobError(f"the broadcast in {job.broadcast} is damaged: its sha256 is not the announced one")
    method = setup.method
    reference = method.broadcast(method.server_init(initial.params, initial.buffers, setup.training), job.device)
    schema = schema_of(reference)
    tree = wire.decode(job.broadcast.read_bytes(), limit_bytes=size_limit(schema))
    check_tree(tree, schema)
    return tree


def train(context: TrainingContext) -> Client:
    """Run the round and write the update, the client's new state and the result; returns the trained client.

    Raises:
        UpdateError: if training left NaN or infinity.
        HopelessJobError: if the time was over before the work was done, and the federation drops partial work.
    """
    job, setup, data = context.job, context.setup, context.data
    begun = time.monotonic()
    client, residual = load_client(context)
    before = _on_holdout(context, setup.method.receive(client, context.broadcast)[0])
    path = checkpoint_path(job.checkpoints, job, data.train)
    epochs = EpochCheckpoints(path, context.initial, job.round_s, lambda epoch: emit(event="epoch", epoch=epoch))
    x, y = torch.from_numpy(data.normalized(data.train)), torch.from_numpy(data.train.y)
    result = train_one(
        setup,
        client,
        context.broadcast,
        Examples(x, y),
        client_id=job.device,
        round_number=job.round,
        callback=epochs,
    )
    steps, work = _work_done(setup, job, epochs, len(y))
    check_tree(result.upload, upload_schema(setup.method, setup.training, context.initial))
    metrics = {**holdout_metrics(before, _on_holdout(context, result.client)), **work, "train_loss": float(result.loss)}
    record = {
        "examples": len(y),
        "steps": steps,
        "class_counts": np.bincount(data.train.y, minlength=len(job.plan.labels)).tolist(),
        # a device without holdout windows has no scores, and JSON no NaN
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "seconds": time.monotonic() - begun,
    }
    sent = uploads.encode(
        result.upload,
        setup.method.delta_reference(context.broadcast),
        residual,
        precision=job.precision,
        compression=job.compression,
    )
    write_file(job.out / UPDATE, sent.data)
    write_file(job.out / CLIENT_STATE, wire.encode(dict(uploads.with_residual(result.client, sent.residual)._asdict())))
    write_file(job.out / RESULT, json.dumps(record).encode())
    emit(event="trained")
    return result.client


def _work_done(setup: Setup, job: Job, epochs: EpochCheckpoints, examples: int) -> tuple[int, dict[str, float]]:
    """Return the steps that were done and, where the time was over before the last, the whole epochs among them."""
    asked = steps_of(setup, examples)
    if epochs.stopped_at is None:
        return asked, {}
    if not keeps_partial_work(job.plan.rounds, setup.method):
        done = f"{epochs.stopped_at} of {asked} steps"
        raise NonRetryableJobError(
            f"the {job.round_s:g} s for a round were over after {done}, and this federation drops partial work; "
            f"raise [training] round_s, or leave the round to faster devices"
        )
    return epochs.stopped_at, {"epochs": float(epochs.epochs)}


def final_client(context: TrainingContext) -> Client | None:
    """Lay the final broadcast over the client; None, with the reason in the result, if there is no global model."""
    if not context.setup.method.has_global_model:
        reason = f"the method {context.setup.method.name} has no global model"
        write_file(context.job.out / RESULT, json.dumps({"no_model": reason}).encode())
        return None
    return context.setup.method.global_model(load_client(context)[0], context.broadcast)


def load_client(context: TrainingContext) -> tuple[Client, Tree]:
    """Return the client as its last round left it, or the initial one, and what its last upload lost.

    Raises:
        JobError: if the kept state is of another model.
    """
    path, initial = context.job.client_state, context.initial
    if path is None:
        return initial, {}
    tree = wire.decode(path.read_bytes(), limit_bytes=path.stat().st_size)
    client = Client(*(tree.get(name, {}) for name in Client._fields))  # the wire leaves out an empty group
    kept, residual = uploads.split_residual(client)
    for name, mine, expected in zip(Client._fields, kept, initial, strict=True):
        if schema_of(mine) != schema_of(expected):
            raise JobError(f"the kept client state has other {name} than the plan asks for; delete the data folder")
    return kept, residual


def _on_holdout(context: TrainingContext, client: Client) -> Soundness:
    data, setup = context.data, context.setup
    x = torch.from_numpy(data.normalized(data.holdout))
    found = predict(setup.method, setup.network.evaluate, client, x, EVALUATION_BATCH)
    return Soundness.of(data.holdout.y, found, context.job.plan.labels)


def holdout_metrics(before: Soundness, after: Soundness) -> dict[str, float]:
    """Scores of the received and of the trained model; where the holdout can tell, also whether they work.

    From the latter the server makes its score of a version, for devices that cannot check it themselves.
    """
    metrics: dict[str, float] = {}
    for when, found in (("before", before), ("after", after)):
        metrics |= {f"{kind}_{when}": value for kind, value in scores_of(found.matrix)._asdict().items()}
        if (works := found.works) is not None:
            metrics[f"works_{when}"] = float(works)
    if before.most_frequent is not None and not before.obstacle:
        metrics["macro_f1_most_frequent"] = before.most_frequent
    return metrics


def emit(**record: Any) -> None:
    """Write one JSON line for the supervisor."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
