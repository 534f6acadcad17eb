"""Bytes that are not what was announced, or not what the method would upload."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import torch

from federation.records.tree import flatten
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import Parcel, parcel


@pytest.mark.parametrize("length", [1, 1023, 1025])
def test_a_chunk_of_the_wrong_length_ends_the_upload(collecting: Bench, length: int) -> None:
    update = collecting.update_of("a")
    collecting.begin(update)
    collecting.send(update.topic("chunk", 0), b"x" * length)
    assert collecting.last("a").status == "refused"
    assert f"{length:,} bytes, expected 1,024" in collecting.last("a").reason
    assert collecting.count("quarantined") == 1


def test_an_empty_message_is_what_the_removal_of_a_retained_one_looks_like(collecting: Bench) -> None:
    update = collecting.update_of("a")
    collecting.begin(update)
    for step in (("begin",), ("chunk", 0)):
        collecting.send(update.topic(*step), b"")
    assert collecting.last("a").status == "send"
    assert collecting.upload(update).status == "accepted"


def test_a_chunk_beyond_the_end_ends_the_upload(collecting: Bench) -> None:
    update = collecting.update_of("a")
    collecting.begin(update)
    collecting.send(update.topic("chunk", 999_999), b"x")
    assert "the update has only" in collecting.last("a").reason


def test_other_bytes_than_announced_are_refused(collecting: Bench) -> None:
    update = collecting.update_of("a")
    flipped = bytes([update.data[-1] ^ 1])
    assert "do not have the sha256" in collecting.refused(
        Parcel(update.manifest, update.data[:-1] + flipped, update.tree)
    )
    assert collecting.begin(update).status == "refused"  # its id is spent


def test_an_update_larger_than_plausible_is_refused_before_its_bytes(collecting: Bench) -> None:
    update = collecting.update_of("a")
    large = parcel(collecting.now(), "a", update.tree, size=1 << 33)
    assert "at most" in collecting.begin(large).reason


def test_a_frame_that_unpacks_beyond_the_limit_is_refused(collecting: Bench) -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    reason = collecting.refused(parcel(collecting.now(), "a", {}, data=bomb, compression="zstd"))
    assert "at most" in reason


def header(description: object, tail: bytes = b"") -> bytes:
    """Make safetensors bytes with any header."""
    text = json.dumps(description).encode()
    return struct.pack("<Q", len(text)) + text + tail


@pytest.mark.parametrize(
    "data",
    [
        b"not a tensor file at all",
        struct.pack("<Q", 1 << 60) + b"{}",  # a header longer than the file
        header({"params.x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, b"1234"),
        header({"params.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "a/b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"),
    ],
)  # fmt: skip
def test_bytes_that_lie_about_their_tensors_are_refused(collecting: Bench, data: bytes) -> None:
    assert collecting.refused(parcel(collecting.now(), "a", {}, data=data))
    assert collecting.count("quarantined") == 1
    assert collecting.upload(collecting.update_of("a")).status == "accepted"  # the server is unharmed


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(collecting: Bench, poison: float) -> None:
    tree = collecting.update_of("a").tree
    next(iter(flatten(tree).values())).view(-1)[0] = poison
    assert "NaN or infinity" in collecting.refused(parcel(collecting.now(), "a", tree))


def test_tensors_of_another_shape_dtype_or_name_are_refused(collecting: Bench) -> None:
    tree = collecting.update_of("a").tree
    name = next(iter(tree["params"]))
    several: tuple[dict[str, Any], ...] = (
        {"params": {**tree["params"], name: torch.zeros(3)}},
        {"params": {**tree["params"], name: tree["params"][name].double()}},
        {"params": {**tree["params"], "more": torch.zeros(1)}},
        {"params": {key: value for key, value in tree["params"].items() if key != name}},
    )
    for device, wrong in zip("abab", several, strict=True):  # who sends three bad ones in a row is suspended
        reason = collecting.refused(parcel(collecting.now(), device, wrong))
        assert name in reason or "more" in reason
    assert collecting.count("quarantined") == 4
    assert collecting.count("accepted") == 0
