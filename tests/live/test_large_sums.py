"""A round of two thousand devices: the real server and database, and devices that are their state in a sum alone.

What all are told alike, their list and their signatures, travels as a blob; the sum is exact, with some lost.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_api.storage.db.models import DeviceRow, SecureSumRow
from edge_agent.supervisor.secure_sum import message_id
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, Invitation, SumPart
from federation.protocol.messages import read as read_message
from federation.protocol.signing import Kind, unwrap, wrap
from federation.secure_sums import client, membership
from federation.secure_sums.client import ClientState
from federation.secure_sums.messages import FromServer, ServerMessage, ToServer, VectorReady
from federation.secure_sums.summation import SumLayout
from federation.secure_sums.uploads import PARTS, packed
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel
from tests.federation.secure_sums.small_sums import device as sum_device
from tests.federation.secure_sums.small_sums import identity
from tests.live.summing_devices import layout_of, pass_stage, stage_of
from tests.live.test_whole_sums import phase_of, published, reason_of, whole_sums_plan
from tests.manifests import manifest_of

DEVICES = int(os.environ.get("GAITWAY_SUM_DEVICES", "2000"))
LOST = DEVICES // 20
SECONDS = 3600.0
PART_OF: dict[Kind, SumPart] = {kind: part for part, kind in PARTS.items()}


class ThinDevice:
    """A device without a disk."""

    def __init__(self, name: str, number: int, layout: SumLayout) -> None:
        self.name, self.own = name, sum_device(name, colluding=200)
        self.vector = sums_of_windows(number, layout)
        self.numbers = VectorReady(self.vector, layout.bound, layout.digest)
        self.state: ClientState | None = None

    def take_part(self, server: Bench, said_last: Mapping[str, bytes]) -> None:
        """Answer what the server has said last, by topic."""
        said = read_message(Invitation, unwrap(said_last[topics.invitation(FEDERATION, self.name)]).body)
        assert said.sum is not None
        shared = server.runtime.blobs.read(said.sum.shared.sha256) if said.sum.shared else b""
        if self.state is None:
            step = client.begin(self.own, said.sum.body.encode())
        else:
            heard = FromServer(ServerMessage(said.sum.kind), said.sum.body.encode(), shared)
            step = client.step(self.own, self.state, heard)
        if said.sum.kind == "shares":
            step = client.step(self.own, step.state, self.numbers)
        assert step.message is not None, step.reason
        self.state = step.state
        self.send(server, step.message, said)
        answer = unwrap(said_last[topics.ack(FEDERATION, self.name)]).body
        assert read_message(Acknowledgement, answer).status == "accepted", answer

    def send(self, server: Bench, message: ToServer, invitation: Invitation) -> None:
        """Send a message as an upload."""
        announced, data, part = ANNOUNCED[0], packed(message), PART_OF[message.kind]
        sha256 = hashlib.sha256(data).hexdigest()
        said = {"update_id": message_id(announced.round, part, self.name, sha256), "sum": part, "steps": 0}
        said |= {"size": len(data), "sha256": sha256, "chunk_bytes": 1 << 17}
        said |= {"base_version": invitation.model.sha256, "sequence": 1 if part == "keys" else None}
        parcel = Parcel(manifest_of(announced, self.name, 0, **said), data, {})  # type: ignore[arg-type]
        body = parcel.manifest.model_dump_json().encode()
        server.send(parcel.topic("begin"), wrap(Kind.UPDATE, FEDERATION, self.name, body, self.own.sign))
        for n, chunk in enumerate(parcel.chunks()):
            server.send(parcel.topic("chunk", n), chunk)
        server.send(parcel.topic("end"))


def sums_of_windows(seed: int, layout: SumLayout) -> NDArray[np.int64]:
    """Return G, B and 1 of made-up windows: a head can be solved from such sums, and from no random numbers."""
    draw, (size, classes) = np.random.default_rng(seed), layout.segments[1].shape
    x, y = draw.integers(-4, 5, (3 * size, size)), np.eye(classes, dtype=np.int64)
    x[:, -1] = 1  # counts the windows
    return np.concatenate([(x.T @ x)[np.triu_indices(size)], (x.T @ y[draw.integers(0, classes, len(x))]).ravel(), [1]])


ANNOUNCED: list[Announcement] = []


def enrolled(server: Bench, names: list[str]) -> None:
    """Let the database know them, online, as their enrolment and their status leave it."""
    server.say(names[0], "collecting")
    with server.runtime.database.write() as session:
        first = session.scalars(select(DeviceRow)).one()
        columns = {c.key: getattr(first, c.key) for c in DeviceRow.__table__.columns if c.key not in ("id", "name")}
        for name in names:
            key = base64.b64encode(identity(name).public_key().public_bytes_raw()).decode()
            device = first if name == names[0] else DeviceRow(**columns, name=name)
            device.enrolment, device.public_key, device.state, device.examples = "approved", key, "idle", 1
            session.add(device)


@pytest.fixture(autouse=True)
def checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all devices, which are in one process, check each signature once together: it is most of their time."""
    checked = functools.lru_cache(maxsize=1 << 17)(membership.signed)
    for module in (membership, client):
        monkeypatch.setattr(module, "signed", checked)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_a_round_of_two_thousand_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    begun = time.monotonic()

    def note(what: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s: {what}", flush=True)

    plan = whole_sums_plan()
    patient = plan.secure.model_copy(update={"stage_s": SECONDS})
    server = Bench(tmp_path / "server", plan.model_copy(update={"secure": patient}))
    said_last: dict[str, bytes] = {}
    monkeypatch.setattr(
        server.wires, "publish", lambda topic, payload, retain=False: said_last.update({topic: payload})
    )
    layout = layout_of(server)
    names = [f"device{number:04d}" for number in range(DEVICES)]
    enrolled(server, names)
    devices = [ThinDevice(name, number, layout) for number, name in enumerate(names)]
    note("enrolled")
    server.as_inbox(lambda: server.runtime.coordinator.devices_changed(FEDERATION))
    wait_for(lambda: phase_of(server, 1) == "collecting", seconds=SECONDS)
    ANNOUNCED[:] = [server.now()]
    note("the round is open")
    for one in devices:
        one.take_part(server, said_last)
    lost = {
        "vectors": devices[:LOST:2],
        "lists": devices[1:LOST:2],
    }
    lost["opening"] = lost["lists"]  # the server waits for them again, since their vectors are in the sum
    present = devices
    for stage in ("shares", "vectors", "lists", "opening"):
        wait_for(lambda stage=stage: stage_of(server) == stage, seconds=SECONDS)
        note(stage)
        present = [one for one in present if one not in lost.get(stage, [])]
        for one in present:
            one.take_part(server, said_last)
        if lost.get(stage):
            pass_stage(server)
    wait_for(lambda: phase_of(server, 1) in ("published", "failed"), seconds=SECONDS)
    assert phase_of(server, 1) == "published", reason_of(server, 1)
    note("published")
    summed = [one for one in devices if one not in lost["vectors"]]
    with server.runtime.database.read() as session:
        found = session.scalars(select(SecureSumRow)).one()
        assert (found.listed_devices, found.summed_devices) == (DEVICES, len(summed))
    sums = published(server, 1)["sums"]
    total = np.concatenate([sums[name].numpy().reshape(-1) for name in ("gram", "moment", "clients")])
    assert np.array_equal(total, np.sum([one.vector for one in summed], axis=0))
    server.stop()
