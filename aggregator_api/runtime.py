"""Assembles the parts of one server process, and starts and stops them in order."""

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

from aggregator_api.auth.sessions import OpenStreams
from aggregator_api.auth.signing import Identity, Signer
from aggregator_api.core.settings import Settings
from aggregator_api.devices.enrolment import EnrolmentService, approved_usernames
from aggregator_api.devices.presence import PresenceCheck
from aggregator_api.devices.service import BrokerAccounts, DeviceService
from aggregator_api.devices.tokens import TokenService
from aggregator_api.federations.changes import AliasService, SettingsService
from aggregator_api.federations.checkpoints import CheckpointService
from aggregator_api.federations.programs import ProgramMaker
from aggregator_api.federations.service import FederationService
from aggregator_api.maintenance import retention, revocations
from aggregator_api.maintenance.deletion import DeletionService
from aggregator_api.operations.counts import MESSAGE_SECONDS, RefusalLog
from aggregator_api.operations.health import Readiness
from aggregator_api.operations.leadership import Leadership, LeaseLeadership, Leases, SoleLeadership
from aggregator_api.operations.metrics import DatabaseCollector, Metrics, ServerCollector
from aggregator_api.rollouts.scheduler import PromotionScheduler, RolloutScheduler
from aggregator_api.rollouts.service import RolloutService
from aggregator_api.rounds.aggregation_executor import AggregationExecutor, InProcessExecutor, WorkerProcessExecutor
from aggregator_api.rounds.announcements import Announcer
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.rounds.deadlines import SteadyClock
from aggregator_api.rounds.ingest import Ingest
from aggregator_api.rounds.updates import admission
from aggregator_api.rounds.updates.partial_uploads import PartialUploads
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import BlobCache, Downloads
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.ledger import Ledger
from aggregator_api.storage.outages import require_folder
from aggregator_api.transport.device_http.messages import DeviceMessages, DevicePublisher
from aggregator_api.transport.device_http.streams import DeviceStreams
from aggregator_api.transport.mqtt.client import Connect, MqttDriver
from aggregator_api.transport.mqtt.embedded_broker import LocalAccounts
from aggregator_api.transport.mqtt.inbox import Inbox, Message
from aggregator_api.transport.mqtt.mosquitto.dynamic_security import accounts_of
from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, read
from gaitway.files import make_private

log = logging.getLogger(__name__)

RETAINED_S = 60.0
"""How often what devices had the broker retain is looked for."""
ACCOUNTS_S = 2.0
"""How often the embedded broker's accounts are compared with the devices, which a command may have revoked."""
DAY_S = 86_400.0
DATA_DIR_FILES = ("blobs", "spool", "*.sqlite3*", "*.key", "identity.pem", "last-backup")
"""What a server makes in its data_dir."""


class Runtime:
    """Everything between the broker and the disk."""

    def __init__(
        self,
        settings: Settings,
        connect: Connect = MqttDriver,
        *,
        accounts: BrokerAccounts | None = None,
        executor: AggregationExecutor | None = None,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put the parts together.

        `accounts` give devices their passwords at the broker, and `executor` does the heavy work of rounds; where they
        are None, the settings choose. `elapsed_s` is the clock of what is done every so often, such as retention.
        """
        self.settings = settings
        self._elapsed_s = elapsed_s
        self._retained_removed_at = elapsed_s()
        self._retired_at = self._accounts_checked_at = -math.inf
        self.clock = SteadyClock()
        self.closing = threading.Event()
        """Set once the process is asked to end: endless responses end too."""
        self._open_storage()
        self.accounts = accounts or accounts_of(settings)
        """Where approved devices get their passwords at the broker."""
        self._make_connections(connect)
        self._executor = executor or _executor_of(settings, self.blobs)
        self._make_rounds()
        self._make_services()
        self._make_views()

    def _open_storage(self) -> None:
        settings = self.settings
        require_folder(settings.data_dir.resolve(), "data_dir")
        require_folder(settings.ledger, "ledger_dir")
        _keep_private(settings.data_dir)
        self.ledger = Ledger(settings.ledger)
        self.database = Database(settings.database, wait_s=settings.database_timeout_s, ledger=self.ledger)
        self.refusals = RefusalLog(self.database)
        """Refused requests on their way into the audit."""
        self.blobs = BlobStore(settings.blobs)
        self.identity = Identity(settings.identity)
        self.signer = Signer(self.identity.sign, settings.signature_lifetime_s)

    def _make_connections(self, connect: Connect) -> None:
        settings = self.settings
        self._gained: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.inbox = Inbox(self._handle, self._tick, settings.inbox_messages, use_one_torch_thread, self._recover)
        self.transport = connect(settings, self.receive, self._on_connected)
        self.streams = DeviceStreams(self.closing, most=settings.max_connections * 3 // 4)
        self.open_streams = OpenStreams(self.database, self.closing, max_per_key=settings.key_streams)
        """Whose streams are open, REST's, the pages' and the devices'."""
        self._publisher = DevicePublisher(self.transport, self.streams)
        self.leadership = self._make_leadership()

    def _make_rounds(self) -> None:
        settings = self.settings
        # one thread: aggregations follow one another, and torch's thread count belongs to the thread that sets it
        self._pool = ThreadPoolExecutor(
            1, "aggregation", initializer=torch.set_num_threads, initargs=(settings.torch_threads,)
        )
        presence = PresenceCheck()
        self._announcer = announcer = Announcer(
            self._publisher, self.signer, presence, chunk_bytes=settings.chunk_bytes
        )
        self.coordinator = Coordinator(
            self.database,
            announcer,
            presence,
            BackgroundJobs(self.database, self._executor, self._pool, self.closing, self.collect_garbage),
            self.leadership,
            self.clock,
            blobs=self.blobs,
            offline_timeout_s=settings.offline_timeout_s,
        )
        self.rollout_scheduler = RolloutScheduler(self.database, self.coordinator, announcer, self.leadership)
        self.promotion_scheduler = PromotionScheduler(self.database, self.coordinator, self.leadership)
        self._uploads = PartialUploads(settings.data_dir.resolve() / "spool")
        self.ingest = Ingest(self.database, self.blobs, self._uploads, self.coordinator, announcer, settings)

    def _make_services(self) -> None:
        settings = self.settings
        self.programs = ProgramMaker(
            self.database,
            self.blobs,
            self.leadership,
            self.coordinator.announce,
            self.closing,
            is_on=settings.programs,
        )
        self.checkpoints = CheckpointService(
            self.blobs, max_model_bytes=settings.max_model_bytes, keep_s=settings.gc_grace_s
        )
        self.federations = FederationService(
            self.database,
            self.blobs,
            self.coordinator,
            self.programs,
            self.checkpoints,
            max_model_bytes=settings.max_model_bytes,
        )
        self.federation_settings = SettingsService(self.database, self.coordinator, self.clock)
        self.aliases = AliasService(self.database, self.coordinator)
        self.enrolment = EnrolmentService(self.database, self.accounts, self.identity, settings.device_broker)
        self.device_tokens = TokenService(self.database)
        self.devices = DeviceService(self.database, self.coordinator, self.accounts, self.forget_device)
        self.rollouts = RolloutService(self.database, self.coordinator, self.clock)
        self.deletion = DeletionService(
            self.database, self.blobs, self.coordinator, self._publisher, self.accounts, self.forget_device
        )
        self.device_messages = DeviceMessages(
            self.database,
            self.inbox,
            self._publisher,
            self.streams,
            self.open_streams,
            self._announcer,
            self.leadership,
            self._handle,
        )

    def _make_views(self) -> None:
        settings = self.settings
        self.downloads = Downloads(self.blobs, BlobCache(self.blobs), self.coordinator.blob_damaged)
        self.readiness = Readiness(settings, self.database, self.blobs, self.transport, self.inbox)
        self.metrics = Metrics(
            ServerCollector(settings, self.signer, self.transport, self.inbox, self.leadership),
            DatabaseCollector(self.database),
        )

    def start(self) -> None:
        """Bring the schema up to date, continue where the rows say, and connect."""
        self.database.migrate()
        revocations.catch_up(self.database, self.ledger)
        self.identity.load()
        self.blobs.require()
        if self.settings.enrolled_only:
            with self.database.write() as session:
                admission.disconnect_unapproved(session)
        self.coordinator.recover()
        self.inbox.start()
        self.transport.start()
        self.leadership.start()
        self.programs.resume()

    def stop(self) -> None:
        """Take no more messages, finish those at hand, and close; the next start does what is given up here."""
        self.closing.set()
        self._executor.close()
        self.leadership.stop()
        self.transport.stop()
        self.inbox.stop()
        self.programs.close()
        self._pool.shutdown(cancel_futures=True)
        self.leadership.release()
        self.refusals.flush(closing=True)
        self.database.close()

    def forget_device(self, federation: str, device: str) -> None:
        """End a device's stream, and drop what it has sent of its uploads, in the thread that handles them."""
        self.streams.disconnect(federation, device)

        def drop() -> None:
            for key in self._uploads.of_device(federation, device):
                self._uploads.discard(key)

        self.inbox.put(drop)

    def receive(self, message: Message) -> None:
        """Take a message from the broker; called on the network's thread."""
        if self.streams.is_used and self._is_overtaken(message):
            message.acknowledge()
            return
        if message.retained:
            self.inbox.put(partial(self.ingest.note_retained, message.topic))
        self.inbox.put(message)

    def collect_garbage(self) -> None:
        """Remove blobs that nothing refers to any more, where this process alone keeps them."""
        if not self.blobs.is_local:
            return
        if not self.clock.was_stable_for(self.settings.gc_grace_s):
            return  # by a clock that was set forwards, what was written just now is old
        try:
            garbage_collection.collect(
                self.database, self.blobs, grace_s=self.settings.gc_grace_s, is_over=self.closing.is_set
            )
        except Exception:  # a publication must not fail of it
            log.exception("garbage collection failed")

    def _make_leadership(self) -> Leadership:
        settings = self.settings
        if not settings.shares_work:
            return SoleLeadership()
        return LeaseLeadership(
            Leases(self.database, settings.holder, settings.lease_s),
            settings.lease_s,
            is_healthy=lambda: self.inbox.alive and self.transport.is_up,
            gained=self._take_over,
            notified=lambda name: self.coordinator.recover_federation(name),
            changed=self._listen,
        )

    def _listen(self, federations: frozenset[str]) -> None:
        self.transport.listen(federations)
        self.streams.listen(federations)

    def _is_overtaken(self, message: Message) -> bool:
        """Note that a device speaks at the broker; whether it is a last will of one that has moved to HTTP since."""
        try:
            address = topics.parse(message.topic)
            is_will = address.kind == "status" and read(DeviceStatus, message.payload).state == "offline"
        except WireError:
            return False
        if message.retained or is_will:
            return is_will and self.streams.holds(*address[:2])
        self.streams.spoke(*address[:2], at_broker=True)
        return False

    def _take_over(self, name: str) -> None:
        self._gained.put(name)  # its uploads belong to the thread that handles messages
        self.coordinator.take_over(name)
        self.programs.begin(name)

    def _recover(self) -> None:
        self.coordinator.recover()

    def _tick(self) -> None:
        self._take_uploads_over()
        self._end_revoked_accounts()
        if self._elapsed_s() - self._retained_removed_at >= RETAINED_S:
            self._retained_removed_at = self._elapsed_s()
            self.transport.remove_retained()
        self.coordinator.tick()
        self.coordinator.renew_announcements()
        self.device_messages.tick()
        self.refusals.flush()
        self._retire_daily()
        self.promotion_scheduler.tick()
        self.rollout_scheduler.tick(self.clock())

    def _end_revoked_accounts(self) -> None:
        """End the embedded broker's accounts of devices that another process has revoked or deleted."""
        if not isinstance(self.accounts, LocalAccounts):
            return
        if self._elapsed_s() - self._accounts_checked_at < ACCOUNTS_S:
            return
        self._accounts_checked_at, names = self._elapsed_s(), self.accounts.device_names()
        if names:  # looked up first: who is let in after this is approved by now
            with self.database.read() as session:
                approved = approved_usernames(session)
            for name in set(names) - approved:
                self.accounts.revoke(name)

    def _retire_daily(self) -> None:
        now = self._elapsed_s()
        if now - self._retired_at >= DAY_S and self.clock.was_stable_for(self.settings.gc_grace_s):
            self._retired_at = now
            self._pool.submit(self._retire)

    def _retire(self) -> None:
        try:
            with self.database.write() as session:
                retired = retention.apply(session, self.settings, actor="server")
        except Exception:  # tomorrow is another day
            log.exception("retention failed")
        else:
            log.info("retention done: %s", retired)

    def _handle(self, topic: str, payload: bytes) -> None:
        self._take_uploads_over()
        if self.leadership.leads(topics.federation_of(topic)):
            with MESSAGE_SECONDS.time():
                self.ingest.handle(topic, payload)  # else its leader receives it too

    def _take_uploads_over(self) -> None:
        while not self._gained.empty():
            self.ingest.take_over(self._gained.get())

    def _on_connected(self) -> None:
        self.inbox.put(self.coordinator.on_connected)


def use_one_torch_thread() -> None:
    """Let torch use one thread for what the calling thread computes.

    An update's checks take less time than a pool of threads takes to start on them; idle, such a pool spins.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch settles a thread's number at its first use: now, not after another thread's setting


def _keep_private(folder: Path) -> None:
    if opened := make_private(folder, DATA_DIR_FILES):
        log.warning("permissions tightened entries=%d folder=%s: others could read them", opened, folder)


def _executor_of(settings: Settings, blobs: BlobStore) -> AggregationExecutor:
    if not settings.aggregation_process:
        return InProcessExecutor(blobs)
    attempts = settings.aggregation_attempts
    return WorkerProcessExecutor(settings.blobs, torch_threads=settings.torch_threads, attempts=attempts)
