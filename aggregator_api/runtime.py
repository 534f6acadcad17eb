"""The parts of one server process, put together, started in order and stopped in the opposite one."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from aggregator_api.api.event_feed import EventFeed
from aggregator_api.auth.server_identity import Identity
from aggregator_api.auth.signing import Signer
from aggregator_api.cluster.leadership import Leadership, LedCoordinator
from aggregator_api.cluster.leases import Leases
from aggregator_api.db.database import Database
from aggregator_api.devices.accounts import BrokerAccounts, NoAccounts
from aggregator_api.mqtt.client import MqttDriver
from aggregator_api.mqtt.inbox import Inbox, Message
from aggregator_api.mqtt.mosquitto.dynamic_security import DynamicSecurity
from aggregator_api.mqtt.transport import Connect
from aggregator_api.observability.refusals import Refusals
from aggregator_api.observability.timings import MESSAGE_SECONDS
from aggregator_api.retention import policy
from aggregator_api.rollouts import scheduler
from aggregator_api.rounds.aggregation_executor import InThisProcess, WorkerProcess, Workshop
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.settings import Settings
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.blob_cache import HotBlobs
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.disk import require_folder
from aggregator_api.updates import admission
from aggregator_api.updates.ingest import Ingest
from aggregator_api.updates.partial_uploads import Spool
from federation.private_files import make_private
from federation.protocol import topics

log = logging.getLogger(__name__)

RETAINED_S = 60.0
"""How often what devices had the broker retain is looked for."""
DAY_S = 86_400.0
OURS = ("blobs", "spool", "*.sqlite3*", "*.key", "identity.pem", "last-backup")
"""What a server makes in its data_dir."""


class Runtime:
    """Everything between the broker and the disk."""

    def __init__(
        self, settings: Settings, connect: Connect = MqttDriver, *, elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Put the parts together; `elapsed_s` is the clock of what is done every so often, such as retention."""
        self.settings = settings
        self._elapsed_s = elapsed_s
        require_folder(settings.data_dir.resolve(), "data_dir")
        _keep_private(settings.data_dir)
        self.database = Database(settings.database, wait_s=settings.database_wait_s)
        self.refusals = Refusals(self.database)
        """Refused requests on their way into the audit."""
        self.blobs = BlobStore(settings.blobs)
        self.hot_blobs = HotBlobs(self.blobs)
        self.identity = Identity(settings.identity)
        self._looked_for_retained = elapsed_s()
        self.closing = threading.Event()
        """Set once the process is asked to end: endless responses end too."""
        self.event_feed = EventFeed(self.database, self.closing)
        self.transport = connect(settings, self._receive, self._connected)
        self.accounts = accounts_of(settings)
        """Where approved devices get their passwords at the broker."""
        # one thread: aggregations follow one another, and torch's thread count belongs to the thread that sets it
        self._aggregation = ThreadPoolExecutor(
            1, "aggregation", initializer=torch.set_num_threads, initargs=(settings.torch_threads,)
        )
        self._workshop = _workshop(settings, self.blobs)
        self._retired_at = -math.inf
        self._taken: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.leadership, self.coordinator = self._coordinate()
        self.coordinator.signer = Signer(self.identity.sign, settings.signature_lifetime_s)
        self._spool = Spool(settings.data_dir.resolve() / "spool")
        self.ingest = Ingest(
            self.database,
            self.blobs,
            self._spool,
            self.coordinator,
            self.transport,
            uploads_per_device=settings.uploads_per_device,
            enrolled_only=settings.enrolled_only,
            min_free_bytes=settings.min_free_bytes,
        )
        self.coordinator.tidy = self._tidy
        self._inbox = Inbox(self._handle, self._tick, settings.inbox_messages, compute_alone, self.coordinator.recover)

    def start(self) -> None:
        """Bring the schema up to date, go on where the rows say, and connect."""
        self.database.migrate()
        self.identity.load()
        self.blobs.require()
        if self.settings.enrolled_only:
            with self.database.write() as session:
                admission.close_doors(session)
        if self.leadership is None:
            self.coordinator.recover()
        self._inbox.start()
        self.transport.start()
        if self.leadership is not None:
            self.leadership.start()

    def stop(self) -> None:
        """Take no more messages, finish those at hand, and close; a running aggregation is waited for."""
        self.closing.set()
        if self.leadership is not None:
            self.leadership.stop()
        self.transport.stop()
        self._inbox.stop()
        self._aggregation.shutdown()
        self._workshop.close()
        if self.leadership is not None:
            self.leadership.release()
        self.refusals.flush(closing=True)
        self.database.close()

    @property
    def waiting(self) -> int:
        """How many messages wait to be handled."""
        return self._inbox.waiting

    @property
    def alive(self) -> bool:
        """Whether messages are being handled."""
        return self._inbox.alive

    def forget_uploads(self, federation: str, device: str) -> None:
        """Drop what a device has sent of its uploads, in the thread that handles them."""

        def drop() -> None:
            for key in self._spool.of_device(federation, device):
                self._spool.discard(key)

        self._inbox.put(drop)

    def _coordinate(self) -> tuple[Leadership | None, Coordinator]:
        """Make what drives the rounds: of every federation, or of those that this process leads among several."""
        settings, transport = self.settings, self.transport
        parts = (self.database, self._workshop, transport, self._aggregation)
        chunk_bytes, lost_after_s = settings.chunk_bytes, settings.lost_after_s
        if not settings.shares_work:
            return None, Coordinator(
                *parts,
                chunk_bytes=chunk_bytes,
                lost_after_s=lost_after_s,
                closing=self.closing,
                verify=self.blobs.verify,
            )

        def gained(name: str) -> None:
            self._taken.put(name)  # its uploads belong to the thread that handles messages
            led.take_over(name)

        leadership = Leadership(
            Leases(self.database, settings.holder, settings.lease_s),
            settings.lease_s,
            fit=lambda: self.alive and transport.is_up,
            gained=gained,
            nudged=lambda name: led.recover_one(name),
            changed=transport.listen,
        )
        led = LedCoordinator(
            *parts,
            chunk_bytes=chunk_bytes,
            lost_after_s=lost_after_s,
            closing=self.closing,
            verify=self.blobs.verify,
            leads=leadership.leads,
            nudge=leadership.nudge,
        )
        return leadership, led

    def _tidy(self) -> None:
        if not self.settings.blobs.startswith("file:"):
            return
        if not self.coordinator.clock.was_even_for(self.settings.garbage_grace_s):
            return  # by a clock that was set forwards, what was written just now is old
        try:
            garbage_collection.collect(self.database, self.blobs, grace_s=self.settings.garbage_grace_s)
        except Exception:  # a publication must not fail of it
            log.exception("garbage could not be collected")

    def _tick(self) -> None:
        self._take_uploads_over()
        if self._elapsed_s() - self._looked_for_retained >= RETAINED_S:
            self._looked_for_retained = self._elapsed_s()
            self.transport.remove_retained()
        self.coordinator.tick()
        self.coordinator.renew()
        self.refusals.flush()
        self._retire_daily()
        scheduler.tick(self.database, self.coordinator, self.coordinator.clock())

    def _retire_daily(self) -> None:
        now = self._elapsed_s()
        if now - self._retired_at >= DAY_S and self.coordinator.clock.was_even_for(self.settings.garbage_grace_s):
            self._retired_at = now
            self._aggregation.submit(self._retire)

    def _retire(self) -> None:
        try:
            with self.database.write() as session:
                retired = policy.apply(session, self.settings, actor="server")
        except Exception:  # tomorrow is another day
            log.exception("what is too old could not be removed")
        else:
            log.info("removed by age: %s", retired)

    def _handle(self, topic: str, payload: bytes) -> None:
        self._take_uploads_over()
        if self.leadership is None or self.leadership.leads(topics.federation_of(topic)):
            with MESSAGE_SECONDS.time():
                self.ingest.handle(topic, payload)  # else another process hears it too

    def _take_uploads_over(self) -> None:
        while not self._taken.empty():
            self.ingest.take_over(self._taken.get())

    def _receive(self, message: Message) -> None:
        if message.retained:
            self._inbox.put(partial(self.ingest.note_retained, message.topic))
        self._inbox.put(message)

    def _connected(self) -> None:
        self._inbox.put(self.coordinator.connected)


def compute_alone() -> None:
    """Let torch use one thread for what the calling thread computes.

    An update's checks take less time than a pool of threads takes to start on them; idle, such a pool spins.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch settles a thread's number at its first use: now, not after another thread's setting


def _keep_private(folder: Path) -> None:
    if opened := make_private(folder, OURS):
        log.warning("%d files and folders in %s could be read by others; now they cannot", opened, folder)


def accounts_of(settings: Settings) -> BrokerAccounts:
    """Return who gives devices their accounts at the broker that the settings name."""
    login = settings.broker_admin_login
    return DynamicSecurity(settings.broker_host, settings.broker_port, login) if login else NoAccounts()


def _workshop(settings: Settings, blobs: BlobStore) -> Workshop:
    if not settings.aggregation_process:
        return InThisProcess(blobs)
    attempts = settings.aggregation_attempts
    return WorkerProcess(settings.blobs, torch_threads=settings.torch_threads, attempts=attempts)
