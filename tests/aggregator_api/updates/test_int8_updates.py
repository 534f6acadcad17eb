"""int8 updates at the server: changes added to what the device got, hostile ones quarantined, their base kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import UpdateRow
from federation import wire
from federation.methods import method_from_json
from federation.records.tree import flatten, unflatten
from federation.wire import uploads
from federation.wire.schema import schema_of
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, parcel
from tests.aggregator_api.storage.test_garbage_collection import age, collected
from tests.aggregator_api.updates.test_late_and_repeated import late_federation


def as_int8(bench: Bench, device: str, seed: int = 0, **lies: torch.Tensor) -> Parcel:
    """Make a random update of a device that travels as int8; `lies` replace the first tensor of scales or values."""
    sha256 = bench.base_of(device)
    base = bench.runtime.blobs.read(sha256)
    origin = wire.decode(base, limit_bytes=len(base))
    generator = torch.Generator().manual_seed(seed)
    moved = {n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in origin["params"].items()}
    upload = {"params": moved}
    data = uploads.encode(upload, origin, {}, precision="int8").data
    came = uploads.decode(data, schema_of(upload), lambda: origin, precision="int8")
    if lies:
        packed = flatten(wire.decode(data, limit_bytes=len(data)))
        for group, value in lies.items():
            packed[next(name for name in packed if name.startswith(f"{group}/"))] = value
        data = wire.encode(unflatten(packed))
    return parcel(bench.now(), device, came, data=data, precision="int8", base_version=sha256)


def test_changes_are_added_to_what_the_device_got(collecting: Bench) -> None:
    state = wire.decode(collecting.state(), limit_bytes=1 << 20)
    sent = [as_int8(collecting, device, seed) for seed, device in enumerate("ab")]
    assert all(one.manifest.size < len(wire.encode(one.tree)) for one in sent)
    for one in sent:
        assert collecting.upload(one).status == "accepted"
    wait_for(lambda: collecting.now().round == 2)
    expected = method_from_json({"name": "fedavg"}).aggregate(state, [one.update for one in sent])
    assert collecting.state() == wire.encode(expected)
    with collecting.runtime.database.read() as session:
        assert {row.manifest["precision"] for row in session.scalars(select(UpdateRow))} == {"int8"}


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"scales": torch.tensor([math.nan] * 3)}, "contains NaN or infinity"),
        ({"scales": torch.tensor([1.0, -1.0, 1.0])}, "must be above 0; the least is -1"),
        ({"scales": torch.full((3,), 3e38)}, "contains NaN or infinity"),
        ({"scales": torch.ones(1 << 12)}, "is torch.float32 (4096,)"),
        ({"values": torch.ones(7, dtype=torch.int8)}, "is torch.int8 (7,)"),
    ],
)
def test_a_hostile_one_is_quarantined_with_the_reason(
    lie: dict[str, torch.Tensor], reason: str, collecting: Bench
) -> None:
    assert reason in collecting.refused(as_int8(collecting, "a", **lie))
    assert collecting.count("quarantined") == 1


def test_what_is_larger_than_int8_can_be_is_refused_before_its_bytes(collecting: Bench) -> None:
    small = as_int8(collecting, "a")
    schema = schema_of(small.tree)
    between = (uploads.limit_bytes(schema, "int8") + uploads.limit_bytes(schema, "lossless")) // 2
    large = parcel(collecting.now(), "a", {}, data=small.data, precision="int8", size=between)
    assert "at most" in collecting.begin(large).reason


def test_one_whose_base_is_gone_is_refused_and_not_quarantined(collecting: Bench) -> None:
    update = as_int8(collecting, "a")
    sha256 = update.manifest.base_version
    Path(collecting.runtime.blobs.root, sha256[:2], sha256).unlink()
    assert "what the update started from is not here any more" in collecting.refused(update)
    assert collecting.count("quarantined") == 0


def test_what_a_late_one_started_from_stays_until_it_is_used(tmp_path: Path) -> None:
    bench = late_federation(tmp_path, rounds=3, method="fesem")  # from round 2 on, a and b get different centres
    for seed, device in enumerate("ab"):
        assert bench.upload(as_int8(bench, device, seed)).status == "accepted"
    wait_for(lambda: (bench.now().round, bench.now().state) == (2, "collecting"))
    wait_for(lambda: bench.wires.invitations("b")[-1].round == 2)
    late = as_int8(bench, "b", 5)
    assert late.manifest.base_version != bench.base_of("a")
    for seed, device in enumerate("ac"):
        assert bench.upload(as_int8(bench, device, seed)).status == "accepted"
    wait_for(lambda: (bench.now().round, bench.now().state) == (3, "collecting"))
    wait_for(lambda: bench.wires.invitations("a")[-1].round == 3)
    assert bench.upload(late).status == "accepted"
    age(bench)
    collected(bench)
    assert bench.runtime.blobs.has(late.manifest.base_version)
    assert bench.upload(as_int8(bench, "a", 7)).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    with bench.runtime.database.read() as session:
        federation = repositories.find_federation(session, FEDERATION)
        assert federation is not None
        assert federation.status == "finished"
    bench.runtime.stop()


def as_wrong_int8(bench: Bench, device: str, seed: int = 0) -> Parcel:
    """Make an update whose small tensors are changes as well, as somebody may read the description of int8."""
    right = as_int8(bench, device, seed)
    base = bench.runtime.blobs.read(right.manifest.base_version)
    start = flatten(wire.decode(base, limit_bytes=len(base))["params"])
    packed = flatten(wire.decode(right.data, limit_bytes=len(right.data)))
    for name, value in start.items():
        if value.numel() < 256:
            packed[f"values/params/{name}"] = 0.1 * (packed[f"values/params/{name}"] - value)
    data = wire.encode(unflatten(packed))
    return parcel(
        bench.now(), device, right.tree, data=data, precision="int8", base_version=right.manifest.base_version
    )


def test_small_tensors_that_are_changes_are_refused_with_the_reason(collecting: Bench) -> None:
    reason = collecting.refused(as_wrong_int8(collecting, "a"))
    assert "look like changes, but only larger tensors travel as changes" in reason
    assert collecting.count("quarantined") == 1
    assert collecting.upload(as_int8(collecting, "b")).status == "accepted"
