"""What each device of a cohort gets: its invitation, and a broadcast that may be its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import select, text

from aggregator_api.auth.api_keys import ensure_operator
from aggregator_api.http.app import create_app
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.storage.broadcasts import write_broadcasts
from aggregator_api.storage.db.models import ParticipationRow
from federation import wire
from federation.methods import method_from_json
from federation.protocol import topics
from federation.protocol.messages import MESSAGE_BYTES
from federation.records import Tree
from federation.records.tree import map_tree
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, Wires, parcel, tiny_plan
from tests.aggregator_api.http_client import OperatorClient

DEVICES = ("a", "b", "c", "d")
FESEM = method_from_json({"name": "fesem"})


def near(bench: Bench, device: str, value: float) -> Parcel:
    """Make an update whose every parameter is close to `value`."""
    base = bench.base_of(device)
    like = wire.decode(bench.runtime.blobs.read(base), limit_bytes=1 << 20)
    tree = map_tree(lambda tensor: torch.full_like(tensor, value + ord(device) / 1e4), like)
    return parcel(bench.now(), device, tree, base_version=base)


def join(bench: Bench) -> None:
    """Let four devices come before the first round."""
    bench.runtime.federations.pause(FEDERATION)
    for device in DEVICES:
        bench.say(device, "ready")
    bench.runtime.federations.resume(FEDERATION)
    wait_for(lambda: bench.invited() == DEVICES)


@pytest.fixture
def clustered(tmp_path: Path) -> Iterator[Bench]:
    """Four devices in round 2 of FeSEM: a and c belong to one centre, b and d to the other."""
    bench = Bench(tmp_path, tiny_plan(rounds=3, clients=4, method="fesem"))
    join(bench)
    for device, value in zip(DEVICES, (1.0, 5.0, 1.0, 5.0), strict=True):
        assert bench.upload(near(bench, device, value)).status == "accepted"
    # invitations leave after the row is written
    wait_for(lambda: bench.collects(2) and bench.invited() == DEVICES)
    yield bench
    bench.runtime.stop()


def test_an_invitation_is_retained_and_comes_before_the_announcement(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan())
    bench.say("a", "ready")
    bench.say("b", "ready")
    told = [(topic, retain) for topic, _, retain in bench.wires.sent[-3:]]
    assert told == [
        (topics.invitation(FEDERATION, "a"), True),
        (topics.invitation(FEDERATION, "b"), True),
        (topics.announce(FEDERATION), True),
    ]
    (invited,) = bench.wires.invitations("a")
    announced = bench.now()
    assert (invited.instance, invited.round, invited.model) == (announced.instance, 1, announced.model)
    bench.runtime.stop()


def test_the_announcement_of_five_thousand_devices_is_a_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(clients=None, minimum_clients=5000))
    with bench.runtime.database.write() as session:
        rows = [
            {"federation_id": 1, "name": f"device-{n:050}", "state": "ready", "examples": 9, "detail": "", "at": 0.0}
            for n in range(5000)
        ]
        columns = "federation_id, name, state, examples, detail, enrolled_at, seen_at"
        values = ":federation_id, :name, :state, :examples, :detail, :at, :at"
        session.execute(text(f"INSERT INTO devices ({columns}) VALUES ({values})"), rows)
    bench.runtime.coordinator.devices_changed(FEDERATION)
    assert bench.wires.announcements()[-1].invited == 5000
    assert sum(topic.endswith("/invitation") for topic, _, _ in bench.wires.sent) == 5000
    assert max(len(body) for _, body, _ in bench.wires.sent) < MESSAGE_BYTES / 100
    bench.runtime.stop()


def test_every_device_gets_its_own_centre_and_equal_ones_are_one_blob(clustered: Bench) -> None:
    state = wire.decode(clustered.state(), limit_bytes=1 << 20)
    got = {device: clustered.base_of(device) for device in DEVICES}
    for device, sha256 in got.items():
        expected = wire.encode(FESEM.broadcast(state, device))
        assert clustered.runtime.blobs.read(sha256) == expected
    assert got["a"] == got["c"] != got["b"] == got["d"]
    app = create_app(clustered.runtime.settings, Wires)
    app.state.runtime, app.state.database = clustered.runtime, clustered.runtime.database
    ensure_operator(clustered.runtime.database, clustered.runtime.settings.data_dir)
    client = OperatorClient(app).show_key()
    assert client.get(f"/v1/blobs/{got['b']}").content == clustered.runtime.blobs.read(got["b"])


def test_an_update_must_start_from_what_its_own_device_got(clustered: Bench) -> None:
    theirs = near(clustered, "b", 5.0)
    mine = parcel(clustered.now(), "a", theirs.tree, base_version=clustered.base_of("b"))
    assert f"a got {clustered.base_of('a')[:12]}" in clustered.refused(mine)
    assert clustered.upload(theirs).status == "accepted"


def test_the_rounds_are_those_of_the_method(clustered: Bench) -> None:
    state = wire.decode(clustered.state(), limit_bytes=1 << 20)
    updates = [near(clustered, device, value) for device, value in zip(DEVICES, (2.0, 4.0, 2.0, 4.0), strict=True)]
    for update in updates:
        assert clustered.upload(update).status == "accepted"
    wait_for(lambda: clustered.now().round == 3)
    assert clustered.state() == wire.encode(FESEM.aggregate(state, [update.update for update in updates]))


def test_a_server_killed_before_the_broadcasts_were_written_writes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundJobs, "personalize", lambda *_: None)  # the power goes just here
    before = Bench(tmp_path, tiny_plan(method="fesem"))
    before.say("a", "ready")
    before.say("b", "ready")
    assert before.now().state == "waiting"
    assert before.wires.invitations("a") == []
    before.runtime.stop()
    monkeypatch.undo()

    after = Bench(tmp_path)
    wait_for(lambda: after.invited() == ("a", "b"))
    wait_for(lambda: after.now().state == "collecting")
    after.runtime.stop()


def test_broadcasts_that_cannot_be_written_end_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("aggregator_api.rounds.aggregation_executor.write_broadcasts", broken)
    bench = Bench(tmp_path, tiny_plan(rounds=1, method="fesem"))
    bench.say("a", "ready")
    bench.say("b", "ready")
    wait_for(lambda: bench.now().state == "paused")  # it would fail at once for ever
    with bench.runtime.database.read() as session:
        assert {part.outcome for part in session.scalars(select(ParticipationRow))} == {"waiting"}
    bench.runtime.stop()


def test_broadcasts_of_the_states_own_tensors_are_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    centres = {str(n): {"w": torch.full((3,), float(n))} for n in range(2)}
    assigned = {f"d{n}": torch.tensor(n % 2) for n in range(100)}
    encoded: list[Tree] = []
    encode = wire.encode
    monkeypatch.setattr(wire, "encode", lambda tree: (encoded.append(tree), encode(tree))[1])
    state = {"centres": centres, "assigned": assigned}
    given = write_broadcasts(FESEM, bench.runtime.blobs, state, assigned)
    assert len(encoded) == len(set(given.values())) == 2
    assert bench.runtime.blobs.read(given["d7"].sha256) == encode({"params": centres["1"]})
    bench.runtime.stop()


def test_a_federation_created_anew_is_another_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAITWAY_DATABASE_URL", raising=False)  # two servers, each with an SQLite of its own
    first, second = (Bench(tmp_path / name, tiny_plan()) for name in ("first", "second"))
    assert first.now().plan == second.now().plan
    models = [bench.now().model for bench in (first, second)]
    assert len({model.sha256 for model in models if model}) == 1  # sealed by two servers, so only the bytes agree
    assert first.now().instance != second.now().instance
    for bench in (first, second):
        bench.runtime.stop()
