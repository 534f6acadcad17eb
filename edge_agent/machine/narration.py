"""What happens to a device, in words for its log."""

from __future__ import annotations

from edge_agent.machine.events import (
    Acknowledged,
    Announced,
    Connected,
    DataReady,
    Disconnected,
    Event,
    Invited,
    Offered,
)


def narrate(event: Event) -> str:
    """Describe an event in one line; empty for those that the log does not need."""
    match event:
        case Connected():
            return "connected to the broker"
        case Disconnected(reason):
            return f"no connection to the broker: {reason}"
        case Announced(a):
            return f"announced: round {a.round} {a.state}" + (f", {a.invited} devices" if a.invited else "")
        case Invited(invitation):
            return f"invited to round {invitation.round}"
        case Offered(offer):
            return f"release {offer.rollout} is for this device's group"
        case DataReady(examples):
            return f"{examples:,} windows to train on"
        case Acknowledged(ack) if ack.status == "send":
            return f"update {ack.update_id}: the server asks for chunks from {ack.next_chunk} on"
        case _:
            return ""
