"""A step of the device's state machine in progress, which `edge_agent.machine.agent` and its parts modify."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_agent.machine.commands import Command
from edge_agent.machine.events import Kind
from edge_agent.machine.state import Agent, Policy, Stage


class Transition:
    """`agent` is replaced and `commands` grow; nothing outside is touched."""

    def __init__(self, policy: Policy, agent: Agent, now: float) -> None:
        self.policy, self.agent, self.now = policy, agent, now
        self.commands: list[Command] = []

    def set(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.agent = replace(self.agent, **changes)

    def issue(self, *commands: Command) -> None:
        """Have something done once the step is over."""
        self.commands += commands

    def stage(self, stage: Stage) -> None:
        """Move the work on."""
        if self.agent.work:
            self.set(work=replace(self.agent.work, stage=stage))

    def at(self, stage: Stage) -> bool:
        """Whether there is work, and it has come so far."""
        return self.agent.work is not None and self.agent.work.stage is stage

    def about(self, number: int, kind: Kind) -> bool:
        """Whether the work is that of this round."""
        return self.agent.work is not None and (self.agent.work.round, self.agent.work.kind) == (number, kind)
