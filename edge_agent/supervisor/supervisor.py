"""The device's long-lived program: one loop that feeds the state machine and carries out its commands; no torch.

Drivers (broker, sensors, downloads, the training process, judging) run on their own threads and only post events.
The database is the loop's: whatever a command promises is durable before the next event is taken.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from typing import Literal

from edge_agent.config.settings import Config
from edge_agent.config.training import resolve_runtime
from edge_agent.errors import LockedError, StoreError, TrustError
from edge_agent.machine import commands as do
from edge_agent.machine.agent import step
from edge_agent.machine.events import (
    Acknowledged,
    Announced,
    CandidateEvaluated,
    CandidateReady,
    Event,
    Invited,
    JobFailed,
    MessageRejected,
    ModelInUse,
    NewWindows,
    Offered,
    ParticipationRead,
    PhoneConditions,
    PrivacyPinRead,
    SumMessageReady,
    Tick,
    TrainingFinished,
    WithdrawalReady,
    describe,
)
from edge_agent.machine.state import Policy, status_of, sums_in_clear
from edge_agent.serving.classifier import Classifier
from edge_agent.serving.model_registry import ModelRegistry, Verdict, name_of
from edge_agent.storage.consent import CONTINUOUS, keep_pin, note_refused_plan, participation, pinned_promises
from edge_agent.storage.credentials import keep_revoked, keep_voucher
from edge_agent.storage.data_folder import tolerate_full_disk
from edge_agent.storage.state_store import ADOPTION_REPORT, RELEASE_OFFER, RELEASE_ORDER, RELEASE_REPORT
from edge_agent.supervisor import secure_sum
from edge_agent.supervisor.background_tasks import Evaluated
from edge_agent.supervisor.drivers import Drivers, Mailbox, Message, Stop, open_drivers
from edge_agent.supervisor.persistence import (
    begin_epoch,
    forget_candidate,
    forget_contribution,
    forget_update,
    load_agent,
    load_plan,
    prepare_withdrawal,
    reset_agent,
    save_round,
)
from edge_agent.supervisor.status import save_activity, short_status, write_summary
from edge_agent.training.job import JobEnded, JobLine, make_job
from edge_agent.transport.home_assistant import HomeState
from edge_agent.transport.link import InvalidMessage, MessageDelivered
from federation.plan import Plan
from federation.protocol.messages import Announcement, Invitation
from gaitway.logs import about
from gaitway.tasks import task_of
from gaitway.threads import thread_failures

log = logging.getLogger(__name__)

TICK_S = 0.25
STOP_S = 0.5
HOME_FRESH_S = 30.0
"""What was recognized longer ago, Home Assistant is told as unknown."""


class Supervisor:
    """One device; `run` returns the exit code."""

    def __init__(
        self, config: Config, drivers: Drivers, mailbox: Mailbox, until: Literal["never", "round", "finished"] = "never"
    ) -> None:
        me, uploads, training = config.agent, config.uploads, config.training
        self.config = config
        self.policy = Policy(
            device=me.device,
            ack_timeout_s=uploads.ack_timeout_s,
            refresh_s=config.model.refresh_s,
            attempts=training.attempts,
            retry_s=training.retry_s,
            until=until,
            model=me.model,
            runtime=resolve_runtime(training.runtime),
            privacy=config.privacy.require,
            pins=drivers.trust.is_enrolled,
        )
        self.store = drivers.store
        self.agent = load_agent(self.store, config.privacy.require)
        self._drivers, self._mailbox = drivers, mailbox
        self._trust, self._link, self._uploads = drivers.trust, drivers.link, drivers.uploads
        self._sensors, self._conditions, self._classifier = drivers.sensors, drivers.conditions, drivers.classifier
        self._jobs, self._background, self._manager = drivers.jobs, drivers.background, drivers.service_manager
        self._serving: str | None = None  # what the store says about the present model; None: not read yet
        self._code: int | None = None
        self._failures = 0  # of threads, when the status was saved last
        self._labels: tuple[str, ...] = ()  # of the plan that is collected for, where it has classes

    @classmethod
    def open(cls, config: Config, until: Literal["never", "round", "finished"] = "never") -> Supervisor:
        """Return the supervisor of a device with the drivers that its config names.

        Raises:
            AgentError: if the data folder is another device's or in use, or something in it is damaged.
        """
        mailbox: Mailbox = queue.SimpleQueue()
        return cls(config, open_drivers(config, mailbox.put), mailbox, until)

    @property
    def classifier(self) -> Classifier:
        """The device's model at work; safe on any thread."""
        return self._classifier

    def stop(self) -> None:
        """End the loop soon; safe in a signal handler and on any thread."""
        self._drivers.lock_patience.is_over = True
        self._mailbox.put(Stop())

    def run(self) -> int:
        """Work until the policy says so, or until `stop`; leaves within two seconds."""
        waiting = f"; updates in the outbox: {', '.join(self.agent.outbox)}" if self.agent.outbox else ""
        log.info("started device=%s federation=%s%s", self.policy.device, self.config.agent.federation, waiting)
        self._write_summary()
        self._conditions.start()
        self._classifier.start()
        self._serve()
        if plan := load_plan(self.store):
            self._collect(plan)  # also where the broker cannot be reached
        self._link.start()
        self._manager.ready()
        ticked = time.monotonic()
        try:
            while self._code is None:
                with contextlib.suppress(queue.Empty):
                    self._handle(self._mailbox.get(timeout=TICK_S))
                if time.monotonic() - ticked >= TICK_S:
                    ticked = time.monotonic()
                    self._on_tick()
        except LockedError:  # a stop was asked for meanwhile; the next start does what was not written
            self._code = 0
        finally:
            self._end()
        return self._code

    def _end(self) -> None:
        self._manager.stopping()
        self._sensors.stop(0.0)
        self._jobs.stop(STOP_S)
        self._link.stop(say_offline=not self.agent.finished, timeout_s=STOP_S)
        self._sensors.stop(STOP_S)
        self._conditions.stop(STOP_S / 2)
        if self._drivers.home:
            self._drivers.home.stop(STOP_S / 2)
        self._classifier.stop(STOP_S / 2)
        with contextlib.suppress(LockedError):
            save_activity(self.store, self.agent, left=True)
        self._drivers.close()

    # ---- what was posted

    def _handle(self, posted: Message) -> None:
        match posted:
            case Stop():
                log.info("stop requested")
                self._code = 0
            case MessageDelivered(mid):
                self._delivered(mid)
            case InvalidMessage(topic, reason):
                log.warning("message ignored topic=%s: %s", topic, reason)
            case JobLine() | JobEnded():
                if self._jobs.is_current(posted.job):
                    self._from_job(posted)
            case Evaluated(memory, asked, verdict):
                if memory == self.agent.memory:
                    self._evaluated(asked, verdict)
            case PhoneConditions():
                self._conditions.update_phone(posted)
            case NewWindows(windows):
                self._classifier.submit(windows)
            case WithdrawalReady(update_id):
                if update_id in self.store.outbox():  # else it took long to write, and another has taken its place
                    self._dispatch(posted)
            case Announced(announcement):
                self._announced(announcement)
            case Acknowledged(ack):
                if self._uploads.is_about(ack):
                    self._dispatch(posted)
            case Invited(invitation):
                with tolerate_full_disk("who vouches for this device"):
                    keep_voucher(self.store, invitation.voucher)
                self._dispatch(posted)
            case Offered(offer):
                self._dispatch(posted)
                with tolerate_full_disk("the offer of a release"):
                    self.store.save_message(RELEASE_OFFER, offer)
            case _:
                self._dispatch(posted)

    def _dispatch(self, event: Event) -> None:
        if text := describe(event):
            log.info("%s", text)
        self._step(event)

    def _announced(self, announcement: Announcement) -> None:
        """Pass an announcement on, unless it is out of date, or older than another."""
        try:
            with tolerate_full_disk("the newest announcement"):
                self._trust.check(announcement, self.store)
        except TrustError as error:
            self._dispatch(MessageRejected(str(error)))
            return
        self._dispatch(Announced(announcement))
        if self.agent.refusal is not None:
            return
        keep_revoked(self.store, announcement.plan.secure, announcement.revoked)
        continuous = "yes" if sums_in_clear(announcement) else "masked" if announcement.continuous else "no"
        if self.store.get(CONTINUOUS) != continuous:
            with tolerate_full_disk("how the federation works"):
                self.store.put(**{CONTINUOUS: continuous})
        if announcement.release:
            with tolerate_full_disk("the order about releases"):
                self.store.save_message(RELEASE_ORDER, announcement.release)

    def _on_tick(self) -> None:
        if job := self._jobs.overdue:
            self._jobs.stop(STOP_S)
            self._step(JobFailed(job.round, job.kind, f"it took longer than {self.config.training.timeout_s:.0f} s"))
        self._uploads.pump()
        self._serve()
        if (wish := participation(self.store).takes_part) != self.agent.takes_part:
            self._step(ParticipationRead(wish))
        if (pinned := pinned_promises(self.store)) and pinned != self.agent.pinned:
            self._step(PrivacyPinRead(pinned))
        self._step(Tick())
        self._manager.alive(short_status(self.agent))
        self._tell_home()
        if (failures := sum(thread_failures.counts().values())) != self._failures:
            self._failures = failures
            save_activity(self.store, self.agent)

    def _collect(self, plan: Plan) -> None:
        self._labels = tuple(plan.labels) if task_of(plan.task).has_classes else ()
        self._sensors.start(plan)

    def _tell_home(self) -> None:
        """Tell Home Assistant what is recognized, and how the device is."""
        home, agent, seen = self._drivers.home, self.agent, self._classifier.latest
        if home is None:
            return
        if seen is not None and time.time() - seen.at > HOME_FRESH_S:
            seen = None
        problems = (
            "" if agent.connected else agent.connection_error or "there is no connection to the server",
            agent.paused,
            self._classifier.error,
            *(f"the thread {name} has failed" for name in thread_failures.counts()),
        )
        state = HomeState(
            seen.label if seen else None,
            seen.probability if seen else None,
            agent.in_use,
            status_of(agent).state,
            tuple(filter(None, problems)),
        )
        with tolerate_full_disk("what Home Assistant is told"):
            home.tick(self.store, state, self._labels)

    def _serve(self) -> None:
        """Classify with the present model; `models --rollback` changes it from another process."""
        if (noted := self.store.get("model")) != self._serving:
            self._serving = noted
            present = ModelRegistry(self.store).present()
            self._classifier.serve(present)
            used = present or {}
            name = name_of(present) if present else ""
            self._mailbox.put(ModelInUse(used.get("rollout", 0), used.get("score"), used.get("metric", ""), name))

    def _delivered(self, mid: int) -> None:
        if event := self._uploads.delivered(mid):
            self._step(event)
        self._uploads.pump()

    def _from_job(self, posted: JobLine | JobEnded) -> None:
        job = posted.job
        if isinstance(posted, JobEnded):
            self._jobs.ended()
            failed = JobFailed(job.round, job.kind, posted.reason, posted.final, posted.is_unusable)
            self._step(failed if posted.reason else CandidateReady(job.round, job.kind))
        elif posted.record.get("event") == "epoch":
            done = posted.record.get("epoch")
            log.info("epoch finished round=%d epoch=%s", job.round, done, extra=about(round=job.round))
        elif posted.record.get("event") == "placed":
            log.info("training round=%d %s", job.round, posted.record.get("words"), extra=about(round=job.round))
        elif posted.record.get("event") == "trained":
            try:
                kept = save_round(self.store, job)
            except (OSError, ValueError, KeyError) as error:
                self._jobs.stop(STOP_S)
                self._step(JobFailed(job.round, job.kind, f"the update cannot be kept: {error}"))
                return
            self._write_summary()
            metrics = " ".join(f"{name}={value:.3f}" for name, value in kept.metrics.items())
            what = "training finished round=%d seconds=%.1f %s"
            log.info(what, job.round, kept.seconds, metrics, extra=about(round=job.round))
            self._step(TrainingFinished(job.round, kept.update_id, kept.metrics, kept.keys, kept.sequence))

    def _evaluated(self, command: do.Evaluate, verdict: Verdict) -> None:
        registry = ModelRegistry(self.store)
        if registry.is_overtaken(verdict):
            log.info("re-evaluating candidate round=%d: current model changed", verdict.round)
            self._evaluate(command)
            return
        with tolerate_full_disk(f"the judgement of round {verdict.round}"):
            registry.commit(verdict)
        self._write_summary()
        heads = verdict.model is not None and "head" in verdict.model  # the global one is among them
        with_global = heads or (verdict.shared is not None and verdict.shared.answer != "undecided")
        if verdict.shared:
            log.info("%s", verdict.shared.reason)
        finding = (verdict.answer, verdict.reason, verdict.score, verdict.trivial, verdict.metric, with_global)
        self._step(CandidateEvaluated(verdict.round, verdict.kind, *finding, verdict.source))

    # ---- the state machine's commands

    def _step(self, event: Event) -> None:
        result = step(self.policy, self.agent, event, time.monotonic())
        before, self.agent = self.agent, result.agent
        for command in result.commands:
            with tolerate_full_disk(f"the outcome of {type(command).__name__}"):
                self._do(command)
        is_known = (before.connection_error, before.connected, before.blockers) == (
            self.agent.connection_error,
            self.agent.connected,
            self.agent.blockers,
        )
        if status_of(before) != status_of(self.agent) or not is_known:
            save_activity(self.store, self.agent)

    def _do(self, command: do.Command) -> None:
        match command:
            case do.Log(text):
                log.info("%s", text)
            case do.PublishStatus(status):
                self._link.publish_status(self._drivers.signed_status(status))
            case do.Reset(identity, epoch):
                self._sensors.stop()
                reset_agent(self.store, identity, epoch)
                self._write_summary()
            case do.BeginEpoch():
                begin_epoch(self.store, command)
                ModelRegistry(self.store).forget_rollouts()
                self._write_summary()
            case do.Collect(plan):
                self._collect(plan)
                self.store.put(plan=plan.model_dump_json())
            case do.FetchBlob():
                self._background.fetch(command.model, command.network)
            case do.StartJob():
                self._start_job(command)
            case do.StopJob(reason):
                log.info("training process stopped: %s", reason)
                self._jobs.stop(STOP_S)
            case do.Evaluate():
                self._evaluate(command)
            case do.KeepPrivacyPin(promises):
                keep_pin(self.store, promises)
            case do.NoteRefusedPlan(reason, promises):
                note_refused_plan(self.store, reason, promises)
            case do.Exit(code):
                self._code = code
            case _:
                self._about_rounds(command)

    def _about_rounds(self, command: do.Command) -> None:
        match command:
            case do.SendBegin(update_id):
                self._uploads.begin(update_id)
            case do.SendChunks(update_id, first):
                if gone := self._uploads.send(update_id, first):
                    self._mailbox.put(gone)
            case do.StopSending():
                self._uploads.stop()
            case do.ForgetUpdate(update_id, status, reason):
                forget_update(self.store, update_id, status, reason)
                log.info("update answered update=%s status=%s: %s", update_id, status, reason)
                self._write_summary()
            case do.PrepareWithdrawal():
                self._mailbox.put(WithdrawalReady(prepare_withdrawal(self.store, command)))
            case do.AnswerSum(invitation):
                self._answer_sum(invitation)
            case do.ForgetContribution():
                forget_contribution(self.store)
            case do.SkipRound(number, base, reason):
                self.store.leave_out(number, base, reason)
                self._write_summary()
            case do.ForgetCandidate(number):
                forget_candidate(self.store, number)
            case do.Rollback(release):
                ModelRegistry(self.store).revoke(release)
                self._serve()
                self._write_summary()
            case do.SaveReleaseReport(report):
                log.info("release judged rollout=%d answer=%s: %s", report.rollout, report.answer, report.reason)
                self.store.save_message(RELEASE_REPORT, report)
            case do.SaveAdoptionReport(report):
                self.store.save_message(ADOPTION_REPORT, report)
                self._write_summary()
            case do.GlobalModelJudged(sha256):
                self.store.put(judged_global=sha256)
                self._write_summary()
            case _:
                raise StoreError(f"no driver carries out {type(command).__name__}")

    def _answer_sum(self, invitation: Invitation) -> None:
        shared = invitation.sum.shared if invitation.sum else None
        path = self._background.sum_message(invitation)
        if shared is not None and not path.is_file():
            self._background.fetch_sum_message(invitation)
            return
        reply = secure_sum.answer(self.store, invitation, path.read_bytes() if shared is not None else b"")
        if reply.update_id:
            self._mailbox.put(SumMessageReady(reply.update_id))
        elif reply.reason:
            log.warning("secure sum round=%d: %s", invitation.round, reply.reason, extra=about(round=invitation.round))

    def _start_job(self, command: do.StartJob) -> None:
        what = {"train": "training", "export": "export", "adopt": "export of the global model"}
        if command.continuous:
            what |= {"train": "sums of this device's windows", "adopt": "heads of all sums"}
        unit = "version" if command.continuous else "round"
        log.info("%s started %s=%d", what[command.kind], unit, command.round, extra=about(round=command.round))
        broadcast, network = self._background.blob(command.model), self._background.network(command.network)
        job = make_job(self.config, command, broadcast, self.store.get("client_state"), network)
        self._jobs.start(job)

    def _evaluate(self, command: do.Evaluate) -> None:
        announcement = self.agent.announcement
        if announcement is not None:
            self._background.evaluate(announcement.plan, self.agent.memory, command)

    def _write_summary(self) -> None:
        write_summary(self.store, self.policy.device)
