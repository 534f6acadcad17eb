"""Updates that come late, begin wrongly after they were settled, or say what JSON cannot keep."""

from __future__ import annotations

from pathlib import Path

from aggregator_api import listings, records, service
from aggregator_api.listings import Window
from aggregator_api.views import UpdateView
from federation import wire
from federation.methods import method_from_json

from .conftest import Bench, wait_for
from .devices import FEDERATION, tiny_plan


def quarantined(bench: Bench) -> list[UpdateView]:
    """Return what the operator sees of bad updates."""
    with bench.runtime.database.read() as session:
        row = records.federation_named(session, FEDERATION)
        assert row is not None
        return listings.updates(session, row, "quarantined", Window(0, 10)).items


def test_a_late_update_counts_less_in_the_next_round(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=2, clients=2, over_selection=1.5, late="next"))
    service.pause(bench.runtime, FEDERATION)
    for device in ("a", "b", "c"):
        bench.say(device, "ready")
    service.resume(bench.runtime, FEDERATION)
    late = bench.update_of("c", examples=40)
    for device in ("a", "b"):
        bench.upload(bench.update_of(device))
    wait_for(lambda: (bench.now().round, bench.now().state) == (2, "collecting"))
    state = wire.decode(bench.state(), limit_bytes=1 << 20)
    fresh = bench.update_of("a")
    assert bench.upload(late).status == "accepted"
    assert bench.upload(fresh).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    discounted = late.update._replace(discount=2**-0.5)
    expected = method_from_json({"name": "fedavg"}).aggregate(state, [fresh.update, discounted])
    assert bench.state() == wire.encode(expected)
    assert bench.state() != wire.encode(method_from_json({"name": "fedavg"}).aggregate(state, [fresh.update]))
    bench.runtime.stop()


def test_a_garbled_begin_of_an_accepted_update_does_not_unsettle_it(collecting: Bench) -> None:
    update = collecting.update_of("a")
    collecting.upload(update)
    collecting.send(update.topic("begin"), b"{")
    assert collecting.last("a").status == "accepted"
    assert quarantined(collecting) == []


def test_a_manifest_with_nan_is_quarantined_and_the_round_goes_on(collecting: Bench) -> None:
    update = collecting.update_of("a")
    text = update.manifest.model_copy(update={"created": 0.125}).model_dump_json().replace("0.125", "NaN")
    collecting.send(update.topic("begin"), text.encode())
    assert (collecting.last("a").status, collecting.last("a").reason) == (
        "refused",
        "the manifest holds NaN or infinity",
    )
    (kept,) = quarantined(collecting)
    assert (kept.update_id, kept.device, kept.reason) == (
        update.manifest.update_id,
        "a",
        "the manifest holds NaN or infinity",
    )
    assert collecting.now().state == "collecting"
