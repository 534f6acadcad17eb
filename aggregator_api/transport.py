"""What the server needs of a message broker."""

from __future__ import annotations

from typing import Protocol


class Publisher(Protocol):
    """Sends messages; it returns at once, and sends what it holds after a reconnect."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message with QoS 1."""
