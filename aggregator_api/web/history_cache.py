"""What the pages remember of rounds and versions, and the thread that has it ready before anybody looks.

A score over 10,000 devices takes a tenth of a second to make, and a page shows dozens. So each is made once, when its
round has ended, or after the start; a page then makes only what has changed since. A page that is asked for sooner
makes a few of them, and shows the others when it is refreshed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.api.round_history import PhaseTimes, RoundCosts, latest_rounds
from aggregator_api.api.scores import RoundScore, RoundScores, TimeBudget, VersionScores
from aggregator_api.db.database import Database
from aggregator_api.db.models import FederationRow, ModelVersionRow
from federation.protocol.messages import VersionScore
from gaitway.threads import SupervisedThread

log = logging.getLogger(__name__)

CHART_ROUNDS = 60
LISTED_VERSIONS = 100
MAX_FEDERATIONS = 64
"""That are prepared, the newest; the pages of others make what they show when they are asked for."""
PERIOD_S = 10.0
TIME_BUDGET_S = 0.05
"""Processor time of one request for scores that are not remembered; a page of 10,000 devices is to stay under 0.3 s."""


@dataclass(frozen=True)
class HistoryCache:
    """What is remembered of rounds that have ended, for all pages of this process."""

    scores: RoundScores = field(default_factory=RoundScores)
    versions: VersionScores = field(default_factory=VersionScores)
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    costs: RoundCosts = field(default_factory=RoundCosts)


class HistoryReader:
    """One request's view of the histories: what is not remembered it makes within `TIME_BUDGET_S`, the newest first."""

    def __init__(self, cache: HistoryCache) -> None:
        self.cache, self._allowance = cache, TimeBudget(TIME_BUDGET_S)
        self._scores: dict[tuple[int, int], RoundScore | None] = {}  # by federation and round: counted once a request

    @property
    def is_unfinished(self) -> bool:
        """Whether something was left out; who asks again sees more of it."""
        return self._allowance.is_spent

    def scores(self, session: Session, federation: FederationRow, numbers: Sequence[int]) -> dict[int, RoundScore]:
        """Return the scores of rounds, by their numbers."""
        wanted = [n for n in numbers if (federation.id, n) not in self._scores]
        found = self.cache.scores.of(session, federation, wanted, self._allowance) if wanted else {}
        self._scores |= {(federation.id, n): found.get(n) for n in wanted}
        return {n: score for n in numbers if (score := self._scores[federation.id, n]) is not None}

    def versions(self, session: Session, federation: FederationRow, ids: Sequence[int]) -> dict[int, VersionScore]:
        """Return the scores of versions, by their ids."""
        return self.cache.versions.of(session, federation, ids, self._allowance)


def history_reader(request: Request) -> HistoryReader:
    """Return the request's reader, the same however often it is asked for."""
    found: HistoryReader | None = getattr(request.state, "history_reader", None)
    if found is None:
        found = request.state.history_reader = HistoryReader(request.app.state.histories)
    return found


class HistoryPrefetcher:
    """Makes the scores of rounds that have ended and of their versions, one after the other, on a thread."""

    def __init__(self, database: Database, histories: HistoryCache, closing: threading.Event) -> None:
        """Prepare nothing yet; it also ends when `closing` is set, which is when the server ends."""
        self._database, self._histories, self._closing = database, histories, closing
        self._stopped = threading.Event()
        self._last: dict[str, int] = {}  # a federation's instance -> its last ended round when it was looked at
        self._thread = SupervisedThread("pages", self._work)

    def start(self) -> None:
        """Begin with what is there, and look for ended rounds from then on."""
        self._thread.start()

    def stop(self) -> None:
        """End after the score that is being made."""
        self._stopped.set()
        self._thread.join()

    def prepare(self) -> None:
        """Make what is missing, of each federation in which a round has ended since it was last looked at."""
        with self._database.read() as session:
            newest = select(FederationRow.id).order_by(FederationRow.id.desc()).limit(MAX_FEDERATIONS)
            federations = session.scalars(newest).all()
        for federation in federations:
            self._federation(federation)

    def _work(self) -> None:
        while not self._ends():
            try:
                self.prepare()
            except SQLAlchemyError as error:  # the pages make then what they show, or say that there is no database
                log.debug("scores not prefetched: %s", error)
            self._stopped.wait(PERIOD_S)

    def _ends(self) -> bool:
        return self._stopped.is_set() or self._closing.is_set()

    def _federation(self, id_: int) -> None:
        with self._database.read() as session:
            row = session.get(FederationRow, id_)
            rounds = [each for each in latest_rounds(session, row, CHART_ROUNDS) if each.closed_at] if row else []
            if row is None or not rounds or self._last.get(row.instance) == rounds[-1].number:
                return
            instance, numbers = row.instance, [each.number for each in rounds]
            self._histories.phases.spans(session, row, [])  # the journal is read up to now
            self._histories.costs.of(session, row, rounds)
            made = select(ModelVersionRow.id).where(ModelVersionRow.federation_id == id_)
            versions = session.scalars(made.order_by(ModelVersionRow.id.desc()).limit(LISTED_VERSIONS)).all()
        for number in reversed(numbers):
            self._make(id_, number=number)
        for version in versions:
            self._make(id_, version=version)
        if not self._ends():
            self._last[instance] = numbers[-1]

    def _make(self, federation: int, *, number: int | None = None, version: int | None = None) -> None:
        """Make one score in a session of its own, and leave as much time again to others."""
        if self._ends():
            return
        begin = time.monotonic()
        with self._database.read() as session:
            row = session.get(FederationRow, federation)
            if row is None:
                return
            if number is not None:
                self._histories.scores.of(session, row, [number])
            if version is not None:
                self._histories.versions.of(session, row, [version])
        self._stopped.wait(time.monotonic() - begin)
