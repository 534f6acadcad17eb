"""The embedded MQTT broker (amqtt) of demos and tests: in memory, without TLS, on loopback; production uses Mosquitto.

With accounts, a device has the rights that `mosquitto/roles.py` gives it at Mosquitto. Without, everybody has every
right.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import signal
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from aggregator_api.core.errors import ConfigError
from aggregator_api.transport.mqtt.mosquitto import roles
from aggregator_api.transport.mqtt.mosquitto.roles import new_password
from gaitway.threads import SupervisedThread

if TYPE_CHECKING:
    from amqtt.adapters import ReaderAdapter, WriterAdapter
    from amqtt.broker import Broker
    from amqtt.contexts import Action
    from amqtt.mqtt.connect import ConnectPacket
    from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
    from amqtt.session import Session

START_S = 20


async def run_broker(host: str, port: int, started: Callable[[], None]) -> None:
    """Serve MQTT 3.1.1 until SIGTERM or SIGINT; `started` is called once it listens.

    Raises:
        ConfigError: if the broker cannot be started.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = await _start(host, port)
    started()
    await stopping.wait()
    await broker.shutdown()


class _Account(NamedTuple):
    digest: bytes
    client_id: str | None
    rules: list[dict[str, Any]]


class LocalAccounts:
    """The embedded broker's accounts, in memory: after a restart, devices claim new passwords by themselves."""

    def __init__(self, server: str) -> None:
        """Make the server's own account, of the name `server`."""
        self.server_password = new_password()
        self._accounts = {server: _Account(_digest(self.server_password), None, roles.server_role())}
        self.disconnect: Callable[[str], None] = lambda _username: None
        """End an account's session, which the broker sets while it runs."""

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        """Let a device in under its user name as client id; an earlier account of it ends."""
        rules = roles.device_role(federation, device)
        self._accounts[username] = _Account(_digest(password), username, rules)
        self.disconnect(username)

    def revoke(self, username: str) -> None:
        """Delete the account and end its connection; one that does not exist is no error."""
        self._accounts.pop(username, None)
        self.disconnect(username)

    def device_names(self) -> list[str]:
        """Return the user names of the devices that have an account."""
        return [name for name, account in list(self._accounts.items()) if account.client_id is not None]

    def admits(self, packet: ConnectPacket) -> bool:
        """Return whether a client may connect: password, client id and the topic of its last will are its account's."""
        account = self._accounts.get(packet.username or "")
        return (
            account is not None
            and hmac.compare_digest(account.digest, _digest(packet.password or ""))
            and account.client_id in (None, packet.client_id)
            and (not packet.will_flag or roles.permits(account.rules, roles.SEND, packet.will_topic))
        )

    def allows(self, username: str | None, kind: str, topic: str) -> bool:
        """Return whether an account may do something with a topic; nothing, if the account is gone."""
        account = self._accounts.get(username or "")
        return account is not None and roles.permits(account.rules, kind, topic)


class BrokerThread:
    """The same broker in a thread of the server's process, with an event loop of its own."""

    def __init__(self, host: str, port: int, accounts: LocalAccounts | None = None) -> None:
        self._address = (host, port)
        self._accounts = accounts
        self._loop = asyncio.new_event_loop()
        self._thread = SupervisedThread("broker", self._loop.run_forever)

    def start(self) -> None:
        """Listen; returns once devices can connect.

        Raises:
            ConfigError: if the broker cannot be started.
        """
        self._thread.start()
        starting = _start(*self._address, self._accounts)
        self._broker = asyncio.run_coroutine_threadsafe(starting, self._loop).result(START_S)
        if self._accounts is not None:
            self._accounts.disconnect = self._disconnect

    def stop(self) -> None:
        """Close every connection and end."""
        if self._accounts is not None:
            self._accounts.disconnect = lambda _username: None
        asyncio.run_coroutine_threadsafe(self._broker.shutdown(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _disconnect(self, username: str) -> None:
        ending = self._broker.end_session(username)
        asyncio.run_coroutine_threadsafe(ending, self._loop).result(START_S)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()  # of 256 random bits: nobody guesses them


async def _start(host: str, port: int, accounts: LocalAccounts | None = None) -> Broker:
    from amqtt.errors import AMQTTError  # its import takes a second, and only the embedded broker needs it

    for name in ("amqtt", "transitions"):
        logging.getLogger(name).setLevel(logging.ERROR)  # every device that goes away is a warning there
    try:
        broker = _broker_class()(_configuration(host, port), accounts)
        await broker.start()
    except AMQTTError as error:
        raise ConfigError(f"the broker cannot listen on {host}:{port}: {error}") from error
    return broker


@cache
def _broker_class() -> type[Broker]:
    """Return amqtt's broker with rights, and without the leaks of 0.12.

    It sends a newcomer what is retained for others' subscriptions, publishes a last will on any topic, and lets a
    client that it refuses end the session of another one with the same client id.
    """
    from amqtt.adapters import BufferReader
    from amqtt.broker import Broker
    from amqtt.contexts import Action
    from amqtt.errors import MQTTError
    from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
    from amqtt.mqtt.connect import ConnectPacket

    kinds = {Action.PUBLISH: roles.SEND, Action.RECEIVE: roles.RECEIVE, Action.SUBSCRIBE: roles.SUBSCRIBE}

    class PrivateBroker(Broker):  # type: ignore[misc]  # amqtt brings no types
        def __init__(self, configuration: dict[str, object], accounts: LocalAccounts | None) -> None:
            super().__init__(configuration)
            self._accounts = accounts

        async def end_session(self, client_id: str) -> None:
            await self._cleanup_session(client_id)

        async def _initialize_client_session(
            self, reader: ReaderAdapter, writer: WriterAdapter, host: str, port: int
        ) -> tuple[BrokerProtocolHandler, Session]:
            if self._accounts is not None:  # before amqtt looks at any session
                packet = await ConnectPacket.from_stream(reader)
                if not self._accounts.admits(packet):
                    await ConnackPacket.build(0, NOT_AUTHORIZED).to_stream(writer)
                    await writer.close()
                    raise MQTTError(f"{packet.client_id!r} is refused: wrong name, password, client id or last will")
                reader = BufferReader(packet.to_bytes())
            made: tuple[BrokerProtocolHandler, Session]
            made = await super()._initialize_client_session(reader, writer, host, port)
            return made

        async def _authenticate(self, session: Session, _listener: object) -> bool:
            session.is_anonymous = self._accounts is None  # amqtt keeps nothing for who is
            return True

        async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
            return self._accounts is None or self._accounts.allows(session.username, kinds[action], topic)

        async def _publish_retained_messages_for_subscription(
            self, subscription: tuple[str, int], session: Session
        ) -> None:
            subscribers = self._subscriptions.get(subscription[0], [])
            if any(other.client_id == session.client_id for other, _ in subscribers):
                await super()._publish_retained_messages_for_subscription(subscription, session)

    return PrivateBroker


def _configuration(host: str, port: int) -> dict[str, object]:
    address = f"[{host}]" if ":" in host else host
    # no plugins: no $SYS topics, no packet log; the class above decides who may do what
    return {"listeners": {"default": {"type": "tcp", "bind": f"{address}:{port}"}}, "plugins": {}}
