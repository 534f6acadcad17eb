"""The training process: one round, or the final model, and then it ends; `edge_agent.training.entrypoint` starts it.

Files go to the job's folder; what has happened goes to standard output as JSON lines {"event": …}. The client's half
of a round is `federation.training.client_round`, the same code as in the simulation.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edge_agent.errors import AgentError, JobError, NonRetryableJobError
from edge_agent.machine.state import leaves_model
from edge_agent.storage.files import sha256_of, write_file
from edge_agent.storage.images import Preparation, preparation_from_json
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.candidate import export_candidate, export_heads, save_candidate, save_heads
from edge_agent.training.checkpoints import EpochCheckpoints, checkpoint_path
from edge_agent.training.folds import FoldTraining, cross_validate, validation_obstacle
from edge_agent.training.job import (
    CHECKPOINT,
    CLIENT_STATE,
    CROSS_VALIDATION,
    GLOBAL,
    HEADS,
    KEY_BYTES,
    ORIENTATION,
    OUT_OF_MEMORY,
    RESULT,
    UPDATE,
    WINDOW_KEYS,
    Job,
    memory_cap_error,
)
from edge_agent.training.local_data import (
    LocalData,
    noun,
    read_local_data,
    read_split,
    read_unlabelled_data,
    window_keys,
)
from edge_agent.training.orientation import orientation_of
from edge_agent.training.summand import write_numbers
from export.runtime import ExportError
from federation import wire
from federation.aggregation.ridge import LIMIT
from federation.errors import FederationError
from federation.head import with_placeholder_head
from federation.methods import method_from_json
from federation.protocol.messages import class_score_names
from federation.records import Client, Examples, Tree, Update
from federation.rounds.server_round import keeps_partial_work
from federation.serving_heads import SHARED
from federation.tasks import task_from_json
from federation.tasks.task import arrays
from federation.training.client_round import steps_of, train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import Setup
from federation.training.prediction import measure, task_mismatch
from federation.training.rotation import ChannelScale
from federation.wire import uploads
from federation.wire.schema import check_tree, schema_of, size_limit, upload_schema
from gaitway.tasks import TRIVIAL, Soundness, task_of
from har_pipeline import PipelineError, PipelineSettings
from models import build
from models.errors import ModelError
from models.mae import with_decoder

EXPECTED = (AgentError, FederationError, PipelineError, ModelError, ExportError, OSError)

UNSOLVABLE = "linalg."
"""What torch's error begins with where a matrix is not positive definite."""
EVALUATION_BATCH = 256
"""The simulation's default: ALP looks at the whole batch, so scores compare only at equal sizes."""


class TrainingContext(NamedTuple):
    """Everything that a job works with."""

    job: Job
    settings: Preparation
    data: LocalData
    module: nn.Module
    setup: Setup
    initial: Client
    broadcast: Tree


class Measurement(NamedTuple):
    """What the holdout says about a model: the task's metrics by name, and whether it works."""

    metrics: Mapping[str, float]
    sound: Soundness
    classes: Sequence[float] = ()
    """The score of each class; NaN for one that the holdout does not have."""


def main(arguments: list[str]) -> int:
    """Run the job that a file describes; 0 if everything that was due is on disk."""
    job = Job.model_validate_json(Path(arguments[0]).read_bytes())
    torch.set_num_threads(job.threads)
    try:
        run(job)
    except EXPECTED as error:
        emit(event="error", reason=str(error) or type(error).__name__, final=isinstance(error, NonRetryableJobError))
        return 1
    except (MemoryError, RuntimeError) as error:
        if str(error).startswith(UNSOLVABLE):
            reason = f"the broadcast's sums are not those of any examples, no head can be solved of them: {error}"
            emit(event="error", reason=reason, final=True)
            return 1
        if not _is_out_of_memory(error):
            raise
        emit(event="error", reason=memory_cap_error(job.memory_mb), final=True)
        return 1
    return 0


def run(job: Job) -> None:
    """Do a job's work; `EXPECTED` tells why it cannot be done."""
    if job.candidate is not None:
        export_candidate(job, read_data(job)[1], job.candidate, job.out)
        return
    context = build_context(job)
    if job.continuous:
        update_heads(context)
        return
    if job.kind == "train":
        begun = time.monotonic()
        train(context)
        validate(context, begun + job.round_s)
    elif (client := global_client(context)) is not None:
        _save(context, client, job.out, job.round)
    for folder in (job.out / GLOBAL, job.out):
        if (folder / CHECKPOINT).is_file():
            export_candidate(job, context.data, folder / CHECKPOINT, folder)


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a RuntimeError where its allocator gets no memory
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY)


def read_data(job: Job) -> tuple[Preparation, LocalData]:
    """Read the device's examples; raises JobError if there is none to train on.

    A global model needs none that is labelled: to adopt it, those without a label tell how the sensors are.
    """
    settings = preparation_from_json(job.pipeline)
    with closing(WindowStore(job.store)) as store:
        data = read_local_data(store, job.client, settings, job.plan)
        if job.kind == "adopt" and not len(data.train):
            data = read_unlabelled_data(store, job.client, settings, job.plan)
    if not len(data.train):
        raise JobError(f"client {job.client} has no training {noun(settings)} for this plan")
    return settings, data


def build_context(job: Job) -> TrainingContext:
    """Read the windows and the broadcast, and build the model as the server did.

    Raises:
        JobError: if there is nothing to train on, or the broadcast is not the announced one.
        FederationError: if the broadcast does not fit the plan.
    """
    settings, data = read_data(job)
    plan, spec, method = job.plan, job.network, method_from_json(job.plan.method)
    task = task_from_json(plan.task)

    def make() -> nn.Module:
        return with_decoder(build(spec.name, classes=len(plan.labels), **spec.options), task.decoder)

    module = initial_model(make, plan.training.seed)
    initial = method.init_client_state(initial_client(module), plan.training)
    setup = Setup(method, plan.training, network(module), task, rounds=plan.rounds.rounds)
    if (statistics := data.statistics) is not None and data.channel_axis == -1:
        setup = replace(setup, channels=ChannelScale.of(statistics.mean, statistics.std))
    _check_input(setup, initial, spec.name, data, settings)
    return TrainingContext(job, settings, data, module, setup, initial, _broadcast(job, setup, initial))


def _check_input(setup: Setup, initial: Client, model: str, data: LocalData, settings: Preparation) -> None:
    """Let the network take one example before anything is trained.

    Raises:
        NonRetryableJobError: if it takes none of this shape, or does not answer what the task asks for.
    """
    one = data.train.select(np.arange(1))
    examples = Examples(torch.from_numpy(data.normalized(one)), torch.from_numpy(one.y))
    shape = tuple(one.x.shape[1:])
    try:
        mismatch = task_mismatch(setup, initial, examples)
    except (RuntimeError, ValueError, ModelError) as error:
        if _is_out_of_memory(error):
            raise
        raise NonRetryableJobError(f"{model} takes no {noun(settings)} of shape {shape}: {error}") from error
    if mismatch:
        raise NonRetryableJobError(mismatch)


def _broadcast(job: Job, setup: Setup, initial: Client) -> Tree:
    if sha256_of(job.broadcast) != job.model.sha256:
        raise JobError(f"the broadcast in {job.broadcast} is damaged: its sha256 is not the announced one")
    method = setup.method
    reference = method.broadcast(method.server_init(initial.params, initial.buffers, setup.training), job.device)
    schema = schema_of(reference)
    tree = wire.decode(job.broadcast.read_bytes(), limit_bytes=size_limit(schema))
    check_tree(tree, schema)
    if job.continuous:
        _check_sums(tree)
    return tree


def _check_sums(broadcast: Tree) -> None:
    """Refuse sums that so many devices cannot have sent: each number of one device's fits into 32 bits.

    Raises:
        NonRetryableJobError: saying which sums, of how many devices.
    """
    sums = dict(broadcast.get("sums", {}))
    clients = int(sums.pop("clients", 0))
    for name, values in sums.items():
        largest = int(values.abs().max())
        if not 0 <= largest <= clients * int(LIMIT):
            raise NonRetryableJobError(
                f"the broadcast's sums {name} of {clients} devices reach {largest}; no device can add more than "
                f"{int(LIMIT)}, so they are not believed, and the present model stays"
            )


def train(context: TrainingContext) -> Client:
    """Run the round and write update, client state, result and checkpoint; returns the trained client.

    The checkpoint is there before the round is told to be trained, so that its model can be exported later if that is
    stopped now. Where devices use what is released, or have no use for what is learnt, there is none.

    Raises:
        UpdateError: if training left NaN or infinity.
        NonRetryableJobError: if the time was over before the work was done, and the federation drops partial work.
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
    metrics = {**holdout_metrics(before, _on_holdout(context, result.client)), **work}
    if setup.method.trains(setup.training):
        metrics["train_loss"] = float(result.loss)
    record = {
        "examples": len(y),
        "steps": steps,
        "class_counts": setup.task.class_counts(y, len(job.plan.labels)),
        "metric": setup.task.primary_metric,
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
    record |= _write_update(context, Update(job.device, len(y), steps, result.upload), sent.data)
    write_file(job.out / CLIENT_STATE, wire.encode(dict(uploads.with_residual(result.client, sent.residual)._asdict())))
    write_file(job.out / RESULT, json.dumps(record).encode())
    if job.continuous:
        keys = sorted(window_keys(data.train))
        write_file(job.out / WINDOW_KEYS, b"".join(key.to_bytes(KEY_BYTES) for key in keys))
    elif leaves_model(job.plan):
        _save(context, result.client, job.out, job.round)
        if setup.method.has_global_model and is_trained(context):
            _save(context, setup.method.global_model(client, context.broadcast), job.out / GLOBAL, job.round - 1)
    emit(event="trained")
    return result.client


def _write_update(context: TrainingContext, update: Update, data: bytes) -> dict[str, Any]:
    """Leave the update's bytes or, where the server learns sums alone, its numbers, and say what these mean."""
    job = context.job
    if not job.plan.secure.is_on:
        write_file(job.out / UPDATE, data)
        return {}
    told = write_numbers(job.out / UPDATE, context.setup, context.initial, job.plan, update, context.broadcast)
    return {"sum": told}


def update_heads(context: TrainingContext) -> None:
    """Make the sums if they are due, and then, of the newest sums, each head that the device can serve with.

    Before anybody's sums are in the broadcast, those heads that need no sums of others. A device that has none of its
    own has the shared ones.
    """
    job, method = context.job, context.setup.method
    if job.kind == "train":
        client = train(context)
    else:
        client, _ = method.receive(load_client(context)[0], context.broadcast)
        client = method.refresh(client, context.broadcast)
    if not leaves_model(job.plan):
        return
    heads = method.serving_models(client)
    if not is_trained(context):
        heads = {name: head for name, head in heads.items() if not name.startswith(SHARED)}
    if not context.data.is_labelled:
        heads = {name: head for name, head in heads.items() if name.startswith(SHARED)}
    if not heads:
        raise NonRetryableJobError("the federation's model is the one that it began with: nobody has trained it yet")
    version = max(0, job.round - 1) if job.kind == "train" else job.round
    first, began = copy.deepcopy(context.module), method.serving_model(context.initial)
    first.load_state_dict({**with_placeholder_head(began.params), **began.buffers})
    save_heads(job, context.settings, context.data, context.module, heads, version)
    write_file(job.out / HEADS / ORIENTATION, orientation_of(context.module, context.data).to_json())
    export_heads(job, context.data, first)


def _save(context: TrainingContext, client: Client, folder: Path, round_number: int) -> None:
    serving = context.setup.method.serving_model(client)
    save_candidate(context.job, context.settings, context.data, context.module, serving, folder, round_number)


def validate(context: TrainingContext, deadline: float) -> None:
    """Leave the answers of cross-validation where the holdout is small, and there is a model to be compared with.

    The update is on its way by then: nobody waits for it.
    """
    job, setup, settings = context.job, context.setup, context.settings
    comparable = leaves_model(job.plan) and setup.method.has_global_model and is_trained(context)
    if not comparable or not isinstance(settings, PipelineSettings):
        return
    with closing(WindowStore(job.store)) as store:
        windows = read_split(store, job.client, settings, job.plan).labelled
    if validation_obstacle(windows, context.data, settings, job.plan):
        return
    training = FoldTraining(setup, context.initial, context.broadcast, job.device, job.round, EVALUATION_BATCH)
    found = cross_validate(training, windows, settings, job.plan, deadline=deadline)
    if found is not None:
        write_file(job.out / CROSS_VALIDATION, found.to_json().encode())


def _work_done(setup: Setup, job: Job, epochs: EpochCheckpoints, examples: int) -> tuple[int, dict[str, float]]:
    """Return the steps that were done and, where the time was over before the last, the whole epochs among them."""
    asked = steps_of(setup, examples)
    if epochs.stopped_at is None:
        return asked, {}
    if not keeps_partial_work(job.plan.rounds, setup.method):
        done = f"{epochs.stopped_at} of {asked} steps"
        raise NonRetryableJobError(
            f"the {job.round_s:g} s for a round were over after {done}, and this federation drops partial work; "
            f"raise [training] max_round_s, or leave the round to faster devices"
        )
    return epochs.stopped_at, {"epochs": float(epochs.epochs)}


def is_trained(context: TrainingContext) -> bool:
    """Whether the broadcast serves with other parameters than the network that the federation began with.

    What serves is compared: where a method freezes the network and shares class means, these alone have learnt.
    """
    method = context.setup.method
    first = method.serving_model(context.initial).params
    now = method.serving_model(method.global_model(context.initial, context.broadcast)).params
    return any(not torch.equal(value, first[name]) for name, value in now.items())


def global_client(context: TrainingContext) -> Client | None:
    """Lay the broadcast over the client; None, with the reason in the result, if there is no global model.

    Raises:
        NonRetryableJobError: if nobody has trained it yet, and the device has no holdout to measure it on.
    """
    setup, reason = context.setup, ""
    if not setup.method.has_global_model:
        reason = f"the method {setup.method.name} has no global model"
    elif not task_of(context.job.plan.task).is_served:
        reason = f"devices have no use for a model of {setup.task.name}; another federation may begin with it"
    elif not len(context.data.holdout) and not is_trained(context):
        raise NonRetryableJobError("the federation's model is the one that it began with: nobody has trained it yet")
    if reason:
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


def _on_holdout(context: TrainingContext, client: Client) -> Measurement:
    data, setup = context.data, context.setup
    x, y = torch.from_numpy(data.normalized(data.holdout)), torch.from_numpy(data.holdout.y)
    found = measure(setup, client, Examples(x, y), EVALUATION_BATCH)
    task, figures = setup.task, setup.task.metrics(found)
    sound = task.soundness(arrays(found), len(y), context.job.plan.labels, noun(context.settings))
    return Measurement(figures, sound, task.class_scores(found))


def holdout_metrics(before: Measurement, after: Measurement) -> dict[str, float]:
    """Return scores of the received and of the trained model; where the holdout can tell, also whether they work.

    From the latter the server makes its score of a version, for devices that cannot check it themselves.
    """
    metrics: dict[str, float] = {}
    for when, found in (("before", before), ("after", after)):
        metrics |= {f"{name}_{when}": value for name, value in found.metrics.items() if not math.isnan(value)}
        if (works := found.sound.works) is not None:
            metrics[f"works_{when}"] = float(works)
    if before.sound.trivial is not None and not before.sound.undecided_reason:
        metrics[f"{before.sound.metric}_{TRIVIAL}"] = before.sound.trivial
    classes = zip(class_score_names(len(after.classes)), after.classes, strict=False)
    return metrics | {name: score for name, score in classes if not math.isnan(score)}


def emit(**record: Any) -> None:
    """Write one JSON line for the supervisor."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
