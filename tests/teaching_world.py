"""A continuous federation without its server, for who is taught: other people's sums, the network, and a new person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from export.graph import ExportModule, float32_graph
from export.runtime import ModelMetadata
from federation import wire
from federation.aggregation.ridge_numpy import Damping, FixedSums, solve_mean, sums_of, travelling
from federation.plan import ModelSpec, Plan, RoundSettings, TrainingConfig
from gaitway.input_spec import InputSpec
from har_pipeline import Recording, dataset_labels, prepare, recordings
from models import build

CLIP, RIDGE, SHARE = 4.0, 1e-2, 0.33


@dataclass(frozen=True)
class TeachingWorld:
    """What a device or a phone has of its federation, and the recordings of somebody who was in none of it."""

    plan: Plan
    broadcast: bytes
    network: bytes
    """ONNX: raw windows in, embedding and the shared head's logits out."""
    shared: FixedSums
    clients: int
    recordings: dict[str, npt.NDArray[np.float64]]
    """By activity: time in s from 0 on, acceleration and rotation (n, 7)."""


def teaching_world(
    dataset: str,
    root: Path | None,
    person: str,
    others: list[str],
    *,
    cosines: int,
    options: dict[str, Any],
    unknown: Sequence[str] = (),
) -> TeachingWorld:
    """Make the sums of some clients of a data set, and read the recordings of another.

    unknown: activities that the federation does not have, and nobody in it has done.
    """
    every = dataset_labels(dataset)
    labels = tuple(label for label in every if label not in unknown)
    code = np.array([labels.index(label) if label in labels else -1 for label in every])
    torch.manual_seed(0)
    module = build("har_features", classes=len(labels), cosines=cosines).eval()
    parts = []
    for client in prepare(dataset, root, clients=others, options=options).clients.values():
        is_known = code[client.y] >= 0
        with torch.no_grad():
            features = module(torch.from_numpy(client.x[is_known])).features.numpy()
        parts.append(travelling(sums_of(features, code[client.y[is_known]], len(labels), CLIP)))
    shared = FixedSums(*(np.sum([each.astype(np.int64) for each in kind], 0) for kind in zip(*parts, strict=True)))
    columns = module.orientation_free_columns
    head = solve_mean(shared, None, 0, Damping(RIDGE), columns, SHARE)
    with torch.no_grad():
        module.head.weight.copy_(torch.from_numpy(head.weight))
        module.head.bias.copy_(torch.from_numpy(head.bias))
    sums = {"gram": shared.gram, "moment": shared.moment, "clients": np.array(len(parts))}
    tree = {
        "params": {name: value.detach() for name, value in module.named_parameters()},
        "sums": {name: torch.from_numpy(np.asarray(value, np.int64)) for name, value in sums.items()},
    }
    metadata = ModelMetadata(
        labels,
        InputSpec.windows((0,) * 6, (1,) * 6),
        model="har_features",
        method="analytic",
        orientation_free_columns=columns,
        gravity_columns=module.gravity_columns,
    )
    return TeachingWorld(
        _plan(labels, cosines),
        wire.encode(tree),
        float32_graph(ExportModule(module, metadata), metadata).SerializeToString(),
        shared,
        len(parts),
        longest_runs(dataset, root, person, options),
    )


def synthetic_world() -> TeachingWorld:
    """Two people's sums and a third person's motion, all of them made."""
    options = {"subjects": 3, "phones": ["phone100"], "places": ["waist"], "minutes": 6.0}
    names = [f"s{number:02d}_phone100-waist" for number in range(3)]
    return teaching_world("synthetic", None, names[0], names[1:], cosines=41, options=options)


def _plan(labels: tuple[str, ...], cosines: int) -> Plan:
    plan = Plan(
        labels=labels,
        model=ModelSpec(name="har_features", options={"cosines": cosines}),
        method={"name": "analytic"},
        training=TrainingConfig(
            classes=len(labels), feature_dim=183 + cosines, epochs=1, batch_size=32, lr=1e-3, seed=0
        ),
        rounds=RoundSettings(rounds=1),
    )
    return plan.model_copy(update={"data": plan.data.model_copy(update={"normalization": "none"})})


def longest_runs(
    dataset: str, root: Path | None, person: str, options: dict[str, Any]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return of each activity of a person the longest unbroken run: time in s, acceleration, rotation (n, 7)."""
    sensors: dict[str, dict[str, list[Recording]]] = {}
    for each in recordings(dataset, root, clients=[person], options=options):
        sensors.setdefault(each.session, {}).setdefault(each.sensor, []).append(each)
    found: dict[str, npt.NDArray[np.float64]] = {}
    for session in sensors.values():
        acc, gyro = (np.concatenate([each.values for each in session[name]]) for name in ("acc", "gyro"))
        times = np.concatenate([each.times_s for each in session["acc"]])
        gyro_times = np.concatenate([each.times_s for each in session["gyro"]])
        rotation = np.column_stack([np.interp(times, gyro_times, axis) for axis in gyro.T])
        activity = np.concatenate([np.broadcast_to(each.activity, len(each.times_s)) for each in session["acc"]])
        rows = np.column_stack([times, acc, rotation])
        for run in np.split(np.arange(len(rows)), np.flatnonzero(activity[1:] != activity[:-1]) + 1):
            name = str(activity[run[0]])
            if name and len(run) > len(found.get(name, ())):
                found[name] = rows[run] - [rows[run[0], 0], 0, 0, 0, 0, 0, 0]
    return found
