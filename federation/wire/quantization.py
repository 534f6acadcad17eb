"""int8 with error feedback: an upload in a quarter of its bytes, and what it lost goes along with the next one.

F. Seide, H. Fu, J. Droppo, G. Li, D. Yu: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs, Interspeech 2014. S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi: Error
Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, arXiv 1901.09847, algorithm 2: p = change + e,
sent = C(p), e ← p − sent. C rounds blocks of numbers to multiples of a scale each, as in T. Dettmers, M. Lewis,
S. Shleifer, L. Zettlemoyer: 8-bit Optimizers via Block-wise Quantization, ICLR 2022, arXiv 2110.02861, section 2.

Differs from the papers: levels are evenly spaced, and the change is that of a whole local round. Only tensors of
`Method.delta_reference` are sent as changes and have a residual: what one round lost of them no later round would
bring. Others, such as prototypes, are measured anew each round, so a residual would only add the last round's error to
this one's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from federation.errors import UpdateError
from federation.records import Tensors, Tree
from federation.tree import flatten, unflatten
from federation.wire.schema import Schema, TensorSpec, check_tree, spec_of

BLOCK = 256
"""Numbers that share a scale: 1.6 % more bytes. Rows of a matrix cost three times that, and err as much."""

LEVELS = 127
"""Symmetric: −128 is not used, so that 0 stays 0."""


class Packed(NamedTuple):
    """What travels, {"values": …, "scales": …}, and what is still owed to the server, in the shape of the upload."""

    tree: Tree
    residual: Tree


def is_quantized(spec: TensorSpec) -> bool:
    """Whether a tensor travels as int8: float32, and not so small that it hardly counts."""
    return spec.dtype == torch.float32 and torch.Size(spec.shape).numel() >= BLOCK


def packed_schema(schema: Schema) -> Schema:
    """Say what the tensors of a packed upload look like."""
    values, scales = {}, {}
    for name, spec in schema.items():
        values[f"values/{name}"] = spec._replace(dtype=torch.int8) if is_quantized(spec) else spec
        if is_quantized(spec):
            scales[f"scales/{name}"] = TensorSpec((_blocks(torch.Size(spec.shape).numel()),), torch.float32)
    return {**values, **scales}


def pack(upload: Tree, delta_reference: Tree, residual: Tree) -> Packed:
    """Quantize an upload; of what is in `delta_reference`, its change from there plus the residual of the round before.

    Raises:
        UpdateError: if a tensor, or its change, is not finite.
    """
    start, before = flatten(delta_reference), flatten(residual)
    values: Tensors = {}
    scales: Tensors = {}
    kept: Tensors = {}
    for name, value in flatten(upload).items():
        if not is_quantized(spec_of(value)):
            values[name] = value
            continue
        wanted = _with_residual(value, start[name], before.get(name)) if name in start else value
        values[name], scales[name] = quantize(wanted)
        if not torch.isfinite(scales[name]).all():
            raise UpdateError(f"tensor {name!r}, or its change in this round, holds NaN or infinity")
        if name in start:
            kept[name] = wanted.sub_(dequantize(values[name], scales[name]))
    return Packed({"values": unflatten(values), "scales": unflatten(scales)}, unflatten(kept))


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
    sent = {name: dequantize(value, scales[name]) if name in scales else value for name, value in values.items()}
    for name in scales.keys() & start.keys():
        sent[name].add_(start[name])
    return unflatten({name: sent[name] for name in schema})


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round float32 values (…) to int8 of that shape and float32 scales (blocks,).

    Each number errs by at most half its scale, up to float32's own rounding; values must be finite.
    """
    blocks = _in_blocks(values)
    # the smallest normal number, where a block is all but zero: a scale is never 0, and its inverse never infinite
    scales = (torch.maximum(blocks.amax(1), -blocks.amin(1)) / LEVELS).clamp(min=torch.finfo(torch.float32).tiny)
    levels = (blocks / scales[:, None]).round_().to(torch.int8)
    return levels.reshape(-1)[: values.numel()].reshape(values.shape), scales


def dequantize(levels: Tensor, scales: Tensor) -> Tensor:
    """Return q·scale in float32, in the shape of the levels."""
    values = _in_blocks(levels).float().mul_(scales[:, None])
    return values.reshape(-1)[: levels.numel()].reshape(levels.shape)


def _with_residual(value: Tensor, start: Tensor, residual: Tensor | None) -> Tensor:
    change = value - start
    # a client state may be older than this tensor
    return change if residual is None or residual.shape != change.shape else change.add_(residual)


def _in_blocks(values: Tensor) -> Tensor:
    return pad(values.reshape(-1), (0, -values.numel() % BLOCK)).reshape(-1, BLOCK)


def _blocks(count: int) -> int:
    return -(-count // BLOCK)
