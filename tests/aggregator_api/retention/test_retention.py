"""Deleting federations, devices and versions, and what is removed by age: what is needed stays, and the audit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import delete, func, select, update
from typer.testing import CliRunner, Result

from aggregator_api.cli.app import app as cli
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.maintenance import retention
from aggregator_api.runtime import Runtime
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import AuditRow, Base, EventRow, ModelAliasRow, UpdateRow
from federation.plan import Plan
from federation.protocol import topics
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"
KEPT = {"audit_entries", "idempotent_requests", "ledger", "server_epoch"}


class Served(Bench):
    """A bench whose runtime belongs to an application that is asked over REST."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.runtime = client.runtime
        assert isinstance(self.runtime.transport, Wires)
        self.wires = self.runtime.transport

    def create(self, plan: Plan) -> None:
        """Make the federation."""
        answer = self.client.post("/v1/federations", json={"name": FEDERATION, "plan": plan.model_dump(mode="json")})
        assert answer.status_code == 201, answer.text

    def round(self, number: int) -> None:
        """Play a round of devices a and b."""
        for device in ("a", "b"):
            self.say(device, "ready")
        wait_for(lambda: self.collects(number))
        for device in ("a", "b"):
            assert self.upload(self.update_of(device)).status == "accepted"
        wait_for(lambda: self.now().state in ("waiting", "finished") or self.collects(number + 1))

    def count_rows(self, table: type[Base]) -> int:
        """Count the rows of a table."""
        with self.runtime.database.read() as session:
            return session.scalars(select(func.count()).select_from(table)).one()

    def rows(self) -> dict[str, int]:
        """Count the rows of every table that is not empty."""
        with self.runtime.database.read() as session:
            found = {
                table.name: session.scalars(select(func.count()).select_from(table)).one()
                for table in Base.metadata.sorted_tables
            }
        return {name: count for name, count in found.items() if count}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server without a federation, and an operator on its machine."""
    settings = Settings(data_dir=tmp_path / "server", chunk_bytes=1024, aggregation_process=False)
    server: FastAPI = create_app(settings, Wires)
    with OperatorClient(server) as client:
        yield Served(client)


@pytest.fixture
def finished(served: Served) -> Served:
    """The same, after a federation of two rounds with two devices, one of which is in a group."""
    served.create(tiny_plan())
    served.round(1)
    served.round(2)
    served.client.put(f"{HERE}/devices/a/tags", json={"tags": ["pilot"]})
    served.client.post(f"{HERE}/enrolment-tokens", json={"device": "c"})
    served.client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "federation": FEDERATION})
    assert served.now().state == "finished"
    journal = f"{HERE}/journal?limit=500"  # the last event: nobody has measured a version
    wait_for(lambda: any(one["kind"] == "model.held" for one in served.client.get(journal).json()["items"]))
    return served


def run(*words: str, folder: Path, given: str = "") -> Result:
    return CliRunner().invoke(cli, [*words, "--data-dir", str(folder)], input=given)


def test_a_deleted_federation_leaves_nothing_but_the_audit(finished: Served) -> None:
    before = finished.rows()
    told = finished.client.delete(HERE, params={"dry_run": True}).json()
    assert told["dry_run"]
    assert finished.rows() == before | {"audit_entries": before["audit_entries"] + 1}
    done = finished.client.delete(HERE)
    assert done.json() == {"dry_run": False, "rows": told["rows"]}
    assert set(finished.rows()) <= KEPT | {"credentials"}
    problem(finished.client.get(HERE), 404)
    for topic in (topics.announce(FEDERATION), topics.invitation(FEDERATION, "a"), topics.status(FEDERATION, "b")):
        assert [body for sent, body, retain in finished.wires.sent if sent == topic and retain][-1] == b""
    entries = finished.client.get("/v1/audit", params={"federation": FEDERATION}).json()["items"]
    assert entries[-1]["action"] == "federations.delete"
    runtime = finished.runtime
    assert garbage_collection.collect(runtime.database, runtime.blobs, grace_s=-1).blobs >= 3
    finished.create(tiny_plan())  # the name is free, and the new one starts anew
    assert finished.client.get(HERE).json()["round"] == 0
    finished.round(1)


def test_a_running_federation_is_deleted_only_with_force(served: Served) -> None:
    served.create(tiny_plan())
    for device in ("a", "b"):
        served.say(device, "ready")
    assert served.collects(1)
    refused = problem(served.client.delete(HERE), 409)
    assert refused["detail"] == "federation 'walk' is running; stop it first, or delete it with force, which stops it"
    assert served.client.delete(HERE, params={"force": True}).status_code == 200
    served.say("a", "ready")  # a device that has not heard of it
    served.runtime.coordinator.tick()
    served.runtime.coordinator.on_connected()
    problem(served.client.get(HERE), 404)


def test_a_deleted_device_leaves_nothing_with_its_name(finished: Served) -> None:
    told = finished.client.delete(f"{HERE}/devices/a", params={"dry_run": True}).json()["rows"]
    assert {"updates", "participations", "devices", "device_tags", "events"} <= set(told)
    assert finished.client.delete(f"{HERE}/devices/a").json()["rows"] == told
    problem(finished.client.get(f"{HERE}/devices/a"), 404)
    events = finished.client.get(f"{HERE}/journal").json()["items"]
    assert not [event for event in events if event["device"] == "a"]
    assert finished.now().serial == events[-1]["id"]
    assert finished.client.get(f"{HERE}/devices/b/history").json()["items"]
    assert finished.client.get(f"{HERE}/rounds/1/participants").json()["items"][0]["device"] == "b"


def test_a_device_whose_update_the_open_round_holds_is_not_deleted_and_one_it_waits_for_is(served: Served) -> None:
    served.create(tiny_plan(clients=None, minimum_clients=1))
    for device in ("a", "b", "c"):
        served.say(device, "ready")
    wait_for(lambda: served.collects(1))
    invited = served.invited()
    sender = invited[0]
    served.upload(served.update_of(sender))
    if served.collects(1):
        held = problem(served.client.delete(f"{HERE}/devices/{sender}"), 409)
        assert "round 1 has accepted an update of" in held["detail"]
    for device in invited[1:]:
        assert served.client.delete(f"{HERE}/devices/{device}").status_code == 200
    wait_for(lambda: served.now().round != 1 or not served.collects(1))


def named_by_force(finished: Served, version: int, *names: str) -> None:
    """Move names where devices have measured nothing."""
    for name in names:
        body = {"version": version, "force": True, "reason": "a test"}
        assert finished.client.put(f"{HERE}/aliases/{name}", json=body).status_code == 200


def test_old_versions_go_and_needed_ones_stay(finished: Served) -> None:
    named_by_force(finished, 1, "stable")
    named_by_force(finished, 2, "stable")
    versions = finished.client.get(f"{HERE}/models").json()["items"]
    assert [one["version"] for one in versions] == [0, 1, 2]
    assert "it has the name 'stable'" in problem(finished.client.delete(f"{HERE}/models/2"), 409)["detail"]
    assert "it has the name 'previous'" in problem(finished.client.delete(f"{HERE}/models/1"), 409)["detail"]
    problem(finished.client.delete(f"{HERE}/models/9"), 404)
    gone = finished.client.delete(f"{HERE}/models/0").json()
    assert gone["deleted_at"] is not None
    problem(finished.client.get(gone["url"]), 404)
    problem(finished.client.put(f"{HERE}/aliases/best", json={"version": 0}), 409)
    runtime = finished.runtime
    garbage_collection.collect(runtime.database, runtime.blobs, grace_s=-1)
    assert finished.client.get(versions[2]["url"]).status_code == 200
    assert len(finished.client.get(f"{HERE}/rounds").json()["items"]) == 2


def test_what_is_too_old_is_removed_and_no_more(finished: Served) -> None:
    database = finished.runtime.database
    day = 86_400.0
    with database.write() as session:
        first = session.scalars(select(UpdateRow).order_by(UpdateRow.id)).all()[0]
        first.received_at -= 40 * day
        newest = session.scalars(select(func.max(EventRow.id))).one()
        session.execute(update(EventRow).where(EventRow.id < newest).values(created_at=time.time() - 100 * day))
    settings = Settings(keep_versions=1, update_retention_days=30, event_retention_days=90)
    with database.write() as session:
        told = retention.apply(session, settings, actor="server", dry_run=True)
    with database.write() as session:
        assert retention.apply(session, settings, actor="server") == told
    assert (told.versions, told.updates) == (1, 1)  # version 1 is `previous`
    assert finished.count_rows(EventRow) == 1 + 1  # the newest, and that a version was deleted
    with database.write() as session:
        assert not any(retention.apply(session, settings, actor="server"))
        assert not any(retention.apply(session, Settings(), actor="server"))
    last = finished.client.get("/v1/audit", params={"action": "retention"}).json()["items"]
    assert [entry["actor"] for entry in last] == ["server"]


def test_the_newest_event_stays_as_announcements_count_by_it(finished: Served) -> None:
    serial = finished.now().serial
    with finished.runtime.database.write() as session:
        session.execute(update(EventRow).values(created_at=0.0))
        retention.apply(session, Settings(event_retention_days=90), actor="server")
    assert (finished.now().serial, finished.count_rows(EventRow)) == (serial, 1)


def add_old_event(runtime: Runtime) -> None:
    with runtime.database.write() as session:
        federation = repositories.find_federation(session, FEDERATION)
        assert federation is not None
        repositories.journal(session, federation, "device.idle")
        session.execute(update(EventRow).values(created_at=1.0))
        repositories.journal(session, federation, "device.ready")


def test_what_is_too_old_goes_once_a_day_by_itself(tmp_path: Path) -> None:
    before = Bench(tmp_path / "daily", tiny_plan())
    add_old_event(before.runtime)
    before.runtime.stop()
    now, asked = 1000.0, 0

    def elapsed_s() -> float:
        nonlocal asked
        asked += 1
        return now

    runtime = Runtime(
        before.runtime.settings.model_copy(update={"event_retention_days": 30}), Wires, elapsed_s=elapsed_s
    )
    runtime.start()

    def times_applied() -> int:
        query = select(func.count()).select_from(AuditRow).where(AuditRow.action == "retention.apply")
        with runtime.database.read() as session:
            return session.scalars(query).one()

    def ticked(so_often: int) -> bool:
        return asked >= so_often

    try:
        wait_for(lambda: times_applied() == 1)
        add_old_event(runtime)
        now += retention.DAY_S - 1
        wait_for(partial(ticked, asked + 6))  # a tick asks twice
        assert times_applied() == 1
        now += 1
        wait_for(lambda: times_applied() == 2)
    finally:
        runtime.stop()


def test_versions_are_listed_and_deleted_by_command_all_or_none(finished: Served) -> None:
    named_by_force(finished, 1, "stable")
    named_by_force(finished, 2, "stable")
    folder = finished.runtime.settings.data_dir
    mine = ("--federation", FEDERATION)
    shown = run("versions", "list", *mine, folder=folder)
    assert shown.exit_code == 0, shown.output
    assert "it has the name 'stable'" in shown.stdout
    for version, reason in (
        (2, "it has the name 'stable'"),
        (1, "it has the name 'previous'"),
        (9, "no model version 9"),
    ):
        refused = run("versions", "delete", "0", str(version), *mine, "--yes", folder=folder)
        assert (refused.exit_code, reason in refused.stderr) == (2, True), refused.output
    assert (
        "1 model versions would be deleted" in run("versions", "delete", "0", *mine, "--dry-run", folder=folder).stdout
    )
    assert finished.client.get(f"{HERE}/models/0").json()["deleted_at"] is None
    done = run("versions", "delete", "0", *mine, folder=folder, given="y\n")
    assert done.exit_code == 0, done.output
    assert finished.client.get(f"{HERE}/models/0").json()["deleted_at"] is not None
    again = run("versions", "delete", "0", *mine, "--yes", folder=folder)
    assert (again.exit_code, "was deleted" in again.stderr) == (2, True)
    actions = [entry["action"] for entry in finished.client.get("/v1/audit").json()["items"]]
    assert actions[-1] == "models.delete"


def test_a_version_that_a_rollout_gives_out_or_has_released_and_the_newest_stay(finished: Served) -> None:
    rollout = {"mode": "manual", "waves": [1.0], "soak_s": 0}
    assert finished.client.patch(HERE, json={"rollout": rollout}).status_code == 200
    assert finished.client.post(f"{HERE}/rollouts", json={"version": 0}).status_code == 201
    refused = problem(finished.client.delete(f"{HERE}/models/0"), 409)["detail"]
    assert refused == "version 0 cannot be deleted: it has the name 'stable'"
    assert finished.client.post(f"{HERE}/rollouts/1/halt").status_code == 200
    named_by_force(finished, 0, "stable", "latest")
    with finished.runtime.database.write() as session:  # nobody names it any more
        session.execute(delete(ModelAliasRow).where(ModelAliasRow.alias == "previous"))
    newest = run(
        "versions", "delete", "2", "--federation", FEDERATION, "--yes", folder=finished.runtime.settings.data_dir
    )
    assert (newest.exit_code, "it is the newest" in newest.stderr) == (2, True), newest.output


def test_the_commands_ask_before_they_delete(finished: Served) -> None:
    folder = finished.runtime.settings.data_dir
    dry = run("federations", "delete", FEDERATION, "--dry-run", folder=folder)
    assert dry.exit_code == 0, dry.output
    assert "2 rounds" in dry.stdout
    assert run("federations", "delete", FEDERATION, folder=folder, given="n\n").exit_code == 2
    assert run("devices", "delete", "a", "--federation", FEDERATION, "--yes", folder=folder).exit_code == 0
    problem(finished.client.get(f"{HERE}/devices/a"), 404)
    assert "0 model versions" in run("retention", "apply", "--dry-run", folder=folder).stdout
    done = run("federations", "delete", FEDERATION, folder=folder, given="y\n")
    assert done.exit_code == 0, done.output
    problem(finished.client.get(HERE), 404)
    actions = [entry["action"] for entry in finished.client.get("/v1/audit").json()["items"]]
    assert actions[-2:] == ["devices.delete", "federations.delete"]


def test_a_command_does_not_take_a_device_away_from_an_open_round(collecting: Bench) -> None:
    folder: Any = collecting.runtime.settings.data_dir
    answer = run("devices", "delete", "a", "--federation", FEDERATION, "--yes", folder=folder)
    assert answer.exit_code == 2
    assert "round 1 waits for 'a'; DELETE it over REST" in answer.stderr
    running = run("federations", "delete", FEDERATION, "--yes", folder=folder)
    assert running.exit_code == 2
    assert "is running; stop it first" in running.stderr
