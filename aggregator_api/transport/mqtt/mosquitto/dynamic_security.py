"""The accounts of a running Mosquitto: commands to its dynamic security plugin, and new passwords of the server."""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from aggregator_api.core.errors import BrokerError, ConfigError
from aggregator_api.core.settings import BrokerAccess, Settings, load
from aggregator_api.devices.service import BrokerAccounts, NoAccounts
from aggregator_api.transport.mqtt.client import secure
from aggregator_api.transport.mqtt.mosquitto import roles
from aggregator_api.transport.mqtt.mosquitto.folders import SECRET
from aggregator_api.transport.mqtt.mosquitto.roles import new_password
from gaitway.files import write_file

ANSWER_S = 10.0
QOS = 1
READY = "ready"
RESPONSE = f"{roles.CONTROL}/response"
Command = dict[str, Any]

_ABSENT = ("Client not found", "Role not found")


class DynamicSecurity:
    """Gives devices their accounts and takes them away.

    A connection of its own for each call, under an account that reaches the plugin's topics and no device's: calls are
    rare, and a broker that was restarted in between needs no special care.
    """

    def __init__(self, host: str, port: int, login: BrokerAccess) -> None:
        self._address = (host, port)
        self._login = login
        self._one_at_a_time = threading.Lock()

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        """Let a device connect from now on, under its own user name as client id, and see only its own topics.

        An earlier account of the same device is replaced, and whoever uses it is cut off.

        Raises:
            BrokerError: if the broker does not answer or refuses.
        """
        with self._one_at_a_time, _Session(self._address, self._login) as session:
            session.ask(_removal(username), forgive=_ABSENT)
            rules = roles.device_role(federation, device)
            account = {
                "command": "createClient",
                "username": username,
                "password": password,
                "clientid": username,
                "textname": f"{federation}/{device}",
                "roles": [{"rolename": username, "priority": 0}],
            }
            session.ask([{"command": "createRole", "rolename": username, "acls": rules}, account])

    def revoke(self, username: str) -> None:
        """Cut a device off now, and let it connect no more; a name without an account is none.

        Raises:
            BrokerError: if the broker does not answer or refuses.
        """
        with self._one_at_a_time, _Session(self._address, self._login) as session:
            session.ask(_removal(username), forgive=_ABSENT)

    def set_role(self, role: str, rules: list[dict[str, Any]]) -> None:
        """Let whoever has a role do what these rules say, and no more.

        Raises:
            BrokerError: if the broker does not answer, or has no such role.
        """
        with self._one_at_a_time, _Session(self._address, self._login) as session:
            session.ask([{"command": "modifyRole", "rolename": role, "acls": rules}])

    def set_password(self, username: str, password: str) -> None:
        """Give an account another password, this program's own too; whoever uses the old one is cut off.

        Raises:
            BrokerError: if the broker does not answer, or has no such account.
        """
        command = {"command": "setClientPassword", "username": username, "password": password}
        with self._one_at_a_time:
            try:
                with _Session(self._address, self._login) as session:
                    session.ask([command])
            except BrokerError:
                if username != self._login.username:
                    raise
                self._login = self._login._replace(password=password)
                with _Session(self._address, self._login):
                    pass  # the plugin cut this program off before it answered; the new password is in force


class _Session:
    """One connection to the plugin, closed when the block is left."""

    def __init__(self, address: tuple[str, int], login: BrokerAccess) -> None:
        self._place = f"{address[0]}:{address[1]}"
        self._address = address
        # the tag of an answer with the answers, or why there will be none
        self._heard: queue.SimpleQueue[tuple[str, list[dict[str, Any]]] | str] = queue.SimpleQueue()
        self._client = Client(
            CallbackAPIVersion.VERSION2, f"{login.username}-{secrets.token_hex(8)}", reconnect_on_failure=False
        )
        secure(self._client, login)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self._heard.put("it cut the connection")
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def __enter__(self) -> _Session:
        try:
            self._client.connect(*self._address, keepalive=30)
        except OSError as error:
            raise BrokerError(f"the broker at {self._place} cannot be reached: {error}") from error
        self._client.loop_start()
        try:
            self._next(READY)
        except BrokerError:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def ask(self, commands: Sequence[Command], *, forgive: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Give commands and return the plugin's answers, in order; an error that is not forgiven is raised."""
        tag = secrets.token_hex(8)
        tagged = [{**command, "correlationData": tag} for command in commands]
        self._client.publish(roles.CONTROL, json.dumps({"commands": tagged}), QOS)
        answers = self._next(tag)
        for answer in answers:
            if "error" in answer and answer["error"] not in forgive:
                raise BrokerError(f"the broker refuses {answer.get('command')}: {answer['error']}")
        return answers

    def _next(self, wanted: str) -> list[dict[str, Any]]:
        """Wait for the subscription, or for the answers that carry a tag."""
        end = time.monotonic() + ANSWER_S
        while True:
            try:
                heard = self._heard.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                heard = "it does not answer"
            if isinstance(heard, str):
                raise BrokerError(f"the broker at {self._place} does not manage accounts for this program: {heard}")
            tag, answers = heard
            if tag == wanted:
                return answers

    def _close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(
        self, client: Client, _data: Any, _flags: ConnectFlags, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._heard.put(f"it refuses the account: {reason}")
        else:
            client.subscribe(RESPONSE, QOS)

    def _on_subscribe(
        self, _client: Client, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Properties | None
    ) -> None:
        if any(code.is_failure for code in codes):
            self._heard.put(f"the account may not hear {RESPONSE}; is the dynamic security plugin on?")
        else:
            self._heard.put((READY, []))

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        try:
            answers = json.loads(message.payload)["responses"]
            self._heard.put((str(answers[0].get("correlationData")), answers))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return  # not an answer of the plugin's


def _removal(username: str) -> list[Command]:
    return [{"command": "deleteClient", "username": username}, {"command": "deleteRole", "rolename": username}]


def accounts_of(settings: Settings) -> BrokerAccounts:
    """Return who gives devices their accounts at the broker that the settings name."""
    login = settings.broker_admin_login
    return DynamicSecurity(settings.broker_host, settings.broker_port, login) if login else NoAccounts()


def rotate(folder: Path) -> None:
    """Change the passwords of both accounts that `server.toml` in the folder names.

    The server's role gets the rules of this version. A new password lies in `<file>.next` before the broker gets it,
    and replaces the file afterwards.

    Raises:
        ConfigError: if the settings name no accounts.
        BrokerError: if the broker cannot be reached or refuses.
    """
    settings = load(folder / "server.toml")
    admin = settings.broker_admin_login
    if admin is None or settings.mqtt_username is None:
        raise ConfigError(f"{folder / 'server.toml'} names no accounts; write it with broker-config")
    broker = (settings.broker_host, settings.broker_port)
    DynamicSecurity(*broker, admin).set_role(roles.SERVER_ROLE, roles.server_role())
    _change(DynamicSecurity(*broker, admin), settings.mqtt_username, folder / "mqtt_password")
    _change(DynamicSecurity(*broker, admin), str(admin.username), folder / "broker_admin_password")


def _change(broker: DynamicSecurity, username: str, file: Path) -> None:
    password = new_password()
    following = file.with_name(f"{file.name}.next")
    write_file(following, password.encode(), mode=SECRET)
    broker.set_password(username, password)
    following.replace(file)
