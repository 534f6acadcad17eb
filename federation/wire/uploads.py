"""Encodes and decodes uploads by their manifest, for the device, the server and the simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from federation import wire
from federation.protocol.arrays import BLOCK
from federation.protocol.messages import Compression, Precision
from federation.records import Client, Tree
from federation.records.tree import flatten, unflatten
from federation.wire.quantization import pack, packed_schema, unpack
from federation.wire.schema import Schema, check_tree, size_limit, tensor_bytes

MIN_SMALL_NORM_SHARE = 0.25
RESIDUAL = "residual"
"""Where a client that is kept between rounds has it, beside what its method remembers."""


class Encoded(NamedTuple):
    """An upload's bytes, and what its client adds to the next one: both are kept together or not at all."""

    data: bytes
    residual: Tree


def with_residual(client: Client, residual: Tree) -> Client:
    """Return a client as it is kept until its next upload."""
    return client._replace(memory={**client.memory, RESIDUAL: residual}) if residual else client


def split_residual(client: Client) -> tuple[Client, Tree]:
    """Return a kept client as its method knows it, and the residual of its last upload: {} if there was none."""
    memory = {name: value for name, value in client.memory.items() if name != RESIDUAL}
    return client._replace(memory=memory), client.memory.get(RESIDUAL, {})


def encode(
    upload: Tree, delta_reference: Tree, residual: Tree, *, precision: Precision, compression: Compression = "none"
) -> Encoded:
    """Write an upload whose changes start at `delta_reference`; only int8 looks at that, and leaves a residual.

    Raises:
        UpdateError: if a tensor that is to be quantized is not finite.
        WireError: if a tensor has a dtype that the wire does not carry.
    """
    if precision == "int8":
        packed = pack(upload, delta_reference, residual)
        return Encoded(wire.encode(packed.tree, compression=compression), packed.residual)
    return Encoded(wire.encode(upload, compression=compression, precision=precision), {})


def decode(
    data: bytes,
    schema: Schema,
    delta_reference: Callable[[], Tree],
    *,
    precision: Precision,
    compression: Compression = "none",
) -> Tree:
    """Read an upload as exactly the tensors of the schema, in its order, all finite; only int8 asks for the reference.

    Raises:
        WireError: if the bytes are too many, or not a tree.
        UpdateError: if the tensors are not those that the schema and the precision ask for.
    """
    tree = wire.decode(data, limit_bytes=limit_bytes(schema, precision), compression=compression)
    if precision == "int8":
        tree = unpack(tree, schema, delta_reference())
    check_tree(tree, schema)
    flat = flatten(tree)
    return unflatten({name: flat[name] for name in schema})


def small_changes(upload: Tree, delta_reference: Tree) -> str:
    """Say that an int8 upload has changes in the small tensors of its parameters, which travel whole; else nothing.

    Together they are far smaller then than where they started, and training brings no model there within a round.
    """
    sent, start = flatten({"params": upload.get("params", {})}), flatten({"params": delta_reference.get("params", {})})
    small = [name for name, value in start.items() if name in sent and value.numel() < BLOCK]
    norm, before = (math.hypot(*(float(tree[name].double().norm()) for name in small)) for tree in (sent, start))
    if norm >= MIN_SMALL_NORM_SHARE * before:
        return ""
    return (
        f"the parameters' tensors of fewer than {BLOCK} numbers have a norm of {norm:.3g}, and of {before:.3g} in the "
        "model that the update started from: they look like changes, but only larger tensors travel as changes"
    )


def limit_bytes(schema: Schema, precision: Precision) -> int:
    """Largest plausible encoding of an upload in bytes, before compression."""
    return size_limit(_travelling(schema, precision))


def payload_bytes(schema: Schema, precision: Precision) -> int:
    """Return bytes of an upload's tensors as they travel, without headers and compression."""
    return tensor_bytes(_travelling(schema, precision))


def _travelling(schema: Schema, precision: Precision) -> Schema:
    if precision == "int8":
        return packed_schema(schema)
    if precision == "float16":
        return {n: s._replace(dtype=torch.float16) if s.dtype == torch.float32 else s for n, s in schema.items()}
    return schema
