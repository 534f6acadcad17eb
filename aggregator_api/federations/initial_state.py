"""From a plan to a federation: its method, its first state, and what its updates must look like.

The only module here that knows `models`, and it imports them when a federation is created.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from aggregator_api.errors import UnprocessableError
from federation import wire
from federation.errors import SettingsError
from federation.method import Method
from federation.methods import METHODS, method_from_json
from federation.plan import ModelSpec, Plan, RolloutSettings
from federation.privacy.differential_privacy import check_private
from federation.protocol.messages import MESSAGE_BYTES
from federation.records import Client
from federation.training.forward import initial_client, initial_model
from federation.wire import schema

PLAN_BYTES = MESSAGE_BYTES // 2
"""A plan travels in every announcement, which must stay a message."""


class InitialState(NamedTuple):
    """The bytes of the initial state and broadcast, and the schema of an upload."""

    state: bytes
    broadcast: bytes
    upload_schema: schema.Schema


def build_initial_state(plan: Plan, *, max_model_bytes: int) -> InitialState:
    """Build the initial model from the plan's seed and ask the method for its first state.

    Raises:
        UnprocessableError: naming the field of the plan that does not fit the others.
    """
    size = len(plan.model_dump_json())
    if size > PLAN_BYTES:
        raise UnprocessableError(f"plan: {size:,} bytes of JSON, at most {PLAN_BYTES:,} fit into an announcement")
    _check_labels(plan)
    method = _method(plan)
    client = _initial_client(plan, plan.model, max_model_bytes)
    initial = _first_state(plan, method, client)
    for spec in plan.alternatives:
        other = _initial_client(plan, spec, max_model_bytes)
        if schema.upload_schema(method, plan.training, other) != initial.upload_schema:
            raise UnprocessableError(f"plan.alternatives: {spec.name!r} would upload other tensors than the model")
    return initial


def check_rollout(method: Method, rollout: RolloutSettings) -> None:
    """Check that there is something to release.

    Raises:
        UnprocessableError: if the method has no model for all.
    """
    if rollout.used and not method.has_global_model:
        raise UnprocessableError(
            f"plan.rollout: {method.name} has no global model, so there is nothing to release; leave the mode off"
        )


def _check_labels(plan: Plan) -> None:
    if len(plan.labels) != plan.training.classes:
        raise UnprocessableError(
            f"plan.training.classes is {plan.training.classes}, but plan.labels has {len(plan.labels)}"
        )
    if len(set(plan.labels)) != len(plan.labels):
        raise UnprocessableError("plan.labels names a label twice")


def _method(plan: Plan) -> Method:
    try:
        method = method_from_json(plan.method)
    except SettingsError as error:
        raise UnprocessableError(f"plan.method: {error}") from error
    if method.pools_data:
        raise UnprocessableError(
            f"plan.method: {method.name} trains on everybody's examples in one place, which only a simulation can; "
            "run it with `python -m sim run`"
        )
    if plan.alternatives:
        _check_alternatives(plan, method)
    check_rollout(method, plan.rollout)
    return method


def _check_alternatives(plan: Plan, method: Method) -> None:
    if not method.mixes_architectures:
        mixing = ", ".join(name for name, kind in METHODS.items() if kind.mixes_architectures)
        raise UnprocessableError(
            f"plan.alternatives: {method.name} shares parameters, so every device needs the same network; "
            f"leave them out, or choose a method that mixes architectures ({mixing})"
        )
    names = [plan.model.name, *(spec.name for spec in plan.alternatives)]
    if len(set(names)) != len(names):
        listed = ", ".join(names)
        raise UnprocessableError(
            f"plan.alternatives: a device chooses by name, but these are not all different: {listed}"
        )


def _first_state(plan: Plan, method: Method, client: Client) -> InitialState:
    if method.requires_alp and plan.model.name not in _alp_models():
        raise UnprocessableError(
            f"plan.method: {method.name} shares prototypes, but the model {plan.model.name!r} has no ALP layer; "
            f"choose one that has: {', '.join(_alp_models())}"
        )
    try:
        check_private(method, plan.rounds)
        state = method.server_init(client.params, client.buffers, plan.training)
        uploads = schema.upload_schema(method, plan.training, client)
    except SettingsError as error:
        raise UnprocessableError(f"plan.method: {error}") from error
    return InitialState(wire.encode(state), wire.encode(method.broadcast(state, "")), uploads)


def _alp_models() -> list[str]:
    from models.registry import alp_models  # only the founding of a federation needs the networks

    return alp_models()


def _initial_client(plan: Plan, spec: ModelSpec, max_model_bytes: int) -> Client:
    from models import ModelError, build  # only the creation of a federation needs the networks

    where = "plan.model" if spec is plan.model else "plan.alternatives"

    def make() -> torch.nn.Module:
        return build(spec.name, classes=len(plan.labels), **spec.options)

    try:
        with torch.device("meta"):  # shapes without memory: the size is known before it is taken
            size = sum(value.nbytes for value in make().state_dict().values())
        if size > max_model_bytes:
            raise UnprocessableError(
                f"{where}: {size:,} bytes of weights, at most {max_model_bytes:,} are allowed (max_model_bytes)"
            )
        module = initial_model(make, plan.training.seed)
    except (ModelError, TypeError, ValueError, RuntimeError) as error:
        raise UnprocessableError(f"{where}: {error}") from error
    if module.feature_dim != plan.training.feature_dim:
        raise UnprocessableError(
            f"{where}: the features of {spec.name!r} have {module.feature_dim} dimensions, "
            f"but plan.training.feature_dim is {plan.training.feature_dim}"
        )
    return initial_client(module)
