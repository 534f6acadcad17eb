"""Drives `federation.rounds.server_round` for every federation: rows first, then the effect.

Every transition is committed before anything is announced, aggregated or acknowledged, and every effect can be made
again from the rows. So a server that was killed resumes with `recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from threading import RLock

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import BlobError
from aggregator_api.devices import contributions
from aggregator_api.devices.presence import PresenceCheck, count_missed, judge_deadline, mark_unresponsive
from aggregator_api.devices.suspension import judge_round
from aggregator_api.operations.leadership import Leadership
from aggregator_api.rollouts import transitions
from aggregator_api.rounds import deadlines, model_refusals, opening, publications, secure_rounds, sum_retries
from aggregator_api.rounds.aggregation import Aggregate
from aggregator_api.rounds.announcements import Announcer
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.rounds.deadlines import SteadyClock
from aggregator_api.rounds.publications import note_privacy
from aggregator_api.rounds.sum_driver import SumDriver
from aggregator_api.rounds.updates.context import FederationInfo, OpenRound
from aggregator_api.rounds.updates.contract import Contract, read_contract
from aggregator_api.rounds.updates.screening import write_screening
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Blob, FederationRow, RoundRow
from federation.aggregation.screening import Screening
from federation.rounds.server_round import (
    Action,
    Aggregated,
    AggregationFailed,
    DeadlinePassed,
    DeviceLost,
    Event,
    RoundPhase,
    Step,
    Stopped,
    UpdateArrived,
    step,
)
from gaitway.logs import about

log = logging.getLogger(__name__)

Arrival = UpdateArrived | DeviceLost
OFFLINE_CHECKS = 20
"""How often devices that are gone are looked for within `offline_timeout_s`."""


class Coordinator:
    """The rounds of every federation of one server process."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        presence: PresenceCheck,
        jobs: BackgroundJobs,
        leadership: Leadership,
        clock: SteadyClock,
        *,
        blobs: BlobStore,
        offline_timeout_s: float,
    ) -> None:
        """Put the parts together."""
        self._database = database
        self._announcer = announcer
        self._presence = presence
        self._jobs = jobs
        self._leadership = leadership
        self._clock = clock
        self._blobs = blobs
        self._offline_timeout_s = offline_timeout_s
        self.listening_since = clock()
        """Since when (Unix time, by the steady clock) devices can have been heard."""
        self.offline_checked_at = 0.0
        self._contracts: dict[str, Contract] = {}
        self._revisions: dict[str, int] = {}
        self.sums = SumDriver(database, self, clock, blobs.put)
        self.lock = RLock()
        """Held over every transition and its effects, so that they happen in one order."""

    def contract_of(self, session: Session, federation: FederationInfo) -> Contract:
        """Return what a federation accepts, without its row where that is known."""
        if self._revisions.get(federation.name) == federation.revision:
            return self._contracts[federation.name]
        return self.contract(_row(session, federation.name))

    def contract(self, federation: FederationRow) -> Contract:
        """Return what a federation accepts; an operator may change its round settings."""
        if self._revisions.get(federation.name) != federation.revision:
            self._contracts[federation.name] = read_contract(federation)
            self._revisions[federation.name] = federation.revision
        return self._contracts[federation.name]

    def reload_contracts(self, session: Session) -> None:
        """Read the contracts again whose settings were changed, here or by another server process."""
        for name, revision in session.execute(select(FederationRow.name, FederationRow.revision)):
            if name in self._contracts and self._revisions[name] != revision:
                self.contract(_row(session, name))

    # ---- what is said

    def on_connected(self) -> None:
        """Say everything again, after the broker may have lost it, and give devices time to say where they are."""
        self.listening_since = self._clock()
        for name in self._names():
            self._presence.begin(name)
            self.announce(name)

    def take_over(self, name: str) -> None:
        """Continue a federation that this process leads from now on; its devices get time to say where they are."""
        self.listening_since = self._clock()
        self._presence.begin(name)
        self.recover_federation(name)

    def created(self, name: str) -> None:
        """Begin with a new federation: devices may have been there before it."""
        self._presence.begin(name)
        self.advance(name)

    def announce(self, name: str) -> None:
        """Say where a federation stands, or let its leader say it."""
        if not self._leadership.leads(name):
            self._leadership.notify(name)
            return
        with self.lock, self._database.read() as session:
            self._announcer.announce(session, _row(session, name))

    def renew_announcements(self) -> None:
        """Say everything again before it expires."""
        if self._announcer.renewal_is_due():
            for name in self._names():
                self.announce(name)

    # ---- what happens

    def recover(self) -> None:
        """Continue every federation where its rows say that it stands."""
        for name in self._names():
            self.recover_federation(name)

    def recover_federation(self, name: str) -> None:
        """Continue one federation where its rows say that it stands."""
        with self.lock:
            self._cap_deadline(name)
            if self.sums.is_of_the_past(name):
                self.apply_event(name, Stopped("the server was restored while a secure sum was under way"))
                return
            phase = self._phase(name)
            if phase == RoundPhase.ANNOUNCED:
                self._open(name)
            elif phase == RoundPhase.AGGREGATING:
                self.execute(name, (Action.AGGREGATE,))
            else:
                self.advance(name)

    def apply_event(self, name: str, event: Event) -> None:
        """Apply an event to the open round, if there is one, and act on it."""
        with self.lock:
            with self._database.write() as session:
                federation = _row(session, name)
                result = self.transition(session, federation, event)
            if result is not None:
                self.execute(name, result.actions)

    def transition(self, session: Session, federation: FederationRow, event: Event) -> Step | None:
        """Apply an event inside the caller's transaction; the caller acts after the commit, still under the lock."""
        row = repositories.open_round(session, federation)
        if row is None:
            return None
        current, rounds = repositories.read_round(row), self.contract(federation).plan.rounds
        if isinstance(event, UpdateArrived | DeviceLost):
            result = self._about_a_device(session, federation, row, event)
        else:
            result = step(rounds, current, event)
            if Action.FAIL in result.actions:
                sum_retries.note_unused(session, federation, row)
            repositories.write_round(session, federation, row.id, current, result.round)
            if Action.FAIL in result.actions:
                contributions.release(session, row.id)
            leaves_out = self._leaves_out_silent(session, federation, row, event, result)
            self._after_failure(session, federation.name, row.id, result, may_pause=not leaves_out)
        session.expire(row)  # it was written beside the session
        return result

    def apply_arrival(
        self,
        session: Session,
        federation: repositories.Named,
        device: repositories.Named,
        now: OpenRound,
        event: Arrival,
        *,
        may_pause: bool = True,
    ) -> Step:
        """Apply an event about a device to the open round, like `transition`, from both rows."""
        result = step(self._contracts[federation.name].plan.rounds, now.round, event, now.status)
        repositories.write_round(session, federation, now.id, now.round, result.round)
        if result.status is not None:
            late = now.round.number - event.base_round if isinstance(event, UpdateArrived) else None
            repositories.write_status(session, now.id, device.id, now.status, result.status, late)
        self._after_failure(session, federation.name, now.id, result, may_pause=may_pause)
        return result

    def _after_failure(self, session: Session, name: str, row_id: int, result: Step, *, may_pause: bool = True) -> None:
        """Note what follows a failed round; pause a federation where nothing but an operator will change anything."""
        if Action.FAIL not in result.actions:
            return
        federation = _row(session, name)
        plan, row = self.contract(federation).plan, session.get_one(RoundRow, row_id)
        consequence = sum_retries.note_failure(session, federation, plan, row)
        progress = repositories.progress(session, federation)
        is_failing = may_pause and progress.must_pause(plan.rounds) and not consequence.is_narrower
        if federation.status != "running" or not (is_failing or consequence.pause_reason):
            return
        federation.status = "paused"
        detail = consequence.pause_reason or (
            f"{progress.failed_in_a_row} rounds in a row have failed (rounds.max_failed_rounds), the last one because: "
            f"{result.reason}"
        )
        number = result.round.number
        repositories.journal(session, federation, "federation.paused", round_number=number, detail=detail)

    def _leaves_out_silent(
        self, session: Session, federation: FederationRow, row: RoundRow, event: Event, result: Step
    ) -> bool:
        """Leave out devices that have let deadlines pass: the next round may have its quorum without them."""
        is_over = isinstance(event, DeadlinePassed) and bool({Action.AGGREGATE, Action.FAIL} & set(result.actions))
        return is_over and judge_deadline(session, federation, row, self._clock())

    def _about_a_device(
        self, session: Session, federation: FederationRow, row: RoundRow, event: Arrival, *, may_pause: bool = True
    ) -> Step:
        current, device = repositories.read_round(row), repositories.find_device(session, federation, event.client_id)
        if device is None:
            return Step(current)
        status = repositories.status(repositories.participation(session, row, device))
        now = OpenRound(row.id, current, status)
        return self.apply_arrival(session, federation, device, now, event, may_pause=may_pause)

    def execute(self, name: str, actions: Iterable[Action]) -> None:
        """Do what a committed transition asks for, or let the federation's leader do it."""
        if not self._leadership.leads(name):
            self._leadership.notify(name)
            return
        for action in actions:
            match action:
                case Action.ANNOUNCE:
                    self.announce(name)
                case Action.AGGREGATE if self._is_secure(name):
                    self.sums.go_on(name)
                case Action.AGGREGATE:
                    self.announce(name)
                    work = self._jobs.publish if self._keeps_sums(name) else self._jobs.aggregate
                    work(self, name, self._number(name))
                case Action.PUBLISH | Action.FAIL:
                    self.advance(name)

    def advance(self, name: str) -> None:
        """Open the next round if enough devices are online, finish after the last, and say where we are."""
        if not self._leadership.leads(name):
            self._leadership.notify(name)
            return
        if not self._try_open(name):
            self.announce(name)

    def devices_changed(self, name: str) -> None:
        """Open the next round if it waited for devices, in the process that leads it."""
        if self._leadership.leads(name):
            self._try_open(name)

    def tick(self) -> None:
        """Tell the rounds whose deadline has passed, and those that wait for devices that are gone; open what may."""
        self._follow_clock()
        now = self._clock()
        with self._database.read() as session:
            self.reload_contracts(session)
            late = deadlines.deadlines_passed(session, now)
            gone = (
                deadlines.devices_gone(session, now, self._offline_timeout_s) if self._is_offline_check_due(now) else []
            )
            rested = opening.rested(session, lambda row: self.contract(row).plan, now)
            rested += publications.due(session, lambda row: self.contract(row).plan, now)
        for name in filter(self._leadership.leads, late):
            self.apply_event(name, DeadlinePassed())
        for name, device in gone:
            if self._leadership.leads(name):
                self._give_up(name, device)
        for name in filter(self._leadership.leads, rested):
            self._try_open(name)
        with self.lock:
            self.sums.tick(self._leadership.leads)
        for name, asked_at in self._presence.over():
            with self._database.write() as session:
                mark_unresponsive(session, name, asked_at)

    def _give_up(self, name: str, device: str) -> None:
        """Await a device no longer that has not answered; the open round counts as missed by it."""
        with self.lock:
            with self._database.write() as session:
                federation = _row(session, name)
                row, silent = (
                    repositories.open_round(session, federation),
                    repositories.find_device(session, federation, device),
                )
                if row is None or silent is None:
                    return
                leaves_out = count_missed(session, federation, row, silent, self._clock())
                result = self._about_a_device(session, federation, row, DeviceLost(device), may_pause=not leaves_out)
            self.execute(name, result.actions)

    def _follow_clock(self) -> None:
        """After a clock change, keep all remaining times, and check again which devices are gone."""
        with self.lock:
            leap_s = self._clock.leap_s()
            if not leap_s:
                return
            names = self._names()
            with self._database.write() as session:
                deadlines.move_open_rounds(session, names, leap_s)
            self._clock.follow(leap_s)
            self.listening_since = self.offline_checked_at = self._clock()
            self._presence.drop()  # who was heard since then cannot be told
            log.warning("clock stepped step_s=%+.0f federations=%d", leap_s, len(names))
            for name in names:
                self.announce(name)

    def _cap_deadline(self, name: str) -> None:
        with self._database.write() as session:
            federation = _row(session, name)
            moved_s = deadlines.cap_deadline(session, federation, self.contract(federation).plan, self._clock())
        if moved_s:
            log.warning("deadline capped by_s=%.0f", moved_s, extra=about(federation=name))

    def _is_offline_check_due(self, now: float) -> bool:
        """Look seldom, since it costs a look at every awaited device, and not before all had time to say hello."""
        heard_out = now - self.listening_since >= self._offline_timeout_s
        due = heard_out and now - self.offline_checked_at >= self._offline_timeout_s / OFFLINE_CHECKS
        if due:
            self.offline_checked_at = now
        return due

    def stop_awaiting(self, name: str, device: str, number: int) -> None:
        """Await a device no longer whose update to the open round was refused: it does not train for it again."""
        if number == self._number(name):
            self.apply_event(name, DeviceLost(device))

    # ---- opening a round, and what comes of background jobs

    def open_round(self, name: str, number: int, broadcasts: Mapping[str, Blob]) -> None:
        """Open the written round `number`; `broadcasts` is what each client gets, empty if all get the same."""
        with self.lock:
            with self._database.write() as session:
                federation = repositories.find_federation(session, name)
                row = _at(session, federation, number, RoundPhase.ANNOUNCED)
                if federation is None or row is None:
                    return  # the operator stopped it meanwhile
                if broadcasts:
                    opening.record_broadcasts(row, broadcasts)
                actions = opening.begin(session, federation, lambda event: self.transition(session, federation, event))
            self.execute(name, actions)

    def publish(self, name: str, number: int, result: Aggregate, screening: Screening, seconds: float) -> None:
        """Make an aggregate the federation's model, and advance."""
        with self.lock:
            with self._database.write() as session:
                federation = repositories.find_federation(session, name)
                row = _at(session, federation, number, RoundPhase.AGGREGATING)
                if federation is None or row is None:
                    return  # stopped while it was aggregated: the result is not used
                settings = self.contract(federation).plan.rounds
                made = (result.state, result.broadcast, result.gains)
                version = repositories.add_version(session, federation, number, *made)
                if self.contract(federation).kind.keeps_sums:
                    contributions.note_screening(session, federation, row, screening)
                    contributions.settle(session, row, version)
                    judge_round(session, federation, row, settings, {}, is_published=True)
                else:
                    write_screening(session, federation, row, screening)
                    names, left_out = secure_rounds.summed_devices(session, row), screening.excluded
                    judge_round(session, federation, row, settings, left_out, is_published=True, summed=names)
                    if names is not None and self.contract(federation).kind.sums:
                        contributions.settle_masked(session, row, version, names)
                sum_retries.note_publication(session, row)
                transitions.start_next(session, federation, self._clock())
                published = self.transition(session, federation, Aggregated())
                secure = self.contract(federation).plan.secure
                multiplier = secure.noise_multiplier or None if federation.kind.masked else result.noise_multiplier
                if multiplier is not None:
                    note_privacy(session, federation, number, multiplier, self.contract(federation).plan)
                detail = f"{seconds:.2f} s, model {result.broadcast.sha256[:12]}"
                repositories.journal(session, federation, "model.published", round_number=number, detail=detail)
            if published is not None:
                self.execute(name, published.actions)
        self._jobs.collect_garbage()

    def fail_round(self, name: str, number: int, reason: str, screening: Screening | None = None) -> None:
        """End round `number`, whose background job has failed, or of whose updates `screening` has left too few."""
        with self.lock:
            with self._database.write() as session:
                federation, ended = repositories.find_federation(session, name), None
                if federation is None:
                    return  # it was deleted meanwhile
                if row := _at(session, federation, number, RoundPhase.AGGREGATING):
                    if screening is not None:
                        write_screening(session, federation, row, screening)
                        settings = self.contract(federation).plan.rounds
                        judge_round(session, federation, row, settings, screening.excluded, is_published=False)
                    ended = self.transition(session, federation, AggregationFailed(reason))
                elif _at(session, federation, number, RoundPhase.ANNOUNCED):
                    ended = self.transition(session, federation, Stopped(reason))
            if ended is not None:
                self.execute(name, ended.actions)

    def reject_sum(self, name: str, number: int, reason: str) -> None:
        """End round `number`, whose secure sum its devices cannot have added up to."""
        with self.lock:
            self.sums.reject(name, number, reason)

    def base_damaged(self, name: str, reason: str) -> None:
        """End the open round whose model cannot be read, and pause: every further round would begin from it too."""
        with self.lock:
            with self._database.write() as session:
                federation = _row(session, name)
                if federation.status == "running":
                    federation.status = "paused"
                    number = repositories.last_number(session, federation)
                    advice = f"{reason}; restore that blob or move the alias `latest`, then resume"
                    repositories.journal(session, federation, "federation.paused", round_number=number, detail=advice)
                result = self.transition(session, federation, Stopped(f"its model is damaged: {reason}"))
            log.error("federation paused, its model is damaged: %s", reason, extra=about(federation=name))
            self.execute(name, result.actions if result is not None else (Action.ANNOUNCE,))

    def withdraw_refused(self, name: str) -> None:
        """Withdraw the newest version if most devices refuse it, and end the round that began from it."""
        with self.lock:
            with self._database.write() as session:
                federation = _row(session, name)
                refused = model_refusals.refused_version(session, federation)
                if refused is None or not model_refusals.withdraw(session, federation, refused, self._clock()):
                    return
                words = refused.words
                result = self.transition(session, federation, Stopped(words))
            log.error("model refused: %s", words, extra=about(federation=name))
            self.execute(name, result.actions if result is not None else (Action.FAIL,))

    def blob_damaged(self, sha256: str, reason: str) -> None:
        """End the open rounds that begin from a blob which cannot be read."""
        with self._database.read() as session:
            names = repositories.federations_training_from(session, sha256)
        for name in names:
            self.base_damaged(name, reason)

    def _try_open(self, name: str) -> bool:
        with self.lock:
            if self._keeps_sums(name):
                return self._try_publish(name)
            with self._database.write() as session:
                federation = _row(session, name)
                drawn = opening.draw(session, federation, self.contract(federation).plan, self._clock())
            if drawn:
                self._open(name)
            return drawn

    def _try_publish(self, name: str) -> bool:
        """Begin the next publication of a continuous federation if it is due."""
        with self._database.write() as session:
            federation = _row(session, name)
            actions = publications.begin(session, federation, self.contract(federation).plan, self._clock())
        self.execute(name, actions)
        return bool(actions)

    def add_up(self, name: str) -> None:
        """Make the next model of the sum of the open round, which is opened."""
        self.announce(name)
        self._jobs.aggregate(self, name, self._number(name))

    def _is_secure(self, name: str) -> bool:
        with self._database.read() as session:
            return self.contract(_row(session, name)).kind.masked

    def _keeps_sums(self, name: str) -> bool:
        with self._database.read() as session:
            return self.contract(_row(session, name)).kind.keeps_sums

    def _open(self, name: str) -> None:
        with self._database.read() as session:
            federation = _row(session, name)
            personal = self.contract(federation).method.traits.personal_broadcast
            row = repositories.open_round(session, federation)
            base = row.base_version if row else repositories.current_version(session, federation)
            needed = {base.state_sha256, base.broadcast_sha256}
        try:
            for sha256 in needed:
                self._blobs.verify(sha256)
        except (BlobError, OSError) as error:
            self.base_damaged(name, str(error))
            return
        if personal:
            self._jobs.personalize(self, name, self._number(name))
        else:
            self.open_round(name, self._number(name), {})

    # ---- looking things up

    def _names(self) -> list[str]:
        with self._database.read() as session:
            return list(
                filter(self._leadership.leads, session.scalars(select(FederationRow.name).order_by(FederationRow.id)))
            )

    def _phase(self, name: str) -> str | None:
        with self._database.read() as session:
            federation = repositories.find_federation(session, name)  # none: it was deleted while it was worked for
            row = repositories.open_round(session, federation) if federation else None
            return row.phase if row else None

    def _number(self, name: str) -> int:
        with self._database.read() as session:
            return repositories.last_number(session, _row(session, name))


def _row(session: Session, name: str) -> FederationRow:
    return session.scalars(select(FederationRow).where(FederationRow.name == name)).one()


def _at(session: Session, federation: FederationRow | None, number: int, phase: RoundPhase) -> RoundRow | None:
    row = repositories.open_round(session, federation) if federation is not None else None
    return row if row is not None and (row.number, row.phase) == (number, phase) else None
