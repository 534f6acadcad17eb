"""Every way by which an access ends, and that a backup from before it does not bring the access back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from httpx import Response
from sqlalchemy import text
from typer.main import get_command
from typer.testing import CliRunner

from aggregator_api.api import openapi
from aggregator_api.app import create_app
from aggregator_api.auth import api_keys
from aggregator_api.cli.app import app as cli
from aggregator_api.db.database import Database
from aggregator_api.db.models import Base
from aggregator_api.settings import Settings, load
from aggregator_api.storage.backup import back_up
from tests.aggregator_api.devices.test_enrolment import Phone
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.visitors import Visitor
from tests.live.real_parts import Postgres

GONE = "gone"
"""A federation that is deleted after the backup."""


class Server:
    """A server over a folder, asked by its operator, and the commands on its machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = create_app(Settings(data_dir=folder, admission="enrolled", aggregation_process=False), Wires)
        self.client = TestClient(self.app)

    def __enter__(self) -> Server:
        self.client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.__exit__(None, None, None)

    def with_key(self, key: str, method: str, path: str, **options: Any) -> Response:
        """Ask with a key."""
        return self.client.request(method, path, headers={"Authorization": f"Bearer {key}"}, **options)

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        """Ask as the operator."""
        key = (self.folder / api_keys.OPERATOR_FILE).read_text().strip()
        answer = self.with_key(key, "POST", f"/v1/{path}", json=body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def delete(self, path: str) -> None:
        """Delete as the operator."""
        key = (self.folder / api_keys.OPERATOR_FILE).read_text().strip()
        assert self.with_key(key, "DELETE", f"/v1/{path}").is_success

    def command(self, *words: str) -> str:
        """Run a command beside the server."""
        said = CliRunner(env={"COLUMNS": "200"}).invoke(cli, [*words, "--data-dir", str(self.folder)])
        assert said.exit_code == 0, said.output
        return said.stdout

    def token(self, **options: Any) -> dict[str, Any]:
        """Make an enrolment token."""
        return self.post(f"federations/{options.pop('federation', FEDERATION)}/enrolment-tokens", options)

    def phone(self, name: str) -> Phone:
        """Enrol a device, approved at once."""
        phone = Phone(self.client, name)
        assert phone.enrol(self.token(auto_approve=True)["token"]).status_code == 201
        return phone


class Way:
    """What is given before the backup, how its access ends after it, and whether it opens anything."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.give()

    def give(self) -> None:
        """Get something that opens the server."""
        raise NotImplementedError

    def end(self) -> None:
        """End that."""
        raise NotImplementedError

    def opens(self, server: Server) -> bool:
        """Whether it opens that server."""
        raise NotImplementedError


class Key(Way):
    federation: str | None = None

    def give(self) -> None:
        self.made = self.server.post("keys", {"name": self.name, "scopes": ["operator"], "federation": self.federation})

    def opens(self, server: Server) -> bool:
        return server.with_key(self.made["key"], "GET", "/v1/keys").status_code == 200


class KeyRevoked(Key):
    def end(self) -> None:
        self.server.post(f"keys/{self.made['id']}/revoke")


class KeyRevokedByCommand(Key):
    def end(self) -> None:
        self.server.command("keys", "revoke", self.made["id"])


class KeyOfADeletedFederation(Key):
    federation = GONE

    def end(self) -> None:
        self.server.post(f"federations/{GONE}/stop")
        self.server.delete(f"federations/{GONE}")


class SessionLoggedOut(Key):
    def give(self) -> None:
        super().give()
        self.visitor = Visitor.logged_in(self.server.client, self.made["key"])

    def end(self) -> None:
        assert self.visitor.submit("/logout", on="/").status_code == 303

    def opens(self, server: Server) -> bool:
        visitor = Visitor(server.client)
        visitor.cookie = self.visitor.cookie
        return visitor.get("/").status_code == 200


class SessionOfARevokedKey(SessionLoggedOut):
    def end(self) -> None:
        self.server.post(f"keys/{self.made['id']}/revoke")


class DeviceKey(Way):
    """A device's API key, for some minutes or for longer, and its key pair, with which it would claim another."""

    def give(self) -> None:
        self.phone = self.server.phone(self.name)
        self.key = self.phone.claim().json()["credentials"]["api_key"]

    def opens(self, server: Server) -> bool:
        return self.key_opens(server) or self.claims(server) in (200, 202)

    def key_opens(self, server: Server) -> bool:
        """Whether it may speak with its API key."""
        path = f"/v1/federations/{FEDERATION}/devices/{self.name}/status"
        return server.with_key(self.key, "POST", path, content=b'{"state": "idle"}').status_code == 204

    def claims(self, server: Server) -> int:
        """Return the answer to a claim by its key pair."""
        self.phone.clock += 10
        phone = Phone(server.client, self.name)
        phone.key, phone.clock = self.phone.key, self.phone.clock
        return phone.claim().status_code


class DeviceRevoked(DeviceKey):
    def end(self) -> None:
        self.server.post(f"federations/{FEDERATION}/devices/{self.name}/revoke")


class DeviceRevokedByCommand(DeviceKey):
    def end(self) -> None:
        self.server.command("devices", "revoke", "--federation", FEDERATION, self.name)


class DeviceDeleted(DeviceKey):
    def end(self) -> None:
        self.server.delete(f"federations/{FEDERATION}/devices/{self.name}")


class DeviceDeletedByCommand(DeviceKey):
    def end(self) -> None:
        self.server.command("devices", "delete", "--federation", FEDERATION, self.name, "--yes")


class KeyPairReplaced(DeviceKey):
    """Another phone takes the name over with a token made for it."""

    def end(self) -> None:
        token = self.server.token(device=self.name, auto_approve=True)["token"]
        assert Phone(self.server.client, self.name).enrol(token).status_code == 201


class DeviceKeyRotated(DeviceKey):
    def end(self) -> None:
        self.phone.clock += 20
        assert self.phone.claim().status_code == 200

    def opens(self, server: Server) -> bool:
        return self.key_opens(server)


class Token(Way):
    device: str | None = None

    def give(self) -> None:
        self.made = self.server.token(device=self.device, auto_approve=True)

    def opens(self, server: Server) -> bool:
        name = self.device or f"{self.name}-later"
        return Phone(server.client, name).enrol(self.made["token"]).status_code == 201


class TokenUsed(Token):
    def end(self) -> None:
        assert Phone(self.server.client, f"{self.name}-first").enrol(self.made["token"]).status_code == 201


class TokenRevoked(Token):
    def end(self) -> None:
        self.server.post(f"federations/{FEDERATION}/enrolment-tokens/{self.made['id']}/revoke")


class TokenOfARevokedDevice(Token):
    device = "token-of-a-revoked-device"

    def give(self) -> None:
        self.server.phone(self.device)
        super().give()

    def end(self) -> None:
        self.server.post(f"federations/{FEDERATION}/devices/{self.device}/revoke")


class Untouched(NamedTuple):
    """What nobody has ended."""

    key: Key
    device: DeviceKey
    token: Token


WAYS = (
    *(KeyRevoked, KeyRevokedByCommand, KeyOfADeletedFederation, SessionLoggedOut, SessionOfARevokedKey),
    *(DeviceRevoked, DeviceRevokedByCommand, DeviceDeleted, DeviceDeletedByCommand, KeyPairReplaced, DeviceKeyRotated),
    *(TokenUsed, TokenRevoked, TokenOfARevokedDevice),
)


class Outcome(NamedTuple):
    """What opened something: by way when it was given, ended, and restored; and what nobody has ended."""

    given: dict[str, bool]
    ended: dict[str, bool]
    restored: dict[str, bool]
    untouched: dict[str, bool]


def play(folder: Path, new_database: Callable[[], None] = lambda: None) -> Outcome:
    """Give everything, back up, end everything, restore into a new database, and try everything again."""
    new_database()
    with Server(folder / "data") as server:
        for name in (FEDERATION, GONE):
            server.post("federations", {"name": name, "plan": tiny_plan().model_dump(mode="json")})
        ways = [way(server, way.__name__) for way in WAYS]
        untouched = Untouched(Key(server, "key"), DeviceKey(server, "device"), Token(server, "token"))
        given = {way.name: isinstance(way, Token) or way.opens(server) for way in ways}
        back_up(load(data_dir=folder / "data"), folder / "backup")
        for way in ways:
            way.end()
        ended = {way.name: way.opens(server) for way in ways}
    new_database()
    restore(folder)
    with Server(folder / "data") as server:
        return Outcome(
            given,
            ended,
            {way.name: way.opens(server) for way in ways},
            {way.name: way.opens(server) for way in untouched},
        )


def restore(folder: Path) -> str:
    """Move the data away, as after a loss, bring it back from the backup, and return what is said of it."""
    (folder / "data").rename(folder / f"lost-{time.time_ns()}")
    said = CliRunner().invoke(cli, ["restore", "--from", str(folder / "backup"), "--data-dir", str(folder / "data")])
    assert said.exit_code == 0, said.output
    for name in (api_keys.OPERATOR_FILE,):
        if not (folder / "data" / name).exists():
            shutil.copy(next(folder.glob("lost-*")) / name, folder / "data" / name)
    return said.stdout


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return play(tmp_path_factory.mktemp("ends"))


@pytest.mark.parametrize("way", [way.__name__ for way in WAYS])
def test_what_has_ended_does_not_open_again_after_a_restore(outcome: Outcome, way: str) -> None:
    assert outcome.given[way]
    assert not outcome.ended[way]
    assert not outcome.restored[way]


@pytest.mark.ci
@pytest.mark.service
def test_postgresql_forgets_none_either(cluster: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAITWAY_LEASE_S", "0")

    def new_database() -> None:
        monkeypatch.setenv("GAITWAY_DATABASE_URL", cluster.new_database(empty=True))

    outcome = play(tmp_path, new_database)
    assert all(outcome.given.values())
    assert not any(outcome.ended.values())
    assert [way for way, opens in outcome.restored.items() if opens] == []
    assert outcome.untouched == {"key": True, "device": True, "token": True}


def test_what_nobody_has_ended_opens_after_a_restore(outcome: Outcome) -> None:
    assert outcome.untouched == {"key": True, "device": True, "token": True}


# ---- the list above is whole


NOTHING_ENDS = {
    *("POST /v1/enrol/token", "POST /v1/federations", "PATCH /v1/federations/{name}", "POST /v1/keys"),
    *("POST /v1/keys/{id}/confirm", "POST /v1/federations/{name}/enrolment-tokens"),
    "POST /v1/federations/{name}/enrolment-tokens/{token}/confirm",
    *(f"POST /v1/federations/{{name}}/{word}" for word in ("pause", "resume", "stop", "rollouts")),
    *(f"POST /v1/federations/{{name}}/rollouts/{{number}}/{word}" for word in ("pause", "resume", "halt")),
    *("PUT /v1/federations/{name}/aliases/{alias}", "DELETE /v1/federations/{name}/aliases/{alias}"),
    "DELETE /v1/federations/{name}/models/{version}",
    *(
        f"{word} /v1/federations/{{name}}/devices/{{device}}/" + path
        for word, path in (
            *(
                ("POST", "approve"),
                ("POST", "reinstate"),
                ("PUT", "tags"),
                ("POST", "status"),
                ("POST", "update/{update_id}/begin"),
            ),
            *(("PUT", "update/{update_id}/chunk/{n}"), ("POST", "update/{update_id}/end")),
        )
    ),
}
"""What a program may ask for, and no access ends by it."""
ENDS = {
    "POST /v1/enrol": (TokenUsed, KeyPairReplaced),
    "POST /v1/enrol/claim": (DeviceKeyRotated,),
    "POST /v1/keys/{id}/revoke": (KeyRevoked, SessionOfARevokedKey),
    "DELETE /v1/federations/{name}": (KeyOfADeletedFederation,),
    "DELETE /v1/federations/{name}/devices/{device}": (DeviceDeleted,),
    "POST /v1/federations/{name}/devices/{device}/revoke": (DeviceRevoked, TokenOfARevokedDevice),
    "POST /v1/federations/{name}/enrolment-tokens/{token}/revoke": (TokenRevoked,),
}
NOTHING_ENDS_BY_COMMAND = {
    *("serve", "broker", "migrate", "gc", "openapi", "broker-config", "broker-passwords", "server-certificate"),
    *("login-link", "backup", "restore", "fsck", "new-epoch", "new-ledger", "keys list", "keys create", "keys confirm"),
    *("tokens create", "tokens confirm", "audit list", "audit export", "audit verify", "devices list"),
    *(
        "devices approve",
        "devices reinstate",
        "devices tag",
        "devices enrol",
        "retention apply",
        "versions list",
        "versions delete",
    ),
    *("rollouts list", "rollouts start", "rollouts pause", "rollouts resume", "rollouts halt"),
}
ENDS_BY_COMMAND = {
    "keys revoke": (KeyRevokedByCommand,),
    "devices revoke": (DeviceRevokedByCommand,),
    "devices delete": (DeviceDeletedByCommand,),
    "federations delete": (KeyOfADeletedFederation,),
}
COLUMNS = {
    "credentials": {"revoked_at", "held_at", "expires_at"},
    "enrolment_tokens": {"used_at", "revoked_at", "held_at", "expires_at"},
    "devices": {"enrolment", "public_key"},
}
"""What access depends on; `held_at` only a restore sets, `expires_at` nobody changes."""
OTHER_COLUMNS = {
    "credentials": {
        *("id", "prefix", "name", "scopes", "federation_id", "device_id", "secret_sha256", "created_at", "used_at")
    },
    "enrolment_tokens": {
        *("id", "federation_id", "token_sha256", "device", "auto_approve", "tags", "created_at", "used_by")
    },
    "devices": {
        *("id", "federation_id", "name", "state", "examples", "detail", "enrolled_at", "seen_at", "claimed_at"),
        *("cloned_at", "adoption", "adoption_reason"),
        # a suspended device keeps its credentials; restored without its suspension, it is suspended again
        *("suspended_at", "suspension_reason", "refused_updates"),
    },
}


def test_every_route_that_ends_an_access_is_a_way_above() -> None:
    described = openapi.describe(create_app(Settings(), Wires))["paths"]
    asked = {
        f"{method.upper()} {path}"
        for path, methods in described.items()
        for method in methods
        if method not in ("get", "head")
    }
    assert asked == NOTHING_ENDS | set(ENDS)
    assert {way for ways in ENDS.values() for way in ways} <= set(WAYS)


def test_every_command_that_ends_an_access_is_a_way_above() -> None:
    assert set(commands(get_command(cli))) == NOTHING_ENDS_BY_COMMAND | set(ENDS_BY_COMMAND)
    assert {way for ways in ENDS_BY_COMMAND.values() for way in ways} <= set(WAYS)


def commands(group: Any, before: str = "") -> Iterator[str]:
    """Name every command below a group of them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_every_column_that_access_depends_on_is_known() -> None:
    """A new one, such as a device's suspension, needs a trigger if what it ends must survive a restore."""
    for table, columns in COLUMNS.items():
        assert set(Base.metadata.tables[table].columns.keys()) == columns | OTHER_COLUMNS[table]


def test_the_triggers_are_there_after_every_migration(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.sqlite3'}")
    database.migrate()
    with database.read() as session:
        found = session.scalars(text("SELECT tbl_name || ' ' || name FROM sqlite_master WHERE type = 'trigger'")).all()
    database.close()
    assert {each for each in found if not each.startswith("audit")} == {
        *("credentials key_revoked", "credentials key_deleted"),
        *("enrolment_tokens token_used", "enrolment_tokens token_revoked", "enrolment_tokens token_deleted"),
        *("devices device_revoked", "devices device_key_replaced", "devices device_deleted"),
    }


# ---- without the ledger


def test_without_the_ledger_all_is_void_until_an_operator_confirms_each(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        server.post("federations", {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")})
        key, device = Key(server, "key"), DeviceKey(server, "device")
        tokens = [Token(server, name) for name in ("by-rest", "by-page", "by-command")]
        back_up(load(data_dir=tmp_path / "data"), tmp_path / "backup")
    shutil.rmtree(tmp_path / "data-ledger")
    said = restore(tmp_path)
    assert "2 keys, 3 tokens and 1 devices wait to be confirmed, as the ledger" in said
    assert "`keys create --scope operator` makes a key" in said
    with Server(tmp_path / "data") as server:
        assert not any(way.opens(server) for way in (key, *tokens))
        assert not device.key_opens(server)
        first = server.command("keys", "create", "--name", "first", "--scope", "operator").strip()
        (tmp_path / "data" / api_keys.OPERATOR_FILE).write_text(first)
        assert " held " in server.command("keys", "list")
        visitor = Visitor.logged_in(server.client, first)
        shown = visitor.get("/").text
        assert "2 keys open nothing since the server was restored without its ledger" in shown
        assert "3 enrolment tokens let nobody in since the server was restored" in shown
        server.post(f"keys/{key.made['id']}/confirm")
        assert key.opens(server)
        here = f"federations/{FEDERATION}"
        server.post(f"{here}/enrolment-tokens/{tokens[0].made['id']}/confirm")
        by_page = f"/{here}/enrolment-tokens/{tokens[1].made['id']}/confirm"
        assert visitor.submit(by_page, on=f"/{here}/enrolment").status_code == 303
        server.command("tokens", "confirm", "--federation", FEDERATION, str(tokens[2].made["id"]))
        assert all(token.opens(server) for token in tokens)
        assert device.claims(server) == 202
        server.post(f"{here}/devices/{device.name}/approve")
        assert device.claims(server) == 200
        assert not device.key_opens(server)
