"""Pages' data, gathered within one session from REST's queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from aggregator_api.http.queries import devices as device_status
from aggregator_api.http.queries import listings
from aggregator_api.http.queries import rounds as round_history
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.http.queries.resources import FederationDetail, RoundView
from aggregator_api.http.queries.rounds import Cost, RoundScore, Span, class_metric_of, metric_of, round_scores
from aggregator_api.notifications import attention
from aggregator_api.notifications.attention import AttentionItem
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import FederationRow, RoundRow
from gaitway.plain_text import label_text
from gaitway.tasks import Metric

FEDERATIONS = 25
"""On the overview, whose other federations follow on further pages."""
CHART_ROUNDS = 60
TIMELINE_ROUNDS = 12
GRID_ROUNDS = 40
GRID_DEVICES = 40
LISTED = 100
DAY_S = 86_400.0
HEADLINE_DEVICES, HEADLINE_ROUNDS = 3, 10
"""A score stands for a federation if so many devices have measured it, in one of the last so many rounds."""


class FederationOverview(NamedTuple):
    """A federation on the overview."""

    detail: FederationDetail
    current: RoundRow | None
    metric: Metric
    score: RoundScore | None
    """Of the last round that enough devices have measured (`HEADLINE_DEVICES`)."""
    score_round: int
    attention: list[AttentionItem]
    waits_for: str
    """What keeps a running federation from its next round; empty where a round is open, or none will be."""

    @property
    def score_text(self) -> str:
        """The mean score, with its unit."""
        return score_text(self.metric, self.score.mean if self.score else None)

    @property
    def score_note(self) -> str:
        """Of which round the score is, of how many devices, and from where to where theirs reach."""
        if self.score is None:
            return f"not measured by {self.score_devices} devices yet" if self.score_devices > 1 else "not measured yet"
        low, high = (self.metric.text(value) for value in (self.score.lowest, self.score.highest))
        devices = f"{self.score.devices:,} device{'' if self.score.devices == 1 else 's'}"
        return f"round {self.score_round}, {devices}" + (f", {low} to {high}" if self.score.devices > 1 else "")

    @property
    def score_devices(self) -> int:
        """How many devices a headline needs: all, where there are few."""
        return min(HEADLINE_DEVICES, self.detail.devices)


class TimedRound(NamedTuple):
    """A round on the time line."""

    view: RoundView
    spans: list[Span]
    cost: Cost
    score: RoundScore | None

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (self.spans[-1].end or time.time()) - self.spans[0].begin


def summary(session: Session, row: FederationRow) -> FederationOverview:
    """Tell where a federation stands."""
    detail = listings.federation(session, row)
    latest = [round_row.number for round_row in round_history.latest_rounds(session, row, HEADLINE_ROUNDS)]
    enough = min(HEADLINE_DEVICES, detail.devices)
    scores = {k: score for k, score in round_scores(session, row, latest).items() if score.devices >= enough}
    number = max(scores, default=0)
    current = repositories.open_round(session, row)
    waits = row.status == "running" and current is None and detail.continuous is None
    return FederationOverview(
        detail,
        current,
        metric_of(detail.plan)[1],
        scores.get(number),
        number,
        attention.of_federation(session, row),
        device_status.waiting_for(session, row) if waits else "",
    )


def summaries(session: Session, only: str | None, page: PageParams) -> tuple[list[FederationOverview], int | None]:
    """Tell where the federations stand that a key may see, the newest first, and the cursor of those that follow."""
    found = listings.federations(session, only, page._replace(newest_first=True))
    rows = [repositories.find_federation(session, federation.name) for federation in found.items]
    return [summary(session, row) for row in rows if row is not None], found.next_cursor


def timeline(session: Session, row: FederationRow, before: int | None = None) -> tuple[list[TimedRound], int | None]:
    """Return the latest rounds (before that number) with their phases, costs and scores, the newest first.

    Beside them stands the number before which older ones are, None if these are the oldest.
    """
    found = round_history.latest_rounds(session, row, TIMELINE_ROUNDS + 1, before=before)
    rows = found[-TIMELINE_ROUNDS:]
    spans = round_history.spans(session, row, rows)
    costs = round_history.costs(session, rows)
    scores = round_scores(session, row, [round_row.number for round_row in rows])
    timed = [
        TimedRound(
            RoundView.model_validate(round_row),
            spans[round_row.number],
            costs[round_row.number],
            scores.get(round_row.number),
        )
        for round_row in reversed(rows)
    ]
    return timed, rows[0].number if len(found) > len(rows) else None


def chart(session: Session, row: FederationRow) -> dict[str, Any]:
    """Return scores, bytes and privacy over the latest rounds, as the charts take them."""
    plan = row.parsed_plan
    rows = round_history.latest_rounds(session, row, CHART_ROUNDS)
    numbers = [round_row.number for round_row in rows]
    scores = round_scores(session, row, numbers)
    costs = round_history.costs(session, rows)
    metric, of_class = metric_of(plan)[1], class_metric_of(plan)
    found = [scores.get(number) for number in numbers]
    factor = metric.factor
    classes = [
        {
            "label": label_text(label),
            "values": [_scaled(score.classes[k] if score else None, factor) for score in found],
        }
        for k, label in enumerate(plan.labels[: len(next((score.classes for score in found if score), ()))])
    ]
    return {
        "rounds": numbers,
        "metric": metric.label + metric.unit,
        "class_metric": (of_class.label + of_class.unit) if of_class else "",
        "mean": [_scaled(score and score.mean, factor) for score in found],
        "worst": [_scaled(score and score.worst_tenth, factor) for score in found],
        "low": [_scaled(score and max(0.0, score.mean - score.spread), factor) for score in found],
        "high": [_scaled(score and min(metric.largest, score.mean + score.spread), factor) for score in found],
        "largest": factor if metric.is_share else None,
        "classes": [curve for curve in classes if any(value is not None for value in curve["values"])],
        "received": [costs[number].received for number in numbers],
        "sent": [costs[number].sent for number in numbers],
        "epsilon": [round_row.epsilon for round_row in rows],
    }


def score_text(metric: Metric, value: float | None) -> str:
    """Write a score with its unit."""
    return metric.text(value) + (" %" if metric.is_share and value is not None else "")


def timeline_bounds(rounds: Sequence[TimedRound]) -> tuple[float, float]:
    """Return from when to when a time line reaches."""
    begins = [timed.spans[0].begin for timed in rounds]
    ends = [timed.spans[-1].end or time.time() for timed in rounds]
    return min(begins, default=0.0), max(ends, default=1.0)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else round(factor * value, 3)
