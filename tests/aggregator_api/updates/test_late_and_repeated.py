"""Updates that come late, begin wrongly after they were settled, or say what JSON cannot keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.http.queries import listings
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.http.queries.resources import UpdateView
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import UpdateRow
from federation import wire
from federation.methods import method_from_json
from federation.protocol import topics
from federation.records.tree import map_tree
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, parcel, tiny_plan


def quarantined(bench: Bench) -> list[UpdateView]:
    """Return what the operator sees of bad updates."""
    with bench.runtime.database.read() as session:
        row = repositories.find_federation(session, FEDERATION)
        assert row is not None
        return listings.updates(session, row, "quarantined", PageParams(0, 10)).items


def test_a_late_update_counts_less_in_the_next_round(tmp_path: Path) -> None:
    bench = late_federation(tmp_path, rounds=2)
    late = bench.update_of("c", examples=20)
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


def late_federation(folder: Path, **plan: Any) -> Bench:
    """Three devices, of which two are enough, in round 1; late updates are welcome."""
    bench = Bench(folder, tiny_plan(clients=2, over_selection=1.5, late="next", **plan))
    bench.runtime.federations.pause(FEDERATION)
    for device in ("a", "b", "c"):
        bench.say(device, "ready")
    bench.runtime.federations.resume(FEDERATION)
    return bench


def test_an_update_that_comes_during_aggregation_is_kept_for_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = late_federation(tmp_path, rounds=2)
    late = before.update_of("c", examples=20)
    monkeypatch.setattr(BackgroundJobs, "aggregate", lambda *_: None)
    for device in ("a", "b"):
        before.upload(before.update_of(device))
    assert before.now().state == "aggregating"
    answer = before.upload(late)
    assert (answer.status, answer.reason) == ("accepted", "kept for the next round")
    assert before.begin(late) == answer
    again = parcel(before.now(), "c", map_tree(torch.zeros_like, late.tree), base_version=before.base_of("c"))
    assert "already reported" in before.refused(again)
    before.runtime.stop()  # it survives a restart
    monkeypatch.undo()

    after = Bench(tmp_path)
    wait_for(lambda: (after.now().round, after.now().state) == (2, "collecting"))
    state = wire.decode(after.state(), limit_bytes=1 << 20)
    wait_for(lambda: after.invited() == ("a", "b"))  # c has its update in this round already
    fresh = after.update_of("a")
    assert after.upload(fresh).status == "accepted"
    wait_for(lambda: after.now().state == "finished")
    expected = method_from_json({"name": "fedavg"}).aggregate(
        state, [fresh.update, late.update._replace(discount=2**-0.5)]
    )
    assert after.state() == wire.encode(expected)
    after.runtime.stop()


def test_during_the_last_aggregation_there_is_no_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = late_federation(tmp_path, rounds=1)
    late = bench.update_of("c")
    monkeypatch.setattr(BackgroundJobs, "aggregate", lambda *_: None)
    for device in ("a", "b"):
        bench.upload(bench.update_of(device))
    assert "aggregating" in bench.refused(late)
    bench.runtime.stop()


def test_an_update_that_comes_while_the_federation_waits_for_devices_is_kept_too(tmp_path: Path) -> None:
    bench = late_federation(tmp_path, rounds=2)
    late = bench.update_of("c")
    bench.runtime.federations.pause(FEDERATION)
    for device in ("a", "b"):
        bench.upload(bench.update_of(device))
    for device in ("a", "b", "c"):
        bench.say(device, "offline")
    bench.runtime.federations.resume(FEDERATION)
    wait_for(lambda: (bench.now().round, bench.now().state) == (1, "waiting"))
    assert bench.upload(late).reason == "kept for the next round"
    for device in ("a", "b"):
        bench.say(device, "idle")
    assert (bench.now().round, bench.now().state) == (2, "collecting")
    with bench.runtime.database.read() as session:
        found = session.scalars(select(UpdateRow).where(UpdateRow.update_id == late.manifest.update_id)).one()
        assert (found.status, found.round_id) == ("accepted", 2)
    bench.runtime.stop()


def test_a_garbled_begin_of_an_accepted_update_does_not_unsettle_it(collecting: Bench) -> None:
    update = collecting.update_of("a")
    collecting.upload(update)
    collecting.send(update.topic("begin"), b"{")
    assert collecting.last("a").status == "accepted"
    assert quarantined(collecting) == []


def test_a_manifest_with_nan_is_refused_and_the_round_goes_on(collecting: Bench) -> None:
    update = collecting.update_of("a")
    text = update.manifest.model_copy(update={"created": 0.125}).model_dump_json().replace("0.125", "NaN")
    collecting.send(update.topic("begin"), text.encode())
    assert collecting.last("a").status == "refused"
    assert "created: Input should be a finite number" in collecting.last("a").reason
    assert collecting.now().state == "collecting"


def test_a_corrected_manifest_of_the_same_id_is_judged_anew(collecting: Bench) -> None:
    update = collecting.update_of("a")
    wrong = Parcel(update.manifest.model_copy(update={"steps": 10_000}), update.data, update.tree)
    assert "steps" in collecting.refused(wrong)
    assert "steps" in collecting.refused(wrong), "the same again has the same answer"
    worse = Parcel(update.manifest.model_copy(update={"method": "fedprox"}), update.data, update.tree)
    assert "fedprox" in collecting.refused(worse)
    assert [kept.reason for kept in quarantined(collecting)] == [collecting.last("a").reason]
    assert collecting.upload(update).status == "accepted"
    assert quarantined(collecting) == []


def test_a_round_number_that_no_column_holds_is_refused_in_words(collecting: Bench) -> None:
    update = collecting.update_of("a")
    said = update.manifest.model_dump(mode="json") | {"round": 10**30}
    collecting.send(update.topic("begin"), json.dumps(said).encode())
    assert collecting.last("a").status == "refused"
    assert "round" in collecting.last("a").reason
    collecting.send(topics.status(FEDERATION, "a"), json.dumps({"state": "ready", "round": 10**30}).encode())
    assert collecting.upload(collecting.update_of("a", update_id="another")).status == "accepted"
