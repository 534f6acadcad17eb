"""Opens everything that the supervisor drives from a config, and wires the parts.

A driver does its work on threads of its own, and says what comes of it by `post`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from edge_agent.config.settings import Config
from edge_agent.machine.events import Event
from edge_agent.sensors import SensorSource, open_source
from edge_agent.serving.classifier import Classifier
from edge_agent.storage.credentials import manifest_signer, read_credentials, status_signer
from edge_agent.storage.data_folder import lock_folder
from edge_agent.storage.database import LockPatience
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.background_tasks import BackgroundTasks, Evaluated
from edge_agent.supervisor.conditions.readings import Readings
from edge_agent.supervisor.conditions.watcher import ConditionWatcher, Reader
from edge_agent.training.job import JobEnded, JobLine, JobRunner
from edge_agent.transport.chunk_sender import UploadSender
from edge_agent.transport.fallback_link import FallbackLink, open_link
from edge_agent.transport.home_assistant import HomeAssistant
from edge_agent.transport.link import Link, LinkEvent
from edge_agent.transport.renewal import CredentialRenewal
from edge_agent.transport.trust import Trust
from federation.protocol.messages import DeviceStatus


@dataclass(frozen=True)
class Stop:
    """Someone wants the program to end."""


Message = Event | LinkEvent | JobLine | JobEnded | Evaluated | Stop
Mailbox = queue.SimpleQueue[Message]


@dataclass(frozen=True)
class Drivers:
    """One device's parts; `lock` holds its data folder for this process."""

    store: StateStore
    lock: IO[str]
    trust: Trust
    link: Link | FallbackLink
    uploads: UploadSender
    sensors: SensorSource
    conditions: ConditionWatcher
    classifier: Classifier
    jobs: JobRunner
    background: BackgroundTasks
    service_manager: ServiceManager
    home: HomeAssistant | None
    lock_patience: LockPatience
    signed_status: Callable[[DeviceStatus], DeviceStatus]

    def close(self) -> None:
        """Close the database, and let others have the data folder."""
        self.store.close()
        self.lock.close()


def open_drivers(
    config: Config,
    post: Callable[[Message], None],
    *,
    readings: Reader | None = None,
    service_manager: ServiceManager | None = None,
) -> Drivers:
    """Open a device's parts; nothing is started. `readings`: of its conditions, else those of this machine.

    Raises:
        AgentError: if the data folder is another device's or in use, or something in it is damaged.
    """
    me, folder = config.agent, config.agent.data_dir
    manager = service_manager or ServiceManager()
    store, patience = StateStore(folder), LockPatience(manager.alive)
    store.wait_by(patience)
    lock = lock_folder(store, me)
    known = read_credentials(folder)
    trust = Trust(me.federation, me.device, known.server_key_bytes if known else None)
    renewal = CredentialRenewal(config)
    in_flight = config.uploads.in_flight
    link = open_link(config, renewal, post=post, verify=trust.open)
    jobs = JobRunner(config.training.timeout_s, post)
    reader = readings or Readings(config.conditions, folder)
    return Drivers(
        store=store,
        lock=lock,
        trust=trust,
        link=link,
        uploads=UploadSender(store, link, in_flight, manifest_signer(folder, me.federation, me.device)),
        sensors=open_source(config, post),
        conditions=ConditionWatcher(config.conditions, reader, lambda: jobs.pid, post),
        classifier=Classifier(folder),
        jobs=jobs,
        background=BackgroundTasks(config, renewal, post),
        service_manager=manager,
        home=HomeAssistant(config.home_assistant, me.device, me.federation) if config.home_assistant.host else None,
        lock_patience=patience,
        signed_status=status_signer(folder, me.federation, me.device),
    )


class ServiceManager:
    """The other end of NOTIFY_SOCKET; every call returns at once, also where nobody listens."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._every_s = _watchdog_s(environment) / 3
        self._alive_at = 0.0
        self._status = ""

    def ready(self) -> None:
        """Say that the agent works."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Say that the agent ends in order."""
        self._send("STOPPING=1")

    def alive(self, status: str = "") -> None:
        """Say so three times per watchdog interval, and what the agent is doing when that has changed."""
        now = time.monotonic()
        if self._every_s and now - self._alive_at >= self._every_s:
            self._alive_at = now
            self._send("WATCHDOG=1")
        if status and status != self._status:
            self._status = status
            self._send(f"STATUS={status.splitlines()[0]}")

    def _send(self, text: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # a name that begins with @ is in Linux's abstract namespace
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(text.encode(), address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the interval that the unit asks for; 0 without one, or where it is another process's."""
    try:
        is_ours = int(environment.get("WATCHDOG_PID", os.getpid())) == os.getpid()
        return int(environment.get("WATCHDOG_USEC", 0)) / 1e6 if is_ours else 0.0
    except ValueError:
        return 0.0
