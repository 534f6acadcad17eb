"""What devices have measured of rounds, in short: over all devices, over the worst, and class by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from aggregator_api.storage.db.models import FederationRow, MetricRow, ScoreRow
from federation.plan import Plan
from federation.protocol.messages import class_score_names
from federation.tasks import task_from_json
from gaitway.tasks import Metric


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


def round_scores(session: Session, federation: FederationRow, numbers: Sequence[int]) -> dict[int, RoundScore]:
    """Return the scores of those rounds that any device has measured, by their numbers."""
    plan = Plan.model_validate(federation.plan)
    metric, kind = metric_of(plan)
    name, classes = f"{metric}_after", class_score_names(len(plan.labels))
    row, connection = ScoreRow, session.connection()
    query = select(row.round_number, row.name, row.devices, row.total, row.squares).where(
        row.federation_id == federation.id, row.round_number.in_(numbers), row.devices > 0
    )
    found = connection.execute(query.where(row.name.in_([name, *classes])))
    sums = {(number, of): (devices, total, squares) for number, of, devices, total, squares in found}
    means = {key: total / devices for key, (devices, total, _) in sums.items()}
    scores = {}
    for number in numbers:
        if (number, name) not in sums:
            continue
        devices, _, squares = sums[number, name]
        mean, tenth = means[number, name], max(1, devices // 10)
        wanted = {"federation": federation.id, "number": number, "name": name, "tenth": tenth}
        worst, lowest, highest = connection.execute(_EXTREMES[kind.higher_is_better], wanted).one()
        spread = math.sqrt(max(0.0, squares / devices - mean * mean))
        of_classes = tuple(means.get((number, of)) for of in classes)
        scores[number] = RoundScore(devices, mean, worst, spread, of_classes, lowest, highest)
    return scores


def _extremes(lowest_first: bool) -> Select[Any]:
    """Select the mean of the worst tenth, the lowest and the highest value of a figure; an index has them in order."""
    value = MetricRow.value
    wanted = (
        MetricRow.federation_id == bindparam("federation"),
        MetricRow.round_number == bindparam("number"),
        MetricRow.name == bindparam("name"),
    )
    ordered = select(value).where(*wanted).order_by(value if lowest_first else value.desc())
    worst = ordered.limit(bindparam("tenth")).subquery()
    return select(
        select(func.avg(worst.c.value)).scalar_subquery(),
        select(func.min(value)).where(*wanted).scalar_subquery(),
        select(func.max(value)).where(*wanted).scalar_subquery(),
    )


_EXTREMES = {lowest_first: _extremes(lowest_first) for lowest_first in (True, False)}
