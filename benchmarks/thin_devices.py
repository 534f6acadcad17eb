"""A thousand devices in one process: real MQTT connections and real uploads, but generated updates and no training.

    python benchmarks/thin_devices.py --broker HOST:PORT --server URL --federation load --devices 1000

Every device says that it is ready, downloads the model that it is invited with, uploads an update of the model's size
chunk by chunk, and waits for the server's answer. It ends when the federation has finished.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import queue
import random
import selectors
import struct
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from federation.protocol import topics
from federation.protocol.chunks import chunk_count, chunk_range
from federation.protocol.messages import (
    Acknowledgement,
    Announcement,
    DeviceStatus,
    Invitation,
    UpdateManifest,
    read,
    write,
)
from federation.protocol.signing import unwrap

EXAMPLES = 100
DOWNLOADS = 8  # at a time; a thousand phones do not download in the same millisecond either
BUSY = (429, 503)
TAIL = 4  # bytes of the last number, which tells one device's update from another's


@dataclass
class Body:
    """An update's bytes: the model itself, but for its last number."""

    model: bytes
    hashed: Any = field(init=False)

    def __post_init__(self) -> None:
        """Hash what all have in common once."""
        self.hashed = hashlib.sha256(self.model[:-TAIL])

    def sha256(self, number: float) -> str:
        """Hash the bytes of the device whose last number this is."""
        mine = self.hashed.copy()
        mine.update(struct.pack("<f", number))
        return str(mine.hexdigest())

    def chunk(self, number: float, n: int, chunk_bytes: int) -> bytes:
        """Return chunk n of that device's bytes."""
        place = chunk_range(len(self.model), chunk_bytes, n)
        if place.stop == len(self.model):
            return self.model[place.start : -TAIL] + struct.pack("<f", number)
        return self.model[place]


class Devices:
    """Every device of a federation, on one selector."""

    def __init__(self, broker: str, server: str, federation: str, count: int, key: str | None = None) -> None:
        host, port = broker.split(":")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.place, self.server, self.federation = (host, int(port)), urlsplit(server), federation
        self.bodies: dict[str, Body] = {}
        self.announcement: Announcement | None = None
        self.wanted: queue.Queue[tuple[Device, Invitation]] = queue.Queue()
        self.fetched: queue.Queue[tuple[Device, Invitation, Body]] = queue.Queue()
        self.selector = selectors.DefaultSelector()
        self.devices = [Device(self, f"d{number:05d}", number) for number in range(count)]
        self.accepted = self.refused = self.busy = 0
        self.failure = ""

    @property
    def finished(self) -> bool:
        """Whether the federation says that it is over."""
        return self.announcement is not None and self.announcement.state in ("finished", "stopped")

    def run(self) -> None:
        """Connect, and serve every connection until the federation is over."""
        for _ in range(DOWNLOADS):
            threading.Thread(target=self._download, daemon=True).start()
        for device in self.devices:
            device.connect(*self.place)
        tended = said = time.monotonic()
        while not self.finished:
            if self.failure:
                raise SystemExit(self.failure)
            for key, events in self.selector.select(0.02):
                key.data.serve(events)
            while not self.fetched.empty():
                device, invitation, body = self.fetched.get()
                device.begin(invitation, body)
            now = time.monotonic()
            if now - tended > 1:
                tended = now
                for device in self.devices:
                    device.client.loop_misc()
            if now - said > 2:
                said = now
                print(f"{self.accepted} updates accepted, {self.refused} refused", file=sys.stderr, flush=True)

    def _download(self) -> None:
        """Fetch models, each device its own copy, of which one is kept."""
        while True:
            device, invitation = self.wanted.get()
            try:
                data = self._model(invitation)
            except (OSError, http.client.HTTPException) as error:
                self.failure = f"GET {invitation.model.url}: {error}"
                return
            body = self.bodies.setdefault(invitation.model.sha256, Body(data))
            self.fetched.put((device, invitation, body))

    def _model(self, invitation: Invitation) -> bytes:
        """Download a model; a server that is busy is asked again when it says.

        Raises:
            OSError: if it answers anything else than the model.
        """
        while True:
            # a new connection for each, as devices have: the server closes one that was idle between two rounds
            with closing(http.client.HTTPConnection(self.server.netloc)) as connection:
                connection.request("GET", invitation.model.url, headers=self.headers)
                answer = connection.getresponse()
                data = answer.read()
            if answer.status not in BUSY:
                break
            self.busy += 1
            time.sleep(float(answer.headers["Retry-After"]) * random.uniform(1.0, 1.5))
        if len(data) != invitation.model.size:
            raise OSError(f"{answer.status} {data[:300]!r}")
        return data


class Connection:
    """An MQTT client on a selector that a thousand of them share."""

    client: paho.Client
    selector: selectors.BaseSelector

    def connect(self, host: str, port: int) -> None:
        """Connect and join the selector."""
        self.client.connect(host, port, keepalive=600)
        self.selector.register(self.client.socket(), selectors.EVENT_READ, self)
        self.watch()

    def serve(self, events: int) -> None:
        """Read and write what the socket allows."""
        if events & selectors.EVENT_READ:
            self.client.loop_read()
        if events & selectors.EVENT_WRITE:
            self.client.loop_write()
        self.watch()

    def watch(self) -> None:
        """Wait for room to write only while there is something to write."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.client.want_write() else 0)
        self.selector.modify(self.client.socket(), wanted, self)


class Device(Connection):
    """One connection and the update that is on its way."""

    def __init__(self, fleet: Devices, name: str, number: int) -> None:
        self.fleet, self.name, self.number = fleet, name, float(number) * 1e-9
        self.selector = fleet.selector
        self.round = 0
        self.manifest: UpdateManifest | None = None
        self.body: Body | None = None
        self.next = 0
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=True)
        self.client.on_connect, self.client.on_message = self._on_connect, self._on_message
        self.client.on_publish = self._on_publish
        self.waiting_for, self.presence_check = -1, ""

    def begin(self, invitation: Invitation, body: Body) -> None:
        """Announce an update to the invitation's round."""
        from tests.manifests import manifest_of

        announcement = self.fleet.announcement
        assert announcement is not None
        self.body, self.round = body, invitation.round
        sha256 = body.sha256(self.number)
        training = announcement.plan.training
        self.manifest = manifest_of(
            announcement, self.name, EXAMPLES, size=len(body.model), sha256=sha256,
            round=invitation.round, update_id=f"r{invitation.round}-{self.name}",
            base_version=invitation.model.sha256, steps=training.epochs * -(-EXAMPLES // training.batch_size),
        )  # fmt: skip
        self._publish(write(self.manifest), "begin")

    def _on_connect(self, *_: Any) -> None:
        own = (topics.invitation(self.fleet.federation, self.name), topics.ack(self.fleet.federation, self.name))
        self.client.subscribe([(topic, 1) for topic in (topics.announce(self.fleet.federation), *own)])
        self._say_ready()

    def _say_ready(self) -> None:
        status = write(DeviceStatus(state="ready", examples=EXAMPLES))
        self.client.publish(topics.status(self.fleet.federation, self.name), status, qos=1)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        kind = message.topic.rsplit("/", 1)[1]
        if kind == "announce":
            self.fleet.announcement = read(Announcement, unwrap(message.payload).body)
            if self.presence_check != self.fleet.announcement.presence_check:
                self.presence_check = self.fleet.announcement.presence_check
                self._say_ready()
        elif kind == "invitation":
            invitation = read(Invitation, unwrap(message.payload).body)
            if invitation.round > self.round:
                self.round = invitation.round
                self.fleet.wanted.put((self, invitation))
        elif kind == "ack":
            self._answered(read(Acknowledgement, unwrap(message.payload).body))

    def _answered(self, answer: Acknowledgement) -> None:
        if answer.status == "send":
            self.next = answer.next_chunk
            self._send_next()
        elif answer.status == "accepted":
            self.fleet.accepted += 1
        else:
            self.fleet.refused += 1
            print(f"{self.name}: refused: {answer.reason}", file=sys.stderr, flush=True)

    def _send_next(self) -> None:
        """Publish one chunk; the next one goes when the broker has it."""
        manifest, body = self.manifest, self.body
        assert manifest is not None
        assert body is not None
        if self.next < chunk_count(manifest.size, manifest.chunk_bytes):
            payload = body.chunk(self.number, self.next, manifest.chunk_bytes)
            self.waiting_for = self._publish(payload, "chunk", self.next)
            self.next += 1
        else:
            self.waiting_for = -1
            self._publish(b"", "end")

    def _on_publish(self, _client: Any, _data: Any, mid: int, *_: Any) -> None:
        if mid == self.waiting_for:
            self._send_next()

    def _publish(self, payload: bytes, *step: str | int) -> int:
        assert self.manifest is not None
        topic = topics.update(self.fleet.federation, self.name, self.manifest.update_id, *step)
        info = self.client.publish(topic, payload, qos=1)
        self.watch()
        return info.mid


def main() -> None:
    """Run the devices."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="127.0.0.1:1883", help="host:port")
    parser.add_argument("--server", default="http://127.0.0.1:8080", help="base URL")
    parser.add_argument("--federation", required=True)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--key", help="API key that the models are downloaded with; none: the server asks for none")
    given = parser.parse_args()
    fleet = Devices(given.broker, given.server, given.federation, given.devices, given.key)
    fleet.run()
    print(f"{fleet.accepted} updates accepted, {fleet.refused} refused, {fleet.busy} waits", file=sys.stderr)


if __name__ == "__main__":
    main()
