"""Devices' paired scores of two versions: each device's mean score of both, on its own holdout."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Select, and_, bindparam, func, select, union_all
from sqlalchemy.orm import Session, aliased

from aggregator_api.rollouts.scores import metric_in, with_metrics
from aggregator_api.storage.db.models import (
    AdoptionRow,
    DeviceRow,
    FederationRow,
    MetricRow,
    ModelVersionRow,
    RolloutDeviceRow,
    RolloutRow,
    RoundRow,
)
from federation.rounds.promotion import VersionComparison
from gaitway.tasks import TRIVIAL, Metric, metric_of

MAY_MEASURE = ("open", "approved")
"""How a device has enrolled whose word counts."""


def compare(session: Session, federation: FederationRow, new: int, old: int | None) -> VersionComparison:
    """Compare a version with another, by their rows' ids; with None, only count the devices that scored it.

    Devices measure a version when they get it to train from, when they judge it, and in its rollout.
    """
    return _compared(session, federation, _MEASURED, "before", new, -1 if old is None else old)


def compare_trained(session: Session, federation: FederationRow, number: int, other: int) -> VersionComparison:
    """Compare what devices had learnt at the end of a round, which they serve with, with that of another round."""
    return _compared(session, federation, _LEARNT, "after", number, other)


class DevicePair(NamedTuple):
    """What one device has measured of a version and of another (None: not of that one), and the gain of the former."""

    device: str
    score: float
    other: float | None
    gain: float | None


def compare_by_device(
    session: Session, federation: FederationRow, new: int, old: int | None, limit: int
) -> list[DevicePair]:
    """Return what `compare` averages, device by device: those that lose most first, then those that measured one."""
    metric = metric_of(metric_in(federation))
    parameters = _asked(federation, "before", new, -1 if old is None else old)
    parameters |= {"sign": 1 if metric.higher_is_better else -1, "limit": limit}
    return [
        DevicePair(name, score, other, None if other is None else metric.gain(score, other))
        for name, score, other in session.connection().execute(_BY_DEVICE, parameters)
    ]


def _compared(
    session: Session, federation: FederationRow, query: Select[Any], when: str, new: int, old: int
) -> VersionComparison:
    metric: Metric = metric_of(metric_in(federation))
    measured, paired, difference = session.connection().execute(query, _asked(federation, when, new, old)).one()
    return VersionComparison(measured, paired, metric.gain(difference or 0.0, 0.0))


def _asked(federation: FederationRow, when: str, new: int, old: int) -> dict[str, Any]:
    name = metric_in(federation)
    names = {"when": f"{name}_{when}", TRIVIAL: f"{name}_{TRIVIAL}"}
    return {"federation": federation.id, "new": new, "old": old, "largest": metric_of(name).largest, **names}


def _selected(*columns: Any) -> Select[Any]:
    """Select columns of which mypy knows no type, as `with_metrics` takes them."""
    return select(*columns)


def _trained_from() -> Select[Any]:
    figures = [aliased(MetricRow) for _ in range(3)]
    query = _selected(RoundRow.base_version_id, figures[0].device_id, figures[0].value).select_from(RoundRow)
    # without their numbers SQLite reads all that the federation has ever reported, and looks for its rounds then
    in_federation = RoundRow.federation_id == bindparam("federation")
    numbers = select(RoundRow.number).where(
        in_federation, RoundRow.base_version_id.in_((bindparam("new"), bindparam("old")))
    )
    query = query.where(in_federation, figures[0].round_number.in_(numbers))
    return with_metrics(query, figures, RoundRow.federation_id, RoundRow.number, "when", "works_before")


def _judged() -> Select[Any]:
    row, version = AdoptionRow, ModelVersionRow
    same = (row.federation_id == version.federation_id) & (row.round_number == version.round_number)
    query = _selected(version.id, row.device_id, row.score).join(row, same & (row.source == "global"))
    return query.where(row.trivial.is_not(None), version.id.in_((bindparam("new"), bindparam("old"))))


def _rolled_out() -> Select[Any]:
    row = RolloutDeviceRow
    query = _selected(RolloutRow.version_id, row.device_id, row.score).join(row, row.rollout_id == RolloutRow.id)
    return query.where(RolloutRow.version_id.in_((bindparam("new"), bindparam("old"))))


def _learnt() -> Select[Any]:
    figures = [aliased(MetricRow) for _ in range(3)]
    query = _selected(RoundRow.number, figures[0].device_id, figures[0].value).select_from(RoundRow)
    numbers: tuple[Any, ...] = (bindparam("new"), bindparam("old"))
    query = query.where(RoundRow.federation_id == bindparam("federation"), figures[0].round_number.in_(numbers))
    return with_metrics(query, figures, RoundRow.federation_id, RoundRow.number, "when", "works_after")


def _means(*sources: Select[Any]) -> tuple[Any, Any, Any]:
    """Return each device's means of the new one and of the old one, and the join of both."""
    scores = union_all(*sources).subquery()
    what, device, value = scores.c
    means = select(what.label("what"), device.label("device"), func.avg(value).label("score"))
    means = means.join(DeviceRow, DeviceRow.id == device).where(DeviceRow.enrolment.in_(MAY_MEASURE))
    means = means.where(value.between(0, bindparam("largest"))).group_by(what, device)
    all_means = means.cte("means")
    new, old = all_means.alias("new_ones"), all_means.alias("old_ones")
    both = and_(old.c.device == new.c.device, old.c.what == bindparam("old"))
    return new, old, new.outerjoin(old, both)


def _paired(*sources: Select[Any]) -> Select[Any]:
    """Count the devices that measured the new one, and both, and average the differences of the latter."""
    new, old, joined = _means(*sources)
    figures = (func.count(new.c.device), func.count(old.c.device), func.avg(new.c.score - old.c.score))
    return select(*figures).select_from(joined).where(new.c.what == bindparam("new"))


def _by_device(*sources: Select[Any]) -> Select[Any]:
    """Select the same device by device, those whose new score is worst beside the old one first."""
    new, old, joined = _means(*sources)
    query = select(DeviceRow.name, new.c.score, old.c.score)
    query = query.select_from(joined.join(DeviceRow, DeviceRow.id == new.c.device))
    loss = (new.c.score - old.c.score) * bindparam("sign")
    query = query.where(new.c.what == bindparam("new")).order_by(old.c.score.is_(None), loss, DeviceRow.name)
    return query.limit(bindparam("limit"))


# made once, as `adoptions` does
_MEASURED, _LEARNT = _paired(_judged(), _trained_from(), _rolled_out()), _paired(_learnt())
_BY_DEVICE = _by_device(_judged(), _trained_from(), _rolled_out())
