"""The form's fields for a federation that continues from another: what its model needs, from that one's plan."""

from __future__ import annotations

from typing import Any

from aggregator_api.web.presets import EMPTY
from federation.plan import Plan
from gaitway.toml_text import toml_tables

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


def _further(plan: Plan) -> dict[str, Any]:
    written = plan.model_dump(mode="json", exclude_defaults=True, exclude_none=True, include=set(COPIED))
    found: dict[str, Any] = {}
    for part, value in written.items():
        left_out = (*_FIELDS.get(part, ()), *(("normalization",) if part == "data" else ()))
        found[part] = {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value
    if plan.model.options:
        found["model"] = {"options": plan.model.options}
    return found
