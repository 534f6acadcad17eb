"""Federations side by side: curves that need no script, class by class, paired differences over shared devices."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import ForbiddenError, UnprocessableError
from aggregator_api.federations import service
from aggregator_api.http.api.dependencies import CallerDep, DatabaseDep
from aggregator_api.http.api.federation_comparison import MAX_COMPARED, ComparedFederation, compared, paired
from aggregator_api.http.api.round_history import latest_rounds
from aggregator_api.http.api.scores import round_scores
from aggregator_api.http.web import views
from aggregator_api.http.web.pages import page
from aggregator_api.storage.db.models import FederationRow

router = APIRouter()

OFFERED = 200
Names = Annotated[list[str] | None, Query(alias="federation", max_length=64)]


class ScoreCurve(NamedTuple):
    """A federation's mean score over rounds, in the coordinates of a chart of 1000 by 300."""

    name: str
    points: str
    summary: str


class CurveChart(NamedTuple):
    """Several curves, and what the axes reach from and to."""

    curves: list[ScoreCurve]
    rounds: tuple[int, int]
    scores: tuple[float, float]


@router.get("/compare")
@requires("operator", "read", filtered=True)
def compare(request: Request, database: DatabaseDep, caller: CallerDep, names: Names = None) -> Response:
    """Show federations side by side; the first is what the others are held against."""
    wanted = list(dict.fromkeys(name for name in names or [] if name))
    if len(wanted) > MAX_COMPARED:
        raise UnprocessableError(f"federation: {len(wanted)} came, at most {MAX_COMPARED} are compared at a time")
    if caller.federation is not None and set(wanted) - {caller.federation}:
        raise ForbiddenError(f"the key {caller.id} is for the federation {caller.federation!r} alone")
    with database.read() as session:
        offered = select(FederationRow.name).order_by(FederationRow.id.desc()).limit(OFFERED)
        if caller.federation is not None:
            offered = offered.where(FederationRow.name == caller.federation)
        known = session.scalars(offered).all()
        rows = [service.get_federation(session, name) for name in wanted]
        numbers = [[round_row.number for round_row in latest_rounds(session, row, views.CHART_ROUNDS)] for row in rows]
        found = [compared(row, round_scores(session, row, n)) for row, n in zip(rows, numbers, strict=True)]
        same = len({federation.plan.task.get("name") for federation in found}) <= 1
        pairs = [
            paired(session, row, federation.last_round, rows[0], found[0].last_round)
            for row, federation in zip(rows[1:], found[1:], strict=True)
            if same
        ]
    labels = list(dict.fromkeys(label for federation in found for label in federation.plan.labels))
    values: dict[str, Any] = {
        "found": found,
        "pairs": pairs,
        "labels": labels,
        "offered": known,
        "wanted": wanted,
        "same": same,
    }
    values |= {"chart": _chart(found) if same else None, "score_text": views.score_text, "most": MAX_COMPARED}
    return page(request, "compare.html", **values)


def _chart(found: list[ComparedFederation]) -> CurveChart | None:
    """Lay the curves out; None where there is nothing to see."""
    numbers = [number for federation in found for number in federation.scores]
    means = [score.mean for federation in found for score in federation.scores.values()]
    if not numbers:
        return None
    first, last, low, high = min(numbers), max(numbers), min(means), max(means)
    low, high = (low - 0.05 * abs(low or 1), high + 0.05 * abs(high or 1)) if low == high else (low, high)
    curves = []
    for federation in found:
        at = [
            (1000 * (number - first) / max(1, last - first), 300 - 300 * (score.mean - low) / (high - low))
            for number, score in sorted(federation.scores.items())
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        last_score = views.score_text(federation.metric, federation.last.mean) if federation.last else ""
        text = f"{last_score} in round {federation.last_round}" if last_score else "not measured yet"
        curves.append(ScoreCurve(federation.name, points, f"{federation.name}: {text}"))
    return CurveChart(curves, (first, last), (low, high))
