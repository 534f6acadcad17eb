"""The device's state between two events, and what can be read off it.

Three things go on side by side: one piece of work (a round's training, or the final model), one upload out of the
outbox, and the connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from edge_agent.events import Kind
from federation.plan import Plan
from federation.protocol.messages import Announcement, BlobPointer, DeviceStatus


class Stage(StrEnum):
    """How far a piece of work has come."""

    FETCHING = "fetching"
    RESTING = "resting"  # before another try
    TRAINING = "training"
    EXPORTING = "exporting"
    JUDGING = "judging"


@dataclass(frozen=True)
class Policy:
    """What the state machine is told once."""

    device: str
    ack_timeout_s: float = 15.0
    attempts: int = 3
    retry_s: float = 2.0
    until: Literal["never", "round", "finished"] = "never"


@dataclass(frozen=True)
class Work:
    """A round to train, or the final model to adopt."""

    kind: Kind
    round: int
    model: BlobPointer
    stage: Stage = Stage.FETCHING
    attempt: int = 1  # tries of the process; downloads are tried for as long as the round lasts
    fetches: int = 1
    resume_at: float = 0.0


@dataclass(frozen=True)
class Upload:
    """The update that is on its way; `since` is when anything last happened to it."""

    update_id: str
    stage: Literal["begun", "sending", "ended"]
    since: float
    tries: int = 1


@dataclass(frozen=True)
class Agent:
    """The device's whole state; `plan_key`, `examples`, `done`, `outbox` and `final` survive a restart."""

    plan_key: str = ""
    connected: bool = False
    announcement: Announcement | None = None
    collecting: bool = False
    examples: int | None = None  # for training; none: not known yet
    done: frozenset[tuple[int, str]] = frozenset()  # (round, sha256 of its broadcast): trained, or given up
    outbox: tuple[str, ...] = ()
    work: Work | None = None
    upload: Upload | None = None
    final: str = ""  # sha256 of the final broadcast that was dealt with
    settled: int = 0  # updates that the server has answered since the start
    detail: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    reported: DeviceStatus | None = None

    @property
    def finished(self) -> bool:
        """Whether the federation is over, and its last model dealt with."""
        a = self.announcement
        if a is None or a.state not in ("finished", "stopped"):
            return False
        over = a.state == "stopped" or a.model is None or a.model.sha256 == self.final or self.examples == 0
        return over and self.work is None


def plan_key(plan: Plan) -> str:
    """Name what a device has learnt something about: everything in the plan except how rounds are staffed."""
    return hashlib.sha256(plan.model_dump_json(exclude={"rounds"}).encode()).hexdigest()


def wanted(policy: Policy, agent: Agent) -> Work | None:
    """Return the work that the present announcement asks of this device, if it can do it and has not done it."""
    a = agent.announcement
    if a is None or a.model is None or not agent.examples:
        return None
    if a.state == "finished":
        return None if a.model.sha256 == agent.final else Work("adopt", a.round, a.model)
    if a.state != "collecting" or (a.round, a.model.sha256) in agent.done:
        return None
    invited = a.cohort is None or policy.device in a.cohort
    return Work("train", a.round, a.model) if invited else None


def superseded(work: Work, a: Announcement, following: Work | None) -> str:
    """Say why a piece of work is no longer worth doing under announcement `a`; empty if it is."""
    if work.stage is Stage.JUDGING:
        return ""
    if work.kind == "adopt":
        same = a.state == "finished" and a.model is not None and a.model.sha256 == work.model.sha256
        return "" if same else f"the federation is {a.state}"
    if work.stage is Stage.EXPORTING:
        again = following is not None and following.kind == "train"
        return f"round {a.round} has begun" if again else ""
    if a.state in ("finished", "stopped"):
        return f"the federation is {a.state}"
    replaced = a.model is not None and a.model.sha256 != work.model.sha256
    if a.round == work.round and not replaced and a.state not in ("aggregating", "waiting"):
        return ""
    late_is_welcome = a.plan.rounds.late == "next" and a.round >= work.round and work.stage is Stage.TRAINING
    return "" if late_is_welcome else f"round {work.round} is over"


def status_of(agent: Agent) -> DeviceStatus:
    """Put the state into the words of the protocol."""
    a, work = agent.announcement, agent.work
    round_number = work.round if work else a.round if a else 0
    state: Literal["collecting", "ready", "training", "uploading", "idle", "finished"]
    if agent.finished:
        state = "finished"
    elif not agent.examples:
        state = "collecting"
    elif work and work.kind == "train" and work.stage in (Stage.FETCHING, Stage.RESTING, Stage.TRAINING):
        state = "training"
    elif agent.outbox:
        state = "uploading"
    else:
        state = "idle" if agent.done else "ready"
    return DeviceStatus(
        state=state,
        round=round_number,
        examples=agent.examples or 0,
        detail=_detail(agent)[:500],
        metrics=dict(agent.metrics),
    )


def _detail(agent: Agent) -> str:
    if agent.announcement is None:
        return "waiting for the federation's announcement"
    if agent.examples == 0:
        return "the sensor source gave no labelled windows to train on"
    if agent.work and agent.work.stage is not Stage.TRAINING:
        return agent.detail or f"{agent.work.stage} for round {agent.work.round}"
    return agent.detail
