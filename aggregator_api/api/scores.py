"""What devices have measured of rounds and versions, in short, remembered from one request to the next.

Of a round: over all devices, over the worst, and class by class. A device reports the figures of its task under the
task's own names, `{metric}_before` of the model that it received and `{metric}_after` of the one that it trained, and
`class_{k}_after` for each class k.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from threading import Lock
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from aggregator_api.db import repositories
from aggregator_api.db.event_kinds import EVENT_KINDS
from aggregator_api.db.models import EventRow, FederationRow, MetricRow, ModelVersionRow, RoundRow
from aggregator_api.rollouts import adoptions
from federation.plan import Plan
from federation.protocol.messages import VersionScore, class_score_names
from federation.tasks import task_from_json
from gaitway.tasks import Metric

MAX_REMEMBERED = 2_000
STILL_OPEN = 2
"""Updates that come late are counted for a round until so many later ones have begun."""
REPORTS = frozenset(kind for kind, entry in EVENT_KINDS.items() if entry.brings_scores)
MAX_FEDERATIONS = 64
MAX_VERSIONS = 2_000
"""Of one federation; past it all are forgotten, and those that are asked for are made anew."""


class TimeBudget:
    """Seconds of processor time that one answer may spend on what is remembered from then on; see `is_spent`.

    It is the time of the thread that asks first. One piece of work is always begun: whoever asks again gets on, piece
    by piece.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None
        self.is_spent = False

    def allows(self) -> bool:
        """Whether another piece may be made; asked before each."""
        now = time.thread_time()
        if self._end is None:
            self._end = now + self._seconds
            return True
        self.is_spent = self.is_spent or now >= self._end
        return not self.is_spent


class RoundScore(NamedTuple):
    """A metric over the devices that measured it in one round, of the models that they trained in it."""

    devices: int
    mean: float
    worst_tenth: float
    """Mean of the worst tenth of the devices, ⌊K/10⌋, one at least."""
    spread: float
    """Standard deviation over the devices."""
    classes: tuple[float | None, ...]
    """Mean score of each class; None where no device has it."""
    lowest: float
    highest: float


def metric_of(plan: Plan) -> tuple[str, Metric]:
    """Return the name and the words of what a federation is scored by."""
    task = task_from_json(plan.task)
    return task.primary_metric, task.metric_kinds[task.primary_metric]


def class_metric_of(plan: Plan) -> Metric | None:
    """Return the words for the score of one class."""
    return task_from_json(plan.task).class_metric


class RoundScores:
    """Scores by round, computed anew only for rounds for which more was reported since."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, int], tuple[int | None, RoundScore | None]] = OrderedDict()
        """By a federation's instance and a round: how many figures it was made of (None: no more can come), and it."""

    def of(
        self,
        session: Session,
        federation: FederationRow,
        numbers: Sequence[int],
        allowance: TimeBudget | None = None,
    ) -> dict[int, RoundScore]:
        """Return the scores of those rounds that any device has measured; past the allowance none are made."""
        settled = repositories.last_number(session, federation) - STILL_OPEN
        with self._lock:
            known = {n: self._known[key] for n in numbers if (key := (federation.instance, n)) in self._known}
        counts = _reported(session, federation, [n for n in numbers if n > settled])
        wanted = [n for n in numbers if n not in known or known[n][0] not in (None, counts.get(n, 0))]
        made: dict[int, RoundScore | None] = {}
        for number in sorted(wanted, reverse=True):
            if allowance is not None and not allowance.allows():
                break
            made[number] = _scores(session, federation, [number]).get(number)
        with self._lock:
            for number, score in made.items():
                counted = None if number <= settled else counts.get(number, 0)
                known[number] = self._known[federation.instance, number] = (counted, score)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return {number: score for number, (_, score) in known.items() if score is not None}


def _reported(session: Session, federation: FederationRow, numbers: Sequence[int]) -> dict[int, int]:
    """Count the figures that devices have reported of each round, each of which comes once."""
    mine = MetricRow.federation_id == federation.id, MetricRow.round_number.in_(numbers)
    query = select(MetricRow.round_number, func.count().label("figures")).where(*mine)
    found = session.connection().execute(query.group_by(MetricRow.round_number)) if numbers else ()
    return {row.round_number: row.figures for row in found}


def _scores(session: Session, federation: FederationRow, numbers: Sequence[int]) -> dict[int, RoundScore]:
    if not numbers:
        return {}
    plan = Plan.model_validate(federation.plan)
    name, metric = metric_of(plan)
    reported = select(MetricRow.round_number, MetricRow.value)
    values: defaultdict[int, list[float]] = defaultdict(list)
    for number, value in session.connection().execute(reported.where(*_named(federation, numbers, [f"{name}_after"]))):
        values[number].append(value)
    # the worst tenth needs every device's figure; of the classes, which are many more, the database makes the means
    classes = class_score_names(len(plan.labels))
    averaged = select(MetricRow.round_number, MetricRow.name, func.avg(MetricRow.value))
    averaged = averaged.where(*_named(federation, numbers, classes))
    found = session.connection().execute(averaged.group_by(MetricRow.round_number, MetricRow.name))
    means = {(number, which): mean for number, which, mean in found}
    return {
        number: _summary(each, tuple(means.get((number, one)) for one in classes), worst_first=metric.higher_is_better)
        for number, each in values.items()
    }


def _named(federation: FederationRow, numbers: Sequence[int], names: Sequence[str]) -> list[ColumnElement[bool]]:
    of_rounds = MetricRow.federation_id == federation.id, MetricRow.round_number.in_(numbers)
    return [*of_rounds, MetricRow.name.in_(names)]


def _summary(values: list[float], classes: tuple[float | None, ...], *, worst_first: bool) -> RoundScore:
    worst = sorted(values, reverse=not worst_first)[: max(1, len(values) // 10)]
    mean = fmean(values)
    # `pstdev` computes in fractions, which takes fifty times as long for ten thousand devices
    spread = math.sqrt(fmean((value - mean) ** 2 for value in values))
    return RoundScore(len(values), mean, fmean(worst), spread, classes, min(values), max(values))


@dataclass
class _FederationScores:
    """A federation's scores (None: nobody measured it) as they were at an event of its journal."""

    event: int
    scores: dict[int, VersionScore | None] = field(default_factory=dict)


class VersionScores:
    """What `adoptions.scores_of` returns, computed anew only for versions of which more was reported since."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[str, _FederationScores] = OrderedDict()  # by a federation's instance

    def of(
        self,
        session: Session,
        federation: FederationRow,
        versions: Sequence[int],
        allowance: TimeBudget | None = None,
    ) -> dict[int, VersionScore]:
        """Return the scores of versions, by their ids; none of those that nobody measured, or past the allowance."""
        with self._lock:
            newest = repositories.last_event(session, federation)
            known = self._read_on(session, federation, newest)
            found: dict[int, VersionScore | None]
            found = {one: known.scores[one] for one in versions if one in known.scores}
        made: dict[int, VersionScore | None] = {}
        for one in versions:
            if one in found:
                continue
            if allowance is not None and not allowance.allows():
                break
            made[one] = adoptions.scores_of(session, federation, [one]).get(one)
        found |= made
        with self._lock:
            if known.event == newest:  # else another session has read on further, and sees more than this one
                known.scores.update(made)
        return {one: score for one, score in found.items() if score is not None}

    def _read_on(self, session: Session, federation: FederationRow, newest: int) -> _FederationScores:
        known = self._known.get(federation.instance)
        if known is None or len(known.scores) > MAX_VERSIONS:
            known = self._known[federation.instance] = _FederationScores(newest)
        elif newest > known.event:
            for version in _changed(session, federation, known.event, newest):
                known.scores.pop(version, None)
            known.event = newest
        self._known.move_to_end(federation.instance)
        while len(self._known) > MAX_FEDERATIONS:
            self._known.popitem(last=False)
        return known


def _changed(session: Session, federation: FederationRow, after: int, newest: int) -> set[int]:
    """Return the versions of which anything was reported, or deleted, between two events."""
    query = select(EventRow.round_number, EventRow.kind).distinct()
    query = query.where(EventRow.federation_id == federation.id, EventRow.id > after, EventRow.id <= newest)
    found = session.execute(query.where(EventRow.kind.in_((*REPORTS, "device.deleted")))).all()
    made = select(ModelVersionRow.id).where(ModelVersionRow.federation_id == federation.id)
    begun = select(RoundRow.base_version_id).where(RoundRow.federation_id == federation.id)
    if all(row.kind != "device.deleted" for row in found):  # it may have measured any of them
        numbers = {row.round_number for row in found}
        made, begun = made.where(ModelVersionRow.round_number.in_(numbers)), begun.where(RoundRow.number.in_(numbers))
    return {*session.scalars(made), *session.scalars(begun)}
