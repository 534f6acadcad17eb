"""The device as a state machine without I/O: an event goes in, the next state and the commands to carry out come out.

What is durable before a command is the supervisor's to guarantee: it stores an update before it reports
`TrainingFinished`. The state itself is in `edge_agent.machine.state`, its parts are in
`rounds`, `uploads` and `releases`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from edge_agent.machine import releases, rounds, uploads
from edge_agent.machine.commands import BeginEpoch, Collect, Command, Leave, PublishStatus, Say, StartOver
from edge_agent.machine.events import (
    Acknowledged,
    Announced,
    ChunkDelivered,
    ChunksSent,
    CollectingPaused,
    CollectingResumed,
    Connected,
    DataReady,
    Disbelieved,
    Disconnected,
    Event,
    Invited,
    Offered,
    SensorFailed,
    Tick,
    TrainingConditions,
    Using,
)
from edge_agent.machine.state import (
    UNANNOUNCED,
    UNANNOUNCED_S,
    Agent,
    Policy,
    identity,
    misfit,
    status_of,
    superseded,
    wanted,
)
from edge_agent.machine.transition import Turn
from federation.protocol.messages import Announcement

ROLL_CALL_S = 2.0
"""Within which a fleet answers, each device at its own moment."""


@dataclass(frozen=True)
class Step:
    """The result of an event."""

    agent: Agent
    commands: tuple[Command, ...] = ()


def step(policy: Policy, agent: Agent, event: Event, now: float) -> Step:
    """Apply one event that happened at `now` (seconds on any clock that does not jump)."""
    turn = Turn(policy, agent, now)
    _take(turn, event)
    _settle(turn)
    return Step(turn.agent, tuple(turn.commands))


def _take(turn: Turn, event: Event) -> None:
    match event:
        case Connected():
            turn.set(connected=True, connected_at=turn.now, trouble="", upload=None, reported=None)
        case Disconnected(reason):
            uploads.stop(turn)
            turn.set(connected=False, trouble=reason, reported=None)
        case Announced(announcement):
            _announced(turn, announcement)
        case Disbelieved(reason):
            turn.set(distrust=reason)
            turn.ask(Say(reason))
        case Invited(invitation):
            turn.set(invitation=invitation)
            _reconsider(turn)
        case Offered(offer):
            releases.offered(turn, offer)
            _reconsider(turn)
        case DataReady(examples):
            turn.set(collecting=False, examples=examples)
        case CollectingPaused(reason):
            turn.set(paused=reason)
        case CollectingResumed():
            turn.set(paused="")
        case SensorFailed(reason):
            turn.set(collecting=False, detail=reason)
            turn.ask(Say(f"the sensor source failed: {reason}"), Leave(1))
        case Acknowledged(ack):
            uploads.acknowledged(turn, ack)
        case ChunkDelivered(update_id) | ChunksSent(update_id):
            uploads.sent(turn, update_id, whole=isinstance(event, ChunksSent))
        case Using(rollout, score):
            releases.uses(turn, rollout, score)
            _reconsider(turn)
        case TrainingConditions(start, go_on):
            rounds.conditions(turn, start, go_on)
        case Tick():
            _answer_roll_call(turn)
            _miss_announcement(turn)
            rounds.resume(turn)
            uploads.begin_again(turn)
        case _:
            rounds.worked(turn, event)


def _settle(turn: Turn) -> None:
    """Start what can be started, report what has changed, and leave when there is no more to do."""
    if turn.agent.work is None and (work := wanted(turn.agent)):
        rounds.begin(turn, work)
    uploads.begin_next(turn)
    status = status_of(turn.agent)
    if turn.agent.connected and status != turn.agent.reported:
        turn.set(reported=status)
        turn.ask(PublishStatus(status))
    over = turn.policy.until == "finished" and turn.agent.finished
    once = turn.policy.until == "round" and turn.agent.settled > 0 and turn.agent.work is None
    if over or once:
        turn.ask(Leave(0))


def _announced(turn: Turn, a: Announcement) -> None:
    if reason := misfit(a.plan, turn.policy.model):
        turn.set(detail=reason)
        turn.ask(Say(reason), Leave(1))
        return
    if (mine := identity(a, turn.policy.model)) != turn.agent.identity:
        rounds.drop(turn, "the federation was founded anew, or this device runs another network")
        uploads.stop(turn)
        before = turn.agent
        turn.agent = Agent(identity=mine, epoch=a.epoch, connected=before.connected)
        turn.set(invitation=before.invitation, offer=before.offer)  # they may be of the new founding
        turn.ask(StartOver(mine, a.epoch))
    elif a.epoch > turn.agent.epoch:
        _restored(turn, a)
    said = turn.agent.announcement
    turn.set(announcement=a, distrust="", unannounced=False)
    if a.roll_call != turn.agent.roll_call:
        turn.set(roll_call=a.roll_call, answer_at=turn.now + ROLL_CALL_S * _place(turn.policy.device))
    if a.release:
        releases.obey(turn, a.release)
    if said and (said.state, said.round) == (a.state, a.round) and said.created != a.created:
        uploads.said_again(turn)
    _reconsider(turn)
    if turn.agent.examples is None and not turn.agent.collecting:
        turn.set(collecting=True)
        turn.ask(Collect(a.plan))


def _restored(turn: Turn, a: Announcement) -> None:
    """Forget what does not bind in a new epoch: its rounds and releases have the numbers of earlier ones.

    An update that the server has not answered goes too: it is of the past, and its round is trained again if the server
    still asks for it. Models, windows and what the device has learnt for itself stay.
    """
    rounds.drop(turn, "the server was restored from a backup")
    uploads.stop(turn)
    turn.set(epoch=a.epoch, done=frozenset(), outbox=(), undecided="")
    turn.set(order=None, offered=None, using=0, report=None)
    turn.ask(BeginEpoch(a.epoch, a.round, a.restored))
    turn.ask(Say(f"the server was restored: it is in epoch {a.epoch} now, and at round {a.round}"))


def _place(device: str) -> float:
    """Draw a number in [0, 1) that is the device's own, so that a fleet does not answer at once."""
    return int.from_bytes(hashlib.sha256(device.encode()).digest()[:4]) / 2**32


def _answer_roll_call(turn: Turn) -> None:
    """Say the status again: the server has come back, and may have missed it."""
    if turn.agent.answer_at is not None and turn.now >= turn.agent.answer_at:
        turn.set(answer_at=None, reported=None)


def _miss_announcement(turn: Turn) -> None:
    """Tell once where nothing is heard of the federation; its last announcement is retained, and comes at once."""
    agent = turn.agent
    missed = agent.connected and agent.announcement is None and turn.now - agent.connected_at >= UNANNOUNCED_S
    if missed and not agent.unannounced:
        turn.set(unannounced=True)
        turn.ask(Say(f"connected for {UNANNOUNCED_S:.0f} s: {UNANNOUNCED}"))


def _reconsider(turn: Turn) -> None:
    """Drop the work that what was said last makes worthless."""
    a, work = turn.agent.announcement, turn.agent.work
    if a and work and (reason := superseded(work, a, wanted(turn.agent))):
        rounds.drop(turn, reason)
