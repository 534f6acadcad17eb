"""The state machine's part for released models: which one this device should use, and which one it must drop.

It applies only if the federation uses rollouts. A device reports an adopted model when it is in use, which covers the
server's orders, `models --rollback`, and a restart after a crash.
"""

from __future__ import annotations

from typing import Literal

from edge_agent.machine.commands import Rollback, SaveReleaseReport
from edge_agent.machine.events import CandidateEvaluated
from edge_agent.machine.state import PendingWork
from edge_agent.machine.transition import Transition
from federation.protocol.messages import DEFAULT_METRIC, Offer, Release, ReleaseOrder, ReleaseReport
from federation.rounds.rollout import is_within


def offered_to(device: str, order: ReleaseOrder, offer: Offer | None = None) -> Release | None:
    """Return the release that an order means for a device; `offer` is of the order's instance and epoch."""
    candidate = order.candidate
    if candidate is None:
        return order.released
    named = offer is not None and offer.rollout == candidate.rollout
    return candidate if named or is_within(device, candidate.version, order.share_millionths) else order.released


def valid_offer(offer: Offer | None, instance: str, epoch: int) -> Offer | None:
    """Return an offer if it was made in this instance of the federation, and in this epoch of the server."""
    return offer if offer and (offer.instance, offer.epoch) == (instance, epoch) else None


def apply_order(transition: Transition, order: ReleaseOrder) -> None:
    """Note which model is for this device, and leave one that was withdrawn."""
    offer = valid_offer(transition.agent.offer, _instance(transition), transition.agent.epoch)
    transition.set(order=order, offered=offered_to(transition.policy.device, order, offer))
    _revoke(transition)


def offered(transition: Transition, offer: Offer) -> None:
    """Note that a rollout's model is for this device as a member of a group."""
    transition.set(offer=offer)
    if transition.agent.order:
        apply_order(transition, transition.agent.order)


def model_in_use(transition: Transition, rollout: int, score: float | None, metric: str = "") -> None:
    """Note which release the present model is of (0: of none), and say what that means."""
    left, order = transition.agent.using, transition.agent.order
    transition.set(using=rollout)
    report = transition.agent.report
    if order and left != rollout and left in order.withdrawn and report and report.answer in ("kept", "refused"):
        report = None  # it was measured against a model that is gone: the release is taken up again
        transition.set(report=None)
    is_open = report is None or rollout > report.rollout
    if rollout and (is_open or (report and rollout == report.rollout and report.answer != "adopted")):
        _report(transition, rollout, "adopted", score, metric=metric)
    elif report and report.answer == "adopted" and report.rollout != rollout:
        withdrawn = transition.agent.order and report.rollout in transition.agent.order.withdrawn
        reason = "withdrawn by the server" if withdrawn else "rolled back on the device"
        _report(transition, report.rollout, "rolled_back", report.score, reason, report.metric)
    _revoke(transition)


def judged(transition: Transition, work: PendingWork, found: CandidateEvaluated) -> None:
    """Say what the device's own gate has found; of a model that nobody could check, nothing: it waits for a score."""
    match found.answer:
        case "adopted":
            model_in_use(transition, work.release, found.score, found.metric)
        case "undecided":
            transition.set(undecided=work.model.sha256)
        case "kept" | "refused":
            _report(transition, work.release, found.answer, found.score, found.reason, found.metric)
        case _:
            _report(transition, work.release, "failed", found.score, found.reason, found.metric)


def failed(transition: Transition, work: PendingWork, reason: str) -> None:
    """Say that a released model cannot be made to work here."""
    _report(transition, work.release, "failed", None, reason)


def _revoke(transition: Transition) -> None:
    order, using = transition.agent.order, transition.agent.using
    if order and using in order.withdrawn:
        transition.issue(Rollback(using))


def _report(
    transition: Transition,
    rollout: int,
    answer: Literal["adopted", "kept", "refused", "failed", "rolled_back"],
    score: float | None,
    reason: str = "",
    metric: str = "",
) -> None:
    report = ReleaseReport(
        instance=_instance(transition),
        epoch=transition.agent.epoch,
        rollout=rollout,
        answer=answer,
        score=score,
        metric=metric or DEFAULT_METRIC,
        reason=reason[:500],
    )
    transition.set(report=report)
    transition.issue(SaveReleaseReport(report))


def _instance(transition: Transition) -> str:
    return transition.agent.identity.partition("/")[0]
