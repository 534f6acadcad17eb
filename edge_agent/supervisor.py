"""The device's long-lived program: one loop that feeds the state machine and carries out its commands; no torch.

Drivers (broker, sensors, downloads, the training process, judging) run on their own threads and only post events.
The database is the loop's: whatever a command promises is durable before the next event is taken.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from dataclasses import dataclass
from typing import Literal

from edge_agent.background_tasks import Errands, Judged
from edge_agent.conditions.readings import Readings
from edge_agent.conditions.watcher import ConditionWatch
from edge_agent.config.settings import Config
from edge_agent.errors import StoreError, TrustError
from edge_agent.machine import commands as do
from edge_agent.machine.agent import step
from edge_agent.machine.events import (
    Acknowledged,
    AdoptFinished,
    Announced,
    CandidateReady,
    Disbelieved,
    Event,
    JobFailed,
    Offered,
    PhoneConditions,
    Tick,
    TrainingFinished,
    Using,
    WindowsSeen,
)
from edge_agent.machine.memory import begin_epoch, claim, forget_update, keep_round, kept_plan, remembered, start_over
from edge_agent.machine.narration import narrate
from edge_agent.machine.state import Policy, status_of
from edge_agent.sensors import open_source
from edge_agent.service_manager import ServiceManager
from edge_agent.serving.acceptance import Shelf, Verdict
from edge_agent.serving.classifier import Classifier
from edge_agent.serving.released_models import ADOPTION, OFFER, ORDER, REPORT
from edge_agent.status import in_short, note_doing, write_summary
from edge_agent.storage.files import without_room
from edge_agent.storage.state_store import Store
from edge_agent.training.job import JobEnded, JobLine, TrainingProcess, make_job
from edge_agent.transport.chunk_sender import Uploads
from edge_agent.transport.credentials import manifest_signer, read_credentials
from edge_agent.transport.mqtt import Broker, BrokerEvent, Delivered, Unreadable
from edge_agent.transport.renewal import Renewal
from edge_agent.transport.trust import Trust
from federation.protocol.messages import Announcement

log = logging.getLogger("edge_agent")

TICK_S = 0.25
STOP_S = 0.5


@dataclass(frozen=True)
class Stop:
    """Someone wants the program to end."""


Posted = Event | BrokerEvent | JobLine | JobEnded | Judged | Stop


class Supervisor:
    """One device; `run` returns the exit code."""

    def __init__(self, config: Config, until: Literal["never", "round", "finished"] = "never") -> None:
        me, uploads, training = config.agent, config.uploads, config.training
        self.config = config
        self.policy = Policy(me.device, uploads.ack_timeout_s, training.attempts, training.retry_s, until, me.model)
        self.store = Store(me.data_dir)
        self._claim = claim(self.store, me)
        self.agent = remembered(self.store)
        self._posted: queue.SimpleQueue[Posted] = queue.SimpleQueue()
        known = read_credentials(me.data_dir)
        self._trust = Trust(me.federation, me.device, known.server_key_bytes if known else None)
        renewal = Renewal(config)
        self._errands = Errands(config, renewal, self._posted.put)
        self._sensors = open_source(config, self._posted.put)
        self._broker = Broker(
            config.broker,
            me.federation,
            me.device,
            in_flight=uploads.in_flight,
            post=self._posted.put,
            renewal=renewal,
            opened=self._trust.open,
        )
        self._process: TrainingProcess | None = None
        self._uploads = Uploads(
            self.store, self._broker, uploads.in_flight, manifest_signer(me.data_dir, me.federation, me.device)
        )
        self._conditions = ConditionWatch(
            config.conditions, Readings(config.conditions, me.data_dir), self._training, self._posted.put
        )
        self._classifier = Classifier(me.data_dir)
        self._serving: str | None = None  # what the store says about the present model; None: not read yet
        self._manager = ServiceManager()
        self._code: int | None = None

    def stop(self) -> None:
        """End the loop soon; safe in a signal handler and on any thread."""
        self._posted.put(Stop())

    def run(self) -> int:
        """Work until the policy says so, or until `stop`; leaves within two seconds."""
        waiting = f"; updates in the outbox: {', '.join(self.agent.outbox)}" if self.agent.outbox else ""
        log.info("device %s of federation %s%s", self.policy.device, self.config.agent.federation, waiting)
        self._tell_summary()
        self._conditions.start()
        self._classifier.start()
        self._serve()
        if plan := kept_plan(self.store):
            self._sensors.start(plan)  # also where the broker cannot be reached
        self._broker.start()
        self._manager.ready()
        ticked = time.monotonic()
        try:
            while self._code is None:
                with contextlib.suppress(queue.Empty):
                    self._take(self._posted.get(timeout=TICK_S))
                if time.monotonic() - ticked >= TICK_S:
                    ticked = time.monotonic()
                    self._on_tick()
        finally:
            self._end()
        return self._code

    def _end(self) -> None:
        self._manager.stopping()
        self._sensors.stop(0.0)
        self._end_process()
        self._broker.stop(say_offline=not self.agent.finished, timeout_s=STOP_S)
        self._sensors.stop(STOP_S)
        self._conditions.stop(STOP_S / 2)
        self._classifier.stop(STOP_S / 2)
        note_doing(self.store, self.agent, left=True)
        self.store.close()
        self._claim.close()

    # ---- what was posted

    def _take(self, posted: Posted) -> None:
        match posted:
            case Stop():
                log.info("asked to stop")
                self._code = 0
            case Delivered(mid):
                self._delivered(mid)
            case Unreadable(topic, reason):
                log.warning("ignored a message on %s: %s", topic, reason)
            case JobLine() | JobEnded():
                if self._process and posted.job is self._process.job:
                    self._from_job(posted)
            case Judged(memory, verdict):
                if memory == self.agent.memory:
                    self._judged(verdict)
            case PhoneConditions():
                self._conditions.heard(posted)
            case WindowsSeen(windows):
                self._classifier.offer(windows)
            case Announced(announcement):
                self._announced(announcement)
            case Acknowledged(ack):
                if self._uploads.is_about(ack):
                    self._happened(posted)
            case Offered(offer):
                self._happened(posted)
                with without_room("the offer of a release"):
                    self.store.put(**{OFFER: offer.model_dump_json()})
            case _:
                self._happened(posted)

    def _happened(self, event: Event) -> None:
        if text := narrate(event):
            log.info("%s", text)
        self._step(event)

    def _announced(self, announcement: Announcement) -> None:
        """Pass an announcement on, unless it is out of date, or older than another."""
        try:
            with without_room("the newest announcement"):
                self._trust.check(announcement, self.store)
        except TrustError as error:
            self._happened(Disbelieved(str(error)))
            return
        self._happened(Announced(announcement))
        if announcement.release:
            with without_room("the order about releases"):
                self.store.put(**{ORDER: announcement.release.model_dump_json()})

    def _on_tick(self) -> None:
        if self._process and self._process.overdue:
            job = self._process.job
            self._end_process()
            self._step(JobFailed(job.round, job.kind, f"it took longer than {self.config.training.timeout_s:.0f} s"))
        self._uploads.pump()
        self._serve()
        self._step(Tick())
        self._manager.alive(in_short(self.agent))

    def _serve(self) -> None:
        """Classify with the present model; `models --rollback` changes it from another process."""
        if (noted := self.store.get("model")) != self._serving:
            self._serving = noted
            present = Shelf(self.store).present()
            self._classifier.serve(present)
            used = Using(present.get("rollout", 0), present.get("macro_f1")) if present else Using(0)
            self._posted.put(used)

    def _delivered(self, mid: int) -> None:
        if event := self._uploads.delivered(mid):
            self._step(event)
        self._uploads.pump()

    def _from_job(self, posted: JobLine | JobEnded) -> None:
        job = posted.job
        if isinstance(posted, JobEnded):
            self._process = None
            failed = JobFailed(job.round, job.kind, posted.reason, posted.final)
            self._step(failed if posted.reason else CandidateReady(job.round, job.kind))
        elif posted.record.get("event") == "epoch":
            log.info("round %d: epoch %s is done", job.round, posted.record.get("epoch"))
        elif posted.record.get("event") == "trained":
            try:
                kept = keep_round(self.store, job)
            except (OSError, ValueError, KeyError) as error:
                self._end_process()
                self._step(JobFailed(job.round, job.kind, f"the update cannot be kept: {error}"))
                return
            self._tell_summary()
            metrics = ", ".join(f"{name} {value:.3f}" for name, value in kept.metrics.items())
            log.info("round %d: trained in %.1f s; %s", job.round, kept.seconds, metrics)
            self._step(TrainingFinished(job.round, kept.update_id, kept.metrics))

    def _judged(self, verdict: Verdict) -> None:
        with without_room(f"the judgement of round {verdict.round}"):
            Shelf(self.store).settle(verdict)
        self._tell_summary()
        said = (verdict.answer, verdict.reason, verdict.score, verdict.most_frequent)
        self._step(AdoptFinished(verdict.round, verdict.kind, *said))

    # ---- the state machine's commands

    def _step(self, event: Event) -> None:
        result = step(self.policy, self.agent, event, time.monotonic())
        before, self.agent = self.agent, result.agent
        for command in result.commands:
            with without_room(f"the outcome of {type(command).__name__}"):
                self._do(command)
        told = (before.trouble, before.connected, before.hold) == (
            self.agent.trouble,
            self.agent.connected,
            self.agent.hold,
        )
        if status_of(before) != status_of(self.agent) or not told:
            note_doing(self.store, self.agent)

    def _do(self, command: do.Command) -> None:
        match command:
            case do.Say(text):
                log.info("%s", text)
            case do.PublishStatus(status):
                self._broker.publish_status(status)
            case do.StartOver(identity, epoch):
                self._sensors.stop()
                start_over(self.store, identity, epoch)
                self._tell_summary()
            case do.BeginEpoch():
                begin_epoch(self.store, command)
                Shelf(self.store).forget_rollouts()
                self._tell_summary()
            case do.Collect(plan):
                self._sensors.start(plan)
                self.store.put(plan=plan.model_dump_json())
            case do.FetchBlob():
                self._errands.fetch(command.model)
            case do.StartJob():
                self._start_job(command)
            case do.StopJob(reason):
                log.info("the training process is stopped: %s", reason)
                self._end_process()
            case do.Judge():
                self._judge(command)
            case do.Leave(code):
                self._code = code
            case _:
                self._about_rounds(command)

    def _about_rounds(self, command: do.Command) -> None:
        match command:
            case do.SendBegin(update_id):
                self._uploads.begin(update_id)
            case do.SendChunks(update_id, first):
                if gone := self._uploads.send(update_id, first):
                    self._posted.put(gone)
            case do.StopSending():
                self._uploads.stop()
            case do.Forget(update_id, status, reason):
                forget_update(self.store, update_id, status, reason)
                log.info("update %s: %s by the server %s", update_id, status, reason)
                self._tell_summary()
            case do.GiveUp(number, base, reason):
                self.store.leave_out(number, base, reason)
                self._tell_summary()
            case do.GoBack(release):
                Shelf(self.store).leave(release)
                self._serve()
                self._tell_summary()
            case do.NoteRelease(report):
                log.info("release %d: %s %s", report.rollout, report.answer, report.reason)
                self.store.put(**{REPORT: report.model_dump_json()})
            case do.NoteAdoption(report):
                self.store.put(**{ADOPTION: report.model_dump_json()})
                self._tell_summary()
            case do.FinalJudged(sha256):
                self.store.put(final=sha256)
                self._tell_summary()
            case _:
                raise StoreError(f"no driver carries out {type(command).__name__}")

    def _start_job(self, command: do.StartJob) -> None:
        log.info("round %d: %s", command.round, "training" if command.kind == "train" else "exporting the global model")
        job = make_job(self.config, command, self._errands.blob(command.model), self.store.get("client_state"))
        self._process = TrainingProcess(job, self.config.training.timeout_s, self._posted.put)

    def _training(self) -> int | None:
        process = self._process  # read once: another thread asks
        return process.pid if process else None

    def _end_process(self) -> None:
        if self._process:
            self._process.stop(STOP_S)
        self._process = None

    def _judge(self, command: do.Judge) -> None:
        announcement = self.agent.announcement
        if announcement is not None:
            self._errands.judge(announcement.plan, self.agent.memory, command)

    def _tell_summary(self) -> None:
        write_summary(self.store, self.policy.device)
