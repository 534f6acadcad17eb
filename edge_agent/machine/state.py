"""The device's state between two events, and what follows from it.

Three things run concurrently: one piece of work (a round's training, or the final model), one upload from the outbox,
and the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edge_agent.machine.events import Kind
from federation.plan import ModelSpec, Plan
from federation.privacy.promises import NO_PROMISES, PrivacyPromises
from federation.protocol.messages import (
    AdoptionReport,
    Announcement,
    BlobPointer,
    DeviceStatus,
    Invitation,
    ModelRefusal,
    Offer,
    PlanRefusal,
    Release,
    ReleaseOrder,
    ReleaseReport,
    Runtime,
)
from gaitway import plugins
from gaitway.python310 import StrEnum
from gaitway.tasks import task_of

UNANNOUNCED_S = 20.0
UNANNOUNCED = (
    "this federation isn't announced: check [agent] federation, that the operator created it, and that [broker] (or, "
    "over HTTP, [server] url) is its server's"
)


WITHOUT_PROGRAM = (
    "this device has no torch, and its server has no program for it (yet; `program` of GET /v1/federations/{name} "
    "says why) or uses secure sums, which need torch; install gaitway[edge]"
)
WITHDRAWN = "withdrawn by the user: it sends nothing derived from its windows until `take-part`"


class Stage(StrEnum):
    """How far a piece of work has come."""

    FETCHING = "fetching"
    BACKOFF = "backoff"  # before another try
    BLOCKED = "blocked"  # until the device may train
    TRAINING = "training"
    EXPORTING = "exporting"
    EVALUATING = "evaluating"


@dataclass(frozen=True)
class Policy:
    """The state machine's fixed settings."""

    device: str
    ack_timeout_s: float = 15.0
    refresh_s: float = 900.0
    attempts: int = 3
    retry_s: float = 2.0
    until: Literal["never", "round", "finished"] = "never"
    model: str | None = None  # name of the network that this device runs; none: the plan's
    runtime: Runtime = "torch"  # what trains
    privacy: PrivacyPromises = NO_PROMISES  # what the settings require; the rest is pinned
    pins: bool = False  # whether a first plan is pinned where no pin is left: the device has enrolled


@dataclass(frozen=True)
class PendingWork:
    """A round to train, its model to export later, or a model to adopt: a released one, or the final one."""

    kind: Kind
    round: int
    model: BlobPointer
    release: int = 0  # number of its rollout; 0: it is none's
    continuous: bool = False  # of a continuous federation: whatever version it began from, it is welcome
    stage: Stage = Stage.FETCHING
    attempt: int = 1  # tries of the process; downloads are tried for as long as the round lasts
    fetches: int = 1
    resume_at: float = 0.0

    @property
    def name(self) -> str:
        """What it is about, in words."""
        unit = "version" if self.continuous else "round"
        return f"release {self.release}" if self.release else f"{unit} {self.round}"


@dataclass(frozen=True)
class Candidate:
    """A trained round whose model is not judged yet; `model` is the broadcast that it began from."""

    round: int
    model: BlobPointer


@dataclass(frozen=True)
class Contribution:
    """What a continuous federation has of this device, or will have once it has answered.

    sums: those over the windows with these keys; withdrawn: nothing any more; unknown: it has refused to say. Masked
    sums: those that the device has added last, by their number, whatever became of that round.
    """

    kind: Literal["sums", "withdrawn", "unknown"]
    update_id: str = ""
    keys: frozenset[int] = frozenset()
    sequence: int = 0  # of masked sums


@dataclass(frozen=True)
class Upload:
    """The update that is on its way; `since` is when anything last happened to it."""

    update_id: str
    stage: Literal["begun", "sending", "ended"]
    since: float
    tries: int = 1


@dataclass(frozen=True)
class Agent:
    """The device's whole state.

    `identity`, `epoch`, `examples`, `done`, `outbox`, `contribution`, `takes_part`, `candidates`, `judged_global`,
    `offer`, `report`, `adoption` and `pinned` survive a restart.
    """

    identity: str = ""
    epoch: int = 1  # of the server; what is remembered of rounds and releases is of this one
    connected: bool = False
    connected_at: float = 0.0
    connection_error: str = ""  # why there is no connection to the broker
    announcement: Announcement | None = None
    invitation: Invitation | None = None  # the latest; may come before its round is announced
    collecting: bool = False
    examples: int | None = None  # for training; none: not known yet
    measurable: bool = False  # whether its examples, labelled or not, tell how its sensors are
    paused: str = ""  # why nothing is collected for now
    untrusted: str = ""  # why the last message was not believed
    pinned: PrivacyPromises | None = None  # what was promised at enrolment; none: nothing yet
    required: PrivacyPromises = NO_PROMISES  # what a plan must promise: by the settings, else as pinned
    refused: Announcement | None = None  # the last one, where its plan is refused; then there is no `announcement`
    refusal: PlanRefusal | None = None  # what is said of it
    done: frozenset[tuple[int, str]] = frozenset()  # (round, sha256 of its broadcast): trained, or given up
    outbox: tuple[str, ...] = ()
    keys: frozenset[int] = frozenset()  # of the windows to train on
    unlabelled: frozenset[int] = frozenset()  # of its windows where none has a label
    adapted_to: frozenset[int] = frozenset()  # those of them that a continuous federation's heads were made with last
    takes_part: bool = True  # as the person wishes
    contribution: Contribution | None = None  # to a continuous federation; none: nothing was sent yet
    contribute_at: float | None = None  # not before: the last try has failed
    withdrawing: bool = False  # the message is being written
    refresh_at: float | None = None  # a continuous federation's next version is taken up then, or when its number
    refreshed: int = 0  # is half as much again as this one, which was taken up last
    candidates: tuple[Candidate, ...] = ()  # what was trained here and is not judged yet, oldest first
    blockers: tuple[str, ...] = ()  # what blocks the beginning of training now, in words
    work: PendingWork | None = None
    upload: Upload | None = None
    judged_global: str = ""  # sha256 of the newest global model that was dealt with
    lacks_program: bool = False  # whether it has no torch, and the server no program for it
    lacks_global: bool = False  # whether the method has no global model, as the training process has said
    in_use: str = ""  # name of the model in use; empty: none
    order: ReleaseOrder | None = None  # the server's last word about which model to use
    offer: Offer | None = None  # the latest to this device as a member of a group; may come before its order
    offered: Release | None = None  # what it means for this device
    using: int = 0  # rollout that the present model came with; 0: none
    report: ReleaseReport | None = None  # the device's last word about a release
    undecided: str = ""  # sha256 of a global model that nobody could check: it waits for the server's score
    adoption: AdoptionReport | None = None  # the device's last word about a model that it might have used
    unusable: ModelRefusal | None = None  # the device's last word about a model that it can't use at all
    answered: int = 0  # updates that the server has answered since the start
    detail: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    reported: DeviceStatus | None = None
    presence_check: str = ""  # the last one that was heard
    answer_at: float | None = None  # when the status is said again for it
    unannounced: bool = False  # nothing was heard of the federation for long, although the broker is there

    @property
    def memory(self) -> str:
        """Name what is remembered; what was begun under another name is of no use any more."""
        return f"{self.identity}@{self.epoch}"

    @property
    def finished(self) -> bool:
        """Whether the federation is over, and its last model dealt with."""
        a = self.announcement
        if a is None or a.state not in ("finished", "stopped"):
            return False
        following = _to_adopt(self, a) or (_to_export(self, a) if self.examples else None)
        return (a.state == "stopped" or following is None) and self.work is None


def network_of(plan: Plan, model: str | None) -> ModelSpec | None:
    """Return the network that a device runs: the plan's, or the one that it has chosen by name, if it is offered."""
    offered = {spec.name: spec for spec in (plan.model, *plan.alternatives)}
    return plan.model if model is None else offered.get(model)


def incompatibility(plan: Plan, model: str | None) -> str:
    """Say why a device with that network cannot take part; empty if it can."""
    if package := plugins.missing(plan.packages):
        return package
    if network_of(plan, model):
        return ""
    if not plan.alternatives:
        return f"[agent] model is {model!r}, but in this federation every device runs {plan.model.name!r}; leave it out"
    names = ", ".join(repr(spec.name) for spec in (plan.model, *plan.alternatives))
    return f"[agent] model is {model!r}, but this federation offers {names}; choose one of them"


def leaves_model(plan: Plan) -> bool:
    """Whether a round that a device has trained gives it a model of its own, to be exported and judged."""
    return plan.rollout.allows_own and task_of(plan.task).is_served


def identity(a: Announcement, model: str | None) -> str:
    """Name what a device learns something about: one instance of a federation (whose plan is fixed), one network."""
    return f"{a.instance}/{model or a.plan.model.name}"


def next_work(agent: Agent) -> PendingWork | None:
    """Return the work that the present announcement asks of this device, if it can do it and has not done it.

    A round comes first: it leaves the global model that it begins from, too. A device without labelled examples adopts
    global models, and does nothing else.
    """
    a = agent.announcement
    if a is None or agent.examples is None or agent.lacks_program:
        return None
    if not agent.examples:
        return _to_adopt(agent, a)
    if sums_in_clear(a):
        return _to_contribute(agent, a) or _to_adopt(agent, a)
    return _invited(agent, a) or _to_adopt(agent, a) or _to_export(agent, a)


def sums_in_clear(a: Announcement) -> bool:
    """Whether the server keeps each device's whole sums, and can take them out: no secure sum of a round adds them."""
    return a.continuous and not a.plan.secure.is_on


def _invited(agent: Agent, a: Announcement) -> PendingWork | None:
    """Return the round that the device is invited to, if it has not trained it; whole sums are added like an update."""
    invitation = agent.invitation
    if invitation is None or a.state != "collecting" or not agent.takes_part:
        return None
    is_present = (invitation.instance, invitation.epoch, invitation.round) == (a.instance, a.epoch, a.round)
    if not is_present or (invitation.round, invitation.model.sha256) in agent.done:
        return None
    asks_for_sums = invitation.sum is not None and invitation.sum.kind == "request" and agent.contribute_at is None
    if a.continuous and not asks_for_sums:
        return None
    return PendingWork("train", invitation.round, invitation.model, continuous=a.continuous)


def _to_contribute(agent: Agent, a: Announcement) -> PendingWork | None:
    """Return the sums that a continuous federation is to get: the first ones, or again, whole, after enough changes.

    One update at a time: what changes while one waits for its answer goes into the next.
    """
    ready = a.state == "collecting" and agent.takes_part and agent.contribute_at is None and not agent.outbox
    if not ready or a.model is None:
        return None
    sent = agent.contribution
    changes = len(sent.keys ^ agent.keys) if sent and sent.kind == "sums" else None
    if changes is not None and changes < a.plan.publication.send_after_windows:
        return None
    return PendingWork("train", a.round, a.model, continuous=True)


def masked_sequence(agent: Agent, a: Announcement) -> int:
    """Return the number of the sums that the device has added last, if it would add the same now; 0: others, or none.

    Sums are the same as long as fewer windows came or went than the plan counts as a change.
    """
    sent = agent.contribution
    if sent is None or not agent.takes_part or not agent.examples:
        return 0
    is_same = len(sent.keys ^ agent.keys) < a.plan.publication.send_after_windows
    return sent.sequence if is_same else 0


def withdrawal_is_due(agent: Agent, a: Announcement) -> bool:
    """Whether what the server has of this device is to be taken out: the person asks for it, or no window is left."""
    if not sums_in_clear(a) or agent.withdrawing or agent.contribute_at is not None:
        return False  # each masked sum is of those alone who add to it
    sent = agent.contribution
    emptied = agent.examples == 0 and sent is not None
    return (emptied or not agent.takes_part) and (sent is None or sent.kind != "withdrawn")


def _to_export(agent: Agent, a: Announcement) -> PendingWork | None:
    """Return the newest model of the device's own that is not judged yet: the next round came before its export."""
    able = bool(agent.candidates) and leaves_model(a.plan) and not agent.lacks_program
    newest = agent.candidates[-1] if able else None
    return PendingWork("export", newest.round, newest.model) if newest else None


def _to_adopt(agent: Agent, a: Announcement) -> PendingWork | None:
    """Return the model that is to be judged: what was released or, where nothing is, the federation's newest."""
    if not agent.measurable or agent.lacks_program:
        return None
    if a.plan.rollout.used:
        return _released(agent)
    made_by = _made_by(a)
    if a.model is None or made_by is None or agent.lacks_global or not leaves_model(a.plan):
        return None
    if not has_new_windows(agent, a):
        if a.model.sha256 == agent.judged_global:
            return None
        if a.continuous and agent.refresh_at is not None and made_by < agent.refreshed + max(1, agent.refreshed // 2):
            return None
    score = a.model.score
    if score is None and (made_by == 0 or a.model.sha256 == agent.undecided):
        return None  # what the federation began with is no model yet, unless somebody has measured it
    return PendingWork("adopt", made_by, a.model, continuous=a.continuous)


def has_new_windows(agent: Agent, a: Announcement) -> bool:
    """Whether a device without labels is to make a continuous federation's heads again, as its own windows adapt them.

    Enough of its windows came or went, by the plan's rule for sums; and, since each time costs a process, they are half
    as many again, or the time is over after which a version is taken up.
    """
    if not a.continuous or agent.examples or not agent.judged_global:
        return False
    changes = len(agent.unlabelled ^ agent.adapted_to)
    if changes < a.plan.publication.send_after_windows:
        return False
    return agent.refresh_at is None or 2 * len(agent.unlabelled) >= 3 * len(agent.adapted_to)


def _made_by(a: Announcement) -> int | None:
    """Return the round that made the announced model; None where the announcement does not tell."""
    if a.state in ("paused", "stopped"):
        return None
    return max(0, a.round - 1) if a.state in ("collecting", "aggregating") else a.round


def _released(agent: Agent) -> PendingWork | None:
    offered, order = agent.offered, agent.order
    if offered is None or (order and agent.using in order.withdrawn):  # first it goes back
        return None
    if offered.rollout == agent.using or (agent.report and offered.rollout == agent.report.rollout):
        return None
    if offered.model.sha256 == agent.undecided and offered.model.score is None:
        return None
    return PendingWork("adopt", offered.round, offered.model, offered.rollout)


def superseded(work: PendingWork, a: Announcement, following: PendingWork | None) -> str:
    """Say why a piece of work is no longer worth doing under announcement `a`; empty if it is."""
    again = following is not None and following.kind == "train"
    if work.stage is Stage.EVALUATING or (work.continuous and a.state == "collecting"):
        is_asked = work.kind != "train" or work.stage is Stage.EXPORTING or not a.plan.secure.is_on
        is_open = again and following is not None and following.round == work.round
        return "" if is_asked or is_open else f"round {work.round} is over"
    if work.kind == "export":
        return f"round {a.round} comes first" if again else ""
    if work.release:
        if again:
            return f"round {a.round} comes first"
        same_release = following is not None and following.release == work.release
        return "" if same_release else "it is not for this device any more"
    if work.kind == "adopt":
        if again:
            return f"round {a.round} comes first"
        same = a.model is not None and a.model.sha256 == work.model.sha256
        return "" if same else "there is a newer global model"
    if work.stage is Stage.EXPORTING:
        return f"round {a.round} has begun, its model is exported later" if again else ""
    if a.state in ("finished", "stopped"):
        return f"the federation is {a.state}"
    replaced = again and following is not None and following.model.sha256 != work.model.sha256
    if a.round == work.round and not replaced and a.state not in ("aggregating", "waiting"):
        return ""
    late_is_welcome = a.plan.rounds.late == "next" and a.round >= work.round and work.stage is Stage.TRAINING
    return "" if late_is_welcome else f"round {work.round} is over"


def status_of(agent: Agent) -> DeviceStatus:
    """Return the state as a status message."""
    a, work = agent.announcement, agent.work
    round_number = work.round if work else a.round if a else 0
    # nothing of a device alone is told where the server learns sums, or is to learn nothing else
    adds_up = a is not None and a.plan.secure.is_on  # where who has withdrawn is not to be invited
    alone = adds_up or agent.required.mode == "masked"
    state: Literal["collecting", "ready", "training", "uploading", "idle", "finished"]
    if agent.finished:
        state = "finished"
    elif not agent.examples or agent.lacks_program or agent.refusal or (adds_up and not agent.takes_part):
        state = "collecting"
    elif work and work.kind == "train" and work.stage in (Stage.FETCHING, Stage.BACKOFF, Stage.TRAINING):
        state = "training"
    elif agent.outbox:
        state = "uploading"
    else:
        state = "idle" if agent.done or agent.contribution else "ready"
    takes_part = agent.takes_part  # else nothing that the device's own windows say is told
    return DeviceStatus(
        state=state,
        round=round_number,
        examples=min(agent.examples or 0, 1 if alone else 10**9) if takes_part else 0,
        detail=_detail(agent)[:500],
        metrics=dict(agent.metrics) if takes_part and not alone else {},
        sums=masked_sequence(agent, a) if a is not None and a.continuous and alone else 0,
        release=agent.report if not agent.refusal else None,
        adoption=agent.adoption if takes_part and not agent.refusal else None,
        refusal=agent.refusal.model_dump_json() if agent.refusal else "",
        unusable=agent.unusable.model_dump_json() if agent.unusable and not agent.refusal else "",
    )


def _detail(agent: Agent) -> str:
    if agent.untrusted:
        return agent.untrusted
    if agent.refusal:
        return f"refuses the plan: {agent.refusal.reason}"
    if agent.unannounced:
        return UNANNOUNCED
    if agent.announcement is None:
        return "waiting for the federation's announcement"
    if not agent.takes_part:
        return WITHDRAWN
    if agent.paused:
        return agent.paused
    if agent.lacks_program:
        return WITHOUT_PROGRAM
    if agent.examples == 0:
        return "the sensor source gave no labelled windows to train on"
    if agent.work and agent.work.stage is Stage.BLOCKED:
        work = agent.work
        verb = "adopting" if work.release else "exporting the model of" if work.kind == "export" else "training for"
        return f"not {verb} {agent.work.name}: {'; '.join(agent.blockers)}"
    if agent.work and agent.work.stage is not Stage.TRAINING:
        return agent.detail or f"{agent.work.stage} for {agent.work.name}"
    return agent.detail
