"""Several server processes on one PostgreSQL: each federation is driven by one of them, which holds its lease.

The holder alone listens to the federation's devices, so the chunks of an update meet in one process; it alone
announces and aggregates. Every process answers REST: what it changes it writes into the rows, and nudges the holder,
which goes on from them. Rows stay right whoever writes them, because writers come one after the other.

If a holder dies, its leases run out, and another process reads back where the rows say that the rounds stand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.cluster.leases import Leases
from aggregator_api.observability.failure_log import failures
from aggregator_api.rounds.coordinator import Coordinator
from federation.logs import about
from federation.rounds.server_round import Action

log = logging.getLogger(__name__)

LOOK_S = 0.5
RENEWALS = 4
"""A lease is renewed so many times before it would run out."""


class Leadership:
    """Takes and renews leases in a thread of its own, and says what was gained, lost or nudged.

    `fit`: whether this process could do the work now; one that could not lets its leases run out. The callbacks run
    on that thread, with no lock held.
    """

    def __init__(
        self,
        leases: Leases,
        lease_s: float,
        *,
        fit: Callable[[], bool],
        gained: Callable[[str], None],
        nudged: Callable[[str], None],
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._leases, self._lease_s, self._fit = leases, lease_s, fit
        self._gained, self._nudged, self._changed = gained, nudged, changed
        self._seen: dict[str, int] = {}
        self._until = 0.0
        self._renew_at = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="leases", daemon=True)

    def leads(self, name: str) -> bool:
        """Whether this process holds the federation's lease, by a clock that is behind the database's."""
        return name in self._seen and time.monotonic() < self._until

    @property
    def led(self) -> frozenset[str]:
        """The federations that this process drives now."""
        return frozenset(name for name in self._seen if self.leads(name))

    def start(self) -> None:
        """Take what is free now, and go on in the background."""
        self._guarded(self.turn)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; `release` lets others go on at once."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def release(self) -> None:
        """Give every lease back."""
        self._seen = {}
        self._guarded(self._leases.release)

    def nudge(self, name: str) -> None:
        """Have a change acted on: by this process if the federation is free, else by the one that holds it."""
        self._leases.nudge(name)
        self._wake.set()

    def turn(self) -> None:
        """Look at the rows once; renew and take if it is time, or if some are free."""
        if not self._fit():
            self._expire()
            return
        look = self._leases.look()
        if look.some_free or time.monotonic() >= self._renew_at:
            self._take()
        else:
            self._tell(look.nudges)

    def _take(self) -> None:
        asked = time.monotonic()
        held = self._leases.take()
        self._until, self._renew_at = asked + self._lease_s, asked + self._lease_s / RENEWALS
        self._tell(held)

    def _tell(self, held: dict[str, int]) -> None:
        before, self._seen = self._seen, held
        if before.keys() != held.keys():
            self._changed(frozenset(held))
        for name in held.keys() - before.keys():
            log.info("leading", extra=about(federation=name))
            self._gained(name)
        for name in held.keys() & before.keys():
            if held[name] != before[name]:
                self._nudged(name)
        for name in before.keys() - held.keys():
            log.warning("no longer leading", extra=about(federation=name))

    def _expire(self) -> None:
        if self._seen and time.monotonic() >= self._until:
            self._tell({})

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            self._guarded(self.turn)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except SQLAlchemyError as error:
            failures.report("leases cannot be read", error)  # they run out unless the database comes back in time
            self._expire()
        except Exception:
            log.exception("a federation could not be taken over")


class LedCoordinator(Coordinator):
    """A coordinator of those federations that its process leads; for the others it nudges who leads them."""

    def __init__(
        self, *parts: Any, leads: Callable[[str], bool], nudge: Callable[[str], None], **settings: Any
    ) -> None:
        super().__init__(*parts, **settings)
        self._leads, self._nudge = leads, nudge

    def leads(self, name: str) -> bool:
        """Whether this process holds the federation's lease."""
        return self._leads(name)

    def take_over(self, name: str) -> None:
        """Go on where the rows of a federation stand; its devices get time again to say where they are."""
        self._listening_since = self._clock()
        self.roll_call.begin(name)
        self.recover_one(name)

    def act(self, name: str, actions: Iterable[Action]) -> None:
        """Do what a committed transition asks for, or let it be done."""
        if self.leads(name):
            super().act(name, actions)
        else:
            self._nudge(name)

    def go_on(self, name: str) -> None:
        """Open the next round and say where we are, or let it be done."""
        if self.leads(name):
            super().go_on(name)
        else:
            self._nudge(name)

    def announce(self, name: str) -> None:
        """Say where the federation stands, or let it be said."""
        if self.leads(name):
            super().announce(name)
        else:
            self._nudge(name)

    def devices_changed(self, name: str) -> None:
        """Open the next round if it waited for devices, in the process that hears them."""
        if self.leads(name):
            super().devices_changed(name)
