"""The embedded MQTT broker (amqtt) of demos and tests: anonymous, in memory, on loopback; production uses Mosquitto."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from aggregator_api.errors import ConfigError
from gaitway.threads import SupervisedThread

if TYPE_CHECKING:
    from amqtt.broker import Broker

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


class BrokerThread:
    """The same broker in a thread of the server's process, with an event loop of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = SupervisedThread("broker", self._loop.run_forever)

    def start(self) -> None:
        """Listen; returns once devices can connect.

        Raises:
            ConfigError: if the broker cannot be started.
        """
        self._thread.start()
        self._broker = asyncio.run_coroutine_threadsafe(_start(*self._address), self._loop).result(START_S)

    def stop(self) -> None:
        """Close every connection and end."""
        asyncio.run_coroutine_threadsafe(self._broker.shutdown(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _start(host: str, port: int) -> Broker:
    from amqtt.errors import AMQTTError  # its import takes a second, and only the embedded broker needs it

    for name in ("amqtt", "transitions"):
        logging.getLogger(name).setLevel(logging.ERROR)  # every device that goes away is a warning there
    try:
        broker = _broker_class()(_configuration(host, port))
        await broker.start()
    except AMQTTError as error:
        raise ConfigError(f"the broker cannot listen on {host}:{port}: {error}") from error
    return broker


@cache
def _broker_class() -> type[Broker]:
    """Return amqtt's broker without a leak of 0.12: it sends a newcomer what is retained for others' subscriptions."""
    from amqtt.broker import Broker
    from amqtt.session import Session

    class PrivateBroker(Broker):  # type: ignore[misc]  # amqtt brings no types
        async def _publish_retained_messages_for_subscription(
            self, subscription: tuple[str, int], session: Session
        ) -> None:
            subscribers = self._subscriptions.get(subscription[0], [])
            if any(other.client_id == session.client_id for other, _ in subscribers):
                await super()._publish_retained_messages_for_subscription(subscription, session)

    return PrivateBroker


def _configuration(host: str, port: int) -> dict[str, object]:
    address = f"[{host}]" if ":" in host else host
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{address}:{port}"}},
        # no $SYS topics, no packet log
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
