"""Watches the conditions for training in a thread of its own, and posts what has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from edge_agent.config.training import ConditionsSection
from edge_agent.machine.events import PhoneConditions, TrainingConditions
from edge_agent.supervisor.conditions.policy import Blocker, Conditions, continue_blockers, start_blockers, with_phone
from gaitway.threads import SupervisedThread

READ_EVERY_S = 0.5
"""A quarter of the two seconds within which training must end."""
REPEAT_S = 30.0
"""The numbers in an objection change all the time; whoever reads the status need not see each of them."""


class Reader(Protocol):
    """What reads the machine."""

    def read(self, training: int | None = None) -> Conditions:
        """Read what can be read; `training` is the id of the training process."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class ConditionWatcher:
    """`post` is called at the start, whenever an objection comes or goes, and now and then while there are some."""

    def __init__(
        self,
        settings: ConditionsSection,
        reader: Reader,
        training: Callable[[], int | None],
        post: Callable[[TrainingConditions], None],
    ) -> None:
        self._settings, self._reader, self._training, self._post = settings, reader, training, post
        self._phone: tuple[PhoneConditions, float] | None = None
        self._said: tuple[object, TrainingConditions, float] | None = None
        self._stopping = threading.Event()
        self._thread = SupervisedThread("conditions", self._run)

    def start(self) -> None:
        """Look once, so that nothing begins unexamined, then go on in a thread."""
        self.check()
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._reader.close()

    def update_phone(self, phone: PhoneConditions) -> None:
        """Take a phone's word about itself."""
        if self._settings.phone:
            self._phone = (phone, time.monotonic())

    def check(self) -> None:
        """Read, and post what has changed."""
        found = self._read()
        start, to_continue = start_blockers(found, self._settings), continue_blockers(found, self._settings)
        which = tuple(objection.condition for objection in (*start, *to_continue)), len(start)
        event, now = TrainingConditions(_texts(start), _texts(to_continue)), time.monotonic()
        if self._said is not None:
            said_which, event_before, at = self._said
            if said_which == which and (event_before == event or now - at < REPEAT_S):
                return
        self._said = (which, event, now)
        self._post(event)

    def _read(self) -> Conditions:
        found = self._reader.read(self._training())
        if self._phone is None:
            return found
        phone, at = self._phone
        return with_phone(found, phone, time.monotonic() - at)

    def _run(self) -> None:
        while not self._stopping.wait(READ_EVERY_S):
            self.check()


def _texts(objections: tuple[Blocker, ...]) -> tuple[str, ...]:
    return tuple(objection.text for objection in objections)
