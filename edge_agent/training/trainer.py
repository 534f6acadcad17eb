"""The training process: one round, or the final model, then it ends; `edge_agent.training.entrypoint` starts it.

Files go to the job's folder; what has happened goes to standard output as JSON lines {"event": …}. What computes is a
`TrainingRuntime`: torch, or ONNX Runtime with the federation's program.
"""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.errors import AgentError, JobError, NonRetryableJobError, UnusableModelError
from edge_agent.machine.state import leaves_model
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import Preparation, preparation_from_json
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.comparison import HeldOut
from edge_agent.training.cross_validation import cross_validate, validation_obstacle
from edge_agent.training.job import (
    CHECKPOINT,
    CLIENT_STATE,
    CROSS_VALIDATION,
    GLOBAL,
    KEY_BYTES,
    MIDWAY,
    RESULT,
    UPDATE,
    WINDOW_KEYS,
    Job,
    is_out_of_memory,
    memory_cap_error,
    midway_path,
)
from edge_agent.training.limits import (
    ON_CPU,
    Placement,
    RoundBudget,
    checkpoint_path,
    fallback,
    first_line,
    is_of_gpu,
    place,
)
from edge_agent.training.local_data import (
    LocalData,
    noun,
    read_local_data,
    read_split,
    read_unlabelled_data,
    window_keys,
)
from edge_agent.training.runtime import Client, Measurement, TrainingRuntime, blaming_model
from federation.protocol.messages import class_score_names
from federation.rounds.gains import MAX_CLASSES
from federation.rounds.serving import PERSONAL
from gaitway.errors import GaitwayError
from gaitway.tasks import TRIVIAL
from har_pipeline import PipelineSettings

EXPECTED = (GaitwayError, AgentError, OSError)

MAX_REPORTED_WINDOWS = 256
"""Of the holdout, evenly over its time: enough for a report, and cheap on a small board."""
UNSOLVABLE = "linalg."
"""What torch's error begins with where a matrix is not positive definite."""


def main(arguments: list[str]) -> int:
    """Run the job that a file describes; 0 if everything that was due is on disk."""
    job = Job.model_validate_json(Path(arguments[0]).read_bytes())
    try:
        run_or_fall_back(job)
    except EXPECTED as error:
        if job.runtime == "onnx" and is_out_of_memory(error):  # ONNX Runtime says it in words of its own
            emit(event="error", reason=memory_cap_error(job.memory_mb), final=True)
            return 1
        final, unusable = isinstance(error, NonRetryableJobError), isinstance(error, UnusableModelError)
        emit(event="error", reason=str(error) or type(error).__name__, final=final, unusable=unusable)
        return 1
    except (MemoryError, RuntimeError) as error:
        if str(error).startswith(UNSOLVABLE):
            reason = f"the broadcast's sums can't come from any examples, so no head can be solved: {error}"
            emit(event="error", reason=reason, final=True, unusable=True)
            return 1
        if not is_out_of_memory(error):
            raise
        emit(event="error", reason=memory_cap_error(job.memory_mb), final=True)
        return 1
    return 0


def run_or_fall_back(job: Job) -> None:
    """Do a job's work; on the CPU, from its beginning, if the GPU fails on the way."""
    placement = place(job.runtime, job.processor, job.memory_mb)
    try:
        run(job, placement)
    except (GaitwayError, RuntimeError) as error:
        if placement.processor == "cpu" or not is_of_gpu(error):
            raise
        run(job, fallback(f"the GPU failed: {first_line(error)}", job.memory_mb))


def run(job: Job, placement: Placement = ON_CPU) -> None:
    """Do a job's work; `EXPECTED` tells why it cannot be done."""
    if job.candidate is not None:
        export_kept(job, job.candidate)
        return
    context = build_context(job, placement)
    if words := context.placement.describe():
        emit(event="placed", words=words)
    if job.continuous:
        context.update_heads(train(context) if job.kind == "train" else None)
        return
    if job.kind == "train":
        begun = time.monotonic()
        validate(context, train(context), begun + job.round_s)
    else:
        adopt(context)
    made = [folder for folder in (job.out, job.out / GLOBAL, job.out / MIDWAY) if (folder / CHECKPOINT).is_file()]
    if made:
        context.export({folder: folder / CHECKPOINT for folder in made})


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


def build_context(job: Job, placement: Placement = ON_CPU) -> TrainingRuntime:
    """Read the windows and the broadcast, and have the model ready in the runtime that the job names.

    Raises:
        JobError: if there is nothing to train on, or the broadcast is not the announced one.
        FederationError: if the broadcast does not fit the plan.
    """
    settings, data = read_data(job)
    if job.runtime == "onnx" and job.continuous:
        from edge_agent.training.sums_runtime import SumsRuntime

        return SumsRuntime.open(job, settings, data)
    if job.runtime == "onnx":
        from edge_agent.training.program_runtime import ProgramRuntime

        return ProgramRuntime.open(job, settings, data, placement)
    from edge_agent.training.torch_runtime import TorchRuntime  # loads torch, under the cap

    return TorchRuntime.open(job, settings, data, placement)


def export_kept(job: Job, candidate: Path) -> None:
    """Export the models that an earlier round left; its broadcast may be gone."""
    data, between = read_data(job)[1], midway_path(candidate)
    checkpoints = {job.out: candidate, **({job.out / MIDWAY: between} if between.is_file() else {})}
    if job.runtime == "onnx":
        from edge_agent.training.program_candidate import export_candidate as export_by_program

        for folder, path in checkpoints.items():
            export_by_program(job, data, path, folder)
        return
    from edge_agent.training.torch_files import export_candidates

    export_candidates(job, data, checkpoints)


def train(context: TrainingRuntime) -> Client:
    """Run the round and write update, client state, result and checkpoint; returns the trained client.

    The checkpoint is there before the round is told to be trained, so that its model can be exported later if that is
    stopped now. Where devices use what is released, or have no use for what is learnt, there is none.

    Raises:
        UnusableModelError: if training left NaN or infinity.
        NonRetryableJobError: if the time was over before the work was done, and the federation drops partial work.
    """
    job, data = context.job, context.data
    begun = time.monotonic()
    client, residual = context.load_client()
    before = context.measured(context.received(client))
    path = checkpoint_path(job.checkpoints, job, data.train, context.placement.processor)
    budget = RoundBudget(path, job.round_s, lambda epoch: emit(event="epoch", epoch=epoch))
    with blaming_model("training from the server's model diverges"):
        trained = context.train(client, budget)
    steps, work = _work_done(context, budget, trained.asked_steps)
    metrics = {**holdout_metrics(before, context.measured(trained.client)), **work}
    if context.trains:
        metrics["train_loss"] = trained.loss
    gains = measured_gains(context, client, trained.client)
    record = {
        "examples": len(data.train.y),
        "steps": steps,
        "class_counts": context.class_counts(),
        "metric": context.task.primary_metric,
        # a device without holdout windows has no scores, and JSON no NaN
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "gains": gains,
        "seconds": time.monotonic() - begun,
        "processor": context.placement.processor,
        "placement": context.placement.describe(),
    }
    sent = context.sent(trained, residual)
    if job.plan.secure.is_on:
        record["sum"] = context.write_summand(trained, steps, job.out / UPDATE, gains)
    else:
        write_file(job.out / UPDATE, sent.upload)
    write_file(job.out / CLIENT_STATE, sent.client)
    write_file(job.out / RESULT, json.dumps(record).encode())
    if job.continuous:
        keys = sorted(window_keys(data.train))
        write_file(job.out / WINDOW_KEYS, b"".join(key.to_bytes(KEY_BYTES, "big") for key in keys))
    elif leaves_model(job.plan):
        own = context.personal_model(trained.client)
        context.save(own, job.out, job.round)
        if is_comparable(context):
            shared = context.shared_model(client)
            if not job.plan.rollout.used:
                context.save(shared, job.out / GLOBAL, job.round - 1)
            context.save(context.midway_model(shared, own), job.out / MIDWAY, job.round)
    emit(event="trained")
    return trained.client


def is_comparable(context: TrainingRuntime) -> bool:
    """Whether there is a shared model that somebody has trained, and a device that chooses what it serves."""
    return leaves_model(context.job.plan) and context.has_global_model and context.is_trained()


def measured_gains(context: TrainingRuntime, received: Client, trained: Client) -> dict[str, list[int]]:
    """Return what this device reports of each network's gain over the shared one; {} where it can't tell."""
    if context.job.continuous:
        return {}
    some = context.data.evenly_held_out(MAX_REPORTED_WINDOWS)
    if not is_comparable(context) or not len(some.holdout) or len(context.job.plan.labels) > MAX_CLASSES:
        return {}
    shared, own = context.shared_model(received), context.personal_model(trained)
    models = {PERSONAL: own, MIDWAY: context.midway_model(shared, own)}
    truth = HeldOut.of(context.job.plan, some.holdout)
    reference = truth.quality(context.answers(shared, some))
    return {
        name: truth.evidence(truth.quality(context.answers(model, some)), reference).report()
        for name, model in models.items()
    }


def validate(context: TrainingRuntime, trained: Client, deadline: float) -> None:
    """Leave the answers of cross-validation where they say more than the holdout, and there is a shared model.

    The update is on its way by then: nobody waits for it, and the client that the round began with may be gone.
    """
    job, settings = context.job, context.settings
    if not is_comparable(context) or not isinstance(settings, PipelineSettings):
        return
    with closing(WindowStore(job.store)) as store:
        windows = read_split(store, job.client, settings, job.plan).labelled
    if validation_obstacle(windows, context.data, settings, job.plan):
        return
    shared = context.shared_model(trained)

    def answers(fold: LocalData) -> dict[str, np.ndarray]:
        own = context.personal_model(context.retrain(fold))
        models = {PERSONAL: own, MIDWAY: context.midway_model(shared, own)}
        return {name: context.answers(model, fold) for name, model in models.items()}

    for name, found in cross_validate(answers, windows, settings, job.plan, deadline=deadline).items():
        folder = job.out if name == PERSONAL else job.out / name
        write_file(folder / CROSS_VALIDATION, found.to_json().encode())


def _work_done(context: TrainingRuntime, budget: RoundBudget, steps_due: int) -> tuple[int, dict[str, float]]:
    """Return the steps that were done and, where the time was over before the last, the whole epochs among them."""
    if budget.stopped_at is None:
        return steps_due, {}
    if not context.keeps_partial_work:
        done = f"{budget.stopped_at} of {steps_due} steps"
        raise NonRetryableJobError(
            f"the {budget.budget_s:g} s for a round were over after {done}, and this federation drops partial work; "
            f"raise [training] max_round_s, or leave the round to faster devices"
        )
    return budget.stopped_at, {"epochs": float(budget.epochs)}


def adopt(context: TrainingRuntime) -> bool:
    """Save the server's model; False, with the reason in the result, if there is none.

    Raises:
        NonRetryableJobError: if nobody has trained it yet, and the device has no holdout to measure it on.
    """
    job, task, reason = context.job, context.task, ""
    if not context.has_global_model:
        reason = f"the method {job.plan.method.get('name')} has no global model"
    elif not task.is_served:
        reason = f"devices have no use for a model of {task.name}; another federation may begin with it"
    elif not len(context.data.holdout) and not context.is_trained():
        raise NonRetryableJobError("the federation's model is still the initial, untrained one")
    if reason:
        write_file(job.out / RESULT, json.dumps({"no_model": reason}).encode())
        return False
    context.save(context.shared_model(context.load_client()[0]), job.out, job.round)
    return True


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
