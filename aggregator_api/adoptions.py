"""What devices make of models: which they adopt, which do not work there, and the score of a version that follows.

The server has no windows. What it knows of a version is what devices with a holdout that can tell have measured.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select
from sqlalchemy.orm import Session, aliased

from aggregator_api import records
from aggregator_api.storage import epochs
from aggregator_api.tables import AdoptionRow, FederationRow, MetricRow, ModelVersionRow, RoundRow
from federation.protocol.messages import AdoptionReport, VersionScore


def hear(session: Session, federation: FederationRow, name: str, report: AdoptionReport) -> None:
    """Note a device's last word about a model; a repetition changes nothing, and a round that is not yet is ignored."""
    device = records.device_named(session, federation, name)
    # after a restore, rounds of the same numbers have made other models
    here = (federation.instance, epochs.current(session).epoch)
    known = (report.instance, report.epoch) == here and report.round <= records.last_number(session, federation)
    if device is None or not known:
        return
    key = (device.id, report.round, report.source)
    row = session.scalar(
        select(AdoptionRow).where(
            AdoptionRow.device_id == key[0], AdoptionRow.round_number == key[1], AdoptionRow.source == key[2]
        )
    )
    said = report.model_dump(include={"answer", "score", "most_frequent", "reason"})
    if row is not None and said == {name: getattr(row, name) for name in said}:
        return
    if row is None:
        row = AdoptionRow(
            federation_id=federation.id, device_id=device.id, round_number=report.round, source=report.source
        )
        session.add(row)
    for column, value in {**said, "recorded_at": time.time()}.items():
        setattr(row, column, value)
    device.adoption, device.adoption_reason = report.answer, report.reason
    records.journal(
        session,
        federation,
        f"adoption.{report.answer}",
        round_number=report.round,
        device=name,
        detail=report.reason,
    )


def score_of(session: Session, version: ModelVersionRow) -> VersionScore | None:
    """Return what devices have measured of a version, or of the models that it was made from.

    They measure it when they judge it (as the federation's last model, or a released one), and when they get it to
    train from; the larger of these groups counts, for most devices are in both. While it is less than half of those
    that measured their own models in the round before, it is theirs: one device's word is not yet the fleet's.
    """
    by_itself = [_read(session, query, "version") for query in (_judged(version), _received(version))]
    known, before = max(by_itself, key=_size), _read(session, _trained(version), "updates")
    return known if 2 * _size(known) >= _size(before) else before


def _size(score: VersionScore | None) -> int:
    return score.devices if score else 0


def _judged(version: ModelVersionRow) -> Select[Any]:
    # a version of a round that failed was never made, so a round's number names one version
    row = AdoptionRow
    return _means(row.score, row.most_frequent, case((row.answer == "failed", 0), else_=1)).where(
        row.federation_id == version.federation_id,
        row.round_number == version.round_number,
        row.source == "global",
    )


def _received(version: ModelVersionRow) -> Select[Any]:
    rounds = select(RoundRow.number).where(RoundRow.base_version_id == version.id)
    return _metrics(version, "before").where(MetricRow.round_number.in_(rounds))


def _trained(version: ModelVersionRow) -> Select[Any]:
    return _metrics(version, "after").where(MetricRow.round_number == version.round_number)


def _metrics(version: ModelVersionRow, when: str) -> Select[Any]:
    """Select the means over the devices that reported all three figures of one moment of a round."""
    constant, works = aliased(MetricRow), aliased(MetricRow)
    query = _means(MetricRow.value, constant.value, works.value).select_from(MetricRow)
    for other, name in ((constant, "macro_f1_most_frequent"), (works, f"works_{when}")):
        same = (
            other.federation_id == MetricRow.federation_id,
            other.round_number == MetricRow.round_number,
            other.device_id == MetricRow.device_id,
        )
        query = query.join(other, (other.name == name) & same[0] & same[1] & same[2])
    mine = MetricRow.federation_id == version.federation_id, MetricRow.name == f"macro_f1_{when}"
    return query.where(*mine, works.value.in_((0, 1)))


def _means(score: Any, most_frequent: Any, works: Any) -> Select[Any]:
    figures: tuple[ColumnElement[Any], ...] = (func.avg(score), func.avg(most_frequent), func.count(), func.sum(works))
    return select(*figures).where(score.between(0, 1), most_frequent.between(0, 1))


def _read(session: Session, query: Select[Any], measured: str) -> VersionScore | None:
    score, most_frequent, devices, working = session.execute(query).one()
    if not devices:
        return None
    return VersionScore.model_validate(
        {
            "macro_f1": round(score * 1_000_000),
            "most_frequent": round(most_frequent * 1_000_000),
            "devices": devices,
            "working": int(working),
            "measured": measured,
        }
    )
