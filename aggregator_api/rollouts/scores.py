"""Scores as rows: what all devices measured in a round, added up in the transaction that stores a report.

A device reports the figures of its task under the task's own names: `{metric}_before` of the model that it received,
`{metric}_after` of the one that it trained, `{metric}_trivial` of the answer that needs no learning, `works_before` and
`works_after`, and `class_{k}_after` for each class k. A row of `scores` holds the sums of one name over the devices of
a round. Its columns from `measured` on count only the devices whose holdout can tell whether a model works: the scores
of versions are made of them. What devices say of a round's model when they judge it has the name `JUDGED`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Executable, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import AdoptionRow, DeviceRow, MetricRow, ScoreRow
from gaitway.tasks import TRIVIAL, metric_of

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
