"""The same messages over HTTP, for devices that can't reach a broker: their paths, and the server's event stream.

A device posts what it would publish; the end of the path is that of the topic:

    gaitway/v1/{federation}/devices/{device}/status  →  POST /v1/federations/{federation}/devices/{device}/status

What the server says comes as server-sent events (HTML standard, 9.2). The event's name is the message's `Kind`, its
data are the message's bytes: a signed message has two lines, so two lines of data, which a reader joins with U+000A.
"""

from __future__ import annotations

from typing import NamedTuple

from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.messages import MESSAGE_BYTES
from federation.protocol.signing import Kind

STREAM = "messages"
"""The last part of the path of a device's stream."""
END = "end"
"""Name of the last event of a stream; its data say why: `lifetime`, `replaced`, `refused`, `moved`."""
MEDIA_TYPE = "text/event-stream"
BINARY = "application/octet-stream"
HEARTBEAT_S = 15.0
"""A stream without events gets a comment so often, so that either end notices that the other is gone."""

_EVENT_BYTES = MESSAGE_BYTES + 4096
_TOPIC_OF = {
    Kind.ANNOUNCEMENT: lambda federation, _device: topics.announce(federation),
    Kind.INVITATION: topics.invitation,
    Kind.OFFER: topics.offer,
    Kind.ACKNOWLEDGEMENT: topics.ack,
    Kind.NOTICE: topics.notice,
}


class ServerEvent(NamedTuple):
    """One event of a stream; `id` is opaque, and is sent back as Last-Event-ID."""

    id: str
    name: str
    data: bytes


def path_of(topic: str) -> str:
    """Return where a device posts what it would publish on one of its topics."""
    federation, devices, rest = topic.removeprefix(f"{topics.ROOT}/").split("/", 2)
    return f"/v1/federations/{federation}/{devices}/{rest}"


def stream_path(federation: str, device: str) -> str:
    """Return where a device hears what the server says."""
    return path_of(topics.status(federation, device)).removesuffix("status") + STREAM


def kinds_of(federation: str, device: str) -> dict[str, Kind]:
    """Return the topics on which the server speaks to a device, and what is said there."""
    return {topic(federation, device): kind for kind, topic in _TOPIC_OF.items()}


def write_event(event: ServerEvent) -> bytes:
    """Encode an event; an empty id is left out."""
    head = f"id: {event.id}\n" if event.id else ""
    lines = b"".join(b"data: " + line + b"\n" for line in event.data.split(b"\n"))
    return f"{head}event: {event.name}\n".encode() + lines + b"\n"


class EventReader:
    """Reads a stream line by line, whatever its pieces are; comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._id, self._name = "", "message"
        self._data: list[bytes] = []
        self._size = 0

    def take(self, line: bytes) -> ServerEvent | None:
        """Take a line with its end; return the event that an empty line completes.

        Raises:
            WireError: for an event that is larger than any message.
        """
        text = line.rstrip(b"\r\n")
        if not text:
            return self._complete()
        self._size += len(text)
        if self._size > _EVENT_BYTES:
            raise WireError(f"an event has more than {_EVENT_BYTES:,} bytes; no message is so large")
        field, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"id":
            self._id = value.decode(errors="replace")
        return None

    def _complete(self) -> ServerEvent | None:
        found = ServerEvent(self._id, self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = "message", [], 0
        return found


LINE_BYTES = _EVENT_BYTES + 1
"""A longer line is of no event."""
