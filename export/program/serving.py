"""The model that a program's client serves with, as graphs: what it is, and the network with everything as an input.

A device lays its own numbers and statistics into the graph `model` (`export.program.standalone`) and has an ONNX file
as others have it, without an exporter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from export.program.manifest import digest_of
from export.program.tracing import TracedFunction, as_dicts, trace
from federation.method import Method
from federation.records import Client, Tensors, Tree
from federation.records.tree import flatten, select
from federation.training.forward import NOISE_STATE
from models.layers.alp import set_inference

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


def served_types(method: Method, client: Client) -> dict[str, Any]:
    """Return the tensors of the network that a client serves with, by their paths."""
    return flatten(as_dicts(served_of(method, client)))
