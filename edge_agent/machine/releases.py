"""The part of the state machine that is about released models: which one is for this device, and which it must leave.

It is only asked where the federation uses rollouts. What a device adopts it says once it is in use, so that one way of
saying it serves the server's orders, `models --rollback`, and a restart after a kill.
"""

from __future__ import annotations

from typing import Literal

from edge_agent.machine.commands import GoBack, NoteRelease
from edge_agent.machine.events import Answer
from edge_agent.machine.state import Work
from edge_agent.machine.transition import Turn
from federation.protocol.messages import Offer, Release, ReleaseOrder, ReleaseReport
from federation.rounds.rollout import is_within


def offered_to(device: str, order: ReleaseOrder, offer: Offer | None = None) -> Release | None:
    """Return the release that an order means for a device; `offer` is of the order's instance and epoch."""
    candidate = order.candidate
    if candidate is None:
        return order.released
    named = offer is not None and offer.rollout == candidate.rollout
    return candidate if named or is_within(device, candidate.version, order.millionths) else order.released


def holds(offer: Offer | None, instance: str, epoch: int) -> Offer | None:
    """Return an offer if it was made in this founding of the federation, and in this epoch of the server."""
    return offer if offer and (offer.instance, offer.epoch) == (instance, epoch) else None


def obey(turn: Turn, order: ReleaseOrder) -> None:
    """Note which model is for this device, and leave one that was withdrawn."""
    offer = holds(turn.agent.offer, _instance(turn), turn.agent.epoch)
    turn.set(order=order, offered=offered_to(turn.policy.device, order, offer))
    _leave(turn)


def offered(turn: Turn, offer: Offer) -> None:
    """Note that a rollout's model is for this device as a member of a group."""
    turn.set(offer=offer)
    if turn.agent.order:
        obey(turn, turn.agent.order)


def uses(turn: Turn, rollout: int, score: float | None) -> None:
    """Note which release the present model is of (0: of none), and say what that means."""
    turn.set(using=rollout)
    said = turn.agent.report
    if rollout and (said is None or rollout > said.rollout or (rollout == said.rollout and said.answer != "adopted")):
        _report(turn, rollout, "adopted", score)
    elif said and said.answer == "adopted" and said.rollout != rollout:
        withdrawn = turn.agent.order and said.rollout in turn.agent.order.withdrawn
        reason = "withdrawn by the server" if withdrawn else "taken back on the device"
        _report(turn, said.rollout, "rolled_back", said.score, reason)
    _leave(turn)


def judged(turn: Turn, work: Work, answer: Answer, *, score: float | None, reason: str) -> None:
    """Say what the device's own gate has found; of a model that nobody could check, nothing: it waits for a score."""
    match answer:
        case "adopted":
            uses(turn, work.release, score)
        case "undecided":
            turn.set(undecided=work.model.sha256)
        case "refused":
            _report(turn, work.release, "refused", score, reason)
        case _:
            _report(turn, work.release, "failed", score, reason)


def failed(turn: Turn, work: Work, reason: str) -> None:
    """Say that a released model cannot be made to work here."""
    _report(turn, work.release, "failed", None, reason)


def _leave(turn: Turn) -> None:
    order, using = turn.agent.order, turn.agent.using
    if order and using in order.withdrawn:
        turn.ask(GoBack(using))


def _report(
    turn: Turn,
    rollout: int,
    answer: Literal["adopted", "refused", "failed", "rolled_back"],
    score: float | None,
    reason: str = "",
) -> None:
    epoch = turn.agent.epoch
    report = ReleaseReport(
        instance=_instance(turn), epoch=epoch, rollout=rollout, answer=answer, score=score, reason=reason[:500]
    )
    turn.set(report=report)
    turn.ask(NoteRelease(report))


def _instance(turn: Turn) -> str:
    return turn.agent.identity.partition("/")[0]
