"""What devices have measured of each round's models, in short: over all of them, over the worst, and class by class.

A device reports the figures of its task under the task's own names, `{metric}_before` of the model that it received and
`{metric}_after` of the one that it trained, and `class_{k}_after` for each class k.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from statistics import fmean
from threading import Lock
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from aggregator_api.api.time_budget import TimeBudget
from aggregator_api.db import repositories
from aggregator_api.db.models import FederationRow, MetricRow
from federation.plan import Plan
from federation.protocol.messages import class_score_names
from federation.tasks import task_from_json
from gaitway.tasks import Metric

MAX_REMEMBERED = 2_000
STILL_OPEN = 2
"""Updates that come late are counted for a round until so many later ones have begun."""


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
    return RoundScore(len(values), mean, fmean(worst), spread, classes)
