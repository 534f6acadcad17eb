"""A server over a folder of a test, with a broker that only remembers."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from sqlalchemy import func, select
from starlette.types import Scope

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.sessions import StreamAccess
from aggregator_api.auth.signing import Signer
from aggregator_api.core.settings import Settings
from aggregator_api.devices.presence import PresenceCheck
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.api.middleware.authentication import AuthMiddleware
from aggregator_api.http.app import create_app
from aggregator_api.operations.leadership import SoleLeadership
from aggregator_api.rounds.aggregation_executor import AggregationExecutor, InProcessExecutor
from aggregator_api.rounds.announcements import Announcer, announcement
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.rounds.deadlines import SteadyClock
from aggregator_api.runtime import Runtime
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import RoundRow, UpdateRow
from federation.plan import Plan
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement
from federation.protocol.over_http import path_of
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, Wires, generated, status
from tests.aggregator_api.http_client import TestClient

Done = TypeVar("Done")


class Bench:
    """A running server whose messages the test hands in itself."""

    _inbox_thread = 0
    runtime: Runtime
    wires: Wires

    def __init__(
        self, folder: Path, plan: Plan | None = None, *, executor: AggregationExecutor | None = None, **settings: Any
    ) -> None:
        # torch takes seconds to start in another process
        given = {"aggregation_process": False, **settings}
        self._start(Settings(data_dir=folder, chunk_bytes=1024, **given), executor)
        assert isinstance(self.runtime.transport, Wires)
        self.wires = self.runtime.transport
        if plan is not None:
            self.runtime.federations.create(NewFederation(name=FEDERATION, plan=plan))

    def _start(self, settings: Settings, executor: AggregationExecutor | None) -> None:
        self.runtime = Runtime(settings, Wires, executor=executor)
        self.runtime.start()

    def stop(self) -> None:
        """End the server."""
        self.runtime.stop()

    def say(self, device: str, state: str, *, examples: int = 10) -> None:
        """Publish a device's status."""
        self.send(topics.status(FEDERATION, device), status(state, examples=examples))

    def send(self, topic: str, payload: bytes = b"") -> None:
        """Hand a message to the server."""
        self.as_inbox(lambda: self.runtime.ingest.handle(topic, payload))

    def as_inbox(self, work: Callable[[], Done]) -> Done:
        """Do something on the thread that does everything else that the broker brings or the clock asks for."""
        if not self.runtime.inbox.alive or threading.get_ident() == self._inbox_thread:
            return work()
        done = Future[Done]()

        def do() -> None:
            self._inbox_thread = threading.get_ident()
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        self.runtime.inbox.put(do)
        return done.result(timeout=60)

    def last(self, device: str) -> Acknowledgement:
        """Return the latest answer to a device."""
        return self.wires.acknowledgements(device)[-1]

    def collects(self, number: int) -> bool:
        """Whether that round is open."""
        now = self.now()
        return (now.state, now.round) == ("collecting", number)

    def now(self) -> Announcement:
        """Return what the federation announces now."""
        with self.runtime.database.read() as session:
            row = repositories.find_federation(session, FEDERATION)
            assert row is not None
            return announcement(session, row, chunk_bytes=1024)

    def base_of(self, device: str, announced: Announcement | None = None) -> str:
        """Return the sha256 of what a device starts the present round from."""
        announced = announced or self.now()
        assert announced.model is not None
        latest = self.wires.invitations(device)[-1:]
        invited = latest and latest[0].round == announced.round
        return latest[0].model.sha256 if invited else announced.model.sha256

    def update_of(self, device: str, **changes: Any) -> Parcel:
        """Generate a device's update of the present round; `changes` go into the manifest."""
        announced = self.now()
        base = self.base_of(device, announced)
        return generated(announced, self.runtime.blobs.read(base), device, **{"base_version": base, **changes})

    def invited(self) -> tuple[str, ...]:
        """Return the devices that hold an invitation to the present round."""
        now = self.now().round
        return tuple(device for device in self.wires.guests() if self.wires.invitations(device)[-1].round == now)

    def begin(self, parcel: Parcel) -> Acknowledgement:
        """Announce an update and return the answer."""
        self.send(parcel.topic("begin"), parcel.manifest.model_dump_json().encode())
        return self.last(parcel.manifest.client)

    def upload(self, parcel: Parcel) -> Acknowledgement:
        """Send a whole update and return the last answer."""
        self.begin(parcel)
        for n, chunk in enumerate(parcel.chunks()):
            self.send(parcel.topic("chunk", n), chunk)
        self.send(parcel.topic("end"))
        return self.last(parcel.manifest.client)

    def refused(self, parcel: Parcel) -> str:
        """Send a whole update that must be refused, and return the reason."""
        answer = self.upload(parcel)
        assert answer.status == "refused", answer
        return answer.reason

    def pass_deadline(self) -> None:
        """Let the open round's deadline be an instant ago, however long the test took to get here."""
        with self.runtime.database.write() as session:
            row = session.scalars(select(RoundRow).where(RoundRow.phase == "collecting")).one()
            assert row.deadline_at is not None
            row.deadline_at = self.runtime.clock() - 1.0

    def count(self, status: str) -> int:
        """Count the updates of a status."""
        query = select(func.count()).select_from(UpdateRow).where(UpdateRow.status == status)
        with self.runtime.database.read() as session:
            return session.scalars(query).one()

    def state(self) -> bytes:
        """Return the present server state's bytes."""
        with self.runtime.database.read() as session:
            row = repositories.find_federation(session, FEDERATION)
            assert row is not None
            return self.runtime.blobs.read(repositories.current_version(session, row).state_sha256)


class HttpBench(Bench):
    """The same over HTTP: what a device posts passes the whole application, and answers come with it."""

    def _start(self, settings: Settings, executor: AggregationExecutor | None) -> None:
        assert executor is None
        self.problems: list[str] = []
        self._any_device = patch.object(AuthMiddleware, "_admit", _as_the_device)
        self._any_device.start()
        self._client = TestClient(create_app(settings, Wires))
        self._client.__enter__()
        self.runtime = self._client.runtime

    def stop(self) -> None:
        """End the server."""
        self._client.__exit__(None, None, None)
        self._any_device.stop()

    def send(self, topic: str, payload: bytes = b"") -> None:
        """Post a message; the answer to it is kept beside what the server publishes, or with the problems."""
        method = "PUT" if "/chunk/" in topic else "POST"
        path = path_of(topic) if topic.startswith(topics.ROOT) else f"/{topic}"
        answer = self._client.request(method, path, content=payload)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            self.problems.append(answer.json()["detail"])
        elif answer.content:
            said = topics.parse(topic)
            self.wires.sent.append((topics.ack(said.federation, said.device), answer.content, False))


async def _as_the_device(_middleware: AuthMiddleware, scope: Scope) -> Caller:
    """Let whatever a test sends be the device's own word; test_device_messages has real keys."""
    parts = scope["path"].split("/")
    return Caller("bench", frozenset({"device"}), device=parts[5] if len(parts) > 5 else None)


def stream_access(runtime: Runtime) -> StreamAccess:
    """Return with what a key that reads opens a stream."""
    with runtime.database.write() as session:
        row, _ = api_keys.make(session, "follower", ["read"])
        return StreamAccess(runtime.open_streams, row.prefix)


def copied(ended: Path, target: Path) -> Path:
    """Copy the folder of a server that has ended, with that of its ledger beside it, and return the copy."""
    shutil.copytree(ended.with_name(f"{ended.name}-ledger"), target.with_name(f"{target.name}-ledger"))
    return shutil.copytree(ended, target)


def wait_for(true: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.04)  # a look at a federation takes a server several milliseconds


def coordinator_beside(runtime: Runtime, signer: Signer | None = None) -> Coordinator:
    """Return a second coordinator over the database and the broker of a server, as another process has it."""
    presence, pool = PresenceCheck(), ThreadPoolExecutor(1)  # a thread starts with its first job, and there is none
    jobs = BackgroundJobs(
        runtime.database, InProcessExecutor(runtime.blobs), pool, runtime.closing, runtime.collect_garbage
    )
    return Coordinator(
        runtime.database,
        Announcer(runtime.transport, signer or runtime.signer, presence, chunk_bytes=1024),
        presence,
        jobs,
        SoleLeadership(),
        SteadyClock(),
        blobs=runtime.blobs,
        offline_timeout_s=60.0,
    )
