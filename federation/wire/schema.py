"""The schema of updates, derived from the method, and the check of updates against it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from federation.errors import UpdateError
from federation.method import Method, empty_training_stats
from federation.plan import TrainingConfig
from federation.protocol.wire_format import HEADER_BYTES
from federation.records import Client, Tree
from federation.records.tree import flatten
from gaitway.errors import closest


class TensorSpec(NamedTuple):
    """Shape and dtype of one tensor on the wire."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Schema = dict[str, TensorSpec]


def upload_schema(method: Method, training: TrainingConfig, client: Client) -> Schema:
    """Ask the method what a client of this shape uploads, without training it."""
    return schema_of(empty_upload(method, training, client)[0])


def empty_upload(method: Method, training: TrainingConfig, client: Client) -> tuple[Tree, Tree]:
    """Return what a client of this shape uploads that has no examples and has not trained, and what it received."""
    broadcast = method.broadcast(method.server_init(client.params, client.buffers, training), "")
    received, round_state = method.receive(method.init_client_state(client, training), broadcast)
    stats = empty_training_stats(method, training, next(iter(client.params.values())))
    return method.upload(received, round_state, stats)[1], broadcast


def schema_of(tree: Tree) -> Schema:
    """Read names, shapes and dtypes off a tree."""
    return {name: spec_of(value) for name, value in flatten(tree).items()}


def spec_of(value: torch.Tensor) -> TensorSpec:
    """Read shape and dtype off a tensor."""
    return TensorSpec(tuple(value.shape), value.dtype)


def tensor_bytes(schema: Schema) -> int:
    """Return bytes of the tensors alone."""
    return sum(torch.Size(spec.shape).numel() * spec.dtype.itemsize for spec in schema.values())


def size_limit(schema: Schema) -> int:
    """Largest plausible encoding of that schema in bytes."""
    return HEADER_BYTES + tensor_bytes(schema)


def _finite(values: torch.Tensor) -> bool:
    # a sum is finite only if every number is, and takes a fiftieth of the time; one that overflows tells nothing
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def check_tree(tree: Tree, schema: Schema) -> None:
    """Accept a tree that has exactly the schema's tensors, all finite.

    Raises:
        UpdateError: naming the first tensor that is missing, unknown, misshapen, of another dtype, or not finite.
    """
    flat = flatten(tree)
    for name in flat:
        if name not in schema:
            near = closest(name, schema)
            raise UpdateError(f"unexpected tensor {name!r}" + (f"; did you mean {near!r}?" if near else ""))
    for name, spec in schema.items():
        if name not in flat:
            raise UpdateError(f"tensor {name!r} of shape {spec.shape} is missing")
        found_spec = spec_of(flat[name])
        if found_spec != spec:
            found = f"{found_spec.dtype} {found_spec.shape}"
            raise UpdateError(f"tensor {name!r} is {found}, not {spec.dtype} {spec.shape}")
        if found_spec.dtype.is_floating_point and not _finite(flat[name]):
            raise UpdateError(f"tensor {name!r} contains NaN or infinity")
