"""A round as a state machine without I/O: an event goes in, the next round and what to do come out.

announced → collecting → aggregating → published, or failed with a reason. The simulation and the server drive this
same machine; the server writes each transition to SQL before it acts on it.

The machine counts clients and knows none of them: whoever drives it keeps where each client stands, and says so of the
one client that an event is about. So an event costs the same in a cohort of ten and of a million.

`InMemoryRound` keeps the clients in memory, for drivers without a database: the simulation and the machine's tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from federation.aggregation.screening import examples_limit
from federation.errors import RoundError
from federation.method import Method
from federation.plan import Plan, RoundSettings
from federation.seeds import generator
from gaitway.python310 import StrEnum

MIN_SILENCE_S = 3600.0
"""A round without a deadline waits at least for so long for a device that is online and silent."""


class RoundPhase(StrEnum):
    """Where a round stands."""

    ANNOUNCED = "announced"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    PUBLISHED = "published"
    FAILED = "failed"


class ClientStatus(StrEnum):
    """Where one client stands in a round."""

    UNINVITED = "uninvited"
    WAITING = "waiting"  # in the cohort, and may still report
    RECEIVED = "received"
    LOST = "lost"  # in the cohort, and given up; it may report after all


class Action(StrEnum):
    """What the driver has to do after a transition, in the order given."""

    ANNOUNCE = "announce"  # tell the cohort
    ACCEPT = "accept"  # keep the update: it will be in the aggregate
    REFUSE = "refuse"  # the update will not be used; the reason is in `Step.reason`
    AGGREGATE = "aggregate"
    PUBLISH = "publish"
    FAIL = "fail"


@dataclass(frozen=True)
class Opened:
    """The driver has stored the round and can announce it."""


@dataclass(frozen=True)
class UpdateArrived:
    """A valid, durable update of a client, trained from the model of `base_round`."""

    client_id: str
    base_round: int


@dataclass(frozen=True)
class DeviceLost:
    """A client of the cohort will not report."""

    client_id: str


@dataclass(frozen=True)
class DeadlinePassed:
    """The time is up."""


@dataclass(frozen=True)
class Aggregated:
    """The new state is durable."""


@dataclass(frozen=True)
class AggregationFailed:
    """The aggregate could not be made."""

    reason: str


@dataclass(frozen=True)
class Paused:
    """The operator wants no new transitions; updates are still accepted."""


@dataclass(frozen=True)
class Resumed:
    """The operator lets the round go on."""


@dataclass(frozen=True)
class Stopped:
    """The operator ends the round."""

    reason: str


Event = (
    Opened | UpdateArrived | DeviceLost | DeadlinePassed | Aggregated | AggregationFailed | Paused | Resumed | Stopped
)


@dataclass(frozen=True)
class Round:
    """One round's state without its clients; it can be written as a row and read back."""

    number: int
    pending: int  # clients of the cohort that may still report
    received: int = 0  # updates accepted, late ones of uninvited clients included
    phase: RoundPhase = RoundPhase.ANNOUNCED
    paused: bool = False
    deadline_passed: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """The result of an event; `status` is its client's now, None if that is as it was."""

    round: Round
    actions: tuple[Action, ...] = ()
    reason: str = ""
    status: ClientStatus | None = None


def step(settings: RoundSettings, current: Round, event: Event, status: ClientStatus = ClientStatus.UNINVITED) -> Step:
    """Apply one event; `status` is its client's, for the events that have one.

    Raises:
        RoundError: if the event cannot happen in this phase.
    """
    match event:
        case Opened():
            _expect(current, event, RoundPhase.ANNOUNCED)
            return Step(replace(current, phase=RoundPhase.COLLECTING), (Action.ANNOUNCE,))
        case UpdateArrived():
            return _arrive(settings, current, event, status)
        case DeviceLost():
            if current.phase is not RoundPhase.COLLECTING or status is not ClientStatus.WAITING:
                return Step(current)
            left = _close_if_done(settings, replace(current, pending=current.pending - 1))
            return replace(left, status=ClientStatus.LOST)
        case DeadlinePassed():
            if current.phase is not RoundPhase.COLLECTING:
                return Step(current)
            return _close_if_done(settings, replace(current, deadline_passed=True))
        case Aggregated():
            _expect(current, event, RoundPhase.AGGREGATING)
            return Step(replace(current, phase=RoundPhase.PUBLISHED), (Action.PUBLISH,))
        case AggregationFailed(reason):
            _expect(current, event, RoundPhase.AGGREGATING)
            return _fail(current, reason)
        case Paused():
            return Step(replace(current, paused=True))
        case Resumed():
            return _close_if_done(settings, replace(current, paused=False))
        case Stopped(reason):
            ended = current.phase in (RoundPhase.PUBLISHED, RoundPhase.FAILED)
            return Step(current) if ended else _fail(current, reason)


def silence_limit_s(last_update_s: float) -> float:
    """Return after how long a round without a deadline gives up those who are online and silent.

    Twice as long as its latest update took, and at least an hour. Until a first update came, they hold nobody up.
    """
    return max(MIN_SILENCE_S, 2.0 * last_update_s)


def needed_devices(plan: Plan) -> int:
    """Return how many devices must be online for a round to begin."""
    return max(quorum(plan), plan.rounds.clients_per_round or 1)


def quorum(plan: Plan) -> int:
    """Return of how many devices a round must have updates."""
    return max(plan.rounds.minimum_clients, plan.secure.min_devices if plan.secure.is_on else 1)


def resting_rounds(settings: RoundSettings) -> int:
    """Return in how many published rounds a client takes no part once its update is in one (`noise_bands`)."""
    return settings.noise_bands - 1


def sample_cohort(
    settings: RoundSettings,
    candidates: Iterable[str],
    *,
    seed: int,
    round_number: int,
    examples: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Draw a round's clients, uniformly or (with `examples`) with probability in proportion to their number.

    Nobody's number counts for more than it would in the mean (`examples_limit`).
    Each client draws its own key, so that the same cohort comes for every method, and a new client changes no
    other's draw (Efraimidis and Spirakis, Inf. Process. Lett. 97, 2006, for the weighted case).
    """
    names = sorted(candidates)
    if settings.clients_per_round is None:
        return tuple(names)
    invited = math.ceil(settings.clients_per_round * settings.over_selection)

    limit = examples_limit(settings, examples.values()) if examples else None

    def key(name: str) -> float:
        draw = generator(seed, "cohort", round_number, name).random()
        weight = min(examples[name], limit or examples[name]) if examples else 1.0
        return -math.log(1.0 - draw) / weight

    return tuple(sorted(sorted(names, key=key)[:invited]))


def discount(settings: RoundSettings, rounds_late: int) -> float:
    """Weight factor of an update that is so many rounds late: (1 + lateness)^-exponent (FedBuff, arXiv 2106.06639)."""
    return float((1 + rounds_late) ** -settings.staleness_exponent)


def keeps_partial_work(settings: RoundSettings, method: Method) -> bool:
    """Whether an update of a client that did not do all of its steps is aggregated."""
    return settings.keeps_partial_work(method.traits.uses_partial_work)


def _arrive(settings: RoundSettings, current: Round, event: UpdateArrived, status: ClientStatus) -> Step:
    if refusal := _refusal(settings, current, event, status):
        return Step(current, (Action.REFUSE,), refusal)
    awaited = current.pending - (status is ClientStatus.WAITING)
    closed = _close_if_done(settings, replace(current, pending=awaited, received=current.received + 1))
    return replace(closed, actions=(Action.ACCEPT, *closed.actions), status=ClientStatus.RECEIVED)


def _refusal(settings: RoundSettings, current: Round, event: UpdateArrived, status: ClientStatus) -> str:
    late = current.number - event.base_round
    if status is ClientStatus.RECEIVED:
        return f"{event.client_id} has already reported in round {current.number}"
    if current.phase is not RoundPhase.COLLECTING:
        return f"round {current.number} is {current.phase}"
    if late < 0:
        return f"round {event.base_round} has not begun"
    if late and settings.late == "drop":
        return f"round {event.base_round} is over"
    if not late and status is ClientStatus.UNINVITED:
        return f"{event.client_id} is not in the cohort of round {current.number}"
    return ""


def _close_if_done(settings: RoundSettings, current: Round) -> Step:
    """Aggregate once nobody is awaited, enough came of an over-selected cohort, or the deadline has passed."""
    if current.phase is not RoundPhase.COLLECTING or current.paused:
        return Step(current)
    enough = settings.clients_per_round is not None and current.received >= settings.clients_per_round
    if not (enough or current.deadline_passed or not current.pending):
        return Step(current)
    if current.received < settings.minimum_clients:
        received, needed = current.received, settings.minimum_clients
        return _fail(current, f"quorum not reached: got {received} updates, {needed} are needed")
    return Step(replace(current, phase=RoundPhase.AGGREGATING), (Action.AGGREGATE,))


def _fail(current: Round, reason: str) -> Step:
    return Step(replace(current, phase=RoundPhase.FAILED, reason=reason), (Action.FAIL,), reason)


def _expect(current: Round, event: Event, phase: RoundPhase) -> None:
    if current.phase is not phase:
        raise RoundError(f"{type(event).__name__} came in phase {current.phase}, expected {phase}")


@dataclass
class InMemoryRound:
    """Feeds events to the round machine, and keeps where each client stands."""

    settings: RoundSettings
    round: Round
    statuses: dict[str, ClientStatus]
    received: dict[str, int] = field(default_factory=dict)
    """How many rounds late the accepted update of each client is."""

    @classmethod
    def of(cls, settings: RoundSettings, number: int, cohort: Sequence[str]) -> InMemoryRound:
        """Begin a round with a cohort."""
        return cls(settings, Round(number, len(cohort)), dict.fromkeys(cohort, ClientStatus.WAITING))

    def feed(self, event: Event) -> Step:
        """Apply one event.

        Raises:
            RoundError: if the event cannot happen in this phase.
        """
        client = event.client_id if isinstance(event, UpdateArrived | DeviceLost) else ""
        result = step(self.settings, self.round, event, self.statuses.get(client, ClientStatus.UNINVITED))
        if result.status is not None:
            self.statuses[client] = result.status
        if result.status is ClientStatus.RECEIVED and isinstance(event, UpdateArrived):
            self.received[client] = self.round.number - event.base_round
        self.round = result.round
        return result
