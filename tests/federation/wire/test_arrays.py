"""The wire without torch: numpy writes the bytes that torch writes, and reads and refuses what torch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation import wire
from federation.errors import UpdateError, WireError
from federation.protocol import arrays
from federation.protocol.arrays import flatten, unflatten
from federation.wire import uploads

KINDS = ("bool", "int8", "int32", "int64", "float32", "float64")


def a_tree(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = [(), (0,), (3,), (4, 5), (2, 3, 100), (7, 300)]
    names = [f"{place // 4}/{random.integers(100)}.w{place}" for place in range(12)]
    flat = {
        name: np.asarray(random.normal(0, 300, shapes[random.integers(len(shapes))])).astype(random.choice(KINDS))
        for name in names
    }
    return flat | {"counts": np.array([1.0, 5000.0], np.float32)}


def as_tensors(flat: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value.tolist(), dtype=getattr(torch, value.dtype.name)) for name, value in flat.items()}


@given(st.integers(0, 10_000), st.sampled_from(["lossless", "float16"]), st.sampled_from(["none", "zstd"]))
def test_numpy_writes_torchs_bytes_and_reads_what_torch_reads(seed: int, precision: str, compression: str) -> None:
    flat = a_tree(seed)
    data = arrays.encode(flat, precision=precision, compression=compression)  # type: ignore[arg-type]
    assert data == wire.encode(unflatten(as_tensors(flat)), precision=precision, compression=compression)  # type: ignore[arg-type]
    mine = arrays.decode(data, limit_bytes=1 << 24, compression=compression)  # type: ignore[arg-type]
    theirs = flatten(wire.decode(data, limit_bytes=1 << 24, compression=compression))  # type: ignore[arg-type]
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value.numpy(), strict=True)
        assert mine[name].flags.writeable


@given(st.integers(0, 10_000))
def test_an_int8_upload_is_torchs_to_the_bit_and_leaves_the_same_residual(seed: int) -> None:
    random = np.random.default_rng(seed)

    def draw() -> dict[str, np.ndarray]:
        shapes = {"params/a": (30, 20), "params/b": (5,), "prototypes": (6, 50)}
        return {name: random.normal(0, 2, shape).astype(np.float32) for name, shape in shapes.items()}

    upload, start, before = draw(), draw(), draw()
    start.pop("prototypes")
    before = {"params/a": before["params/a"] / 100}
    mine = arrays.encode_upload(upload, start, before, precision="int8")
    trees = [unflatten(as_tensors(each)) for each in (upload, start, before)]
    theirs = uploads.encode(*trees, precision="int8")
    assert mine.data == theirs.data
    expected = flatten(theirs.residual)
    assert mine.residual.keys() == expected.keys() == {"params/a"}
    np.testing.assert_array_equal(mine.residual["params/a"], expected["params/a"].numpy())


def test_what_is_not_finite_or_of_another_type_is_refused() -> None:
    with pytest.raises(UpdateError, match=r"'w'.* contains NaN"):
        arrays.encode_upload({"w": np.full(300, np.nan, np.float32)}, {}, {}, precision="int8")
    with pytest.raises(WireError, match="uint16, which the wire format doesn't support"):
        arrays.encode({"w": np.zeros(3, np.uint16)})


@pytest.mark.parametrize("data", [b"", b"\x08" + b"\0" * 7 + b"nonsense", arrays.encode(a_tree(1))[:-1]])
def test_what_is_no_tree_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(WireError, match="aren't valid safetensors"):
        arrays.decode(data, limit_bytes=1 << 20)


def test_no_more_bytes_than_the_limit_are_unpacked() -> None:
    bomb = arrays.encode({"w": np.zeros(1 << 20, np.float32)}, compression="zstd")
    with pytest.raises(WireError, match="at most 1,000"):
        arrays.decode(bomb, limit_bytes=1000, compression="zstd")
