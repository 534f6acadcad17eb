"""From a plan to a federation: its method, its first state, and what its updates must look like.

The only module here that knows `models`, and it imports them when a federation is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations.checkpoints import started_from, started_from_model
from aggregator_api.storage.db.models import FederationKind
from federation import wire
from federation.errors import SettingsError
from federation.method import Method, features_incompatibility
from federation.methods import METHODS, method_from_json
from federation.plan import ModelSpec, Plan, RolloutSettings
from federation.privacy.differential_privacy import check_private
from federation.protocol.messages import MESSAGE_BYTES
from federation.records import Client
from federation.records.head import is_base
from federation.secure_sums.live import check_live, most_members
from federation.secure_sums.summation import SumLayout, layout_of, vector_length
from federation.tasks import task_from_json
from federation.training.forward import initial_client, initial_model
from federation.wire import schema
from gaitway.tasks import DEFAULT_TASK

PLAN_BYTES = MESSAGE_BYTES // 2
"""A plan travels in every announcement, which must stay a message."""


class StartingPoint(NamedTuple):
    """A model version that a federation starts from: what it is called, its plan, and the server's state."""

    label: str
    plan: Plan
    state: bytes

    def started(self, client: Client) -> Client:
        """Lay its weights over a client; raises SettingsError where they do not fit."""
        state = wire.decode(self.state, limit_bytes=len(self.state))
        return started_from(client, method_from_json(self.plan.method), state)


class CheckpointStart(NamedTuple):
    """An uploaded checkpoint that a federation starts from: what it is called, and its tensors."""

    label: str
    tensors: Mapping[str, torch.Tensor]

    def started(self, client: Client) -> Client:
        """Lay its weights over a client; raises SettingsError where they do not fit."""
        return started_from_model(client, self.tensors)


class InitialState(NamedTuple):
    """The bytes of the initial state and broadcast, the schema of an upload, and what it started from.

    `sum_layout` says what the numbers of a secure sum mean; None where updates come as such.
    """

    state: bytes
    broadcast: bytes
    upload_schema: schema.Schema
    started_from: str = ""
    sum_layout: SumLayout | None = None

    @property
    def sha256(self) -> str:
        """Name of the broadcast's blob."""
        return wire.digest(self.broadcast)


def build_initial_state(
    plan: Plan, *, max_model_bytes: int, start: StartingPoint | CheckpointStart | None = None
) -> InitialState:
    """Build the initial model from the plan's seed, or from another's, and ask the method for its first state.

    Raises:
        UnprocessableError: naming the field of the plan that does not fit the others.
    """
    size = len(plan.model_dump_json())
    if size > PLAN_BYTES:
        raise UnprocessableError(f"plan: {size:,} bytes of JSON, at most {PLAN_BYTES:,} fit into an announcement")
    _check_labels(plan)
    method = _method(plan)
    if FederationKind.of(plan.method, plan.secure.mode).sums:
        _check_features_of_one(plan)
    client = initial_client_of(plan, plan.model, max_model_bytes)
    initial = _first_state(plan, method, client if start is None else _started(client, method, start))
    if start is not None:
        initial = initial._replace(started_from=start.label)
    for spec in plan.alternatives:
        other = initial_client_of(plan, spec, max_model_bytes)
        if schema.upload_schema(method, plan.training, other) != initial.upload_schema:
            raise UnprocessableError(f"plan.alternatives: {spec.name!r} would upload other tensors than the model")
    return initial


def with_model_options(plan: Plan) -> Plan:
    """Return a new plan with the options written down that its networks have today (`Model.new_plan_options`)."""
    from models.registry import new_plan_options

    def written(spec: ModelSpec) -> ModelSpec:
        return spec.model_copy(update={"options": new_plan_options(spec.name, spec.options)})

    specs = {"model": written(plan.model), "alternatives": tuple(written(spec) for spec in plan.alternatives)}
    return plan.model_copy(update=specs)


def feature_dim_of(spec: ModelSpec, classes: int) -> int:
    """Return the size of a network's features.

    Raises:
        UnprocessableError: if there is no such network, or it does not take these options.
    """
    from models import ModelError, build

    try:
        with torch.device("meta"):
            return build(spec.name, classes=classes, **spec.options).feature_dim
    except (ModelError, TypeError, ValueError, RuntimeError) as error:
        raise UnprocessableError(f"plan.model: {error}") from error


def network_names() -> list[str]:
    """Return the networks that classify windows of motion sensors, as devices measure them."""
    from models.registry import MODELS, learners

    return [name for name in learners(DEFAULT_TASK.name) if "window" in MODELS[name].input_kinds]


def _started(client: Client, method: Method, start: StartingPoint | CheckpointStart) -> Client:
    sends = method.has_global_model or any(is_base(name) and method.shared(name) for name in client.params)
    if not sends:
        raise UnprocessableError(
            f"start_from: {method.name} sends devices no parameters, so they could not start from any; leave it out"
        )
    try:
        return start.started(client)
    except SettingsError as error:
        raise UnprocessableError(f"start_from: {start.label} does not fit: {error}") from error


def check_rollout(method: Method, rollout: RolloutSettings) -> None:
    """Check that there is something to release.

    Raises:
        UnprocessableError: if the method has no model for all.
    """
    if rollout.used and not method.has_global_model:
        raise UnprocessableError(
            f"plan.rollout: {method.name} has no global model, so there is nothing to release; leave the mode off"
        )


def check_sums(plan: Plan, method: Method) -> None:
    """Check that a server and its devices can carry a plan's secure sums out, if it wants any.

    Raises:
        UnprocessableError: naming the option, and what to do.
    """
    try:
        check_live(plan, method)
    except SettingsError as error:
        raise UnprocessableError(f"plan.secure: {error}") from error


def _check_features_of_one(plan: Plan) -> None:
    """Check that an example's features do not depend on the others of its batch: sums of them would, too."""
    if plan.model.name in _alp_models():
        raise UnprocessableError(
            f"plan.model: the ALP layers of {plan.model.name!r} look at the whole batch, so that sums of its features "
            "would depend on how devices divide their examples; choose har_features, har_cnn or hart"
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
    try:
        obstacle = method.task_incompatibility(task_from_json(plan.task))
    except SettingsError as error:
        raise UnprocessableError(f"plan.task: {error}") from error
    if obstacle:
        raise UnprocessableError(f"plan.task: {obstacle}")
    if obstacle := features_incompatibility(method, plan.model.options.get("features_at", "head")):
        raise UnprocessableError(f"plan.model: {obstacle}")
    if method.traits.pools_data:
        raise UnprocessableError(
            f"plan.method: {method.name} trains on everybody's examples in one place, which only a simulation can; "
            "run it with `python -m sim run`"
        )
    if plan.alternatives:
        _check_alternatives(plan, method)
    check_rollout(method, plan.rollout)
    check_sums(plan, method)
    return method


def _check_alternatives(plan: Plan, method: Method) -> None:
    if not method.mixes_architectures:
        mixing = ", ".join(name for name, kind in METHODS.items() if kind().mixes_architectures)
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
    if method.traits.requires_alp and plan.model.name not in _alp_models():
        raise UnprocessableError(
            f"plan.method: {method.name} shares prototypes, but the model {plan.model.name!r} has no ALP layer; "
            f"choose one that has: {', '.join(_alp_models())}"
        )
    try:
        check_private(method, plan.rounds, plan.training)
        state = method.server_init(client.params, client.buffers, plan.training)
        uploads = schema.upload_schema(method, plan.training, client)
        layout = (
            layout_of(method, plan.training, client, plan.secure)
            if FederationKind.of(plan.method, plan.secure.mode).masked
            else None
        )
        if layout is not None:
            layout.bits_for(most_members(plan))
            vector_length(layout, plan.secure)
    except SettingsError as error:
        raise UnprocessableError(f"plan.method: {error}") from error
    return InitialState(wire.encode(state), wire.encode(method.broadcast(state, "")), uploads, sum_layout=layout)


def _alp_models() -> list[str]:
    from models.registry import alp_models  # only the founding of a federation needs the networks

    return alp_models()


def initial_client_of(plan: Plan, spec: ModelSpec, max_model_bytes: int) -> Client:
    """Build a network of the plan as every client begins with it.

    Raises:
        UnprocessableError: naming the field of the plan that does not fit.
    """
    from models import MODELS, ModelError, build  # only the creation of a federation needs the networks
    from models.mae import with_decoder
    from models.registry import learners

    where, decoder = "plan.model" if spec is plan.model else "plan.alternatives", task_from_json(plan.task).decoder

    if spec.name in MODELS and MODELS[spec.name].takes_raw_input and plan.data.normalization != "none":
        raise UnprocessableError(
            f"plan.data.normalization is {plan.data.normalization!r}: {spec.name} takes windows as they were measured; "
            "use 'none'"
        )

    def make() -> torch.nn.Module:
        return with_decoder(build(spec.name, classes=len(plan.labels), **spec.options), decoder)

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
    if not MODELS[spec.name].learns(task := plan.task["name"]):
        raise UnprocessableError(
            f"{where}: {spec.name!r} learns {' or '.join(MODELS[spec.name].learnt_tasks())}, and plan.task is {task}; "
            f"models that learn it: {', '.join(learners(task)) or 'none'}"
        )
    taken = getattr(module, "input_shape", None)
    if plan.data.input is not None and taken is not None and taken != plan.data.input.shape:
        raise UnprocessableError(
            f"{where}: {spec.name!r} takes examples of shape {list(taken)}, but plan.data.input.shape is "
            f"{list(plan.data.input.shape)}; set its option input_shape"
        )
    if module.feature_dim != plan.training.feature_dim:
        raise UnprocessableError(
            f"{where}: the features of {spec.name!r} have {module.feature_dim} dimensions, "
            f"but plan.training.feature_dim is {plan.training.feature_dim}"
        )
    kinds = MODELS[spec.name].input_kinds
    change = plan.training.augmentation
    for used, kind in ((change.is_of_images, "image"), (change.is_of_windows, "window")):
        if used and kind not in kinds:
            raise UnprocessableError(
                f"plan.training.augmentation: {change} is for {kind}s, and {spec.name!r} takes "
                f"{' or '.join(kinds)} examples; leave it out"
            )
    return initial_client(module)
