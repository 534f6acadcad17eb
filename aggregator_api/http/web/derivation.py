"""The form's fields for a federation that continues from another's version or a checkpoint: what its model needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggregator_api.federations.checkpoints import UploadedCheckpoint
from aggregator_api.http.web.presets import EMPTY
from federation.methods import METHODS
from federation.plan import Plan
from gaitway.input_spec import InputSpec, LowPass
from gaitway.plain_text import toml_tables
from gaitway.tasks import DEFAULT_TASK

if TYPE_CHECKING:
    from models.checkpoint import CheckpointInfo

COPIED = ("task", "alternatives", "data", "training", "method")
"""Parts of a plan that go with a model; how its rounds are drawn and its models released is chosen anew."""
_FIELDS = {"training": ("classes", "feature_dim", "epochs", "batch_size", "lr"), "method": ("name",)}
"""Of these, what the form has fields for, or makes itself."""


def derived_fields(plan: Plan, name: str, version: int) -> dict[str, str]:
    """Fill the form in with a federation's network, options, labels, normalization and training, and its weights."""
    training = plan.training
    fields = {
        "labels": "\n".join(plan.labels),
        "model": plan.model.name,
        "method": str(plan.method.get("name", "")),
        "epochs": str(training.epochs),
        "batch_size": str(training.batch_size),
        "lr": f"{training.lr:g}",
        "normalization": plan.data.normalization,
        "secure": plan.secure.mode,
        "start_federation": name,
        "start_version": str(version),
        "further": toml_tables(_further(plan)),
    }
    return {**EMPTY, **fields}


def checkpoint_fields(found: UploadedCheckpoint) -> dict[str, str]:
    """Fill the form in with a checkpoint's network, options, labels and normalization, and its weights.

    A checkpoint does not say how it was trained, but for the method's name.
    """
    info = found.info
    method = METHODS.get(info.method)
    trains_live = method is not None and method().has_global_model and not method.traits.pools_data
    normalization, data = _data(info)
    further: dict[str, Any] = {"data": data} if data else {}
    if info.options:
        further["model"] = {"options": info.options}
    if info.task != {"name": DEFAULT_TASK.name}:
        further["task"] = info.task
    fields = {
        "labels": "\n".join(info.labels),
        "model": info.model,
        "method": info.method if trains_live else "fedavg",
        "normalization": normalization,
        "start_checkpoint": found.sha256,
        "further": toml_tables(further),
    }
    return {**EMPTY, **fields}


def _data(info: CheckpointInfo) -> tuple[str, dict[str, Any]]:
    """Return how a checkpoint's examples were normalized, and what else the plan's `data` has to say of them."""
    from models import MODELS  # who fills in a form for a checkpoint has loaded it already

    taken = info.input
    data: dict[str, Any] = {}
    if taken.kind == "image":
        data["input"] = {"kind": "image", "shape": list(taken.shape), "fit": taken.fit}
    elif pipeline := _pipeline(taken):
        data["pipeline"] = pipeline
    mean, std = list(taken.mean), list(taken.std)
    if MODELS[info.model].takes_raw_input:
        return "none", data
    if info.normalization in ("client", "none"):  # what the mean and deviation of a server's model do not tell
        return info.normalization, data
    if mean == [0.0] * len(mean) and std == [1.0] * len(std):
        return "client", data
    square = [m * m + s * s for m, s in zip(mean, std, strict=True)]
    return "federated", {**data, "statistics": {"count": 1, "total": mean, "square": square}}


def _pipeline(taken: InputSpec) -> dict[str, Any]:
    """Return what of a model's windows is made otherwise than by default; the first three go together."""
    cut: dict[str, Any] = {"window": taken.shape[0], "rate_hz": taken.rate_hz, "stride": taken.stride}
    found = {} if cut == {"window": 128, "rate_hz": 50.0, "stride": 64} else cut
    if taken.filter is not None and taken.filter.anti_alias != LowPass.anti_alias:
        found["anti_alias"] = taken.filter.anti_alias
    return found


def _further(plan: Plan) -> dict[str, Any]:
    written = plan.model_dump(mode="json", exclude_defaults=True, exclude_none=True, include=set(COPIED))
    found: dict[str, Any] = {}
    for part, value in written.items():
        left_out = (*_FIELDS.get(part, ()), *(("normalization",) if part == "data" else ()))
        found[part] = {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value
    if plan.model.options:
        found["model"] = {"options": plan.model.options}
    return found
