"""A real Mosquitto, the real server in this process, and agents that run in threads."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy.orm import Session

from aggregator_api.core.settings import load
from aggregator_api.devices import enrolment_tokens
from aggregator_api.federations import service
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from aggregator_api.storage.db.models import DeviceRow, FederationRow
from edge_agent.config.brokers import BrokerSection
from edge_agent.config.settings import Config, ServerSection
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.drivers import Mailbox, open_drivers
from edge_agent.supervisor.status import describe_device
from edge_agent.supervisor.supervisor import Supervisor
from edge_agent.transport.enrolment import Applicant, enrol
from tests.edge_agent.factories import DEVICE, make_config, make_plan
from tests.live.real_parts import Mosquitto
from tests.ports import free_port

FEDERATION = "f"


def until(happened: Callable[[], Any], what: str = "it did not happen", seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


class World:
    """The server over that broker; its federation waits for more devices than there will be."""

    def __init__(self, broker: Mosquitto, folder: Path, **settings: Any) -> None:
        self.broker, self.port = broker, free_port()
        given = load(broker.server_toml, data_dir=folder, port=self.port, aggregation_process=False, **settings)
        self.app = create_app(given)
        self._server = uvicorn.Server(uvicorn.Config(self.app, port=self.port, log_config=None, lifespan="on"))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started)
        plan = make_plan()
        rounds = plan.rounds.model_copy(update={"minimum_clients": 100})
        waits = plan.model_copy(update={"rounds": rounds})
        self.runtime.federations.create(NewFederation(name=FEDERATION, plan=waits))

    @property
    def runtime(self) -> Runtime:
        """The server's parts."""
        runtime = self.app.state.runtime
        assert isinstance(runtime, Runtime)
        return runtime

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join()
        gc.collect()  # sockets whose handshake failed, which paho lets go of without closing them

    def config(self, folder: Path, device: str, federation: str = FEDERATION, **broker: Any) -> Config:
        """Return a device's config."""
        plain = make_config(folder)
        agent = plain.agent.model_copy(update={"device": device, "federation": federation})
        section = BrokerSection(
            **{"host": "127.0.0.1", "port": self.broker.port, "tls": True, "ca_file": self.broker.ca, **broker}
        )
        parts = {"server": ServerSection(url=self.url), "broker": section}
        sensors = plain.sensors.model_copy(update={"client": DEVICE})
        return plain.model_copy(update={"agent": agent, "sensors": sensors, **parts})

    def enrolled_row(self, session: Session, federation: FederationRow, device: str) -> DeviceRow:
        """Write the row of a device that is approved, and was heard long ago."""
        row = DeviceRow(federation_id=federation.id, name=device, state="offline", examples=0, detail="")
        row.enrolled_at = row.seen_at = 0.0
        row.enrolment = "approved"
        session.add(row)
        return row

    def enrolled(self, folder: Path, device: str) -> Config:
        """Enrol a device, whose operator has approved it."""
        with self.runtime.database.write() as session:
            row = service.get_federation(session, FEDERATION)
            key = self.runtime.identity.public_key
            new = enrolment_tokens.NewToken(device=device, auto_approve=True, lifetime_s=60)
            _, token = enrolment_tokens.make(session, row, new, key)
        config = self.config(folder, device)
        enrol(Applicant.of(config), token)
        return config


class Agent:
    """An agent in a thread, and what it says of itself."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._made = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._made.wait(60)

    def _run(self) -> None:
        mailbox: Mailbox = queue.SimpleQueue()
        self.drivers = open_drivers(self.config, mailbox.put)  # here: SQLite's connection belongs to a thread
        self.supervisor = Supervisor(self.config, self.drivers, mailbox)
        self._made.set()
        self.supervisor.run()

    @property
    def stop_reason(self) -> str:
        """Why the server has told it to stop; empty if it has not."""
        return self.drivers.link.stop_reason

    @property
    def connected(self) -> bool:
        """Whether the broker has taken it."""
        return self.supervisor.agent.connected

    def says(self, words: str) -> bool:
        """Whether its status says so, asked as another program asks."""
        store = StateStore(self.config.agent.data_dir)
        try:
            return any(words in line for line in describe_device(store, self.config.agent.device, running=True))
        finally:
            store.close()

    def stop(self) -> None:
        """End it in order."""
        self.supervisor.stop()
        self._thread.join()


@contextmanager
def agent(config: Config) -> Iterator[Agent]:
    """Run an agent."""
    started = Agent(config)
    try:
        yield started
    finally:
        started.stop()
