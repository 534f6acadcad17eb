"""The state machine's part for uploads: one update at a time from the outbox, until the server answers it."""

from __future__ import annotations

import re
from dataclasses import replace

from edge_agent.machine.commands import ForgetUpdate, Log, SendBegin, SendChunks, StopSending
from edge_agent.machine.state import Upload
from edge_agent.machine.transition import Transition
from federation.protocol.messages import Acknowledgement

_UNFINISHED = re.compile(r"m\d+-(keys|shares|vector|list)-")
"""Messages of a secure sum that others follow: the round is not answered by them."""
MAX_TIMEOUT_FACTOR = 8
"""Times the answer's time-out, which doubles with every silence."""


def begin_next(transition: Transition) -> None:
    """Begin with the oldest update, if none is on its way."""
    free = transition.agent.connected and transition.agent.upload is None and transition.agent.refusal is None
    if free and transition.agent.outbox:
        transition.set(upload=Upload(transition.agent.outbox[0], "begun", transition.now))
        transition.issue(SendBegin(transition.agent.outbox[0]))


def acknowledged(transition: Transition, ack: Acknowledgement) -> None:
    """Send what the server misses, or forget what it has answered for good."""
    if ack.update_id not in transition.agent.outbox:
        return  # a repeated answer
    if transition.agent.refusal is not None and ack.status in ("send", "retry"):
        return  # nothing is sent under a plan that is refused
    if ack.status == "send":
        transition.set(upload=Upload(ack.update_id, "sending", transition.now))
        transition.issue(SendChunks(ack.update_id, ack.next_chunk))
        return
    if ack.status == "retry":
        if transition.agent.upload and transition.agent.upload.update_id == ack.update_id:
            tries = transition.agent.upload.tries
            stop(transition)
            transition.set(upload=Upload(ack.update_id, "begun", transition.now, tries), detail=ack.reason)
            transition.issue(Log(f"the server takes update {ack.update_id} later, after a time-out: {ack.reason}"))
        return
    if transition.agent.upload and transition.agent.upload.update_id == ack.update_id:
        stop(transition)
    left = tuple(update_id for update_id in transition.agent.outbox if update_id != ack.update_id)
    begins = ack.status == "accepted" and _UNFINISHED.match(ack.update_id) is not None
    transition.set(outbox=left, answered=transition.agent.answered + (not begins))
    transition.issue(ForgetUpdate(ack.update_id, ack.status, ack.reason))


def sent(transition: Transition, update_id: str, *, whole: bool) -> None:
    """Note that the broker has taken a chunk, or the last of them."""
    upload = transition.agent.upload
    if upload and upload.update_id == update_id and upload.stage == "sending":
        transition.set(upload=replace(upload, stage="ended" if whole else "sending", since=transition.now))


def stop(transition: Transition) -> None:
    """Leave the update that is on its way; it stays in the outbox."""
    if transition.agent.upload and transition.agent.upload.stage == "sending":
        transition.issue(StopSending())
    transition.set(upload=None)


def restart(transition: Transition) -> None:
    """Begin the upload again now: who says the same anew has come back, or taken over, and may not know of it."""
    upload = transition.agent.upload
    if upload and transition.agent.connected:
        stop(transition)
        transition.set(upload=Upload(upload.update_id, "begun", transition.now, upload.tries))
        transition.issue(SendBegin(upload.update_id))


def retry(transition: Transition) -> None:
    """Repeat an upload whose answer does not come."""
    upload, patience_s = transition.agent.upload, transition.policy.ack_timeout_s
    if upload and transition.now - upload.since >= patience_s * min(2 ** (upload.tries - 1), MAX_TIMEOUT_FACTOR):
        stop(transition)
        transition.set(upload=Upload(upload.update_id, "begun", transition.now, upload.tries + 1))
        transition.issue(SendBegin(upload.update_id))
