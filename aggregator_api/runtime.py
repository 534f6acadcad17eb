"""The parts of one server process, put together, started in order and stopped in the opposite one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from aggregator_api import admission
from aggregator_api.accounts import BrokerAccounts, NoAccounts
from aggregator_api.blobs import BlobStore
from aggregator_api.broker_config.dynamic_security import DynamicSecurity
from aggregator_api.coordinator import Coordinator
from aggregator_api.database import Database
from aggregator_api.identity import Identity
from aggregator_api.inbox import Inbox, Message
from aggregator_api.ingest import Ingest
from aggregator_api.mqtt import MqttDriver
from aggregator_api.settings import Settings
from aggregator_api.spool import Spool
from aggregator_api.transport import Connect


class Runtime:
    """Everything between the broker and the disk."""

    def __init__(self, settings: Settings, connect: Connect = MqttDriver) -> None:
        self.settings = settings
        self.database = Database(settings.database)
        self.blobs = BlobStore(settings.blobs)
        self.identity = Identity(settings.identity)
        self.closing = threading.Event()
        """Set once the process is asked to end: endless responses end too."""
        self.transport = connect(settings, self._receive, self._connected)
        self.accounts = _accounts(settings)
        """Where approved devices get their passwords at the broker."""
        # one thread: aggregations follow one another, and torch's thread count belongs to the thread that sets it
        self._aggregation = ThreadPoolExecutor(
            1, "aggregation", initializer=torch.set_num_threads, initargs=(settings.torch_threads,)
        )
        self.coordinator = Coordinator(
            self.database,
            self.blobs,
            self.transport,
            self._aggregation,
            chunk_bytes=settings.chunk_bytes,
            lost_after_s=settings.lost_after_s,
        )
        self._spool = Spool(settings.data_dir.resolve() / "spool")
        self.ingest = Ingest(
            self.database,
            self.blobs,
            self._spool,
            self.coordinator,
            self.transport,
            uploads_per_device=settings.uploads_per_device,
            enrolled_only=settings.enrolled_only,
        )
        self._inbox = Inbox(self.ingest.handle, self.coordinator.tick, settings.inbox_messages)

    def start(self) -> None:
        """Bring the schema up to date, go on where the rows say, and connect."""
        self.database.migrate()
        self.blobs.check()
        if self.settings.enrolled_only:
            with self.database.write() as session:
                admission.close_doors(session)
        self.coordinator.recover()
        self._inbox.start()
        self.transport.start()

    def stop(self) -> None:
        """Take no more messages, finish those at hand, and close; a running aggregation is waited for."""
        self.closing.set()
        self.transport.stop()
        self._inbox.stop()
        self._aggregation.shutdown()
        self.database.close()

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

    def _receive(self, message: Message) -> None:
        self._inbox.put(message)

    def _connected(self) -> None:
        self._inbox.put(self.coordinator.connected)


def _accounts(settings: Settings) -> BrokerAccounts:
    login = settings.broker_admin_login
    return DynamicSecurity(settings.broker_host, settings.broker_port, login) if login else NoAccounts()
