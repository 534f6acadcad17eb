"""Rounds as pages show them: phases, costs, devices, and what devices measured."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from aggregator_api.http.queries.listings import PageParams
from aggregator_api.storage.db.models import (
    BEGINS_A_PHASE,
    DeviceRow,
    EventRow,
    FederationRow,
    MetricRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    ScoreRow,
    UpdateRow,
)
from federation.plan import Plan
from federation.protocol.messages import class_score_names
from federation.rounds.server_round import ClientStatus, RoundPhase
from federation.tasks import task_from_json
from gaitway.tasks import Metric

PHASES = (RoundPhase.ANNOUNCED, RoundPhase.COLLECTING, RoundPhase.AGGREGATING)
CELLS = {
    "trained": "trained",
    "late": "came late",
    "refused": "refused or excluded",
    "lost": "lost",
    "waiting": "is awaited",
    "absent": "not invited",
}
"""A device's possible outcomes in a round, and their names."""


class Span(NamedTuple):
    """A phase of a round; `end` is None while it lasts."""

    phase: str
    begin: float
    end: float | None


class Cost(NamedTuple):
    """What a round's updates weighed on the way in, and its models on the way out, in bytes."""

    received: int
    sent: int


class GridRow(NamedTuple):
    """What one device did in the shown rounds, a word each."""

    device: str
    cells: tuple[str, ...]

    @property
    def runs(self) -> list[tuple[str, int, int]]:
        """Equal cells in a row: their word, where they begin, and how many they are."""
        found: list[tuple[str, int, int]] = []
        for at, word in enumerate(self.cells):
            if found and found[-1][0] == word:
                found[-1] = (word, found[-1][1], found[-1][2] + 1)
            else:
                found.append((word, at, 1))
        return found

    @property
    def summary(self) -> str:
        """The same for who does not see it: how many rounds of each kind."""
        return ", ".join(f"{CELLS[word]} {count}" for word, count in Counter(self.cells).most_common())


class Grid(NamedTuple):
    """Devices × rounds; `next_cursor` is of the devices that follow."""

    numbers: tuple[int, ...]
    rows: tuple[GridRow, ...]
    next_cursor: int | None


def latest_rounds(
    session: Session, federation: FederationRow, most: int, *, before: int | None = None
) -> list[RoundRow]:
    """Return the latest rounds (before that number), the first of them first."""
    query = select(RoundRow).where(RoundRow.federation_id == federation.id)
    if before is not None:
        query = query.where(RoundRow.number < before)
    return list(session.scalars(query.order_by(RoundRow.number.desc()).limit(most)))[::-1]


def costs(session: Session, rows: Sequence[RoundRow]) -> dict[int, Cost]:
    """Return what each round cost, by its number."""
    ids = {row.id: row.number for row in rows}
    received = select(UpdateRow.round_id, func.sum(UpdateRow.size)).where(UpdateRow.round_id.in_(ids))
    sent = select(ParticipationRow.round_id, func.sum(ParticipationRow.broadcast_size))
    sent = sent.where(ParticipationRow.round_id.in_(ids))
    received_bytes = {row: int(size or 0) for row, size in session.execute(received.group_by(UpdateRow.round_id))}
    went = {row: int(size or 0) for row, size in session.execute(sent.group_by(ParticipationRow.round_id))}
    return {number: Cost(received_bytes.get(row, 0), went.get(row, 0)) for row, number in ids.items()}


def bases(session: Session, federation: FederationRow, numbers: Sequence[int]) -> dict[int, int]:
    """Return the version that each of these rounds began with, by the round's number."""
    query = select(RoundRow.number, ModelVersionRow.version).join(
        ModelVersionRow, ModelVersionRow.id == RoundRow.base_version_id
    )
    query = query.where(RoundRow.federation_id == federation.id, RoundRow.number.in_(numbers))
    return {row.number: row.version for row in session.execute(query)}


def spans(session: Session, federation: FederationRow, rows: Sequence[RoundRow]) -> dict[int, list[Span]]:
    """Return the phases of those rounds in order; of a round whose events are gone, its whole time as one."""
    query = select(EventRow.round_number, EventRow.kind, EventRow.created_at).where(
        EventRow.federation_id == federation.id, EventRow.round_number.in_([row.number for row in rows]), BEGINS_A_PHASE
    )
    begun: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for number, kind, at in session.connection().execute(query.order_by(EventRow.id)):
        begun[number][kind.partition(".")[2]] = at
    return {row.number: _spans(row, begun[row.number]) for row in rows}


def _spans(row: RoundRow, begun: dict[str, float]) -> list[Span]:
    starts = [(str(phase), begun[phase]) for phase in PHASES if phase in begun]
    if not starts:
        starts = [(RoundPhase.COLLECTING.value, row.opened_at)]
    ends = [*(at for _, at in starts[1:]), row.closed_at]
    return [Span(phase, at, end) for (phase, at), end in zip(starts, ends, strict=True)]


def grid(session: Session, federation: FederationRow, rounds: int, page: PageParams) -> Grid:
    """Tell what a page of devices did in the latest rounds."""
    rows = latest_rounds(session, federation, rounds)
    devices = select(DeviceRow.id, DeviceRow.name).where(DeviceRow.federation_id == federation.id)
    devices = devices.where(DeviceRow.id > page.cursor).order_by(DeviceRow.id).limit(page.limit + 1)
    found = session.execute(devices).all()
    shown = {row.id: row.name for row in found[: page.limit]}
    words = _words(session, {row.id: row.number for row in rows}, list(shown))
    numbers = tuple(row.number for row in rows)
    cells = tuple(GridRow(name, tuple(words[id].get(n, "absent") for n in numbers)) for id, name in shown.items())
    return Grid(numbers, cells, found[page.limit - 1].id if len(found) > page.limit else None)


def _words(session: Session, numbers: dict[int, int], devices: list[int]) -> defaultdict[int, dict[int, str]]:
    """Return a word for each device (by id) and round (by number) that has any."""
    words: defaultdict[int, dict[int, str]] = defaultdict(dict)
    part = ParticipationRow
    query = select(part.device_id, part.round_id, part.outcome, part.rounds_late).where(
        part.round_id.in_(numbers), part.device_id.in_(devices)
    )
    for device, row, outcome, late in session.execute(query):
        words[device][numbers[row]] = _outcome(outcome, late)
    unused = select(UpdateRow.device_id, UpdateRow.base_round, UpdateRow.status).where(
        UpdateRow.device_id.in_(devices),
        UpdateRow.base_round.in_(list(numbers.values())),
        UpdateRow.status.in_(("quarantined", "refused", "excluded")),
    )
    for device, number, status in session.execute(unused):
        if status == "excluded" or words[device].get(number) not in ("trained", "late"):
            words[device][number] = "refused"
    return words


def _outcome(outcome: str, rounds_late: int | None) -> str:
    if outcome == ClientStatus.RECEIVED:
        return "late" if rounds_late else "trained"
    return "lost" if outcome == ClientStatus.LOST else "waiting"


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
    plan = federation.parsed_plan
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
