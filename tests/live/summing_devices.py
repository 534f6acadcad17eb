"""Devices of a federation with secure sums, in the test's own process: all of the agent but training and connection.

Nothing of a device stays in memory between two steps: each opens its data folder as an agent does after a crash.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_api.rounds.announcements import invitations
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RoundRow, SecureSumRow
from edge_agent.storage.credentials import device_key, manifest_signer
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor import secure_sum
from edge_agent.supervisor.persistence import forget_update
from federation.protocol.messages import Acknowledgement, Invitation
from federation.secure_sums.summation import SumLayout, layout_from_json
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel
from tests.manifests import manifest_of


class SummingDevice:
    """One device whose numbers the test makes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder / name
        self.is_lost = False
        self.repeats = True
        self.answers: list[Acknowledgement] = []

    @contextmanager
    def store(self) -> Iterator[StateStore]:
        """Open its data folder."""
        store = StateStore(self.folder)
        try:
            yield store
        finally:
            store.close()

    def enrol(self, server: Bench) -> None:
        """Let the server know it and its key."""
        key = device_key(self.folder)
        server.say(self.name, "collecting")
        with server.runtime.database.write() as session:
            row = session.scalars(select(DeviceRow).where(DeviceRow.name == self.name)).one()
            row.enrolment = "approved"
            row.public_key = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        with self.store() as store:
            store.put(device=self.name, federation=FEDERATION, identity=f"{server.now().instance}/plan")

    def invitation(self, server: Bench) -> Invitation:
        """Return what the server has said to it last."""
        return server.wires.invitations(self.name)[-1]

    def begin(self, server: Bench, numbers: NDArray[np.int64]) -> None:
        """Have trained for the round, and put its keys into the outbox as `save_round` does."""
        said, announced = self.invitation(server), server.now()
        assert said.sum is not None
        assert said.sum.kind == "request"
        assert said.round == announced.round
        layout = layout_of(server)
        described = manifest_of(
            announced,
            self.name,
            10,
            size=0,
            sha256="0" * 64,
            base_version=said.model.sha256,
            metrics={"loss": 0.5},
            gains={"midway": (1, 0, 0)},
        )
        path = self.folder / "numbers"
        write_file(path, numbers.astype("<i8").tobytes())
        with self.store() as store:
            told = {"bound": layout.bound, "layout": layout.digest.hex()}
            begun = secure_sum.begin(store, announced.plan, said.sum.body, described, path, told)
            store.keep_update(begun.manifest, begun.path, {"examples": 10}, **begun.pairs)

    def hear(self, server: Bench) -> secure_sum.SumAnswer:
        """Take what the server has said last, which is what it says to a device that comes back and asks."""
        said = self.invitation(server)
        with server.runtime.database.read() as session:
            federation = session.scalars(select(FederationRow).where(FederationRow.name == FEDERATION)).one()
            again = dict(invitations(session, federation, self.name)).get(self.name)
        if again is not None:
            assert again.sum == said.sum
        with self.store() as store:
            return secure_sum.answer(store, said)

    def outbox(self) -> list[Parcel]:
        """Return what waits to be sent."""
        with self.store() as store:
            return [Parcel(store.manifest(name), path.read_bytes(), {}) for name, path in store.outbox().items()]

    def send(self, server: Bench) -> None:
        """Send all that waits, until each message is answered."""
        sign = manifest_signer(self.folder, FEDERATION, self.name)
        for parcel in self.outbox():
            server.send(parcel.topic("begin"), sign(parcel.manifest))
            if server.last(self.name).status == "send":
                for n, chunk in enumerate(parcel.chunks()):
                    server.send(parcel.topic("chunk", n), chunk)
                server.send(parcel.topic("end"))
            answer = server.last(self.name)
            self.answers.append(answer)
            is_last = parcel.manifest.sum == "opened" or not self.repeats
            if answer.status == "accepted" and not is_last:  # as if the answer had been lost
                server.send(parcel.topic("begin"), sign(parcel.manifest))
                assert server.last(self.name).status == "accepted"
            if answer.status in ("accepted", "refused"):
                with self.store() as store:
                    forget_update(store, parcel.manifest.update_id, answer.status, answer.reason)

    def take_part(self, server: Bench) -> None:
        """Hear what the server says, and answer."""
        if not self.is_lost:
            self.hear(server)
            self.send(server)


def layout_of(server: Bench) -> SumLayout:
    """Return what the numbers of the federation's sums mean."""
    with server.runtime.database.read() as session:
        row = session.scalars(select(FederationRow).where(FederationRow.name == FEDERATION)).one()
        assert row.sum_layout is not None
        return layout_from_json(row.sum_layout)


def stage_of(server: Bench) -> str:
    """Return where the latest round's secure sum stands."""
    with server.runtime.database.read() as session:
        query = select(SecureSumRow.stage).join(RoundRow, RoundRow.id == SecureSumRow.round_id)
        return session.scalars(query.order_by(RoundRow.number.desc())).first() or ""


def pass_stage(server: Bench) -> None:
    """Let the stage's deadline be over, and the server notice."""
    with server.runtime.database.write() as session:
        for row in session.scalars(select(SecureSumRow).where(SecureSumRow.deadline_at.is_not(None))):
            row.deadline_at = server.runtime.clock() - 1.0
    server.as_inbox(server.runtime.coordinator.tick)


def invited_to(server: Bench, devices: list[SummingDevice], number: int) -> None:
    """Wait until all of them are asked for their keys in that round."""
    wait_for(lambda: server.collects(number))
    present = [one.name for one in devices if not one.is_lost]
    wait_for(lambda: all(number in {each.round for each in server.wires.invitations(name)} for name in present))
