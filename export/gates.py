"""Gates that an exported model must pass before its file is written: agreement with torch, itself, and the labels.

Without real examples, the gate generates some; they aren't training data.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from export.runtime import GateError, Session
from federation.records import Batch, Output
from federation.tasks.task import Task
from gaitway.input_spec import InputSpec
from gaitway.tasks import DEFAULT_TASK, TaskDefinition

MAX_LOGIT_DELTA = 1e-4
MIN_INT8_AGREEMENT = 0.99
BATCHES = (1, 2, 7)

Floats = NDArray[np.float32]
Labels = NDArray[Any]
"""True targets: class numbers int64, or numbers float64."""


@dataclass(frozen=True)
class Parity:
    """ONNX Runtime against torch: largest |Δ logits|, share of equal argmax (of pixels), batch 1 against batch 7."""

    max_logit_delta: float
    argmax_agreement: float
    batch_delta: float


def check_count(examples: Floats, allow_few: bool, least: int = DEFAULT_TASK.min_gate_examples) -> None:
    """Refuse a gate on fewer examples than `least`, unless allowed, and any on none."""
    if len(examples) < (1 if allow_few else least):
        raise GateError(f"{len(examples)} examples for the parity gate; expected at least {least} (or allow few)")


def score_of(task: Task, logits: Floats, targets: Labels) -> float:
    """Return the task's primary metric of logits (n, C, …) for targets (n, …)."""
    nothing = torch.empty(0)
    output = Output(nothing, torch.from_numpy(logits), {})
    batch = Batch(nothing, torch.from_numpy(targets), torch.ones(len(targets)))
    return task.metrics(task.statistics(output, batch))[task.primary_metric]


def check_parity(session: Session, examples: Floats, reference: Floats, task: TaskDefinition) -> Parity:
    """Compare with torch's logits (n, C, …) on raw examples (n, …), and batches 1, 2 and 7 with each other."""
    logits = session.predict(examples).logits
    delta = float(np.abs(logits - reference).max())
    agreement = task.agreement(logits, reference)
    batch_delta = _batch_delta(session, examples)
    # Written so that a NaN fails.
    least = task.min_agreement
    if not delta <= MAX_LOGIT_DELTA or agreement < least:
        expected = "all" if least == 1 else f"{least:.1%} of pixels"
        raise GateError(
            f"float32 parity on {len(examples)} examples: |Δ logits| {delta:.2e} (at most {MAX_LOGIT_DELTA:.0e}), "
            f"equal argmax {agreement:.2%} (expected {expected})"
        )
    if not batch_delta <= MAX_LOGIT_DELTA:
        raise GateError(
            f"logits of one example differ by {batch_delta:.2e} between batch sizes {BATCHES}; "
            f"expected at most {MAX_LOGIT_DELTA:.0e}: the graph depends on the batch"
        )
    return Parity(delta, agreement, batch_delta)


def _batch_delta(session: Session, examples: Floats) -> float:
    """Return the largest difference of any logit of the first examples between the batch sizes."""
    sample = np.resize(examples, (max(BATCHES), *examples.shape[1:]))
    runs = []
    for size in BATCHES:
        parts = [session.predict(sample[i : i + size]).logits for i in range(0, len(sample), size)]
        runs.append(np.concatenate(parts))
    return float(max(np.abs(run - runs[-1]).max() for run in runs))


@dataclass(frozen=True)
class Int8Quality:
    """int8 against float32: share of equal argmax, and both primary metrics where targets were given."""

    argmax_agreement: float
    score: float | None
    score_float32: float | None


def check_int8(quantized: Session, exact: Session, examples: Floats, targets: Labels | None, task: Task) -> Int8Quality:
    """Compare int8 with float32 on raw examples (n, …), with the task's targets (n, …) or None."""
    ours, theirs = quantized.predict(examples).logits, exact.predict(examples).logits
    agreement = task.agreement(ours, theirs)
    if agreement < MIN_INT8_AGREEMENT:
        raise GateError(
            f"int8 agrees with float32 on {agreement:.2%} of {len(examples)} examples; "
            f"expected {MIN_INT8_AGREEMENT:.0%}"
        )
    if targets is None:
        return Int8Quality(agreement, None, None)
    score, wide = (score_of(task, logits, targets) for logits in (ours, theirs))
    metric = task.metric_kinds[task.primary_metric]
    if metric.gain(wide, score) > task.max_score_loss:
        raise GateError(
            f"int8 {metric.label} {score:.4f} against {wide:.4f}; expected a loss of at most {task.max_score_loss:g}"
        )
    return Int8Quality(agreement, score, wide)


def latency_ms(session: Session, examples: Floats, repeats: int = 50) -> float:
    """Return the median milliseconds of one example on the session's threads."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        session.predict(examples[:1])
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]) * 1e3)


GRAVITY = 9.81


def generated_examples(spec: InputSpec, count: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Return (count, *spec.shape), raw: motion, pixels between 0 and 1, or numbers with the spec's mean and std."""
    if spec.kind == "window" and spec.rate_hz is not None:
        return generated_windows(count, window=spec.shape[0], rate_hz=spec.rate_hz, seed=seed)
    random = np.random.default_rng(seed)
    if spec.kind == "image":
        return random.uniform(size=(count, *spec.shape)).astype(np.float32)
    return random.normal(spec.mean, spec.std, size=(count, *spec.shape)).astype(np.float32)


def generated_windows(count: int, *, window: int = 128, rate_hz: float = 50.0, seed: int = 0) -> NDArray[np.float32]:
    """Return (count, window, 6) in m/s² and rad/s: gravity in any direction, rest to running, sensor noise."""
    random = np.random.default_rng(seed)
    time = np.arange(window) / rate_hz
    down = random.normal(size=(count, 1, 3))
    down *= GRAVITY / np.linalg.norm(down, axis=-1, keepdims=True)
    cadence_hz = random.uniform(0.5, 3.0, size=(count, 1, 1))
    vigour = random.exponential(1.0, size=(count, 1, 1))
    wave = np.zeros((count, window, 6))
    for harmonic in (1, 2, 3):
        phase = random.uniform(0, 2 * np.pi, size=(count, 1, 6))
        amplitude = random.uniform(0, 1, size=(count, 1, 6)) / harmonic
        wave += amplitude * np.sin(2 * np.pi * harmonic * cadence_hz * time[None, :, None] + phase)
    wave *= vigour * np.array([3.0, 3.0, 3.0, 1.0, 1.0, 1.0])
    wave += random.normal(size=wave.shape) * np.array([0.05, 0.05, 0.05, 0.01, 0.01, 0.01])
    wave[..., :3] += down
    return wave.astype(np.float32)
