"""Sends updates from the outbox to the broker, one after the other, with a limited number of chunks in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from edge_agent.machine.events import Acknowledged, ChunkDelivered, ChunksSent
from edge_agent.storage.state_store import StateStore
from federation.protocol.chunks import chunk_count, chunk_range
from federation.protocol.messages import Acknowledgement, UpdateManifest


class ChunkPublisher(Protocol):
    """What an upload needs of the broker."""

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Publish one part and return its message number, or None while it cannot be taken."""
        ...


class UploadSender:
    """The upload that is on its way, if there is one; only the supervisor's one thread calls it.

    `sign` returns a manifest as it is sent.
    """

    def __init__(
        self, store: StateStore, publisher: ChunkPublisher, in_flight: int, sign: Callable[[UpdateManifest], bytes]
    ) -> None:
        self._store, self._publisher, self._in_flight, self._sign = store, publisher, in_flight, sign
        self._sender: ChunkSender | None = None

    def begin(self, update_id: str) -> None:
        """Publish the manifest."""
        self._publisher.publish_update(update_id, self._sign(self._store.manifest(update_id)), "begin")

    def is_about(self, ack: Acknowledgement) -> bool:
        """Whether an answer is about the very update that waits under that name, and not about one of the past."""
        if ack.update_id not in self._store.outbox():
            return False
        return ack.nonce == self._store.manifest(ack.update_id).nonce

    def send(self, update_id: str, first: int) -> Acknowledged | None:
        """Publish the chunks from `first` on; where the file is gone, answer as a server that refuses would."""
        path = self._store.outbox()[update_id]
        if path.is_file():
            self._sender = ChunkSender(self._store.manifest(update_id), path, first, self._in_flight)
            self.pump()
            return None
        # a damaged disk must not hold up the updates behind this one
        nonce, reason = self._store.manifest(update_id).nonce, "its file is missing on this device"
        gone = Acknowledgement(update_id=update_id, nonce=nonce, status="refused", reason=reason)
        return Acknowledged(gone)

    def stop(self) -> None:
        """Publish no further chunks."""
        self._sender = None

    def pump(self) -> None:
        """Publish what may be in flight."""
        if self._sender:
            self._sender.pump(self._publisher)

    def delivered(self, mid: int) -> ChunkDelivered | ChunksSent | None:
        """Take the broker's acknowledgement of a message; None if it was no chunk."""
        return self._sender.delivered(mid) if self._sender else None


class ChunkSender:
    """Publishes chunks `first`… and the end; `pump` and `delivered` are called by the supervisor's one thread."""

    def __init__(self, manifest: UpdateManifest, path: Path, first: int, in_flight: int) -> None:
        self.manifest, self.path, self.in_flight = manifest, path, in_flight
        self._next = first
        self._count = chunk_count(manifest.size, manifest.chunk_bytes)
        self._waiting: set[int] = set()
        self._ended = False

    def pump(self, publisher: ChunkPublisher) -> None:
        """Publish as many chunks as may be in flight, and the end after the last is acknowledged."""
        if self._next < self._count and len(self._waiting) < self.in_flight:
            with self.path.open("rb") as file:
                while self._next < self._count and len(self._waiting) < self.in_flight:
                    place = chunk_range(self.manifest.size, self.manifest.chunk_bytes, self._next)
                    file.seek(place.start)
                    if not self._publish(publisher, file.read(place.stop - place.start), "chunk", self._next):
                        return
                    self._next += 1
        if self._next == self._count and not self._waiting and not self._ended:
            self._ended = self._publish(publisher, b"", "end")

    def delivered(self, mid: int) -> ChunkDelivered | ChunksSent | None:
        """Take the broker's acknowledgement; None if it is about another message."""
        if mid not in self._waiting:
            return None
        self._waiting.discard(mid)
        update_id = self.manifest.update_id
        return ChunksSent(update_id) if self._ended and not self._waiting else ChunkDelivered(update_id)

    def _publish(self, publisher: ChunkPublisher, payload: bytes, *step: str | int) -> bool:
        mid = publisher.publish_update(self.manifest.update_id, payload, *step)
        if mid is not None:
            self._waiting.add(mid)
        return mid is not None
