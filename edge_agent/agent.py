"""The device as a state machine without I/O: an event goes in, the next state and the commands to carry out come out.

What is durable before a command is the supervisor's to guarantee: it stores an update before it reports
`TrainingFinished`. The state itself is in `edge_agent.state`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_agent.commands import (
    Collect,
    Command,
    FetchBlob,
    FinalJudged,
    Forget,
    GiveUp,
    Judge,
    Leave,
    PublishStatus,
    Say,
    SendBegin,
    SendChunks,
    StartJob,
    StartOver,
    StopJob,
    StopSending,
)
from edge_agent.events import (
    Acknowledged,
    AdoptFinished,
    Announced,
    BlobFailed,
    BlobFetched,
    CandidateReady,
    ChunkDelivered,
    ChunksSent,
    Connected,
    DataReady,
    Disconnected,
    Event,
    JobFailed,
    Kind,
    SensorFailed,
    Tick,
    TrainingFinished,
)
from edge_agent.state import Agent, Policy, Stage, Upload, Work, plan_key, status_of, superseded, wanted
from federation.protocol.messages import Acknowledgement, Announcement
from federation.seeds import seed_for

LONGEST_REST_S = 60.0


@dataclass(frozen=True)
class Step:
    """The result of an event."""

    agent: Agent
    commands: tuple[Command, ...] = ()


def step(policy: Policy, agent: Agent, event: Event, now: float) -> Step:
    """Apply one event that happened at `now` (seconds on any clock that does not jump)."""
    turn = _Turn(policy, agent, now)
    turn.take(event)
    turn.settle()
    return Step(turn.agent, tuple(turn.commands))


class _Turn:
    """One step under way: `agent` is replaced and `commands` grow; nothing outside is touched."""

    def __init__(self, policy: Policy, agent: Agent, now: float) -> None:
        self.policy, self.agent, self.now = policy, agent, now
        self.commands: list[Command] = []

    def take(self, event: Event) -> None:
        match event:
            case Connected():
                self._set(connected=True, upload=None, reported=None)
            case Disconnected():
                self._stop_sending()
                self._set(connected=False, reported=None)
            case Announced(announcement):
                self._announced(announcement)
            case DataReady(examples):
                self._set(collecting=False, examples=examples)
            case SensorFailed(reason):
                self._set(collecting=False, detail=reason)
                self.commands += [Say(f"the sensor source failed: {reason}"), Leave(1)]
            case Acknowledged(ack):
                self._acknowledged(ack)
            case ChunkDelivered(update_id) | ChunksSent(update_id):
                self._sent(update_id, whole=isinstance(event, ChunksSent))
            case Tick():
                self._tick()
            case _:
                self._worked(event)

    def settle(self) -> None:
        """Start what can be started, report what has changed, and leave when there is no more to do."""
        if self.agent.work is None and (work := wanted(self.policy, self.agent)):
            self._set(work=work, detail="")
            self.commands.append(FetchBlob(work.model))
        if self.agent.connected and self.agent.upload is None and self.agent.outbox:
            self._set(upload=Upload(self.agent.outbox[0], "begun", self.now))
            self.commands.append(SendBegin(self.agent.outbox[0]))
        status = status_of(self.agent)
        if self.agent.connected and status != self.agent.reported:
            self._set(reported=status)
            self.commands.append(PublishStatus(status))
        over = self.policy.until == "finished" and self.agent.finished
        once = self.policy.until == "round" and self.agent.settled > 0 and self.agent.work is None
        if over or once:
            self.commands.append(Leave(0))

    # ---- announcements

    def _announced(self, a: Announcement) -> None:
        key = plan_key(a.plan)
        if key != self.agent.plan_key:
            self._drop_work("the federation has a new plan")
            self._stop_sending()
            self.agent = Agent(plan_key=key, connected=self.agent.connected)
            self.commands.append(StartOver(key))
        self._set(announcement=a)
        work = self.agent.work
        if work and (reason := superseded(work, a, wanted(self.policy, self.agent))):
            self._drop_work(reason)
        if self.agent.examples is None and not self.agent.collecting:
            self._set(collecting=True)
            self.commands.append(Collect(a.plan))

    def _drop_work(self, reason: str) -> None:
        if self.agent.work and self.agent.work.stage in (Stage.TRAINING, Stage.EXPORTING):
            self.commands.append(StopJob(reason))
        self._set(work=None)

    # ---- work

    def _worked(self, event: Event) -> None:
        work = self.agent.work
        match event:
            case BlobFetched(sha256) if self._at(Stage.FETCHING) and work and work.model.sha256 == sha256:
                self._start_job(work)
            case BlobFailed(sha256, reason) if self._at(Stage.FETCHING) and work and work.model.sha256 == sha256:
                self._rest(replace(work, fetches=work.fetches + 1), work.fetches, reason)
            case TrainingFinished():
                self._trained(event)
            case CandidateReady(number, kind) if self._at(Stage.EXPORTING) and self._is(number, kind):
                self._stage(Stage.JUDGING)
                self.commands.append(Judge(number, kind))
            case JobFailed(number, kind, reason) if self._is(number, kind) and work:
                self._job_failed(work, reason)
            case AdoptFinished(number, kind, _, reason) if self._at(Stage.JUDGING) and self._is(number, kind) and work:
                self._set(work=None, detail="")
                self.commands.append(Say(reason))
                if kind == "adopt":
                    self._final(work)
            case _:
                pass  # about work that has been dropped since

    def _start_job(self, work: Work) -> None:
        a = self.agent.announcement
        if a is None:
            return
        self._stage(Stage.TRAINING if work.kind == "train" else Stage.EXPORTING)
        self.commands.append(StartJob(work.kind, work.round, work.model, a.plan, a.chunk_bytes))

    def _trained(self, event: TrainingFinished) -> None:
        work, outbox = self.agent.work, self.agent.outbox
        if event.update_id not in outbox:
            outbox = (*outbox, event.update_id)
        self._set(outbox=outbox, metrics=event.metrics, detail="")
        if work and self._is(event.round, "train"):
            self._set(done=self.agent.done | {(work.round, work.model.sha256)})
            self._stage(Stage.EXPORTING)

    def _job_failed(self, work: Work, reason: str) -> None:
        if work.kind == "train" and work.stage is Stage.EXPORTING:
            self._set(work=None)
            self.commands.append(Say(f"round {work.round} gave no model of its own, the present one stays: {reason}"))
        elif work.attempt < self.policy.attempts:
            self._rest(replace(work, attempt=work.attempt + 1), work.attempt, reason)
        else:
            self._give_up(work, f"{work.attempt} tries failed, the last one: {reason}")

    def _give_up(self, work: Work, reason: str) -> None:
        self._set(work=None, detail=reason)
        if work.kind == "adopt":
            self.commands.append(Say(f"the final model is not adopted, the present one stays: {reason}"))
            self._final(work)
            return
        self._set(done=self.agent.done | {(work.round, work.model.sha256)}, settled=self.agent.settled + 1)
        self.commands += [Say(f"round {work.round} is left out: {reason}")]
        self.commands += [GiveUp(work.round, work.model.sha256, reason)]

    def _final(self, work: Work) -> None:
        self._set(final=work.model.sha256)
        self.commands.append(FinalJudged(work.model.sha256))

    def _rest(self, work: Work, failures: int, reason: str) -> None:
        # the jitter is drawn from the device's name, so that a fleet does not come back in step
        jitter = 0.5 + seed_for(0, self.policy.device, work.round, failures) % 1000 / 1000
        rest_s = min(LONGEST_REST_S, self.policy.retry_s * 2 ** (failures - 1)) * jitter
        self._set(work=replace(work, stage=Stage.RESTING, resume_at=self.now + rest_s), detail=reason)
        self.commands.append(Say(f"{reason}; next try in {rest_s:.1f} s"))

    def _at(self, stage: Stage) -> bool:
        return self.agent.work is not None and self.agent.work.stage is stage

    def _is(self, number: int, kind: Kind) -> bool:
        return self.agent.work is not None and (self.agent.work.round, self.agent.work.kind) == (number, kind)

    def _stage(self, stage: Stage) -> None:
        if self.agent.work:
            self._set(work=replace(self.agent.work, stage=stage))

    # ---- uploads

    def _acknowledged(self, ack: Acknowledgement) -> None:
        if ack.update_id not in self.agent.outbox:
            return  # a repeated answer
        if ack.status == "send":
            self._set(upload=Upload(ack.update_id, "sending", self.now))
            self.commands.append(SendChunks(ack.update_id, ack.next_chunk))
            return
        if self.agent.upload and self.agent.upload.update_id == ack.update_id:
            self._stop_sending()
        left = tuple(update_id for update_id in self.agent.outbox if update_id != ack.update_id)
        self._set(outbox=left, settled=self.agent.settled + 1)
        self.commands.append(Forget(ack.update_id, ack.status, ack.reason))

    def _sent(self, update_id: str, *, whole: bool) -> None:
        upload = self.agent.upload
        if upload and upload.update_id == update_id and upload.stage == "sending":
            self._set(upload=replace(upload, stage="ended" if whole else "sending", since=self.now))

    def _stop_sending(self) -> None:
        if self.agent.upload and self.agent.upload.stage == "sending":
            self.commands.append(StopSending())
        self._set(upload=None)

    def _tick(self) -> None:
        work, upload = self.agent.work, self.agent.upload
        if work and work.stage is Stage.RESTING and self.now >= work.resume_at:
            self._stage(Stage.FETCHING)
            self.commands.append(FetchBlob(work.model))
        if upload and self.now - upload.since >= self.policy.ack_timeout_s * min(2 ** (upload.tries - 1), 8):
            self._stop_sending()
            self._set(upload=Upload(upload.update_id, "begun", self.now, upload.tries + 1))
            self.commands.append(SendBegin(upload.update_id))

    def _set(self, **changes: object) -> None:
        self.agent = replace(self.agent, **changes)  # type: ignore[arg-type]
