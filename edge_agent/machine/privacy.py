"""The part of the state machine that is about privacy: the device requires what it was promised, and refuses less.

A refused plan changes nothing here: the device recognizes on, trains nothing, and sends nothing but a status with its
signed refusal. Only a person at the device can loosen what it requires.
"""

from __future__ import annotations

from edge_agent.machine import rounds, uploads
from edge_agent.machine.commands import KeepPrivacyPin, Log, NoteRefusedPlan
from edge_agent.machine.transition import Transition
from federation.privacy.promises import PrivacyPromises, promises_of, required, shortfall
from federation.protocol.messages import Announcement, PlanRefusal


def is_refused(transition: Transition, a: Announcement) -> bool:
    """Refuse a plan that promises less than this device requires.

    A device that has lost what it pinned at its enrolment pins the first plan of its server.
    """
    promised = promises_of(a.plan)
    if transition.agent.pinned is None and transition.policy.pins:
        pin(transition, promised)
        transition.issue(KeepPrivacyPin(promised))
    if reason := shortfall(promised, transition.agent.required):
        _refuse(transition, a, reason)
        return True
    if transition.agent.refusal is not None:
        transition.issue(Log("the plan promises what this device requires: it takes part again"), NoteRefusedPlan())
    transition.set(refusal=None, refused=None)
    return False


def pin(transition: Transition, promises: PrivacyPromises) -> None:
    """Require from now on what was promised, but for what the device's settings say."""
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
