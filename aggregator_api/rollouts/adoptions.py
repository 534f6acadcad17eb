"""What devices make of models: which they adopt, which do not work there, and the score of a version that follows.

The server has no windows. What it knows of a version is what devices with a holdout that can tell have measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select, union_all
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from aggregator_api.db import epochs, repositories
from aggregator_api.db.models import AdoptionRow, FederationRow, MetricRow, ModelVersionRow, RoundRow
from federation.protocol.messages import AdoptionReport, VersionScore
from gaitway.tasks import TRIVIAL, metric_of, task_of


def record_adoption(session: Session, federation: FederationRow, name: str, report: AdoptionReport) -> None:
    """Note a device's last word about a model; a repetition changes nothing.

    Ignored is what is said of a round that is not yet, or in another metric than the federation's.
    """
    device = repositories.find_device(session, federation, name)
    # after a restore, rounds of the same numbers have made other models
    here = (federation.instance, epochs.current(session).epoch)
    known = (report.instance, report.epoch) == here and report.round <= repositories.last_number(session, federation)
    if device is None or not known or report.metric != metric_in(federation):
        return
    key = (device.id, report.round, report.source)
    row = session.scalar(
        select(AdoptionRow).where(
            AdoptionRow.device_id == key[0], AdoptionRow.round_number == key[1], AdoptionRow.source == key[2]
        )
    )
    answer = report.model_dump(include={"answer", "score", "trivial", "reason"})
    if row is not None and answer == {name: getattr(row, name) for name in answer}:
        return
    if row is None:
        row = AdoptionRow(
            federation_id=federation.id, device_id=device.id, round_number=report.round, source=report.source
        )
        session.add(row)
    for column, value in {**answer, "recorded_at": time.time()}.items():
        setattr(row, column, value)
    device.adoption, device.adoption_reason = report.answer, report.reason
    repositories.journal(
        session,
        federation,
        f"adoption.{report.answer}",
        round_number=report.round,
        device=name,
        detail=report.reason,
    )


def metric_in(federation: FederationRow) -> str:
    """Name the metric by which a federation's models are compared: its task's primary one."""
    return task_of(federation.plan.get("task", {})).primary_metric


def score_of(session: Session, federation: FederationRow, version: ModelVersionRow) -> VersionScore | None:
    """Return what devices have measured of a version, or of the models that it was made from: see `scores_of`."""
    return scores_of(session, federation, [version.id]).get(version.id)


def scores_of(session: Session, federation: FederationRow, versions: Sequence[int]) -> dict[int, VersionScore]:
    """Return what devices have measured of a federation's versions, by their ids; none of those that nobody measured.

    They measure a version when they judge it (as the federation's last model, or a released one), and when they get it
    to train from; the larger of these groups counts, for most devices are in both. While it is less than half of those
    that measured their own models in the round before, it is theirs: one device's word is not yet the fleet's.
    """
    metric = metric_in(federation)
    names = {when: f"{metric}_{when}" for when in ("before", "after", TRIVIAL)}
    parameters = {"federation": federation.id, "versions": versions, "largest": metric_of(metric).largest, **names}
    found: dict[int, dict[str, VersionScore]] = {}
    for version, group, *means in session.connection().execute(_SCORES, parameters):
        found.setdefault(version, {})[group] = _score(metric, means, "updates" if group == _TRAINED else "version")
    return {version: score for version, by_group in found.items() if (score := _chosen(by_group)) is not None}


def _chosen(by_group: dict[str, VersionScore]) -> VersionScore | None:
    known = max((by_group.get(group) for group in (_JUDGED, _RECEIVED)), key=_size)
    before = by_group.get(_TRAINED)
    return known if 2 * _size(known) >= _size(before) else before


def _size(score: VersionScore | None) -> int:
    return score.devices if score else 0


def _score(metric: str, means: Sequence[Any], measured: str) -> VersionScore:
    score, trivial, devices, working = means
    return VersionScore.model_validate(
        {
            "metric": metric,
            "value": round(score * 1_000_000),
            "trivial": round(trivial * 1_000_000),
            "devices": devices,
            "working": int(working),
            "measured": measured,
        }
    )


def _judged() -> Select[Any]:
    # a version of a round that failed was never made, so a round's number names one version
    row, version = AdoptionRow, ModelVersionRow
    query = _means(_JUDGED, version.id, row.score, row.trivial, case((row.answer == "failed", 0), else_=1))
    same = (row.federation_id == version.federation_id) & (row.round_number == version.round_number)
    return query.select_from(version).join(row, same & (row.source == "global"))


def _received() -> Select[Any]:
    figures = [aliased(MetricRow) for _ in range(3)]
    query = _means(_RECEIVED, RoundRow.base_version_id, *(row.value for row in figures)).select_from(RoundRow)
    # without their numbers SQLite reads all that the federation has ever reported, and looks for its rounds then
    here = RoundRow.federation_id == bindparam("federation")
    numbers = select(RoundRow.number).where(here, _wanted(RoundRow.base_version_id))
    query = query.where(here, figures[0].round_number.in_(numbers))
    return with_metrics(query, figures, RoundRow.federation_id, RoundRow.number, "before", "works_before")


def _trained() -> Select[Any]:
    figures = [aliased(MetricRow) for _ in range(3)]
    version = ModelVersionRow
    query = _means(_TRAINED, version.id, *(row.value for row in figures)).select_from(version)
    return with_metrics(query, figures, version.federation_id, version.round_number, "after", "works_after")


def with_metrics(
    query: Select[Any],
    figures: Sequence[type[MetricRow]],
    federation: InstrumentedAttribute[int],
    number: InstrumentedAttribute[int],
    when: str,
    works: str,
) -> Select[Any]:
    """Join the devices that reported all three figures of one moment of a round.

    The score's name is the parameter `when` of the statement, that of the trivial answer the parameter `trivial`.
    """
    score, trivial, working = figures
    mine = (score.federation_id == federation) & (score.round_number == number)
    query = query.join(score, mine & (score.name == bindparam(when)))
    names: tuple[tuple[type[MetricRow], Any], ...] = ((trivial, bindparam(TRIVIAL)), (working, works))
    for other, name in names:
        same = (
            other.federation_id == score.federation_id,
            other.round_number == score.round_number,
            other.device_id == score.device_id,
        )
        query = query.join(other, (other.name == name) & same[0] & same[1] & same[2])
    return query.where(working.value.in_((0, 1)))


def _means(group: str, version: InstrumentedAttribute[int], score: Any, trivial: Any, works: Any) -> Select[Any]:
    figures: tuple[ColumnElement[Any], ...] = (func.avg(score), func.avg(trivial), func.count(), func.sum(works))
    query = select(version, literal_column(f"'{group}'"), *figures).group_by(version)
    largest: Any = bindparam("largest")
    return query.where(_wanted(version), score.between(0, largest), trivial.between(0, largest))


def _wanted(version: InstrumentedAttribute[int]) -> ColumnElement[bool]:
    return version.in_(bindparam("versions", expanding=True))


_JUDGED, _RECEIVED, _TRAINED = "judged", "received", "trained"
# made once: to put it together takes ten times as long as to execute it, and every answer about a model needs it
_SCORES = union_all(_judged(), _received(), _trained())
