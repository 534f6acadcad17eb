"""The wire: encoding, decoding, the schema's check and the digest in bytes a second, against one copy of the bytes.

    python benchmarks/bench_wire.py --mb 0.5 4 32 --out wire.json

The trees are like a network's parameters: many matrices, some vectors. `encode by safetensors` is what the library's
own `save` takes for the same bytes. int8 is an upload's: with its change, its residual and, decoding, the check against
the schema. Bytes are those of the float32 tensors, whatever the precision on the wire.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from measure import copy_rate, interleaved, report, torch_threads

from federation import wire
from federation.records import Tree
from federation.records.tree import flatten, map_tree
from federation.wire import uploads
from federation.wire.schema import check_tree, schema_of, size_limit


def tree_of(megabytes: float, layers: int = 24) -> Tree:
    """Make a tree of about so many megabytes of float32."""
    width = max(8, int((megabytes * 1e6 / 4 / layers) ** 0.5))
    generator = torch.Generator().manual_seed(0)
    params = {}
    for number in range(layers):
        params[f"layers.{number}.weight"] = torch.randn(width, width, generator=generator)
        params[f"layers.{number}.bias"] = torch.randn(width, generator=generator)
    return {"params": params}


def parts(tree: Tree) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    data, small, schema = wire.encode(tree), wire.encode(tree, precision="float16"), schema_of(tree)
    limit, flat = size_limit(schema), flatten(tree)
    delta_reference = map_tree(lambda value: 0.99 * value, tree)
    packed, residual = uploads.encode(tree, delta_reference, {}, precision="int8")
    return {
        "encode": partial(wire.encode, tree),
        "decode": partial(wire.decode, data, limit_bytes=limit),
        "check against the schema": partial(check_tree, tree, schema),
        "sha256": partial(wire.digest, data),
        "encode float16": partial(wire.encode, tree, precision="float16"),
        "decode float16": partial(wire.decode, small, limit_bytes=limit),
        "encode int8": partial(uploads.encode, tree, delta_reference, residual, precision="int8"),
        "decode int8": partial(uploads.decode, packed, schema, lambda: delta_reference, precision="int8"),
        "encode by safetensors": partial(safetensors.torch.save, flat),
        "one copy into new memory": partial(bytearray, data),
    }


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, nargs="+", default=[0.5, 4, 32], help="sizes of the trees")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--out", type=Path, help="where the figures are written as JSON")
    given = parser.parse_args()
    rows = []
    with torch_threads(1):
        for megabytes in given.mb:
            tree = tree_of(megabytes)
            size = wire.tensor_bytes(tree)
            timings = interleaved(parts(tree), given.repeats, warmups=2)
            new = size / timings["one copy into new memory"].median_s
            for name, each in timings.items():
                rate = size / each.median_s
                row = {"MB": size / 1e6, "part": name, "GB/s": rate / 1e9, "of a copy into new memory": rate / new}
                rows.append({**row, "µs": 1e6 * each.median_s})
    # A copy is counted as bytes read plus bytes written; a part's rate counts its payload once.
    rates = {"GB/s of payload, copied within memory that is there": copy_rate() / 2e9}
    report("The wire", rows, out=given.out, packages=("torch", "safetensors", "zstandard"), more=rates)


if __name__ == "__main__":
    main()
