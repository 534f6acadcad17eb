"""Scores as rows: devices' scores in rounds, and of the versions that they adopted.

They are added up in the transaction that stores a report.
A device reports the figures of its task under the task's own names: `{metric}_before` of the model that it received,
`{metric}_after` of the one that it trained, `{metric}_trivial` of the answer that needs no learning, `works_before` and
`works_after`, and `class_{k}_after` for each class k. A row of `scores` holds the sums of one name over the devices of
a round. Its columns from `measured` on count only the devices whose holdout can tell whether a model works: the scores
of versions are made of them. What devices say of a round's model when they judge it has the name `JUDGED`.

The server has no windows. What it knows of a version is what devices with a holdout that can tell have measured.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Executable, Select, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import (
    AdoptionRow,
    DeviceRow,
    FederationRow,
    MetricRow,
    ModelVersionRow,
    RoundRow,
    ScoreRow,
)
from federation.protocol.messages import AdoptionReport, VersionScore
from gaitway.tasks import TRIVIAL, metric_of, task_of

JUDGED = "judged"
KEY = ("federation_id", "round_number", "name")
SUMS = ("devices", "total", "squares", "measured", "measured_total", "trivial", "working")
Sums = dict[str, float]


def add_figures(session: Session, federation: int, number: int, figures: Mapping[str, float], sign: int = 1) -> None:
    """Add what a device reported of a round; sign −1: take it out again."""
    rows = [{"name": name, **_sums_of(value), **_measured(name, figures)} for name, value in figures.items()]
    _add(session, federation, number, rows, sign)


def add_judgement(session: Session, row: AdoptionRow, metric: str, sign: int = 1) -> None:
    """Add what a device said of a round's model; sign −1: take it out again."""
    if row.source == "global" and row.score is not None and row.trivial is not None:
        works = row.answer != "failed"
        sums = {**_sums_of(row.score), **_valid(metric, row.score, row.trivial, works)}
        _add(session, row.federation_id, row.round_number, [{"name": JUDGED, **sums}], sign)


def remove_device(session: Session, device: DeviceRow, metric: str) -> None:
    """Take out all that a device has reported; its own rows stay."""
    by_round: defaultdict[int, dict[str, float]] = defaultdict(dict)
    query = select(MetricRow.round_number, MetricRow.name, MetricRow.value).where(
        MetricRow.federation_id == device.federation_id, MetricRow.device_id == device.id
    )
    for number, name, value in session.connection().execute(query):
        by_round[number][name] = value
    for number, figures in by_round.items():
        add_figures(session, device.federation_id, number, figures, -1)
    for row in session.scalars(select(AdoptionRow).where(AdoptionRow.device_id == device.id)):
        add_judgement(session, row, metric, -1)


def _sums_of(value: float) -> Sums:
    return {"devices": 1, "total": value, "squares": value * value, **dict.fromkeys(SUMS[3:], 0)}


def _measured(name: str, figures: Mapping[str, float]) -> Sums:
    metric, _, when = name.rpartition("_")
    trivial, works = figures.get(f"{metric}_{TRIVIAL}"), figures.get(f"works_{when}")
    if when not in ("before", "after") or trivial is None or works not in (0, 1):
        return {}
    return _valid(metric, figures[name], trivial, bool(works))


def _valid(metric: str, score: float, trivial: float, works: bool) -> Sums:
    if not all(0 <= value <= metric_of(metric).largest for value in (score, trivial)):
        return {}
    return {"measured": 1, "measured_total": score, "trivial": trivial, "working": int(works)}


def _add(session: Session, federation: int, number: int, rows: Iterable[dict[str, Any]], sign: int) -> None:
    key = {"federation_id": federation, "round_number": number}
    signed = [{**key, **{name: sign * value if name in SUMS else value for name, value in row.items()}} for row in rows]
    if signed:
        repositories.put(session, _upsert(session.connection().dialect.name), signed)


@cache
def _upsert(dialect: str) -> Executable:
    table = repositories.table_of(ScoreRow)
    statement: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    added = {name: table.c[name] + statement.excluded[name] for name in SUMS}
    updated: Executable = statement.on_conflict_do_update(index_elements=KEY, set_=added)
    return updated


def record_adoption(session: Session, federation: FederationRow, name: str, report: AdoptionReport) -> None:
    """Note a device's last word about a model; a repetition changes nothing.

    Ignored is what is said of a round that is not yet, or in another metric than the federation's.
    """
    device = repositories.find_device(session, federation, name)
    # after a restore, rounds of the same numbers have made other models
    server_state = (federation.instance, epochs.current(session).epoch)
    known = (report.instance, report.epoch) == server_state and report.round <= repositories.last_number(
        session, federation
    )
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
    else:
        add_judgement(session, row, report.metric, -1)
    for column, value in {**answer, "recorded_at": time.time()}.items():
        setattr(row, column, value)
    add_judgement(session, row, report.metric)
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
    made = select(ModelVersionRow.round_number, ModelVersionRow.id).where(ModelVersionRow.id.in_(versions))
    begun = select(RoundRow.number, RoundRow.base_version_id).where(
        RoundRow.federation_id == federation.id, RoundRow.base_version_id.in_(versions)
    )
    version_of = {
        **{(number, f"{metric}_before"): version for number, version in session.execute(begun)},
        **{
            (number, name): version for number, version in session.execute(made) for name in (JUDGED, f"{metric}_after")
        },
    }
    row = ScoreRow
    query = select(row.round_number, row.name, row.measured, row.measured_total, row.trivial, row.working).where(
        row.federation_id == federation.id,
        row.round_number.in_({number for number, _ in version_of}),
        row.name.in_({name for _, name in version_of}),
        row.measured > 0,
    )
    groups: defaultdict[int, dict[str, list[float]]] = defaultdict(dict)
    for number, name, *sums in session.connection().execute(query):
        if (version := version_of.get((number, name))) is not None:
            before = groups[version].get(name, [0.0] * len(sums))
            groups[version][name] = [first + second for first, second in zip(before, sums, strict=True)]
    return {version: _chosen(metric, by_name) for version, by_name in groups.items()}


def _chosen(metric: str, by_name: Mapping[str, Sequence[float]]) -> VersionScore:
    none = (0.0,) * 4
    known = max(by_name.get(JUDGED, none), by_name.get(f"{metric}_before", none), key=lambda sums: sums[0])
    before = by_name.get(f"{metric}_after", none)
    measured = "version" if 2 * known[0] >= before[0] else "updates"
    devices, total, trivial, working = known if measured == "version" else before
    return VersionScore.model_validate(
        {
            "metric": metric,
            "value": round(total / devices * 1_000_000),
            "trivial": round(trivial / devices * 1_000_000),
            "devices": int(devices),
            "working": int(working),
            "measured": measured,
        }
    )


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
    of_round = (score.federation_id == federation) & (score.round_number == number)
    query = query.join(score, of_round & (score.name == bindparam(when)))
    names: tuple[tuple[type[MetricRow], Any], ...] = ((trivial, bindparam(TRIVIAL)), (working, works))
    for other, name in names:
        same = (
            other.federation_id == score.federation_id,
            other.round_number == score.round_number,
            other.device_id == score.device_id,
        )
        query = query.join(other, (other.name == name) & same[0] & same[1] & same[2])
    return query.where(working.value.in_((0, 1)))
