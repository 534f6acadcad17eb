"""The device's state machine without I/O: takes an event, returns the next state and commands to carry out.

The supervisor guarantees durability: it stores an update before it reports `TrainingFinished`. The state itself is in
`edge_agent.machine.state`, its parts are in `rounds`, `contributions`, `uploads` and `releases`.

A plan that promises less privacy than the device requires is refused: the device keeps recognizing, trains nothing, and
sends only a status with its signed refusal. Only a person at the device can relax the requirement.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from edge_agent.machine import contributions, releases, rounds, uploads
from edge_agent.machine.commands import (
    AnswerSum,
    BeginEpoch,
    Collect,
    Command,
    Exit,
    KeepPrivacyPin,
    Log,
    NoteRefusedPlan,
    PublishStatus,
    Reset,
)
from edge_agent.machine.events import (
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
    MessageRejected,
    ModelInUse,
    Offered,
    ParticipationRead,
    PrivacyPinRead,
    SensorFailed,
    SumMessageFetched,
    SumMessageReady,
    Tick,
    TrainingConditions,
    WithdrawalReady,
)
from edge_agent.machine.state import (
    UNANNOUNCED,
    UNANNOUNCED_S,
    Agent,
    Policy,
    identity,
    incompatibility,
    next_work,
    status_of,
    sums_in_clear,
    superseded,
)
from edge_agent.machine.transition import Transition
from federation.privacy.promises import PrivacyPromises, promises_of, required, shortfall
from federation.protocol.messages import Announcement, Invitation, PlanRefusal

PRESENCE_CHECK_S = 2.0
"""Seconds over which a fleet spreads its answers."""


@dataclass(frozen=True)
class StepResult:
    """The result of an event."""

    agent: Agent
    commands: tuple[Command, ...] = ()


def step(policy: Policy, agent: Agent, event: Event, now: float) -> StepResult:
    """Apply one event that happened at `now` (seconds on any clock that does not jump)."""
    transition = Transition(policy, agent, now)
    _apply(transition, event)
    _advance(transition)
    return StepResult(transition.agent, tuple(transition.commands))


def _apply(transition: Transition, event: Event) -> None:
    match event:
        case Connected():
            transition.set(connected=True, connected_at=transition.now, connection_error="", upload=None, reported=None)
        case Disconnected(reason):
            uploads.stop(transition)
            transition.set(connected=False, connection_error=reason, reported=None)
        case Announced(announcement):
            _announced(transition, announcement)
        case MessageRejected(reason):
            transition.set(untrusted=reason)
            transition.issue(Log(reason))
        case Invited(invitation):
            transition.set(invitation=invitation)
            _reconsider(transition)
            _answer_sum(transition, invitation)
        case SumMessageReady() | SumMessageFetched():
            _follow_sum(transition, event)
        case Offered(offer):
            releases.offered(transition, offer)
            _reconsider(transition)
        case DataReady():
            transition.set(collecting=False, examples=event.examples, measurable=event.measurable)
            transition.set(keys=event.keys, unlabelled=event.unlabelled)
        case ParticipationRead(takes_part):
            contributions.participation(transition, takes_part)
            _reconsider(transition)
        case PrivacyPinRead(promises):
            _accepted(transition, promises)
        case WithdrawalReady(update_id):
            contributions.withdrawal_ready(transition, update_id)
        case CollectingPaused() | CollectingResumed():
            transition.set(paused=event.reason if isinstance(event, CollectingPaused) else "")
        case SensorFailed(reason):
            transition.set(collecting=False, detail=reason)
            transition.issue(Log(f"the sensor source failed: {reason}"), Exit(1))
        case Acknowledged(ack):
            uploads.acknowledged(transition, ack)
            contributions.acknowledged(transition, ack)
        case ChunkDelivered(update_id) | ChunksSent(update_id):
            uploads.sent(transition, update_id, whole=isinstance(event, ChunksSent))
        case ModelInUse(rollout, score, metric, name):
            transition.set(in_use=name)
            releases.model_in_use(transition, rollout, score, metric)
            _reconsider(transition)
        case TrainingConditions(start, to_continue):
            rounds.conditions(transition, start, to_continue)
        case Tick():
            _answer_presence_check(transition)
            _miss_announcement(transition)
            rounds.resume(transition)
            contributions.resume(transition)
            uploads.retry(transition)
        case _:
            rounds.worked(transition, event)


def _advance(transition: Transition) -> None:
    """Start what can be started, report what changed, and exit when nothing is left to do."""
    contributions.begin_withdrawal(transition)
    if transition.agent.work is None and (work := next_work(transition.agent)):
        rounds.begin(transition, work)
    uploads.begin_next(transition)
    status = status_of(transition.agent)
    if transition.agent.connected and status != transition.agent.reported:
        transition.set(reported=status)
        transition.issue(PublishStatus(status))
    over = transition.policy.until == "finished" and transition.agent.finished
    once = transition.policy.until == "round" and transition.agent.answered > 0 and transition.agent.work is None
    if over or once:
        transition.issue(Exit(0))


def _accepted(transition: Transition, promises: PrivacyPromises) -> None:
    """Look at the plan again, now that its person has accepted what it promises."""
    _pin(transition, promises)
    if heard := transition.agent.refused or transition.agent.announcement:
        _announced(transition, heard)


def _announced(transition: Transition, a: Announcement) -> None:
    _check_presence(transition, a)
    if _is_refused(transition, a):
        return
    if reason := incompatibility(a.plan, transition.policy.model):
        transition.set(detail=reason)
        transition.issue(Log(reason), Exit(1))
        return
    if (current := identity(a, transition.policy.model)) != transition.agent.identity:
        rounds.drop(transition, "the federation was re-created, or this device runs another network")
        uploads.stop(transition)
        before = transition.agent
        transition.agent = Agent(identity=current, epoch=a.epoch, connected=before.connected)
        transition.set(invitation=before.invitation, offer=before.offer)  # they may be of the new instance
        transition.set(takes_part=before.takes_part, pinned=before.pinned, required=before.required)
        transition.set(presence_check=before.presence_check, answer_at=before.answer_at)
        transition.issue(Reset(current, a.epoch))
    elif a.epoch > transition.agent.epoch:
        _restored(transition, a)
    known = transition.agent.announcement
    needed = a.feature_model if sums_in_clear(a) else a.program
    # a program sends an update, and of a sum's layout torch alone knows here: who was drawn would lose each round
    adds_up = a.plan.secure.is_on and not a.continuous
    lacks_program = transition.policy.runtime == "onnx" and (needed is None or adds_up)
    transition.set(announcement=a, untrusted="", unannounced=False, lacks_program=lacks_program)
    if a.release:
        releases.apply_order(transition, a.release)
    if known and (known.state, known.round) == (a.state, a.round) and known.created != a.created:
        uploads.restart(transition)
    _reconsider(transition)
    if transition.agent.examples is None and not transition.agent.collecting:
        transition.set(collecting=True)
        transition.issue(Collect(a.plan))


def _check_presence(transition: Transition, a: Announcement) -> None:
    if a.presence_check != transition.agent.presence_check:
        at = transition.now + PRESENCE_CHECK_S * _share_of(transition.policy.device)
        transition.set(presence_check=a.presence_check, answer_at=at)


def _follow_sum(transition: Transition, event: SumMessageReady | SumMessageFetched) -> None:
    """Send the secure sum's message that is durable, or answer what has been downloaded, if it still holds."""
    agent = transition.agent
    if isinstance(event, SumMessageFetched):
        if event.invitation == agent.invitation:
            _answer_sum(transition, event.invitation)
    elif event.update_id not in agent.outbox:
        transition.set(outbox=(*agent.outbox, event.update_id))


def _answer_sum(transition: Transition, invitation: Invitation) -> None:
    """Have the secure sum's next message written; its first one, the keys, follows from the round's training."""
    if transition.agent.refusal is not None:
        return
    order = invitation.sum
    if order is not None and order.kind != "request" and transition.agent.takes_part:
        transition.issue(AnswerSum(invitation))


def _restored(transition: Transition, a: Announcement) -> None:
    """Forget what does not bind in a new epoch: its rounds and releases have the numbers of earlier ones.

    An update that the server has not answered goes too: it is of the past, and its round is trained again if the server
    still asks for it. Models, windows and what the device has learnt for itself stay.
    """
    rounds.drop(transition, "the server was restored from a backup")
    uploads.stop(transition)
    transition.set(epoch=a.epoch, done=frozenset(), outbox=(), undecided="", unusable=None)
    contributions.restored(transition, a)
    transition.set(order=None, offered=None, using=0, report=None)
    transition.issue(BeginEpoch(a.epoch, a.round, a.restored_at))
    transition.issue(Log(f"the server was restored: it is now in epoch {a.epoch}, at round {a.round}"))


def _share_of(device: str) -> float:
    """Draw a number in [0, 1) that is the device's own, so that a fleet does not answer at once."""
    return int.from_bytes(hashlib.sha256(device.encode()).digest()[:4], "big") / 2**32


def _answer_presence_check(transition: Transition) -> None:
    """Say the status again: the server has come back, and may have missed it."""
    if transition.agent.answer_at is not None and transition.now >= transition.agent.answer_at:
        transition.set(answer_at=None, reported=None)


def _miss_announcement(transition: Transition) -> None:
    """Tell once where nothing is heard of the federation; its last announcement is retained, and comes at once."""
    agent = transition.agent
    silent = agent.announcement is None and agent.refused is None
    missed = agent.connected and silent and transition.now - agent.connected_at >= UNANNOUNCED_S
    if missed and not agent.unannounced:
        transition.set(unannounced=True)
        transition.issue(Log(f"connected for {UNANNOUNCED_S:.0f} s: {UNANNOUNCED}"))


def _reconsider(transition: Transition) -> None:
    """Drop the work that what was said last makes worthless."""
    a, work = transition.agent.announcement, transition.agent.work
    if work and work.kind == "train" and not transition.agent.takes_part:
        rounds.drop(transition, "the user withdrew this device")
    elif a and work and (reason := superseded(work, a, next_work(transition.agent))):
        rounds.drop(transition, reason)


def _is_refused(transition: Transition, a: Announcement) -> bool:
    """Refuse a plan that promises less than this device requires.

    A device that has lost what it pinned at its enrolment pins the first plan of its server.
    """
    promised = promises_of(a.plan)
    if transition.agent.pinned is None and transition.policy.pins:
        _pin(transition, promised)
        transition.issue(KeepPrivacyPin(promised))
    if reason := shortfall(promised, transition.agent.required):
        _refuse(transition, a, reason)
        return True
    if transition.agent.refusal is not None:
        transition.issue(
            Log("the plan now promises what this device requires, so the device takes part again"), NoteRefusedPlan()
        )
    transition.set(refusal=None, refused=None)
    return False


def _pin(transition: Transition, promises: PrivacyPromises) -> None:
    """Require from now on what was promised, except where the device's settings differ."""
    transition.set(pinned=promises, required=required(promises, transition.policy.privacy))


def _refuse(transition: Transition, a: Announcement, reason: str) -> None:
    before = transition.agent.refusal
    refusal = PlanRefusal(instance=a.instance, epoch=a.epoch, serial=a.serial, reason=reason[:500])
    if before is None or before.model_copy(update={"serial": a.serial}) != refusal:
        transition.set(refusal=refusal)
        transition.issue(Log(f"the plan is refused: {reason}"), NoteRefusedPlan(refusal.reason, promises_of(a.plan)))
    rounds.drop(transition, f"the plan is refused: {reason}")
    uploads.stop(transition)
    transition.set(announcement=None, refused=a, unannounced=False, untrusted="")
