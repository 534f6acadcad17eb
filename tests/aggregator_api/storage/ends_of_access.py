"""The ways by which an access ends: what is given, how it ends, and whether it opens a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

from httpx import Response
from typer.testing import CliRunner

from aggregator_api.auth import api_keys
from aggregator_api.cli.app import app as cli
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from tests.aggregator_api.devices.test_enrolment import Phone
from tests.aggregator_api.generated_devices import FEDERATION, Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.visitors import Visitor

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


class Way(ABC):
    """What is given before the backup, how its access ends after it, and whether it opens anything."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.give()

    @abstractmethod
    def give(self) -> None:
        """Get something that opens the server."""

    @abstractmethod
    def end(self) -> None:
        """End that."""

    @abstractmethod
    def opens(self, server: Server) -> bool:
        """Whether it opens that server."""


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
