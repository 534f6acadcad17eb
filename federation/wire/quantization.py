"""int8 with error feedback: an upload in a quarter of its bytes, whose error is added to the next one.

F. Seide, H. Fu, J. Droppo, G. Li, D. Yu: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs, Interspeech 2014. S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi: Error
Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, arXiv 1901.09847, algorithm 2: p = change + e,
sent = C(p), e ← p − sent. C rounds blocks of numbers to multiples of a scale each, as in T. Dettmers, M. Lewis,
S. Shleifer, L. Zettlemoyer: 8-bit Optimizers via Block-wise Quantization, ICLR 2022, arXiv 2110.02861, section 2.

Differs from the papers: levels are evenly spaced, and the change is that of a whole local round. Only tensors of
`Method.delta_reference` are sent as changes and have a residual: what one round lost of them no later round would
bring. Others, such as prototypes, are measured anew each round, so a residual would only add the last round's error to
this one's.

The arithmetic is that of `federation.protocol.arrays`, which devices without torch use. Here are its trees of tensors
and their schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from federation.errors import UpdateError
from federation.protocol import arrays
from federation.records import Tensors, Tree
from federation.records.tree import flatten, unflatten
from federation.wire.schema import Schema, TensorSpec, check_tree


class Packed(NamedTuple):
    """What travels, {"values": …, "scales": …}, and what is still owed to the server, in the shape of the upload."""

    tree: Tree
    residual: Tree


def packed_schema(schema: Schema) -> Schema:
    """Say what the tensors of a packed upload look like."""
    values, scales = {}, {}
    for name, spec in schema.items():
        count = torch.Size(spec.shape).numel()
        values[f"values/{name}"] = spec
        if arrays.is_quantized(str(spec.dtype).removeprefix("torch."), count):
            values[f"values/{name}"] = spec._replace(dtype=torch.int8)
            scales[f"scales/{name}"] = TensorSpec((arrays.blocks_of(count),), torch.float32)
    return {**values, **scales}


def pack(upload: Tree, delta_reference: Tree, residual: Tree) -> Packed:
    """Quantize an upload; of what is in `delta_reference`, its change from there plus the residual of the round before.

    Raises:
        UpdateError: if a tensor that is to be quantized, or its change, is not finite.
    """
    flat = flatten(upload)
    names = [name for name, value in flat.items() if value.dtype == torch.float32]
    packed = arrays.pack(*(_as_arrays(tree, names) for tree in (upload, delta_reference, residual)))
    levels = {name: packed.values[name] for name in packed.scales}
    tree = {"values": unflatten({**flat, **_as_tensors(levels)}), "scales": unflatten(_as_tensors(packed.scales))}
    return Packed(tree, unflatten(_as_tensors(packed.residual)))


def unpack(packed: Tree, schema: Schema, delta_reference: Tree) -> Tree:
    """Return the upload that was packed, within half a step of each number.

    Raises:
        UpdateError: if the packed tensors are not those of `packed_schema`, all finite, with scales above 0.
    """
    check_tree(packed, packed_schema(schema))
    start = flatten(delta_reference)
    values, scales = flatten(packed.get("values", {})), flatten(packed.get("scales", {}))
    for name, scale in scales.items():
        if not bool((scale > 0).all()):
            raise UpdateError(f"the scales of tensor {name!r} must be above 0; the least is {float(scale.min()):g}")
    sent = {name: _dequantized(value, scales[name]) if name in scales else value for name, value in values.items()}
    for name in scales.keys() & start.keys():
        sent[name].add_(start[name])
    return unflatten({name: sent[name] for name in schema})


def _dequantized(levels: Tensor, scales: Tensor) -> Tensor:
    return torch.from_numpy(arrays.dequantize(levels.numpy(), scales.numpy()))


def _as_arrays(tree: Tree, names: Sequence[str]) -> arrays.Arrays:
    flat = flatten(tree)
    return {name: flat[name].detach().cpu().numpy() for name in names if name in flat}


def _as_tensors(flat: arrays.Arrays) -> Tensors:
    return {name: torch.from_numpy(value) for name, value in flat.items()}
