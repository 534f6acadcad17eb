"""The wire against honest, damaged and hostile bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import safetensors.torch
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import wire
from federation.errors import UpdateError, WireError
from federation.methods import METHODS
from federation.records.tree import flatten
from federation.wire.schema import check_tree, schema_of, size_limit, upload_schema
from tests.federation.federated import federation

TREE = {"params": {"a.weight": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "p": {"x/y%2F": torch.ones(1)}}
SCHEMA = schema_of(TREE)


def made(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_round_trip() -> None:
    again = wire.decode(wire.encode(TREE), limit_bytes=10_000)
    first, second = flatten(TREE), flatten(again)
    assert sorted(first) == sorted(second)
    assert all(torch.equal(first[n], second[n]) and first[n].dtype == second[n].dtype for n in first)


def test_float16_is_half_the_bytes_and_comes_back_as_float32() -> None:
    tree = {"w": torch.linspace(-1, 1, 1000)}
    small = wire.encode(tree, precision="float16")
    assert len(small) < len(wire.encode(tree)) * 0.55
    back = wire.decode(small, limit_bytes=10_000)["w"]
    assert back.dtype == torch.float32
    assert float((back - tree["w"]).abs().max()) < 1e-3


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_names_come_back_in_the_trees_order(compression: Any) -> None:
    tree = {
        "z": {"b": torch.ones(2), "a": torch.ones(1, dtype=torch.int64)},
        "a": torch.ones(3).half(),
        "m": torch.ones(1),
    }
    back = wire.decode(wire.encode(tree, compression=compression), limit_bytes=10_000, compression=compression)
    assert list(flatten(back)) == ["z/b", "z/a", "a", "m"]


def test_tensors_that_share_memory_are_written_twice() -> None:
    one = torch.ones(3)
    back = wire.decode(wire.encode({"a": one, "b": one, "c": one.expand(2, 3)}), limit_bytes=10_000)
    assert torch.equal(back["b"], one)
    assert torch.equal(back["c"], torch.ones(2, 3))


def header_and_data(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + struct.unpack_from("<Q", data)[0]
    return json.loads(data[8:end]), data[end:]


def test_the_bytes_are_those_of_the_library_but_for_the_headers_order() -> None:
    every = {str(dtype): torch.arange(6).to(dtype).reshape(2, 3) for dtype in wire.DTYPES}
    scalars = {f'"{name}" \\ \n\x1f\x7f é': value[0, 1] for name, value in every.items()}
    tree = {"every": every, "scalars": scalars, "empty": torch.ones(0, 3), "Ü/%": torch.arange(6.0).reshape(2, 3).T}
    flat = {name: value.clone(memory_format=torch.contiguous_format) for name, value in flatten(tree).items()}
    header, data = header_and_data(wire.encode(tree))
    assert (header, data) == header_and_data(safetensors.torch.save(flat))
    assert list(header) == list(flat)
    assert wire.encode({}) == safetensors.torch.save({})
    with pytest.raises(WireError, match=r"tensor 'x' has dtype torch\.complex64"):
        wire.encode({"x": torch.ones(1, dtype=torch.complex64)})


def test_decoded_tensors_may_be_written_into() -> None:
    data = wire.encode(TREE)
    digest = wire.digest(data)
    for value in flatten(wire.decode(data, limit_bytes=10_000)).values():
        value.zero_()
    assert wire.digest(data) == digest


def test_the_limit_holds() -> None:
    data = wire.encode({"w": torch.zeros(1000)})
    with pytest.raises(WireError, match="expected at most 1,000"):
        wire.decode(data, limit_bytes=1000)


def test_a_zip_bomb_stops_at_the_limit() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28))
    assert len(bomb) < 100_000
    with pytest.raises(WireError, match="at most"):
        wire.decode(bomb, limit_bytes=1 << 16, compression="zstd")


LIES = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "a header longer than the file": struct.pack("<Q", 1 << 62) + b"{}",
    "no JSON": made(b"{nope"),
    "not an object": made([1]),
    "offsets beyond the end": made({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
    "negative offsets": made({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, bytes(4)),
    "shape and size disagree": made({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}, bytes(4)),
    "overflowing shape": made({"w": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}}, bytes(4)),
    "unknown dtype": made({"w": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "overlap": made(
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        bytes(4),
    ),
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_lies_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(data, limit_bytes=1 << 20)


def test_a_path_inside_a_tensor_is_refused() -> None:
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(["a", "a/b"])
    }
    with pytest.raises(WireError):
        wire.decode(made(header, bytes(8)), limit_bytes=1 << 20)


@given(st.binary(max_size=300), st.integers(0, 200), st.booleans())
@settings(max_examples=300)
def test_damage_is_an_error_or_a_tree(noise: bytes, place: int, compressed: bool) -> None:
    compression = "zstd" if compressed else "none"
    data = bytearray(wire.encode(TREE, compression=compression))
    data[place : place + len(noise)] = noise
    try:
        tree = wire.decode(bytes(data), limit_bytes=1 << 16, compression=compression)
        check_tree(tree, SCHEMA)
    except (WireError, UpdateError):
        pass


def broken(**changes: torch.Tensor | None) -> dict[str, dict[str, torch.Tensor]]:
    params = {**TREE["params"], **changes}
    return {**TREE, "params": {name: value for name, value in params.items() if value is not None}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (broken(**{"a.weight": None}), "'params/a.weight' of shape .2, 3. is missing"),
        (broken(**{"a.weight": torch.ones(3, 2)}), "is torch.float32 .3, 2., not torch.float32 .2, 3."),
        (broken(**{"a.weight": torch.ones(2, 3).double()}), "is torch.float64"),
        (broken(**{"a.weight": torch.full((2, 3), torch.nan)}), "NaN or infinity"),
        (
            broken(**{"a.weights": torch.ones(1)}),
            "unexpected tensor 'params/a.weights'; did you mean 'params/a.weight'",
        ),
    ],
)
def test_an_update_that_does_not_fit_is_explained(tree: dict[str, dict[str, torch.Tensor]], message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        check_tree(tree, SCHEMA)


@pytest.mark.parametrize("name", METHODS)
def test_the_schema_is_what_a_client_really_uploads(name: str) -> None:
    fed = federation(METHODS[name]())
    schema = upload_schema(fed.setup.method, fed.setup.training, fed.initial)
    upload = fed.train("ada").upload
    check_tree(upload, schema)
    assert len(wire.encode(upload)) <= size_limit(schema)
    assert set(schema) == set(flatten(upload))
