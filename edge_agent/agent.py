"""The device as a state machine without I/O: an event goes in, the next state and the commands to carry out come out.

What is durable before a command is the supervisor's to guarantee: it stores an update before it reports
`TrainingFinished`. The state itself is in `edge_agent.state`, the two halves in `agent_work` and `agent_uploads`.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent import agent_releases, agent_uploads, agent_work
from edge_agent.commands import Collect, Command, Leave, PublishStatus, Say, StartOver
from edge_agent.events import (
    Acknowledged,
    Announced,
    ChunkDelivered,
    ChunksSent,
    CollectingPaused,
    CollectingResumed,
    Connected,
    DataReady,
    Disconnected,
    Event,
    Invited,
    SensorFailed,
    Tick,
    TrainingConditions,
    Using,
)
from edge_agent.state import Agent, Policy, identity, misfit, status_of, superseded, wanted
from edge_agent.turn import Turn
from federation.protocol.messages import Announcement


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
            turn.set(connected=True, upload=None, reported=None)
        case Disconnected():
            agent_uploads.stop(turn)
            turn.set(connected=False, reported=None)
        case Announced(announcement):
            _announced(turn, announcement)
        case Invited(invitation):
            turn.set(invitation=invitation)
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
            agent_uploads.acknowledged(turn, ack)
        case ChunkDelivered(update_id) | ChunksSent(update_id):
            agent_uploads.sent(turn, update_id, whole=isinstance(event, ChunksSent))
        case Using(rollout, score):
            agent_releases.uses(turn, rollout, score)
            _reconsider(turn)
        case TrainingConditions(start, go_on):
            agent_work.conditions(turn, start, go_on)
        case Tick():
            agent_work.resume(turn)
            agent_uploads.begin_again(turn)
        case _:
            agent_work.worked(turn, event)


def _settle(turn: Turn) -> None:
    """Start what can be started, report what has changed, and leave when there is no more to do."""
    if turn.agent.work is None and (work := wanted(turn.agent)):
        agent_work.begin(turn, work)
    agent_uploads.begin_next(turn)
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
        agent_work.drop(turn, "the federation was founded anew, or this device runs another network")
        agent_uploads.stop(turn)
        turn.agent = Agent(identity=mine, connected=turn.agent.connected, invitation=turn.agent.invitation)
        turn.ask(StartOver(mine))
    before = turn.agent.announcement
    turn.set(announcement=a)
    if a.release:
        agent_releases.obey(turn, a.release)
    if before and (before.state, before.round) == (a.state, a.round) and before.created != a.created:
        agent_uploads.said_again(turn)
    _reconsider(turn)
    if turn.agent.examples is None and not turn.agent.collecting:
        turn.set(collecting=True)
        turn.ask(Collect(a.plan))


def _reconsider(turn: Turn) -> None:
    """Drop the work that what was said last makes worthless."""
    a, work = turn.agent.announcement, turn.agent.work
    if a and work and (reason := superseded(work, a, wanted(turn.agent))):
        agent_work.drop(turn, reason)
