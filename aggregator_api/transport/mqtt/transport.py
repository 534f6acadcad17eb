"""What the server needs of a message broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aggregator_api.core.settings import Settings
from aggregator_api.transport.mqtt.inbox import Message


class Transport(Protocol):
    """A connection to a broker that keeps itself up."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message with QoS 1."""

    @property
    def is_up(self) -> bool:
        """Whether the broker is connected now."""

    def certificate_expiry(self) -> float | None:
        """Return when the certificate that the broker showed last expires; None if it has shown none."""

    def start(self) -> None:
        """Connect in the background."""

    def remove_retained(self) -> None:
        """Remove what devices had the broker retain, which they must not."""

    def listen(self, federations: frozenset[str]) -> None:
        """Hear the devices of these federations alone, where several processes share the work."""

    def stop(self) -> None:
        """Disconnect."""


Connect = Callable[[Settings, Callable[[Message], None], Callable[[], None]], Transport]
"""Makes a transport from the settings, what takes a message, and what to call after each connection."""
