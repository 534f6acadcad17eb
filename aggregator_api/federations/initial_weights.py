"""A federation that starts from a model that is there: everything but the head, whatever either of them learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from federation.errors import SettingsError
from federation.method import Method
from federation.methods.fedali import GLOBAL, LOCAL
from federation.records import Client, Tensors, Tree
from federation.records.head import is_base
from federation.records.tree import merge

_ENCODER = "encoder."
"""How a masked autoencoder names its encoder's tensors (`models.mae`); a model of any other task has no such prefix."""


def started_from(client: Client, method: Method, state: Tree) -> Client:
    """Lay the feature extractor of a server's `state`, which `method` made, over a client that has done nothing yet.

    The head, which is the decoder where a task restores its input, stays as it was drawn. Where the method shares
    prototypes of ALP layers, both sets of a client's that has some start from them.

    Raises:
        SettingsError: if the state has no such parameters, naming one.
    """
    given = _plain(state.get("params", {}))
    _require_same(
        given,
        _plain(client.params),
        "a federation of the same model with the same options, whose method shares the model's parameters",
    )
    return _laid_over(client, given, _prototypes(state["prototypes"]) if method.traits.requires_alp else {})


def started_from_model(client: Client, state: Mapping[str, Tensor]) -> Client:
    """Lay the feature extractor of a model's `state` over a client that has done nothing yet, as `started_from` does.

    Raises:
        SettingsError: if the model has other parameters, naming one.
    """
    given = {name: value for name, value in state.items() if is_base(name)}
    prototypes = {name: value for name, value in given.items() if name.endswith((LOCAL, GLOBAL))}
    wanted = _plain(client.params)
    buffers = {_without_prefix(name) for name in client.buffers}
    params = {name: value for name, value in given.items() if name in wanted or name not in buffers}
    _require_same(params, wanted, "a checkpoint of the same model with the same options")
    return _laid_over(client, params, prototypes)


def _require_same(given: Tensors, wanted: Tensors, what: str) -> None:
    names = wanted.keys() | given.keys()
    if differing := sorted(name for name in names if _shape(wanted, name) != _shape(given, name)):
        name = differing[0]
        raise SettingsError(f"its {name} is {_shape(given, name)}, and {_shape(wanted, name)} here; start from {what}")


def _laid_over(client: Client, given: Tensors, prototypes: Tensors) -> Client:
    laid = {name: given[_without_prefix(name)] for name in client.params if is_base(name)}
    moved = {name: prototypes[_without_prefix(name)] for name in client.buffers if _without_prefix(name) in prototypes}
    return client._replace(params=merge(client.params, laid), buffers=merge(client.buffers, moved))


def _plain(params: Tensors) -> Tensors:
    """Return the feature extractor's parameters, named as in the model alone."""
    return {_without_prefix(name): value for name, value in params.items() if is_base(name)}


def _prototypes(blocks: dict[str, Tensor]) -> Tensors:
    return {_without_prefix(block + kind): value for block, value in blocks.items() for kind in (LOCAL, GLOBAL)}


def _without_prefix(name: str) -> str:
    return name.removeprefix(_ENCODER)


def _shape(tensors: dict[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None
