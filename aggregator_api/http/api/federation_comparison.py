"""Several federations side by side: scores over rounds, class by class, and paired over the devices that they share.

What is compared are the scores of devices' own models, on their own holdouts. A device counts as the same in two
federations if it has the same name there; what it holds may differ all the same, which the page says.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.http.api.scores import RoundScore, class_metric_of, metric_of
from aggregator_api.storage.db.models import DeviceRow, FederationRow, MetricRow
from federation.plan import Plan
from gaitway.tasks import Metric

MAX_COMPARED = 4
MIN_PAIRS = 2
"""Fewer pairs have no interval."""


class ComparedFederation(NamedTuple):
    """One federation: its scores by round, and those of its last scored round."""

    name: str
    plan: Plan
    status: str
    metric: Metric
    class_metric: Metric | None
    scores: dict[int, RoundScore]
    last_round: int

    @property
    def last(self) -> RoundScore | None:
        """The last scored round's score."""
        return self.scores.get(self.last_round)

    @property
    def classes(self) -> dict[str, float | None]:
        """The last scored round's mean of each class, by its label."""
        return dict(zip(self.plan.labels, self.last.classes, strict=False)) if self.last else {}


class PairedDifference(NamedTuple):
    """A federation against the first one, over the devices that measured their own models in both last rounds."""

    name: str
    pairs: int
    gain: float | None
    """Mean of the devices' gains; above 0: it is better than the first."""
    half_width: float | None
    """Of the 95 % interval around it, by Student's t."""
    better: int
    worse: int

    @property
    def is_more_than_chance(self) -> bool:
        """Whether 0 lies outside of the interval."""
        return self.gain is not None and self.half_width is not None and abs(self.gain) > self.half_width


def compared(row: FederationRow, scores: dict[int, RoundScore]) -> ComparedFederation:
    """Put a federation's scores, by their rounds' numbers, beside what they are measured in."""
    plan = Plan.model_validate(row.plan)
    metric, of_class = metric_of(plan)[1], class_metric_of(plan)
    return ComparedFederation(row.name, plan, row.status, metric, of_class, scores, max(scores, default=0))


def paired(session: Session, row: FederationRow, number: int, other: FederationRow, base: int) -> PairedDifference:
    """Pair what devices measured in a round of a federation with what they measured in a round of another."""
    name, metric = metric_of(Plan.model_validate(row.plan))
    own, theirs = (_by_device(session, *which, f"{name}_after") for which in ((row, number), (other, base)))
    gains = [metric.gain(own[device], theirs[device]) for device in sorted(own.keys() & theirs.keys())]
    mean, half = (fmean(gains) if gains else None), None
    if len(gains) >= MIN_PAIRS:
        half = _student(len(gains) - 1) * stdev(gains) / math.sqrt(len(gains))
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return PairedDifference(row.name, len(gains), mean, half, better, worse)


def _by_device(session: Session, row: FederationRow, number: int, figure: str) -> dict[str, float]:
    query = select(DeviceRow.name, MetricRow.value).join(DeviceRow, DeviceRow.id == MetricRow.device_id)
    query = query.where(MetricRow.federation_id == row.id, MetricRow.round_number == number, MetricRow.name == figure)
    return {row.name: row.value for row in session.connection().execute(query)}


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.stats import t  # half a second, which only this page needs

    return float(t.ppf(0.975, freedom))
