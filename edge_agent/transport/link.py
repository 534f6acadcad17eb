"""The device's connection to its server over any transport: verifies received messages, and retries lost ones.

A link posts events from a thread of its own, and keeps nothing that must survive: that is in the outbox. MQTT
(`edge_agent.transport.mqtt`) and HTTP (`edge_agent.transport.http_link`) differ in how they connect and send, and in
nothing that the state machine sees.
"""

from __future__ import annotations

import itertools
import random
import secrets
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from edge_agent.errors import ConfigError, TrustError
from edge_agent.machine.events import (
    Acknowledged,
    Announced,
    Connected,
    Disconnected,
    Invited,
    MessageRejected,
    Offered,
)
from edge_agent.storage.credentials import Login
from edge_agent.transport.server_connection import certificate_todo
from federation.errors import WireError
from federation.protocol.messages import (
    Acknowledgement,
    Announcement,
    DeviceStatus,
    Invitation,
    Notice,
    Offer,
    read,
)
from federation.protocol.signing import Kind
from gaitway.threads import SupervisedThread, ThreadFailure

DUPLICATE_HINT = "cut it off; check for another machine with the same device id, or a copy of this one's folder"
REFUSED_HINT = "if it was revoked or has lost its password, `edge_agent enrol` gets it new credentials"
MIN_WAIT_S, MAX_WAIT_S = 0.5, 30.0
POLL_S = 0.5
STABLE_S = 30.0
"""A connection that lasted as long was a good one."""
SHORT_LIVED = 3
"""Connections that were lost sooner, one after the other, before it is said and the waits grow."""
MIN_HOLD_S, MAX_HOLD_S = 300.0, 6 * 3600.0
"""Before a device tries again that was told to stop: the other one may be gone by then."""


@dataclass(frozen=True)
class MessageDelivered:
    """The other end has taken the message of that number."""

    mid: int


@dataclass(frozen=True)
class InvalidMessage:
    """A message came that is not of the protocol."""

    topic: str
    reason: str


LinkEvent = (
    Connected
    | Disconnected
    | Announced
    | MessageRejected
    | Invited
    | Offered
    | Acknowledged
    | MessageDelivered
    | InvalidMessage
)


class LinkCredentials(Protocol):
    """How the device introduces itself; `edge_agent.transport.renewal` reads it from files that may change."""

    claim_problem: str
    """Why the server gives no new credentials; empty if that is not known."""

    def login(self) -> Login:
        """Name, password and client id at the broker, as they are now."""

    def api_key(self) -> str | None:
        """Return the key for the server, as it is now; None for a device that has not enrolled."""

    def taken(self) -> None:
        """Note that the other end has taken them."""

    def login_refused(self, who: Login) -> bool:
        """Note that the broker refuses them; return whether there are others now."""

    def key_refused(self, key: str | None) -> bool:
        """Note that the server refuses the key; return whether there is another now."""


@dataclass(frozen=True)
class LinkOptions:
    """What every link needs; it calls `post` and `verify` on its network thread.

    `verify` returns the body of a message that is the server's, or raises TrustError. `in_flight`: chunks of an upload.
    """

    federation: str
    device: str
    in_flight: int
    post: Callable[[LinkEvent], None]
    credentials: LinkCredentials
    verify: Callable[[Kind, bytes], bytes]


class Link(ABC):
    """One device's connection."""

    peer: ClassVar[str]
    """Who takes the connection: broker or server."""
    address_setting: ClassVar[str]
    """What names it."""

    def __init__(self, options: LinkOptions) -> None:
        self.federation, self.device, self.post = options.federation, options.device, options.post
        self._credentials, verify = options.credentials, options.verify
        self._readers: dict[Kind, Callable[[bytes], LinkEvent | None]] = {
            Kind.ANNOUNCEMENT: lambda data: Announced(read(Announcement, verify(Kind.ANNOUNCEMENT, data))),
            Kind.INVITATION: lambda data: Invited(read(Invitation, verify(Kind.INVITATION, data))),
            Kind.OFFER: lambda data: Offered(read(Offer, verify(Kind.OFFER, data))),
            Kind.ACKNOWLEDGEMENT: lambda data: Acknowledged(read(Acknowledgement, verify(Kind.ACKNOWLEDGEMENT, data))),
            Kind.NOTICE: lambda data: self._noticed(read(Notice, verify(Kind.NOTICE, data))),
        }
        self._stopping = threading.Event()
        self._session, self._numbers = secrets.token_hex(8), itertools.count(1)
        self.stop_reason, self._hold_s, self._short_lived = "", MIN_HOLD_S, 0
        self._refusal = ""  # why the other end does not let us in
        self._told = False  # why the server gives no new credentials
        self._taken: float | None = None  # when the present connection was taken
        self._thread = SupervisedThread("link", self._run, on_failure=self._failed)

    # ---- what the supervisor calls

    def start(self) -> None:
        """Connect, and keep connecting, in a thread."""
        self._thread.start()

    def stop(self, *, say_offline: bool = True, timeout_s: float = 0.6) -> None:
        """Say offline (a finished device has said its last word), disconnect and end the thread."""
        self._stopping.set()
        self._leave(say_offline=say_offline, timeout_s=timeout_s)
        self._thread.join(timeout_s)

    def publish_status(self, status: DeviceStatus) -> None:
        """Say the status; without a connection it is left to the next one."""
        self._send_status(status.model_copy(update={"session": self._session, "number": next(self._numbers)}))

    @abstractmethod
    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Send one part of an upload; returns its message number, or None while it cannot be taken."""

    # ---- what carries it

    @abstractmethod
    def _serve(self) -> None:
        """Connect, and serve the connection until it ends; a refusal is left in `_refusal`.

        Raises:
            OSError: if there is nobody.
            ConfigError: if a file of the credentials cannot be read.
        """

    @abstractmethod
    def _send_status(self, status: DeviceStatus) -> None:
        """Send a status."""

    @abstractmethod
    def _disconnect(self) -> None:
        """End the present connection, if there is one; on any thread."""

    @abstractmethod
    def _leave(self, *, say_offline: bool, timeout_s: float) -> None:
        """Say the last word, if there is time, and end the connection for good."""

    @abstractmethod
    def _has_others(self) -> bool:
        """Look for other credentials than those that were refused."""

    @property
    @abstractmethod
    def _address(self) -> str:
        """Where the other end is."""

    def _why_not(self, error: OSError) -> str:
        """Say in words why there is no connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            todo = f"set {self.address_setting} to a name in it, and ca_file to the authority that signed it"
            certificate = f"the certificate of the {self.peer} at {self._address} can't be verified"
            return f"{certificate}: {error.verify_message}; {certificate_todo(error, todo)}"
        return f"no {self.peer} at {self._address}: {error.strerror or error}"

    def _handle_message(self, kind: Kind, payload: bytes, where: str) -> None:
        """Post what a message says; an empty one removes what was retained, and says nothing."""
        if not payload:
            return
        try:
            if event := self._readers[kind](payload):
                self.post(event)
        except TrustError as error:
            self.post(MessageRejected(str(error)))
        except WireError as error:
            self.post(InvalidMessage(where, str(error)))

    def _was_taken(self) -> None:
        """Note that the other end has let us in."""
        self._credentials.taken()
        self._taken, self._told = time.monotonic(), False
        self.post(Connected())

    def _noticed(self, notice: Notice) -> None:
        if notice.session == self._session:
            self.stop_reason = notice.reason
            self._disconnect()

    def _failed(self, failure: ThreadFailure) -> None:
        self._disconnect()
        self.post(Disconnected(f"the connection failed unexpectedly and is being reopened: {failure.error}"))

    # ---- trying again

    def _run(self) -> None:
        wait_s = MIN_WAIT_S
        while not self._stopping.is_set():
            self._taken, self._refusal, self.stop_reason = None, "", ""
            try:
                self._serve()
            except OSError as error:
                self.post(Disconnected(self._why_not(error)))
            except ConfigError as error:
                self.post(Disconnected(str(error)))
            wait_s = MIN_WAIT_S if self._was_good() else wait_s
            # full jitter: a fleet that lost its broker must not come back at once
            until = time.monotonic() + (self._hold() if self.stop_reason else random.uniform(wait_s / 2, wait_s))
            while not self._stopping.wait(min(POLL_S, max(0.0, until - time.monotonic()))):
                if (self._refusal and self._renewed()) or time.monotonic() >= until:
                    break
            wait_s = min(MAX_WAIT_S, 2 * wait_s)

    def _was_good(self) -> bool:
        """Whether the next try may follow soon: the connection lasted, or it is not the third that did not."""
        if self._taken is None:
            return False
        lasted_s = time.monotonic() - self._taken
        if lasted_s >= STABLE_S:
            self._short_lived = 0
        if lasted_s >= self._hold_s:
            self._hold_s = MIN_HOLD_S
        self._short_lived += lasted_s < STABLE_S
        if self._short_lived >= SHORT_LIVED and not self.stop_reason:
            often = f"the {self.peer} accepted this device {self._short_lived} times and soon"
            self.post(Disconnected(f"{often} {DUPLICATE_HINT}"))
        return self._short_lived < SHORT_LIVED

    def _hold(self) -> float:
        """Say why nothing is tried for long, and for how long."""
        wait_s = random.uniform(self._hold_s / 2, self._hold_s)
        self.post(
            Disconnected(f"stopped by the server: {self.stop_reason}; this one tries again in {wait_s / 60:.0f} min")
        )
        self._hold_s = min(MAX_HOLD_S, 2 * self._hold_s)
        return wait_s

    def _renewed(self) -> bool:
        if self._has_others():
            return True
        if (why_not := self._credentials.claim_problem) and not self._told:
            self.post(Disconnected(f"{self._refusal}; {why_not}"))
            self._told = True
        return False
