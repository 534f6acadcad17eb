"""The state machine of a device under test: events at chosen times in, commands remembered."""

from __future__ import annotations

from typing import Any, TypeVar

from edge_agent.machine.agent import step
from edge_agent.machine.commands import Command, PublishStatus
from edge_agent.machine.events import (
    Acknowledged,
    Announced,
    BlobFetched,
    Connected,
    DataReady,
    Event,
    Invited,
    TrainingFinished,
)
from edge_agent.machine.state import Agent, Policy
from federation.protocol.messages import Acknowledgement
from tests.edge_agent.factories import announcement, invitation

A, B = "a" * 64, "b" * 64
Kind = TypeVar("Kind", bound=Command)


class Device:
    """Feeds events at chosen times and remembers the commands."""

    def __init__(self, agent: Agent | None = None, **policy: Any) -> None:
        self.policy = Policy("d1", **{"ack_timeout_s": 10.0, "attempts": 2, "retry_s": 1.0, **policy})
        self.agent, self.now = agent or Agent(), 0.0
        self.last: tuple[Command, ...] = ()

    def on(self, *events: Event, at: float | None = None) -> Device:
        self.now = self.now if at is None else at
        self.last = ()
        for event in events:
            result = step(self.policy, self.agent, event, self.now)
            self.agent, self.last = result.agent, (*self.last, *result.commands)
        return self

    def announced(self, number: int, model: str = "a", **fields: Any) -> Device:
        """Hear of a round, and be invited to it."""
        return self.on(Invited(invitation(number, model)), Announced(announcement(number, model=model, **fields)))

    def asked(self, kind: type[Kind]) -> list[Kind]:
        return [command for command in self.last if isinstance(command, kind)]

    @property
    def status(self) -> str:
        return self.asked(PublishStatus)[-1].status.state


def ready(**policy: Any) -> Device:
    """A connected device with data whose federation waits."""
    return Device(**policy).on(Connected(), Announced(announcement(0, "waiting", None)), DataReady(40))


def training(**policy: Any) -> Device:
    device = ready(**policy).announced(1)
    return device.on(BlobFetched(A))


def uploading(**policy: Any) -> Device:
    return training(**policy).on(TrainingFinished(1, "u1", {"train_loss": 0.5}))


def answer(status: str, update_id: str = "u1", **fields: Any) -> Acknowledged:
    return Acknowledged(Acknowledgement(update_id=update_id, status=status, **fields))
