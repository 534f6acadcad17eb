"""Chooses a device's link: MQTT, HTTP, or MQTT with HTTP as the fallback."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from functools import partial

from edge_agent.config.settings import Config
from edge_agent.machine.events import Connected, Disconnected
from edge_agent.storage.broker_address import broker_place, require_place
from edge_agent.transport.http_link import HttpLink
from edge_agent.transport.link import Link, LinkEvent, LinkOptions
from edge_agent.transport.mqtt import Broker
from edge_agent.transport.renewal import CredentialRenewal
from federation.protocol.messages import DeviceStatus
from federation.protocol.signing import Kind
from gaitway.threads import SupervisedThread, run_in_thread

log = logging.getLogger(__name__)

MAX_FIRST_ATTEMPTS = 3
"""Of the broker, before a device that was never connected to it speaks HTTP."""
MAX_RECONNECT_ATTEMPTS = 10
"""Of a broker that had come back, one after the other: some minutes, more than its restart takes."""
MQTT_RETRY_S, MAX_MQTT_RETRY_S = 900.0, 6 * 3600.0
"""Before the broker is tried again; each failure doubles it."""
IDLE_S = 60.0
"""Without a part of an upload for so long, no upload is under way."""
TRIAL_S = 30.0
"""For one try."""
Make = Callable[[Callable[[LinkEvent], None]], Link]


class FallbackLink:
    """The first of two links, or the second once the first was not reached three times in a row at the start.

    While the second carries messages, the first is tried again now and then when no upload is under way, beside it, and
    takes over once it was reached. After that, `MAX_RECONNECT_ATTEMPTS` failures in a row lead back to the second.
    """

    def __init__(
        self,
        first: Make,
        second: Make,
        post: Callable[[LinkEvent], None],
        *,
        return_s: float = MQTT_RETRY_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._make_first, self._make_second, self._post = first, second, post
        self._return_s, self._idle_s = return_s, idle_s
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._failures, self._most_failures, self._is_settled = 0, MAX_FIRST_ATTEMPTS, False
        self._uploaded_at = -math.inf
        self._current = 0  # the number of the link that carries messages: what others say is not heard
        self._link = first(partial(self._from_first, 0))

    @property
    def stop_reason(self) -> str:
        """Why the server has told this device to stop; empty if it has not."""
        return self._link.stop_reason

    def start(self) -> None:
        """Connect, and keep connecting, in a thread."""
        self._link.start()

    def stop(self, *, say_offline: bool = True, timeout_s: float = 0.6) -> None:
        """Say offline, disconnect and end."""
        with self._lock:
            self._stopping.set()
        self._link.stop(say_offline=say_offline, timeout_s=timeout_s)

    def publish_status(self, status: DeviceStatus) -> None:
        """Say the status."""
        self._link.publish_status(status)

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Send one part of an upload."""
        self._uploaded_at = time.monotonic()
        return self._link.publish_update(update_id, payload, *step)

    def _from_first(self, number: int, event: LinkEvent) -> None:
        if number != self._current:
            return  # what it says after the other has begun would be taken for that one's
        match event:
            case Connected():
                self._is_settled, self._failures = self._current == 0, 0
            case Disconnected() if not self._is_settled:
                self._failures += 1
                if self._failures == self._most_failures:
                    run_in_thread("fallback", partial(self._fall_back, event.reason))
        self._post(event)

    def _fall_back(self, reason: str) -> None:
        log.warning("falling back to HTTP: broker unreachable attempts=%d: %s", self._most_failures, reason)
        self._link.stop(say_offline=False)
        with self._lock:
            if self._stopping.is_set():
                return
            self._current += 1
            self._link = self._make_second(partial(self._from_second, self._current))
            self._link.start()
        SupervisedThread("broker again", self._try_to_return).start()

    def _from_second(self, number: int, event: LinkEvent) -> None:
        if number == self._current:
            self._post(event)

    # ---- back to the first

    def _try_to_return(self) -> None:
        wait_s = self._return_s
        while not self._stopping.wait(random.uniform(wait_s / 2, wait_s)):
            if time.monotonic() - self._uploaded_at < self._idle_s:
                continue
            if self._returns():
                return
            wait_s = min(max(MAX_MQTT_RETRY_S, self._return_s), 2 * wait_s)

    def _returns(self) -> bool:
        """Try the first link once, beside the second; whether no further try is needed."""
        trial = _Trial(self._take_over)
        trial.link = self._make_first(trial.handle_event)
        trial.link.start()
        trial.is_over.wait(TRIAL_S)
        with self._lock:
            trial.is_over.set()
            if trial.hand_on is not None:
                return True
        trial.link.stop(say_offline=False)
        return self._stopping.is_set()

    def _take_over(self, trial: _Trial) -> None:
        """Let a link that was reached carry messages; called on its own thread, before it hears anything."""
        with self._lock:
            if self._stopping.is_set() or trial.is_over.is_set():
                return
            log.info("returning to MQTT: broker reachable")
            second, self._current = self._link, self._current + 1
            second.stop(say_offline=False)  # before the first status: the server forgets a stream that has ended
            self._failures, self._most_failures, self._is_settled = 0, MAX_RECONNECT_ATTEMPTS, False
            self._link, trial.hand_on = trial.link, partial(self._from_first, self._current)
            self._post(Disconnected("the broker is in reach again"))


class _Trial:
    """What a link says while it is tried: nothing counts but whether it was reached, and then all that follows."""

    link: Link

    def __init__(self, take_over: Callable[[_Trial], None]) -> None:
        self.is_over = threading.Event()
        self.hand_on: Callable[[LinkEvent], None] | None = None
        self._take_over = take_over

    def handle_event(self, event: LinkEvent) -> None:
        """Take an event of the link's thread."""
        if self.hand_on is None and isinstance(event, Connected):
            self._take_over(self)
        self.is_over.set()
        if self.hand_on is not None:
            self.hand_on(event)


def open_link(
    config: Config,
    renewal: CredentialRenewal,
    *,
    post: Callable[[LinkEvent], None],
    verify: Callable[[Kind, bytes], bytes],
) -> Link | FallbackLink:
    """Return the link that a config names; nothing is connected. `auto` is HTTP where no broker is known.

    Raises:
        ConfigError: if messages are to go through a broker, and nobody has said where it is.
    """
    me, in_flight = config.agent, config.uploads.in_flight

    def options(post: Callable[[LinkEvent], None]) -> LinkOptions:
        return LinkOptions(me.federation, me.device, in_flight, post, renewal, verify)

    def mqtt(post: Callable[[LinkEvent], None]) -> Link:
        return Broker(require_place(config), options(post))

    def http(post: Callable[[LinkEvent], None]) -> Link:
        return HttpLink(config.server, options(post))

    match config.server.transport:
        case "http":
            return http(post)
        case "auto" if broker_place(config) is None:
            log.warning("using HTTP: no broker is known from [broker] host or the server")
            return http(post)
        case "auto":
            return FallbackLink(mqtt, http, post)
        case _:
            return mqtt(post)
