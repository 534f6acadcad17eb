"""The half of the state machine that is about uploads: one update at a time out of the outbox, until it is answered."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.machine.commands import Forget, Say, SendBegin, SendChunks, StopSending
from edge_agent.machine.state import Upload
from edge_agent.machine.transition import Turn
from federation.protocol.messages import Acknowledgement

LONGEST_PATIENCE = 8
"""Times the answer's time-out, which doubles with every silence."""


def begin_next(turn: Turn) -> None:
    """Begin with the oldest update, if none is on its way."""
    if turn.agent.connected and turn.agent.upload is None and turn.agent.outbox:
        turn.set(upload=Upload(turn.agent.outbox[0], "begun", turn.now))
        turn.ask(SendBegin(turn.agent.outbox[0]))


def acknowledged(turn: Turn, ack: Acknowledgement) -> None:
    """Send what the server misses, or forget what it has answered for good."""
    if ack.update_id not in turn.agent.outbox:
        return  # a repeated answer
    if ack.status == "send":
        turn.set(upload=Upload(ack.update_id, "sending", turn.now))
        turn.ask(SendChunks(ack.update_id, ack.next_chunk))
        return
    if ack.status == "later":
        if turn.agent.upload and turn.agent.upload.update_id == ack.update_id:
            tries = turn.agent.upload.tries
            stop(turn)
            turn.set(upload=Upload(ack.update_id, "begun", turn.now, tries), detail=ack.reason)
            turn.ask(Say(f"the server takes update {ack.update_id} later, after a time-out: {ack.reason}"))
        return
    if turn.agent.upload and turn.agent.upload.update_id == ack.update_id:
        stop(turn)
    left = tuple(update_id for update_id in turn.agent.outbox if update_id != ack.update_id)
    turn.set(outbox=left, settled=turn.agent.settled + 1)
    turn.ask(Forget(ack.update_id, ack.status, ack.reason))


def sent(turn: Turn, update_id: str, *, whole: bool) -> None:
    """Note that the broker has taken a chunk, or the last of them."""
    upload = turn.agent.upload
    if upload and upload.update_id == update_id and upload.stage == "sending":
        turn.set(upload=replace(upload, stage="ended" if whole else "sending", since=turn.now))


def stop(turn: Turn) -> None:
    """Leave the update that is on its way; it stays in the outbox."""
    if turn.agent.upload and turn.agent.upload.stage == "sending":
        turn.ask(StopSending())
    turn.set(upload=None)


def said_again(turn: Turn) -> None:
    """Begin the upload again now: who says the same anew has come back, or taken over, and may not know of it."""
    upload = turn.agent.upload
    if upload and turn.agent.connected:
        stop(turn)
        turn.set(upload=Upload(upload.update_id, "begun", turn.now, upload.tries))
        turn.ask(SendBegin(upload.update_id))


def begin_again(turn: Turn) -> None:
    """Repeat an upload whose answer does not come."""
    upload, patience_s = turn.agent.upload, turn.policy.ack_timeout_s
    if upload and turn.now - upload.since >= patience_s * min(2 ** (upload.tries - 1), LONGEST_PATIENCE):
        stop(turn)
        turn.set(upload=Upload(upload.update_id, "begun", turn.now, upload.tries + 1))
        turn.ask(SendBegin(upload.update_id))
