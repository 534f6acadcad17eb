"""int8 with error feedback: by hand, by property, over rounds, and against packed trees that lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import wire
from federation.errors import UpdateError, WireError
from federation.methods import METHODS
from federation.protocol import arrays
from federation.protocol.arrays import BLOCK, dequantize, quantize
from federation.records import Client, Tree
from federation.records.tree import flatten, map_tree
from federation.wire import uploads
from federation.wire.quantization import Packed, pack, packed_schema, unpack
from federation.wire.schema import check_tree, schema_of, tensor_bytes
from tests.federation.federated import each_step, federation

ORIGIN = {"params": {"w": torch.linspace(-1, 1, 600).reshape(20, 30), "b": torch.ones(30)}}


def moved(by: float, seed: int = 0) -> Tree:
    """An upload that went about so far from the origin, with statistics beside it."""
    generator = torch.Generator().manual_seed(seed)
    params = {n: v + by * torch.randn(v.shape, generator=generator) for n, v in ORIGIN["params"].items()}
    return {"params": params, "means": torch.randn(3, 100, generator=generator), "counts": torch.tensor([3, 0, 4])}


def sent_of(packed: Packed) -> torch.Tensor:
    """What w's levels and scales say."""
    levels, scales = (packed.tree[part]["params"]["w"].numpy() for part in ("values", "scales"))
    return torch.from_numpy(dequantize(levels, scales))


UPLOAD = moved(0.01)
SCHEMA = schema_of(UPLOAD)


def test_by_hand() -> None:
    # blocks are filled up with zeros; scale = 2.54 / 127 = 0.02, and 0.05 / 0.02 = 2.5 is rounded to the even 2
    levels, scales = quantize(np.array([2.54, -1.0, 0.031, 0.05, -0.009], np.float32))
    assert scales.tolist() == pytest.approx([0.02])
    assert levels.tolist() == [127, -50, 2, 2, 0]
    assert dequantize(levels, scales).tolist() == pytest.approx([2.54, -1.0, 0.04, 0.04, 0.0])


def test_feedback_by_hand() -> None:
    delta_reference, upload = ({"params": {"w": torch.full((BLOCK,), value)}} for value in (10.0, 10.3))
    upload["params"]["w"][0] = 137.0  # a change of 127 makes the scale 1, so 0.3 is sent as 0, 0, and then as 1
    sent, residual = [], {}
    for _ in range(3):
        packed = pack(upload, delta_reference, residual)
        residual = packed.residual
        sent.append(float(unpack(packed.tree, schema_of(upload), delta_reference)["params"]["w"][1]) - 10.0)
    assert sent == pytest.approx([0.0, 1.0, 0.0], abs=1e-5)  # 0.3, 0.6, and −0.4 + 0.3
    assert float(residual["params"]["w"][1]) == pytest.approx(-0.1, abs=1e-5)


numbers = st.floats(-(2.0**127), 2.0**127, width=32)


@given(st.lists(numbers, min_size=1, max_size=2 * BLOCK + 3), st.sampled_from([1.0, 1e-30, 1e-44]))
@settings(max_examples=200)
def test_a_number_errs_by_half_a_scale_at_most(values: list[float], size: float) -> None:
    x = np.array(values, np.float32) * np.float32(size)
    levels, scales = quantize(x)
    assert levels.dtype == np.int8
    assert (scales > 0).all()
    assert scales.shape == (math.ceil(len(x) / BLOCK),)
    error = np.abs(dequantize(levels, scales).astype(np.float64) - x)
    assert (error <= scales.astype(np.float64).repeat(BLOCK)[: len(x)] * 0.50005).all()


@given(st.integers(0, 1000), st.floats(1e-6, 1e3), st.floats(0, 1))
@settings(max_examples=50)
def test_what_was_sent_and_the_residual_are_what_was_to_be_sent(seed: int, by: float, owed: float) -> None:
    upload = moved(by, seed)
    before = {"params": {"w": owed * torch.randn(20, 30, generator=torch.Generator().manual_seed(seed))}}
    packed = pack(upload, ORIGIN, before)
    wanted = upload["params"]["w"] - ORIGIN["params"]["w"] + before["params"]["w"]
    sent = sent_of(packed)
    far = float((sent + packed.residual["params"]["w"] - wanted).abs().max())
    assert far <= 1e-6 * float(wanted.abs().max())


@pytest.mark.parametrize(("feedback", "share"), [(True, 1.0), (False, 0.0)])
def test_over_rounds_the_sum_of_what_is_sent_follows_with_feedback_alone(feedback: bool, share: float) -> None:
    rounds, small = 500, 0.001
    change = torch.full((BLOCK,), small)
    change[0] = 1.0  # so that the scale is 1/127, and every other number below half of it
    total, residual = torch.zeros(BLOCK), {}
    for _ in range(rounds):
        packed = pack({"params": {"w": change}}, {"params": {"w": torch.zeros(BLOCK)}}, residual)
        residual = packed.residual if feedback else {}
        total += sent_of(packed)
    assert float(total[1]) == pytest.approx(share * rounds * small, abs=0.5 / 127 + 1e-4)


def test_small_whole_and_wide_tensors_stay_exact_and_others_come_near() -> None:
    upload = {**UPLOAD, "wide": torch.ones(300, dtype=torch.float64) / 3}
    packed = pack(upload, ORIGIN, {})
    again = unpack(packed.tree, schema_of(upload), ORIGIN)
    assert set(flatten(packed.residual)) == {"params/w"}  # the means are measured anew: nothing of them is owed
    for name in ("params/b", "counts", "wide"):
        assert torch.equal(flatten(again)[name], flatten(upload)[name])
    for name in ("params/w", "means"):
        error = (flatten(again)[name] - flatten(upload)[name]).abs().max()
        assert 0 < float(error) <= 0.5001 * float(flatten(packed.tree["scales"])[name].max())


def test_an_upload_takes_a_quarter_of_the_bytes() -> None:
    tree = {"params": {"w": torch.randn(100, 256)}}
    sent = uploads.encode(tree, {}, {}, precision="int8")
    assert uploads.payload_bytes(schema_of(tree), "int8") == 100 * 256 + 4 * 100
    assert 0 < len(sent.data) - 100 * (256 + 4) < 300
    assert uploads.payload_bytes(schema_of(tree), "float16") == 2 * 100 * 256
    assert uploads.payload_bytes(schema_of(tree), "lossless") == 4 * 100 * 256


def test_the_change_errs_less_than_the_whole_tensor_would() -> None:
    def error(delta_reference: Tree) -> float:
        packed = pack(UPLOAD, delta_reference, {})
        return float((unpack(packed.tree, SCHEMA, delta_reference)["params"]["w"] - UPLOAD["params"]["w"]).norm())

    assert error(ORIGIN) < error({}) / 10


def test_a_residual_of_another_shape_is_left_out() -> None:
    assert torch.equal(
        pack(UPLOAD, ORIGIN, {"params": {"w": torch.ones(3)}}).residual["params"]["w"],
        pack(UPLOAD, ORIGIN, {}).residual["params"]["w"],
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_sent(value: float) -> None:
    upload = map_tree(torch.clone, UPLOAD)
    upload["params"]["w"][3, 3] = value
    with pytest.raises(UpdateError, match="'params/w', or its change in this round, contains NaN or infinity"):
        pack(upload, ORIGIN, {})


# ---- on the wire


def lying(part: str, value: torch.Tensor | None) -> Tree:
    """Pack the upload, and put another tensor in the place of w's values or scales, or none."""
    packed = pack(UPLOAD, ORIGIN, {}).tree
    params = {**packed[part]["params"], "w": value}
    return {**packed, part: {**packed[part], "params": {n: v for n, v in params.items() if v is not None}}}


SCALES = math.ceil(600 / BLOCK)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (lying("scales", torch.zeros(SCALES)), "scales of tensor 'params/w' must be above 0; the least is 0"),
        (lying("scales", torch.tensor([1.0, -1.0, 1.0])), "must be above 0; the least is -1"),
        (lying("scales", torch.tensor([1.0, math.nan, 1.0])), "'scales/params/w' contains NaN"),
        (lying("scales", torch.full((SCALES,), math.inf)), "'scales/params/w' contains NaN or infinity"),
        (lying("scales", torch.full((SCALES,), 3e38)), "'params/w' contains NaN or infinity"),  # 127 · 3e38 overflows
        (
            lying("scales", torch.ones(SCALES + 1)),
            "'scales/params/w' is torch.float32 .4,., not torch.float32 .3,.",
        ),
        (lying("scales", torch.ones(SCALES).double()), "'scales/params/w' is torch.float64"),
        (lying("scales", None), "'scales/params/w' of shape .3,. is missing"),
        (lying("values", torch.ones(20, 30)), "'values/params/w' is torch.float32"),
        (lying("values", torch.ones(30, 20).to(torch.int8)), "'values/params/w' is torch.int8 .30, 20."),
        (lying("values", None), "'values/params/w' of shape .20, 30. is missing"),
        (UPLOAD, "unexpected tensor 'params/w'; did you mean 'values/params/w'"),
    ],
)
def test_a_packed_upload_that_lies_is_refused(tree: Tree, message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        uploads.decode(wire.encode(tree), SCHEMA, lambda: ORIGIN, precision="int8")


def test_more_bytes_than_int8_takes_are_refused_before_they_are_parsed() -> None:
    schema = schema_of({"params": {"w": torch.zeros(1 << 20)}})
    assert uploads.limit_bytes(schema, "int8") < uploads.limit_bytes(schema, "lossless") / 2
    with pytest.raises(WireError, match="at most"):
        uploads.decode(bytes(4 << 20), schema, dict, precision="int8")


def test_int8_values_are_refused_where_the_manifest_says_lossless() -> None:
    data = uploads.encode(UPLOAD, ORIGIN, {}, precision="int8").data
    with pytest.raises(UpdateError, match="unexpected tensor 'values/"):
        uploads.decode(data, SCHEMA, lambda: ORIGIN, precision="lossless")


# ---- methods and clients


@pytest.mark.ci
@pytest.mark.parametrize("name", each_step(METHODS))
def test_every_method_plays_a_round_in_int8(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK", 16)  # so that the small network's tensors count as large
    fed = federation(METHODS[name]())
    method = fed.setup.method
    single = map_tree(lambda v: v.float() if v.dtype == torch.float64 else v, fed.state)
    updates = []
    for update in fed.updates():
        upload = map_tree(lambda v: v.float() if v.dtype == torch.float64 else v, update.tensors)
        delta_reference = method.delta_reference(method.broadcast(single, update.client_id))
        sent = uploads.encode(upload, delta_reference, {}, precision="int8", compression="zstd")
        schema = schema_of(upload)
        came = uploads.decode(sent.data, schema, lambda o=delta_reference: o, precision="int8", compression="zstd")
        check_tree(came, schema)
        assert list(flatten(came)) == list(schema)
        assert set(flatten(sent.residual)) <= set(flatten(delta_reference)) & set(schema)
        assert tensor_bytes(packed_schema(schema)) == uploads.payload_bytes(schema, "int8")
        updates.append(update._replace(tensors=came))
    state, exact = method.aggregate(single, updates), method.aggregate(fed.state, fed.updates())
    for path, value in flatten(exact).items():
        torch.testing.assert_close(flatten(state)[path].to(value.dtype), value, rtol=0.1, atol=0.02, msg=path)


def test_a_method_says_where_each_tensor_of_its_upload_started() -> None:
    origins = {}
    for name, kind in METHODS.items():
        fed = federation(kind())
        broadcast = fed.setup.method.broadcast(fed.state, "ada")
        origins[name] = set(fed.setup.method.delta_reference(broadcast)) & set(fed.train("ada").upload)
    assert origins.pop("fedali") == {"params", "prototypes"}
    assert origins.pop("scaffold") == {"params", "variate"}
    assert origins.pop("local") == set()
    assert origins.pop("pfedfda") == {"params", "means", "covariance"}
    assert origins.pop("fedproto") == origins.pop("fedtgp") == set()
    assert origins.pop("analytic") == set()
    assert set(map(frozenset, origins.values())) == {frozenset({"params"})}


def test_a_kept_client_parts_from_its_residual() -> None:
    client = Client({"w": torch.ones(2)}, {}, {"variate": {"w": torch.zeros(2)}})
    residual = {"params": {"w": torch.ones(2)}}
    again, owed = uploads.split_residual(uploads.with_residual(client, residual))
    assert again == client
    assert owed is residual
    assert uploads.with_residual(client, {}) is client
    assert uploads.split_residual(client) == (client, {})
