"""Exports of a federation's model version: a checkpoint, and ONNX."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import cast

from aggregator_api.core.errors import ConflictError, UnavailableError, UnprocessableError
from aggregator_api.federations.initial_state import initial_client_of
from federation import wire
from federation.methods import method_from_json
from federation.plan import Plan
from federation.records.head import with_placeholder_head
from federation.training.forward import initial_model
from gaitway.input_spec import MIN_STD, SENSOR_CHANNELS, InputSpec
from gaitway.tasks import DEFAULT_TASK

ONNX_TIMEOUT_S = 300.0
NEEDS = ("onnx", "onnxscript", "onnxruntime")
_one_at_a_time = Lock()
"""An export takes a core and half a gigabyte for seconds."""


def checkpoint(
    plan: Plan,
    federation: str,
    round_number: int,
    broadcast: bytes,
    scores: dict[str, float],
    *,
    is_network: bool = False,
) -> bytes:
    """Return a version as a checkpoint, with its origin and scores.

    Where each device normalizes by its own statistics, the model has none: it then takes normalized windows. Of a
    federation that pretrains without labels it is the encoder, with a fresh head, for `sim run --init`. With
    `is_network` only what is below the head matters, and any head may take the place of its own.

    Raises:
        ConflictError: if the method has no model for all.
    """
    # only an export needs them
    from models import Model, build
    from models.checkpoint import CheckpointInfo, save_checkpoint
    from models.mae import encoder_state, is_autoencoder_state

    method = method_from_json(plan.method)
    if not method.has_global_model:
        raise ConflictError(f"{method.name} has no global model: every device has and exports its own")
    initial = method.init_client_state(initial_client_of(plan, plan.model, sys.maxsize), plan.training)
    client = method.serving_model(method.global_model(initial, wire.decode(broadcast, limit_bytes=len(broadcast))))
    state = {**(with_placeholder_head(client.params) if is_network else client.params), **client.buffers}
    if pretrained := is_autoencoder_state(state):
        fresh = initial_model(
            lambda: build(plan.model.name, classes=len(plan.labels), **plan.model.options), plan.training.seed
        )
        state = encoder_state(state, cast("Model", fresh))
    info = CheckpointInfo(
        model=plan.model.name,
        options=plan.model.options,
        labels=plan.labels,
        task={"name": DEFAULT_TASK.name} if pretrained else plan.task,
        input=_input_spec(plan),
        method=method.name,
        round=round_number,
        federation=federation,
        parent_sha256=hashlib.sha256(broadcast).hexdigest(),
        scores={} if pretrained else scores,
        fresh_head=pretrained,
    )
    with tempfile.TemporaryDirectory(prefix="gaitway-checkpoint-") as folder:
        path = Path(folder) / "model.safetensors"
        save_checkpoint(path, state, info)
        return path.read_bytes()


def can_make_onnx() -> bool:
    """Whether what an export needs is installed (gaitway[export])."""
    return all(find_spec(name) is not None for name in NEEDS)


def require_exporter() -> None:
    """Refuse what needs an export where none can be made.

    Raises:
        UnavailableError: saying what to install.
    """
    if not can_make_onnx():
        raise UnavailableError(
            "the server has no exporter; install its extra 'export', or export the checkpoint elsewhere"
        )


def onnx(made: bytes) -> bytes:
    """Return a checkpoint as ONNX, exported and compared with torch in a process of its own.

    Raises:
        UnavailableError: if another export takes too long, or what it needs is not installed.
        UnprocessableError: if it fails, in the words of `python -m export`.
    """
    require_exporter()
    if not _one_at_a_time.acquire(timeout=30):
        raise UnavailableError("another export is being made; try again in a moment")
    try:
        with tempfile.TemporaryDirectory(prefix="gaitway-onnx-") as folder:
            return _export(Path(folder), made)
    finally:
        _one_at_a_time.release()


def _export(folder: Path, made: bytes) -> bytes:
    source, target = folder / "model.safetensors", folder / "model.onnx"
    source.write_bytes(made)
    command = [sys.executable, "-m", "export", "onnx", "--checkpoint", str(source), "--out", str(target)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ONNX_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"the export took more than {ONNX_TIMEOUT_S:.0f} s; export the checkpoint elsewhere"
        ) from error
    if ran.returncode or not target.exists():
        output = " ".join((ran.stderr or ran.stdout).split())[-300:]
        raise UnprocessableError(f"the model could not be exported: {output}")
    return target.read_bytes()


def _input_spec(plan: Plan) -> InputSpec:
    from har_pipeline.settings import PipelineSettings  # only an export says what windows are

    images = plan.data.input
    if images is None:
        return PipelineSettings(**plan.data.pipeline).input_spec(*_normalization(plan, len(SENSOR_CHANNELS)))
    return InputSpec.images(images.shape, *_normalization(plan, images.shape[0]), images.fit)


def _normalization(plan: Plan, channels: int) -> tuple[list[float], list[float]]:
    found = plan.data.statistics
    if plan.data.normalization != "federated" or found is None or not found.count:
        return [0.0] * channels, [1.0] * channels
    mean = [total / found.count for total in found.total]
    variance = [square / found.count - m * m for square, m in zip(found.square, mean, strict=True)]
    # as devices have it, so that a channel without a sensor becomes zeros
    std = [max(MIN_STD, math.sqrt(max(0.0, value))) for value in variance]
    return mean, std
