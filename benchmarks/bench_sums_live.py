"""One secure sum of a thousand devices over a real broker: seconds and bytes of each stage.

    python benchmarks/bench_sums_live.py --devices 1000 --cosines 0

Broker (Mosquitto) and server are processes of their own, with the server's own database; the devices, thin ones, share
this process: each enrols over REST with a key of its own, has a connection of its own, and answers what it is told with
signed messages in chunks, as an agent does. Their windows are made up. All devices together check a signature once,
which alone would be most of their time (`bench_secure_sums.py` has that of one device by itself). It fails if the
server's sum is not that of the devices, number by number.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import json
import math
import platform
import selectors
import sys
import tempfile
import time
import urllib.request
from collections import Counter, deque
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import paho.mqtt.client as paho
import psutil
from bench_load import Programs, ask, free_port, mosquitto, wait
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from paho.mqtt.enums import CallbackAPIVersion
from rich.table import Table
from sqlalchemy import create_engine, text
from thin_devices import Connection

from aggregator_api.core.settings import sqlite_url
from federation.protocol import topics
from federation.protocol.chunks import chunk_count, chunk_range
from federation.protocol.messages import (
    Acknowledgement,
    Announcement,
    BlobPointer,
    DeviceStatus,
    Invitation,
    SumPart,
    read,
    write,
)
from federation.protocol.signing import Kind, to_sign, unwrap, wrap
from federation.secure_sums import client, membership
from federation.secure_sums.client import ClientState
from federation.secure_sums.messages import FromServer, ServerMessage, SumDevice, ToServer, VectorReady
from federation.secure_sums.summation import layout_from_json
from federation.secure_sums.uploads import PARTS, packed
from gaitway.terminal import Console

STAGES = {
    "request": "keys",
    "members": "shares of the keys",
    "shares": "vectors",
    "included": "signed lists",
    "confirmed": "openings",
}
"""What the server says, one after the other, and what each device answers."""
FEDERATION, CHUNK_BYTES = "sums", 1 << 17
PART_OF: dict[Kind, SumPart] = {kind: part for part, kind in PARTS.items()}
WINDOWS = 32
"""Of each device: as many rows of its sums as are drawn."""


class Fleet:
    """Every device of the sum, on one selector, and what was said."""

    def __init__(self, place: tuple[str, int], url: str, key: str, count: int) -> None:
        self.place, self.url, self.key = place, url, key
        self.announcement: Announcement | None = None
        self.selector = selectors.DefaultSelector()
        self.tasks: deque[tuple[Device, Invitation]] = deque()
        self.begun: dict[str, float] = {}
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.blobs: dict[str, bytes] = {}
        self.devices = [Device(self, f"d{number:05d}", number) for number in range(count)]

    def blob(self, pointer: BlobPointer) -> bytes:
        """Return what all are told alike; each device's own download is counted, and one is made."""
        if pointer.sha256 not in self.blobs:
            request = urllib.request.Request(
                urljoin(self.url, pointer.url), headers={"Authorization": f"Bearer {self.key}"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.blobs[pointer.sha256] = answer.read()
        return self.blobs[pointer.sha256]

    def serve(self, seconds: float) -> None:
        """Read and write what the sockets allow, then do one device's work."""
        for found, events in self.selector.select(0 if self.tasks else seconds):
            found.data.serve(events)
        if self.tasks:
            device, invitation = self.tasks.popleft()
            device.answer(invitation)


class Device(Connection):
    """A connection, a key, and the state in a sum."""

    def __init__(self, fleet: Fleet, name: str, number: int) -> None:
        self.fleet, self.name, self.number = fleet, name, number
        self.selector = fleet.selector
        self.key = Ed25519PrivateKey.generate()
        public = self.key.public_key().public_bytes_raw()
        self.own = SumDevice(name, public, self.key.sign, colluding=200)
        self.public = base64.b64encode(public).decode()
        self.state: ClientState | None = None
        self.update_id, self.data, self.next, self.waiting_for = "", b"", 0, -1
        self.stage = ""
        self.heard: set[tuple[int, str]] = set()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self.client.max_inflight_messages_set(4)
        self.client.on_connect, self.client.on_message = self._on_connect, self._on_message
        self.client.on_publish = self._on_publish

    def enrol(self, token: str) -> None:
        """Let the server know the key, as `agent enrol` does."""
        said = {"token": token, "federation": FEDERATION, "device": self.name, "public_key": self.public}
        signature = self.key.sign(to_sign(Kind.ENROL, FEDERATION, self.name, token.encode()))
        answer = ask(f"{self.fleet.url}/v1/enrol", {**said, "signature": base64.b64encode(signature).decode()})
        assert answer["state"] == "approved", answer

    def say_ready(self) -> None:
        """Say that the next round may have this device."""
        status = DeviceStatus(state="idle", examples=WINDOWS)
        self.client.publish(topics.status(FEDERATION, self.name), write(status), qos=1)
        self.watch()

    def answer(self, invitation: Invitation) -> None:
        """Take the next step of the sum."""
        said = invitation.sum
        assert said is not None
        kind = str(said.kind)
        self.fleet.begun.setdefault(kind, time.time())
        self.stage = kind
        shared = self.fleet.blob(said.shared) if said.shared else b""
        self.fleet.received[kind] += len(shared)
        if self.state is None:
            step = client.begin(self.own, said.body.encode())
        else:
            step = client.step(self.own, self.state, FromServer(ServerMessage(kind), said.body.encode(), shared))
        if kind == "shares":
            step = client.step(self.own, step.state, numbers(self.number))
        assert step.message is not None, step.reason
        self.state = step.state
        self._begin(step.message, invitation)

    def _begin(self, message: ToServer, invitation: Invitation) -> None:
        from edge_agent.supervisor.secure_sum import message_id
        from tests.manifests import manifest_of

        self.data, part, announced = packed(message), PART_OF[message.kind], self.fleet.announcement
        assert announced is not None
        sha256 = hashlib.sha256(self.data).hexdigest()
        self.update_id = message_id(invitation.round, part, self.name, sha256)
        manifest = manifest_of(
            announced, self.name, 0, update_id=self.update_id, sum=part, steps=0, size=len(self.data), sha256=sha256,
            chunk_bytes=CHUNK_BYTES, base_version=invitation.model.sha256, round=invitation.round,
            sequence=1 if part == "keys" else None,
        )  # fmt: skip
        body = wrap(Kind.UPDATE, FEDERATION, self.name, manifest.model_dump_json().encode(), self.key.sign)
        self._publish(body, "begin")

    def _on_connect(self, *_: Any) -> None:
        own = (topics.invitation(FEDERATION, self.name), topics.ack(FEDERATION, self.name))
        self.client.subscribe([(topic, 1) for topic in (topics.announce(FEDERATION), *own)])
        self.say_ready()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        kind = message.topic.rsplit("/", 1)[1]
        if kind == "announce":
            self.fleet.announcement = read(Announcement, unwrap(message.payload).body)
        elif kind == "invitation":
            invitation = read(Invitation, unwrap(message.payload).body)
            told = (invitation.round, invitation.sum.kind if invitation.sum else "")
            if told[1] in STAGES and told not in self.heard:
                self.heard.add(told)
                self.fleet.received[told[1]] += len(message.payload)
                self.fleet.tasks.append((self, invitation))
        elif kind == "ack":
            answer = read(Acknowledgement, unwrap(message.payload).body)
            if answer.status == "send":
                self.next = answer.next_chunk
                self._send_next()
            elif answer.status != "accepted":
                raise SystemExit(f"{self.name}: {answer.status}: {answer.reason}")

    def _send_next(self) -> None:
        if self.next < chunk_count(len(self.data), CHUNK_BYTES):
            place = chunk_range(len(self.data), CHUNK_BYTES, self.next)
            self.waiting_for = self._publish(self.data[place.start : place.stop], "chunk", self.next)
            self.next += 1
        else:
            self.waiting_for, self.data = -1, b""
            self._publish(b"", "end")

    def _on_publish(self, _client: Any, _data: Any, mid: int, *_: Any) -> None:
        if mid == self.waiting_for:
            self._send_next()

    def _publish(self, payload: bytes, *step: str | int) -> int:
        self.fleet.sent[self.stage] += len(payload)
        info = self.client.publish(topics.update(FEDERATION, self.name, self.update_id, *step), payload, qos=1)
        self.watch()
        return info.mid


LAYOUT: dict[str, Any] = {}


def numbers(number: int) -> VectorReady:
    """Return the sums of a device's made-up windows, which can be drawn again."""
    layout = layout_from_json(LAYOUT["json"])
    draw, (size, classes) = np.random.default_rng(number), layout.segments[1].shape
    x, y = draw.integers(-(1 << 12), 1 << 12, (WINDOWS, size)), np.eye(classes, dtype=np.int64)
    vector: NDArray[np.int64] = np.concatenate(
        [
            (x.T @ x + (np.eye(size, dtype=np.int64) << 30))[np.triu_indices(size)],
            (x.T @ y[draw.integers(0, classes, WINDOWS)]).ravel(),
            [1],
        ]
    )
    return VectorReady(vector, layout.bound, layout.digest)


def measure(folder: Path, programs: Programs, given: argparse.Namespace) -> dict[str, Any]:
    """Play one round, and return what it took."""
    mqtt, http = free_port(), free_port()
    programs.start("broker", *mosquitto(folder, mqtt))
    serve = ("serve", "--port", str(http), "--broker-port", str(mqtt), "--data-dir", str(folder / "data"))
    limits = ("GAITWAY_KEY_REQUESTS_PER_S=1000000", "GAITWAY_ADDRESS_REQUESTS_PER_S=1000000", "GAITWAY_PROGRAMS=false")
    programs.start("server", "env", *limits, sys.executable, "-m", "aggregator_api", *serve)
    url = f"http://127.0.0.1:{http}"
    wait(lambda: bool(ask(f"{url}/readyz")), "the server is not ready")
    key = (folder / "data" / "operator.key").read_text().strip()
    here = f"{url}/v1/federations/{FEDERATION}"
    plan = {
        "labels": ["still", "walking", "up", "down", "sitting", "standing"],
        "model": {"name": "har_features", "options": {"cosines": given.cosines}},
        "method": {"name": "analytic"},
        "training": {"classes": 6, "feature_dim": 183 + given.cosines},
        "data": {"normalization": "none"},
        "rounds": {"norm_factor": None, "max_weight_ratio": None},
        "publication": {"interval_s": 0},
        "secure": {"mode": "masked", "min_devices": given.devices, "stage_s": 3600},
    }
    ask(f"{url}/v1/federations", {"name": FEDERATION, "plan": plan}, key=key)
    fleet = Fleet(("127.0.0.1", mqtt), url, key, given.devices)
    begun = time.monotonic()
    for device in fleet.devices:
        made = ask(f"{here}/enrolment-tokens", {"device": device.name, "auto_approve": True}, key=key)
        device.enrol(made["token"])
    enrolled_s = time.monotonic() - begun
    engine = create_engine(sqlite_url(folder / "data" / "gaitway.sqlite3"))
    with engine.connect() as rows:
        found = rows.execute(text("select sum_layout from federations")).scalar_one()
        LAYOUT["json"] = json.loads(found) if isinstance(found, str) else found
    server = psutil.Process(programs["server"].pid)
    for device in fleet.devices:
        device.connect(*fleet.place)
    cpu, said = _seconds(server), time.monotonic()
    while True:
        fleet.serve(0.05)
        if time.monotonic() - said > 2:
            said = time.monotonic()
            rounds = ask(f"{here}/rounds", key=key)["items"]
            print(f"{list(fleet.begun)[-1:]}, {len(fleet.tasks)} have an answer to give", file=sys.stderr)
            if rounds and rounds[0]["phase"] in ("published", "failed"):
                break
    ended = rounds[0]["closed_at"]
    assert rounds[0]["phase"] == "published", rounds[0]
    with engine.connect() as rows:
        (added,) = rows.execute(text("select added from secure_sums")).one()
    expected = functools.reduce(np.add, (numbers(number).vector for number in range(given.devices)))
    assert np.array_equal(np.frombuffer(added, "<i8"), expected), "the server's sum is not that of the devices"
    kinds = list(fleet.begun)
    times = [*fleet.begun.values(), ended]
    return {
        "devices": given.devices, "numbers": len(expected), "enrolment_s": enrolled_s,
        "server_cpu_s": _seconds(server) - cpu, "server_mb": server.memory_info().rss / 1e6,
        "stages": {
            name: {"s": times[n + 1] - times[n], "up_kb": fleet.sent[name] / 1e3 / given.devices,
                   "down_kb": fleet.received[name] / 1e3 / given.devices}
            for n, name in enumerate(kinds)
        },
        "all_s": ended - times[0],
    }  # fmt: skip


def _seconds(process: psutil.Process) -> float:
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return math.fsum(one.user + one.system for one in times)


def main() -> None:
    """Measure, print, and fail where the sum is wrong."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--cosines", type=int, default=0, help="of har_features: 183 numbers of a window, and these")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    given = parser.parse_args()
    checked = functools.lru_cache(maxsize=1 << 18)(membership.signed)
    membership.signed = client.signed = checked  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="gaitway-sums-") as name, Programs(Path(name)) as programs:
        found = measure(Path(name), programs, given)
    table = Table(title=f"{found['devices']} devices, {found['numbers']:,} numbers each, {platform.machine()}")
    for column in ("devices send", "s", "kB up, a device", "kB down, a device"):
        table.add_column(column, justify="left" if column == "devices send" else "right")
    for stage, each in found["stages"].items():
        table.add_row(STAGES[stage], f"{each['s']:.1f}", f"{each['up_kb']:.1f}", f"{each['down_kb']:.1f}")
    table.add_row("all", f"{found['all_s']:.1f}", "", "")
    Console().print(table)
    print(
        f"server {found['server_cpu_s']:.1f} s of processor time, {found['server_mb']:.0f} MB; enrolment over REST "
        f"{found['enrolment_s']:.1f} s; the sum is exact"
    )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
