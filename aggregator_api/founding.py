"""From a plan to a federation: its method, its first state, and what its updates must look like.

The only module here that knows `models`, and it imports them when a plan is founded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from aggregator_api.errors import UnprocessableError
from federation import schema, wire
from federation.errors import SettingsError
from federation.forward import initial_client, initial_model
from federation.method import Method
from federation.methods import method_from_json
from federation.plan import Plan
from federation.protocol.messages import MESSAGE_BYTES
from federation.records import Client

PLAN_BYTES = MESSAGE_BYTES // 2
"""A plan travels in every announcement, beside the cohort."""


class Founding(NamedTuple):
    """The bytes of the initial state and broadcast, and the schema of an upload."""

    state: bytes
    broadcast: bytes
    upload_schema: schema.Schema


def found(plan: Plan, *, max_model_bytes: int) -> Founding:
    """Build the initial model from the plan's seed and ask the method for its first state.

    Raises:
        UnprocessableError: naming the field of the plan that does not fit the others.
    """
    size = len(plan.model_dump_json())
    if size > PLAN_BYTES:
        raise UnprocessableError(f"plan: {size:,} bytes of JSON, at most {PLAN_BYTES:,} fit into an announcement")
    if len(plan.labels) != plan.task.classes:
        raise UnprocessableError(f"plan.task.classes is {plan.task.classes}, but plan.labels has {len(plan.labels)}")
    if len(set(plan.labels)) != len(plan.labels):
        raise UnprocessableError("plan.labels names a label twice")
    try:
        method = method_from_json(plan.method)
    except SettingsError as error:
        raise UnprocessableError(f"plan.method: {error}") from error
    client = _initial_client(plan, max_model_bytes)
    return _first_state(plan, method, client)


def _first_state(plan: Plan, method: Method, client: Client) -> Founding:
    if method.sends_prototypes and not any(name.endswith("prototypes") for name in client.buffers):
        raise UnprocessableError(
            f"plan.method: {method.name} shares prototypes, but the model {plan.model.name!r} has no ALP layer; "
            "choose one that has, such as hart_alp or cnn_alp"
        )
    try:
        state = method.server_init(client.params, client.buffers, plan.task)
        uploads = schema.upload_schema(method, plan.task, client)
    except SettingsError as error:
        raise UnprocessableError(f"plan.method: {error}") from error
    return Founding(wire.encode(state), wire.encode(method.broadcast(state, "")), uploads)


def _initial_client(plan: Plan, max_model_bytes: int) -> Client:
    from models import ModelError, build  # only the founding of a federation needs the networks

    def make() -> torch.nn.Module:
        return build(plan.model.name, classes=len(plan.labels), **plan.model.options)

    try:
        with torch.device("meta"):  # shapes without memory: the size is known before it is taken
            size = sum(value.nbytes for value in make().state_dict().values())
        if size > max_model_bytes:
            raise UnprocessableError(
                f"plan.model: {size:,} bytes of weights, at most {max_model_bytes:,} are allowed (max_model_bytes)"
            )
        module = initial_model(make, plan.task.seed)
    except (ModelError, TypeError, ValueError, RuntimeError) as error:
        raise UnprocessableError(f"plan.model: {error}") from error
    if module.feature_dim != plan.task.feature_dim:
        raise UnprocessableError(
            f"plan.task.feature_dim is {plan.task.feature_dim}, but the features of {plan.model.name!r} "
            f"have {module.feature_dim} dimensions"
        )
    return initial_client(module)
