"""Exports the device's half of a federation as a program, traced from the code that devices with torch run.

The graphs are `Method.receive` and `Method.upload`, `federation.training.local_round`'s step for each set of parameters
that a phase trains, and its sums, what `Method.predict` answers with the task's statistics of it, and what of a new
client the server does not send. The model that a client serves with is a graph too, `model`: a device lays its own
numbers and statistics into it (`export.program.standalone`), and needs no exporter for an ONNX file as others have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from export.program.archive import write_program
from export.program.manifest import DTYPES, GraphEntry, Manifest, PhaseEntry, TensorType, digest_of
from export.program.recorder import UnsupportedOperatorError
from export.program.tracing import TracedFunction, as_dicts, trace
from export.runtime import ProgramError
from federation.method import Method, empty_training_stats
from federation.methods import method_from_json, method_to_json
from federation.plan import Plan, window_change_incompatibility
from federation.records import Batch, Client, Phase, Tensors, Tree
from federation.records.tree import flatten, select, unflatten
from federation.tasks import task_from_json, task_to_json
from federation.training.client_round import STATS_BATCH_SIZE
from federation.training.forward import NOISE_STATE, initial_client, initial_model, network
from federation.training.local_round import Setup, sums_with, training_step, transformed
from federation.training.optimizers import Optimizer, optimizer_for, sgd
from gaitway.tasks import TargetKind
from models import build
from models.layers.alp import set_inference
from models.model import Model

EVALUATION_BATCH = 256
"""As devices with torch and the simulation score: ALP looks at the whole batch, so scores compare at equal sizes."""
TARGETS = {TargetKind.CLASS: torch.int64, TargetKind.NUMBER: torch.float64}
SUM_TIMES: tuple[Literal["before", "after"], ...] = ("before", "after")


class Federation(NamedTuple):
    """What a program is made of: all that a device with torch builds of a plan."""

    setup: Setup
    initial: Client
    broadcast: Tree
    """One as the server sends it: its names, types and shapes count."""
    x: tuple[int, ...]
    """The shape of one example."""
    model: Mapping[str, Any]


def federation_of(plan: Plan) -> Federation:
    """Build a plan's network and method as a device does.

    Raises:
        ProgramError: for a plan whose client half no program can be.
        SettingsError, ModelError: for names and values that do not fit.
    """
    method, task = method_from_json(plan.method), task_from_json(plan.task)
    if task.decoder is not None:
        raise ProgramError(f"programs are for classes and numbers; the task {task.name} restores its input")
    if reason := window_change_incompatibility(plan):
        raise ProgramError(reason)

    def make() -> torch.nn.Module:
        return build(plan.model.name, classes=len(plan.labels), **plan.model.options)

    module = initial_model(make, plan.training.seed)
    if not isinstance(module, Model):
        raise ProgramError(f"programs are for networks in models.MODELS, and {plan.model.name} isn't one")
    if module.feature_dim != plan.training.feature_dim:
        raise ProgramError(
            f"training.feature_dim = {plan.training.feature_dim}, but {plan.model.name} has features of length "
            f"{module.feature_dim}; set that"
        )
    setup = Setup(method, plan.training, network(module), task, rounds=plan.rounds.rounds)
    initial = method.init_client_state(initial_client(module), plan.training)
    state = method.server_init(initial.params, initial.buffers, plan.training)
    spec = {"name": plan.model.name, "options": module.options}
    return Federation(setup, initial, method.broadcast(state, ""), module.input_shape, spec)


def export_program(federation: Federation) -> bytes:
    """Write a federation's program as the bytes of one file.

    Raises:
        ProgramError: saying what of the client half cannot be a graph.
    """
    setup, method = federation.setup, federation.setup.method
    _check_exportable(setup)
    received, state = method.receive(federation.initial, federation.broadcast)
    examples = _examples(federation, setup.training.batch_size)
    try:
        traced = dict(_traced(federation, received, state))
    except UnsupportedOperatorError as error:
        raise ProgramError(
            f"the method {method.name} on {federation.model['name']} cannot be a program: {error}"
        ) from error
    phases = [_phase_entry(setup, phase, received) for phase in method.phases(setup.training)]
    client = _types({"client": federation.initial})
    models = {name: phase.model.SerializeToString() for name, phase in traced.items() if phase.model is not None}
    _, upload = method.upload(received, state, empty_training_stats(method, setup.training, examples.x))
    serves = _serves(federation)
    manifest = Manifest(
        model=dict(federation.model),
        method=method_to_json(method),
        task=task_to_json(setup.task),
        training=setup.training,
        rounds=setup.rounds,
        x=_type(examples.x),
        y=_type(examples.y),
        statistics_batch=_statistics_batch(setup),
        evaluation_batch=EVALUATION_BATCH,
        client=client,
        noise=tuple(name for name in client if name.endswith(NOISE_STATE)),
        broadcast=_types({"broadcast": federation.broadcast}),
        upload=_types({"upload": upload}),
        sums=_types(as_dicts(method.empty_sums(setup.training, examples.x))),
        sums_at=tuple(when for when in SUM_TIMES if when in method.sums_at),
        phases=tuple(phases),
        uses_partial_work=method.traits.uses_partial_work,
        served=_types(served_of(method, received)) if serves else {},
        has_global_model=method.has_global_model,
        untrained_sha256=untrained_digest(method, federation.initial, federation.broadcast) if serves else None,
        answers_alike=serves and answers_alike(method, module_of(federation)),
        graphs={name: _graph_entry(name, phase, models.get(name)) for name, phase in traced.items()},
    )
    return write_program(manifest, models)


def _check_exportable(setup: Setup) -> None:
    if reason := setup.method.program_incompatibility:
        raise ProgramError(reason)
    if reason := setup.method.task_incompatibility(setup.task):
        raise ProgramError(reason)
    if setup.task.target not in TARGETS:
        raise ProgramError(
            f"programs are for one class or one number per example, which {setup.task.name} doesn't have"
        )
    if setup.training.augmentation.is_of_images:
        raise ProgramError("training.augmentation changes images, which programs don't support: leave it out")
    if setup.training.example_clip_norm is not None:
        raise ProgramError("training.example_clip_norm needs per-example gradients, but programs have a batch's")


def _traced(federation: Federation, received: Client, state: Tree) -> Iterable[tuple[str, TracedFunction]]:
    """Trace each graph, in the order in which a round runs them."""
    setup, method = federation.setup, federation.setup.method
    sums = method.empty_sums(setup.training, torch.empty(0))

    def receive(client: Client, broadcast: Tree) -> Tree:
        new, round_state = method.receive(client, broadcast)
        return {"client": new, "state": round_state}

    def statistics(client: Client, batch: Batch, sums: Any) -> Tree:
        return {"sums": sums_with(setup, client, batch, sums)}

    def evaluate(client: Client, batch: Batch) -> Tree:
        output = method.predict(setup.network.evaluate, client, batch.x, batch.mask)
        counted = setup.task.statistics(output, batch)
        return {"features": output.features, "logits": output.logits, "statistics": counted}

    def upload(client: Client, state: Tree, before: Any, after: Any, lr_sum: Tensor) -> Tree:
        kept, tree = method.upload(client, state, empty_training_stats(
            method, setup.training, lr_sum)._replace(before=before, after=after, lr_sum=lr_sum))  # fmt: skip
        return {"client": kept, "upload": tree}

    taken = trace(receive, {"client": federation.initial, "broadcast": federation.broadcast})
    yield "initial", _initial(federation.initial, taken)
    yield "receive", taken
    for name, phase in _distinct_phases(setup, received).items():
        yield name, trace(*_step(federation, phase, received, state))
    batch = _examples(federation, _statistics_batch(setup))
    nothing = TracedFunction(None, {}, {}, {})
    yield (
        "statistics",
        trace(statistics, {"client": received, "batch": batch, "sums": sums}) if method.sums_at else nothing,
    )
    yield "evaluate", trace(evaluate, {"client": received, "batch": _examples(federation, EVALUATION_BATCH)})
    kept = {"client": received, "state": state, "before": sums, "after": sums, "lr_sum": torch.zeros(())}
    yield "upload", trace(upload, kept)
    yield (
        "reference",
        trace(lambda broadcast: {"reference": method.delta_reference(broadcast)}, {"broadcast": federation.broadcast}),
    )
    if _serves(federation):
        yield from serving_graphs(
            method, module_of(federation), received, federation.broadcast, torch.zeros(1, *federation.x)
        )


def _serves(federation: Federation) -> bool:
    """Whether devices have a use for the network: of windows (T, C) or images (C, H, W)."""
    return federation.setup.task.is_served and len(federation.x) in (2, 3)


def module_of(federation: Federation) -> torch.nn.Module:
    """Build the federation's network anew."""
    return build(federation.model["name"], classes=federation.setup.training.classes, **federation.model["options"])


def _step(federation: Federation, phase: Phase, client: Client, state: Tree) -> tuple[Callable[..., Tree], Tree]:
    """Return a phase's step, at a learning rate that comes with each call, and arguments to trace it with."""
    setup = federation.setup
    optimizer = _optimizer(setup, phase)
    one_step = training_step(setup, optimizer, None, transformed, skips_empty=False)

    def step(client: Client, momenta: Any, batch: Batch, state: Tree, lr: Tensor) -> Tree:
        frozen = select(client.params, lambda name: not phase.trainable(name))
        trained = select(client.params, phase.trainable)
        (new, moved, momenta), loss, _ = one_step(trained, client.buffers, momenta, batch, frozen, state, lr)
        return {"client": {"params": new, "buffers": moved}, "momenta": momenta, "loss": loss}

    momenta = optimizer.init(select(client.params, phase.trainable))
    batch = _examples(federation, setup.training.batch_size)
    kept = client._replace(memory={})
    return step, {"client": kept, "momenta": momenta, "batch": batch, "state": state, "lr": torch.ones(())}


def _optimizer(setup: Setup, phase: Phase) -> Optimizer:
    """Return a phase's optimizer; a rate is what its own is multiplied by, which is one here."""
    if phase.plain_sgd:
        return sgd(1.0)
    return optimizer_for(setup.training.model_copy(update={"lr": 1.0}), stacked=True)


def _initial(client: Client, receive: TracedFunction) -> TracedFunction:
    """Return a graph of what a new client has that `receive` neither brings nor leaves unread."""
    brought = set(receive.outputs) | set(receive.passed)
    read = set(receive.inputs) | set(receive.passed.values())
    kept = {
        name: value
        for name, value in flatten(as_dicts({"client": client})).items()
        if (name in read or name not in brought) and not name.endswith(NOISE_STATE)
    }
    return trace(lambda: unflatten(kept), {})


def _distinct_phases(setup: Setup, client: Client) -> dict[str, Phase]:
    """Return one phase for each set of parameters that is trained, and way to train it, by the name of its graph."""
    return {_step_name(setup, phase, client): phase for phase in setup.method.phases(setup.training)}


def _step_name(setup: Setup, phase: Phase, client: Client) -> str:
    def trains(phase: Phase) -> tuple[bool, frozenset[str]]:
        return phase.plain_sgd, frozenset(select(client.params, phase.trainable))

    sets = list(dict.fromkeys(map(trains, setup.method.phases(setup.training))))
    place = sets.index(trains(phase))
    return "step" if len(sets) == 1 else f"step_{place + 1}"


def _phase_entry(setup: Setup, phase: Phase, client: Client) -> PhaseEntry:
    momenta = _optimizer(setup, phase).init(select(client.params, phase.trainable))
    return PhaseEntry(
        step=_step_name(setup, phase, client),
        epochs=phase.epochs,
        rate=phase.rate,
        plain_sgd=phase.plain_sgd,
        momenta=_types({"momenta": momenta}),
    )


def _graph_entry(name: str, traced: TracedFunction, model: bytes | None) -> GraphEntry:
    file = {} if model is None else {"file": f"{name}.onnx", "sha256": hashlib.sha256(model).hexdigest()}
    nodes = 0 if traced.model is None else len(traced.model.graph.node)
    return GraphEntry(**file, nodes=nodes, inputs=traced.inputs, outputs=traced.outputs, passed=traced.passed)


def _statistics_batch(setup: Setup) -> int:
    return max(STATS_BATCH_SIZE, setup.training.batch_size)


def _examples(federation: Federation, rows: int) -> Batch:
    kind = TARGETS[federation.setup.task.target]
    return Batch(torch.zeros(rows, *federation.x), torch.zeros(rows, dtype=kind), torch.ones(rows))


def _types(tree: Any) -> dict[str, TensorType]:
    return {name: _type(value) for name, value in flatten(as_dicts(tree)).items()}


def _type(value: Tensor) -> TensorType:
    return TensorType(dtype=DTYPES[str(value.dtype).removeprefix("torch.")], shape=tuple(value.shape))


SERVED = "served"


def served_of(method: Method, client: Client) -> Tree:
    """Return the parameters and buffers of the network that a client serves with."""
    served = method.serving_model(client)
    kept = select(served.buffers, lambda name: not name.endswith(NOISE_STATE))
    return {SERVED: {"params": served.params, "buffers": kept}}


def serving_graphs(
    method: Method, module: nn.Module, received: Client, broadcast: Tree, x: Tensor
) -> Iterable[tuple[str, TracedFunction]]:
    """Trace what a client serves with, what the server's model serves with, and the network on one example x (1, …)."""
    yield "serving", trace(lambda client: served_of(method, client), {"client": received})

    def global_model(client: Client, broadcast: Tree) -> Tree:
        return served_of(method, method.global_model(client, broadcast))

    if method.has_global_model:
        yield "global_model", trace(global_model, {"client": received, "broadcast": broadcast})
    else:
        yield "global_model", TracedFunction(None, {}, {}, {})
    served = served_of(method, received)[SERVED]
    # windows (T, C) have their channels last, images (C, H, W) first
    shape = (x.shape[-1],) if x.dim() == 3 else (x.shape[1], 1, 1)
    inputs = {"mean": torch.zeros(shape), "std": torch.ones(shape)}
    noise = {name: value for name, value in received.buffers.items() if name.endswith(NOISE_STATE)}
    set_inference(module, "row")
    module.eval()

    def model(served: Mapping[str, Tensors], input: Tensors, x: Tensor) -> Tree:
        state = {**served["params"], **served["buffers"], **noise}
        features, logits, *_ = functional_call(module, state, ((x - input["mean"]) / input["std"],))
        return {"logits": logits, "embedding": features}

    yield "model", trace(model, {SERVED: served, "input": inputs, "x": x})


def answers_alike(method: Method, module: nn.Module) -> bool:
    """Whether the network answers an example as the method's clients are scored: by its logits, whatever the batch."""
    return type(method).predict is Method.predict and not set_inference(module, "row")


def untrained_digest(method: Method, client: Client, broadcast: Tree) -> str | None:
    """Return the digest of the server's model as the federation begins; None where the method has no such model."""
    if not method.has_global_model:
        return None
    found = served_of(method, method.global_model(client, broadcast))
    return digest_of({name: value.detach().numpy() for name, value in flatten(as_dicts(found)).items()})
