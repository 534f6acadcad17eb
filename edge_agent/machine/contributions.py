"""The state machine's part for continuous federations: sending whole sums when windows change, and withdrawal.

Such a federation has no invitations and no closing rounds. A device stores what it sent last, so a restart sends
nothing twice. Another instance of the federation, or a restored server, gets the sums again.
"""

from __future__ import annotations

from dataclasses import replace

from edge_agent.machine import uploads
from edge_agent.machine.commands import (
    ForgetContribution,
    ForgetUpdate,
    Log,
    PrepareWithdrawal,
)
from edge_agent.machine.events import TrainingFinished
from edge_agent.machine.state import Contribution, sums_in_clear, withdrawal_is_due
from edge_agent.machine.transition import Transition
from federation.protocol.messages import Acknowledgement, Announcement
from federation.seeds import seed_for

PAUSE_S = 600.0
"""After sums that could not be made, and a withdrawal that was refused: a try costs a process, or the server's time."""
NO_BASE = "0" * 64


def participation(transition: Transition, takes_part: bool) -> None:
    """Follow the person's wish: from a withdrawal on nothing is trained, and nothing leaves but the withdrawal."""
    if takes_part == transition.agent.takes_part:
        return
    transition.set(takes_part=takes_part, contribute_at=None)
    if takes_part:
        transition.issue(Log("the device takes part again"))
        return
    sent = transition.agent.contribution
    leaving = sent.update_id if sent and sent.kind == "withdrawn" else ""
    if transition.agent.upload and transition.agent.upload.update_id != leaving:
        uploads.stop(transition)
    transition.set(outbox=tuple(name for name in transition.agent.outbox if name == leaving))
    transition.issue(Log("the device is withdrawn at its user's request"))


def begin_withdrawal(transition: Transition) -> None:
    """Have the message written that takes the sums out, if they are to go."""
    agent = transition.agent
    a = agent.announcement
    if a is None or not withdrawal_is_due(agent, a):
        return
    uploads.stop(transition)
    transition.set(outbox=(), withdrawing=True, contribute_at=transition.now + transition.policy.ack_timeout_s)
    base, method = a.model.sha256 if a.model else NO_BASE, str(a.plan.method.get("name", ""))
    transition.issue(PrepareWithdrawal(max(1, a.round), base, method, a.chunk_bytes))


def withdrawal_ready(transition: Transition, update_id: str) -> None:
    """Send the withdrawal: it is durable."""
    gone = Contribution("withdrawn", update_id)
    transition.set(contribution=gone, outbox=(update_id,), withdrawing=False, contribute_at=None)


def trained(transition: Transition, event: TrainingFinished) -> bool:
    """Note what the sums are of that are about to be sent; false if they are not to leave any more."""
    if not transition.agent.takes_part:
        transition.issue(ForgetUpdate(event.update_id, "refused", "the user withdrew this device"))
        return False
    transition.set(contribution=Contribution("sums", event.update_id, event.keys, event.sequence))
    return True


def acknowledged(transition: Transition, ack: Acknowledgement) -> None:
    """Ask again later where the server refuses to take the sums out."""
    sent = transition.agent.contribution
    if sent and sent.kind == "withdrawn" and (ack.status, ack.update_id) == ("refused", sent.update_id):
        transition.set(contribution=replace(sent, kind="unknown", update_id=""))
        _pause(transition, f"the server refuses to remove this device's sums: {ack.reason}")
        transition.issue(ForgetContribution())


def restored(transition: Transition, a: Announcement) -> None:
    """Hold what the server has of this device for unknown, if it ever had any: the backup may have other sums of it.

    So sums are sent again, and a withdrawal is repeated, whoever or whatever it was made by. The number of masked sums
    stays.
    """
    sent = transition.agent.contribution
    known = Contribution("unknown") if sent and sums_in_clear(a) else sent
    transition.set(contribution=known, contribute_at=None, withdrawing=False)


def failed(transition: Transition, reason: str) -> None:
    """Leave sums that cannot be made for now; there may be other windows by then, or another version."""
    _pause(transition, reason)


def resume(transition: Transition) -> None:
    """Try again what has failed, once the pause is over."""
    if transition.agent.contribute_at is not None and transition.now >= transition.agent.contribute_at:
        transition.set(contribute_at=None, withdrawing=False)
    if transition.agent.refresh_at is not None and transition.now >= transition.agent.refresh_at:
        transition.set(refresh_at=None)


def _pause(transition: Transition, reason: str) -> None:
    # drawn from the device's name, so that a fleet does not come back in step
    pause_s = PAUSE_S * (0.5 + seed_for(0, transition.policy.device, 0, 0) % 1000 / 1000)
    transition.set(contribute_at=transition.now + pause_s, detail=reason)
    transition.issue(Log(f"{reason}; next attempt in {pause_s:.0f} s"))
