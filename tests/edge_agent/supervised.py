"""A supervisor in the test's own thread, and a thread that plays the world around it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from edge_agent.config.settings import ConditionsSection, TrainingSection
from edge_agent.machine.events import Announced, Connected, Invited
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.conditions.watcher import Conditions
from edge_agent.supervisor.drivers import Message, open_drivers
from edge_agent.supervisor.status import describe_device
from edge_agent.supervisor.supervisor import Supervisor
from federation import wire
from federation.protocol.messages import BlobPointer
from tests.edge_agent.factories import DEVICE, announcement, invitation, make_config, make_plan
from tests.edge_agent.reference import Federation

GOOD = Conditions(charging=True, temperature_c=60.0)

BUSY_S = 8.0
"""What a machine with ten programs in line may add to two seconds; what tests of an end would see takes 15 and more."""


class Machine:
    """Says of itself what the test wants."""

    def __init__(self) -> None:
        self.found = GOOD

    def read(self, training: int | None = None) -> Conditions:
        return self.found

    def close(self) -> None:
        pass


class Director(threading.Thread):
    """Plays the world around a supervisor that runs in the test's own thread, and stops it in the end."""

    def __init__(self, supervisor: Supervisor, play: Callable[[], None]) -> None:
        super().__init__()
        self.supervisor, self.play, self.failure = supervisor, play, None

    failure: BaseException | None

    def run(self) -> None:
        try:
            self.play()
        except BaseException as failure:
            self.failure = failure
        finally:
            self.supervisor.stop()


def until(happened: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def run(supervisor: Supervisor, play: Callable[[], None]) -> None:
    director = Director(supervisor, play)
    director.start()
    supervisor.run()
    director.join()
    if director.failure:
        raise director.failure


class SupervisedDevice:
    """A supervisor whose federation has invited it, with its broadcast on disk, and the machine that it runs on."""

    def __init__(self, folder: Path, epochs: int) -> None:
        plan = make_plan()
        self.plan = plan.model_copy(update={"training": plan.training.model_copy(update={"epochs": epochs})})
        self.folder, self.machine, self.federation = folder, Machine(), Federation(self.plan)
        data = wire.encode(self.federation.broadcast)
        write_file(folder / "blobs" / wire.digest(data), data)
        self.model = BlobPointer(sha256=wire.digest(data), size=len(data), url="/none")
        settings = {
            "conditions": ConditionsSection(),
            "training": TrainingSection(nice=10, memory_mb=1024, retry_s=0.1),
        }
        config, mailbox = make_config(folder).model_copy(update=settings), queue.SimpleQueue[Message]()
        self.post = mailbox.put
        self.drivers = open_drivers(config, self.post, readings=self.machine)
        self.supervisor = Supervisor(config, self.drivers, mailbox)

    def invite(self) -> psutil.Process:
        """Tell the supervisor of round 1, and wait for its training process."""
        self.post(Connected())
        self.post(Invited(invitation(1).model_copy(update={"model": self.model})))
        self.post(Announced(announcement(1, plan=self.plan).model_copy(update={"model": self.model})))
        return psutil.Process(until(lambda: self.drivers.jobs.pid))

    def status_says(self, words: str) -> bool:
        """Whether the status says so, asked as another program asks."""
        store = StateStore(self.folder)
        lines = describe_device(store, DEVICE, running=True)
        store.close()
        return any(words in line for line in lines)

    def status_of_adoption(self, words: str) -> bool:
        """Whether a candidate was judged in those words."""
        store = StateStore(self.folder)
        reasons = [row.reason for row in store.adoptions()]
        store.close()
        return any(words in reason for reason in reasons)
