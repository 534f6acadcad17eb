"""Compares federations with each other, and a version with the one that it would replace.

Several federations side by side: scores over rounds, class by class, and paired over the devices that they share.
What is compared are the scores of devices' own models, on their own holdouts. A device counts as the same in two
federations if it has the same name there; what it holds may differ all the same, which the page says.

How one model version differs from another: what devices measured of both, what each was made of, what was changed.
Device by device only scores of the versions themselves are compared. No device reports a version's score class by
class: those are of the models that devices had trained in the round that made it, and are called so.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.http.queries.rounds import RoundScore, class_metric_of, metric_of, round_scores
from aggregator_api.rollouts import measures
from aggregator_api.rollouts.measures import DevicePair
from aggregator_api.storage.db.models import (
    DeviceRow,
    EventRow,
    FederationRow,
    MetricRow,
    ModelVersionRow,
    RoundRow,
    UpdateRow,
)
from federation.plan import Plan
from federation.rounds.promotion import VersionComparison
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
    """Return a federation's scores by round, with their metrics."""
    plan = row.parsed_plan
    metric, of_class = metric_of(plan)[1], class_metric_of(plan)
    return ComparedFederation(row.name, plan, row.status, metric, of_class, scores, max(scores, default=0))


def paired(session: Session, row: FederationRow, number: int, other: FederationRow, base: int) -> PairedDifference:
    """Pair devices' scores in rounds of two federations."""
    name, metric = metric_of(row.parsed_plan)
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


MAX_PAIRS = 50
"""Devices that are listed, those that lose most first."""
MAX_CHANGES = 20


class VersionSource(NamedTuple):
    """What a version was made of: its round, from which version, of how many devices' updates and examples."""

    version: int
    round_number: int
    base: int | None
    devices: int
    examples: int | None
    score: RoundScore | None
    """Of the models that devices had trained in that round, on their own holdouts."""


class ClassPair(NamedTuple):
    """What devices had learnt of a class in the round that made the version, and in that of the other."""

    label: str
    score: float | None
    other: float | None


class SettingsChange(NamedTuple):
    """A change of the federation's settings between the two versions."""

    at: float
    words: str


class VersionDifference(NamedTuple):
    """A version compared with the current one; without one, all comparisons are empty."""

    new: VersionSource
    old: VersionSource | None
    compared: VersionComparison
    devices: list[DevicePair]
    classes: list[ClassPair]
    changes: list[SettingsChange]


def difference(
    session: Session, federation: FederationRow, new: ModelVersionRow, old: ModelVersionRow | None
) -> VersionDifference:
    """Compare a version with the one that it would replace."""
    if old is not None and old.id == new.id:
        old = None
    sources = [_source(session, federation, row) for row in (new, old) if row is not None]
    source, other = sources[0], sources[1] if len(sources) > 1 else None
    old_id = None if old is None else old.id
    return VersionDifference(
        source,
        other,
        measures.compare(session, federation, new.id, old_id),
        measures.compare_by_device(session, federation, new.id, old_id, MAX_PAIRS),
        _classes(federation.parsed_plan, source.score, other.score if other else None),
        _changes(session, federation, new, old),
    )


def _source(session: Session, federation: FederationRow, row: ModelVersionRow) -> VersionSource:
    number = row.round_number
    made_in = session.scalar(select(RoundRow).where(RoundRow.federation_id == federation.id, RoundRow.number == number))
    if made_in is None:  # version 0, or a round that has expired
        return VersionSource(row.version, number, None, 0, None, None)
    claimed = UpdateRow.manifest["examples"].as_integer()
    counted = func.sum(func.coalesce(UpdateRow.counted_examples, claimed))
    used = select(func.count(), counted).where(UpdateRow.round_id == made_in.id, UpdateRow.status == "accepted")
    devices, examples = session.execute(used).one()
    found = round_scores(session, federation, [number]).get(number)
    base = None if made_in.base_version is None else made_in.base_version.version
    return VersionSource(row.version, number, base, devices or made_in.received, examples, found)


def _classes(plan: Plan, new: RoundScore | None, old: RoundScore | None) -> list[ClassPair]:
    new_classes, old_classes = (score.classes if score else () for score in (new, old))
    pairs = []
    for k, label in enumerate(plan.labels):
        score, other = (scores[k] if k < len(scores) else None for scores in (new_classes, old_classes))
        if score is not None or other is not None:
            pairs.append(ClassPair(label, score, other))
    return pairs


def _changes(
    session: Session, federation: FederationRow, new: ModelVersionRow, old: ModelVersionRow | None
) -> list[SettingsChange]:
    if old is None:
        return []
    begin, end = sorted((old.created_at, new.created_at))
    row = EventRow
    query = select(row.created_at, row.detail).where(row.federation_id == federation.id)
    query = query.where(row.kind == "federation.changed", row.created_at > begin, row.created_at <= end)
    found = session.execute(query.order_by(row.id.desc()).limit(MAX_CHANGES))
    return [SettingsChange(at, detail) for at, detail in found]
