"""Prometheus metrics at /metrics: this process's figures, and current figures of the database.

Rounds and updates are counted from the journal and the updates' rows, which survive a restart and are the same from
every process that shares the database; each scrape reads only the rows that are new.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth.signing import Signer
from aggregator_api.core.settings import Settings
from aggregator_api.operations import health
from aggregator_api.operations.counts import AGGREGATION_SECONDS, MESSAGE_SECONDS, deliveries
from aggregator_api.operations.health import BrokerHealth, MessageQueue
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import (
    DeviceRow,
    EventRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    RolloutDeviceRow,
    RolloutRow,
    RoundRow,
    UpdateRow,
)
from aggregator_api.storage.db.repositories import ENDED, count_online
from federation.rounds.rollout import RolloutPhase
from gaitway.threads import thread_failures

log = logging.getLogger(__name__)

HTTP_SECONDS = Histogram(
    "gaitway_http_request_seconds",
    "from a request to the beginning of its answer",
    ("method", "route", "status"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
    registry=None,
)

COUNTED_STATUSES = ("accepted", "deferred", "excluded")


class HttpTimer:
    """Measures how long requests wait for their answers, by the route's pattern, never by what a client made up."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note when its answer begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else "other"
                route = getattr(scope.get("route"), "path", "unmatched")
                HTTP_SECONDS.labels(method, route, str(message["status"])).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, noted)


DAY_S = 24 * 3600.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Metrics:
    """One application's registry."""

    def __init__(self, server: ServerCollector, database: DatabaseCollector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        for histogram in (HTTP_SECONDS, AGGREGATION_SECONDS, MESSAGE_SECONDS):
            self._registry.register(histogram)
        ProcessCollector(registry=self._registry)
        self._registry.register(server)
        self._registry.register(database)

    def render(self) -> bytes:
        """Return every figure in Prometheus's text format."""
        return generate_latest(self._registry)


class LeadershipView(Protocol):
    """Which federations this process drives."""

    @property
    def led_federations(self) -> Collection[str] | None:
        """Their names; None where no other process shares the work."""


class ServerCollector:
    """How this process fares."""

    def __init__(
        self,
        settings: Settings,
        signer: Signer,
        broker: BrokerHealth,
        messages: MessageQueue,
        leadership: LeadershipView,
    ) -> None:
        self._settings = settings
        self._signer = signer
        self._broker = broker
        self._messages = messages
        self._leadership = leadership

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        settings = self._settings
        yield GaugeMetricFamily("gaitway_broker_up", "whether the broker is connected", self._broker.is_up)
        yield GaugeMetricFamily("gaitway_inbox_alive", "whether messages are being handled", self._messages.alive)
        yield GaugeMetricFamily("gaitway_inbox_messages", "messages that wait to be handled", self._messages.waiting)
        failed = CounterMetricFamily(
            "gaitway_thread_failures", "unexpected failures of a thread, which was started again", labels=["thread"]
        )
        for thread, count in thread_failures.counts().items():
            failed.add_metric([thread], count)
        yield failed
        family = CounterMetricFamily(
            "gaitway_notifications", "notifications, by what became of them", labels=["channel", "outcome"]
        )
        for labels, count in deliveries.counts().items():
            family.add_metric(labels, count)
        yield family
        disk = shutil.disk_usage(settings.data_dir)
        yield GaugeMetricFamily("gaitway_disk_free_bytes", "free where database and blobs lie", disk.free)
        yield GaugeMetricFamily("gaitway_disk_size_bytes", "size of where database and blobs lie", disk.total)
        yield from health.certificates(settings.mqtt_ca_file, self._broker.certificate_expiry(), settings.tls_cert_file)
        yield from health.signatures(self._signer.renewed_at + settings.signature_lifetime_s)
        yield from health.last_backup(settings.data_dir)
        led = self._leadership.led_federations
        if led is not None:
            yield GaugeMetricFamily("gaitway_federations_led", "federations that this process drives", len(led))


class DatabaseCollector:
    """Metrics of the federations' state and history."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._last_event = self._last_update = 0
        self._rounds: Counter[tuple[str, str]] = Counter()
        self._updates: Counter[tuple[str, str]] = Counter()
        self._rollouts: Counter[tuple[str, str]] = Counter()
        self._adoptions: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()

    def collect(self) -> Iterator[Metric]:
        """Yield counters and gauges of one moment; where the database does not answer, only that it does not."""
        try:
            found, up = list(self._collect()), True
        except (SQLAlchemyError, OSError) as error:
            log.warning("database metrics missing: %s", error)
            found, up = [], False
        yield GaugeMetricFamily("gaitway_database_up", "whether the database answers", up)
        yield from found

    def _collect(self) -> Iterator[Metric]:
        with self._mutex, self._database.read() as session:
            names = {row.id: row.name for row in session.execute(select(FederationRow.id, FederationRow.name))}
            self._read_journal(session, names)
            self._read_sizes(session, names)
            yield _counter("gaitway_rounds", "rounds that have ended", "outcome", self._rounds)
            yield _counter("gaitway_rollouts", "rollouts that have ended", "outcome", self._rollouts)
            yield _counter("gaitway_adoptions", "models judged by devices, by their answer", "answer", self._adoptions)
            yield _counter("gaitway_updates", "updates by outcome", "outcome", self._updates)
            received = CounterMetricFamily("gaitway_update_bytes", "bytes of updates taken", labels=["federation"])
            for name, size in sorted(self._bytes.items()):
                received.add_metric([name], size)
            yield received
            yield _capped(session)
            yield from _devices_and_rounds(session)
            yield from _open_rounds(session)
            yield from _released(session)
            yield from _promoted(session)
            yield from health.keys(session)
            yield from health.tokens(session)

    def _read_journal(self, session: Session, names: dict[int, str]) -> None:
        newest = session.scalar(select(func.max(EventRow.id))) or 0
        new = (EventRow.id > self._last_event, EventRow.id <= newest)
        query = select(EventRow.federation_id, EventRow.kind, func.count()).where(*new)
        for federation, kind, count in session.execute(query.group_by(EventRow.federation_id, EventRow.kind)):
            what, _, outcome = kind.partition(".")
            if what == "round" and outcome in ENDED:
                self._rounds[names[federation], outcome] += count
            elif what == "rollout" and outcome in (RolloutPhase.COMPLETED, RolloutPhase.HALTED):
                self._rollouts[names[federation], outcome] += count
            elif what == "adoption":
                self._adoptions[names[federation], outcome] += count
            elif what == "update":
                self._updates[names[federation], outcome] += count
        self._last_event = newest

    def _read_sizes(self, session: Session, names: dict[int, str]) -> None:
        newest = session.scalar(select(func.max(UpdateRow.id))) or 0
        new = (UpdateRow.id > self._last_update, UpdateRow.id <= newest, UpdateRow.status.in_(COUNTED_STATUSES))
        query = select(UpdateRow.federation_id, func.sum(UpdateRow.size)).where(*new)
        for federation, size in session.execute(query.group_by(UpdateRow.federation_id)):
            self._bytes[names[federation]] += int(size)
        self._last_update = newest


def _capped(session: Session) -> Metric:
    family = CounterMetricFamily(
        "gaitway_capped_updates", "updates that counted with fewer examples than they claim", labels=["federation"]
    )
    query = select(FederationRow.name, func.sum(RoundRow.capped)).join(
        RoundRow, RoundRow.federation_id == FederationRow.id
    )
    for name, count in session.execute(query.group_by(FederationRow.name)):
        family.add_metric([name], int(count))
    return family


def _devices_and_rounds(session: Session) -> Iterator[Metric]:
    devices = GaugeMetricFamily("gaitway_devices", "devices by their last word", labels=["federation", "state"])
    query = select(FederationRow.name, DeviceRow.state, func.count()).join(
        DeviceRow, DeviceRow.federation_id == FederationRow.id
    )
    for name, state, count in session.execute(query.group_by(FederationRow.name, DeviceRow.state)):
        devices.add_metric([name, state], count)
    yield devices
    cloned = GaugeMetricFamily(
        "gaitway_cloned_devices", "devices whose name two programs used in the last day", labels=["federation"]
    )
    found = select(FederationRow.name, func.count(DeviceRow.id)).outerjoin(
        DeviceRow, (DeviceRow.federation_id == FederationRow.id) & (DeviceRow.cloned_at > time.time() - DAY_S)
    )
    for name, count in session.execute(found.group_by(FederationRow.name)):
        cloned.add_metric([name], count)
    yield cloned
    judged = GaugeMetricFamily(
        "gaitway_adoption_devices", "devices by their last word about a model", labels=["federation", "answer"]
    )
    answers = select(FederationRow.name, DeviceRow.adoption, func.count()).join(
        DeviceRow, DeviceRow.federation_id == FederationRow.id
    )
    answers = answers.where(DeviceRow.adoption.is_not(None)).group_by(FederationRow.name, DeviceRow.adoption)
    for name, answer, count in session.execute(answers):
        judged.add_metric([name, str(answer)], count)
    yield judged
    number = GaugeMetricFamily("gaitway_round_number", "the latest round", labels=["federation"])
    latest = select(FederationRow.name, func.max(RoundRow.number)).join(
        RoundRow, RoundRow.federation_id == FederationRow.id
    )
    for name, count in session.execute(latest.group_by(FederationRow.name)):
        number.add_metric([name], count)
    yield number
    waiting = GaugeMetricFamily("gaitway_open_round_pending", "devices awaited by an open round", labels=["federation"])
    opened = select(FederationRow.name, RoundRow.pending).join(RoundRow, RoundRow.federation_id == FederationRow.id)
    for name, count in session.execute(opened.where(RoundRow.phase.not_in(ENDED))):
        waiting.add_metric([name], count)
    yield waiting


def _open_rounds(session: Session) -> Iterator[Metric]:
    """Yield whether federations should be going on, who could, and since when their open rounds are open."""
    running = GaugeMetricFamily("gaitway_federation_running", "1 while rounds should follow", labels=["federation"])
    online = GaugeMetricFamily("gaitway_devices_online", "devices that could train now", labels=["federation"])
    for row in session.scalars(select(FederationRow)):
        running.add_metric([row.name], row.status == "running")
        online.add_metric([row.name], count_online(session, row))
    opened = GaugeMetricFamily(
        "gaitway_open_round_opened_timestamp_seconds", "when the open round began", labels=["federation", "phase"]
    )
    deadline = GaugeMetricFamily(
        "gaitway_open_round_deadline_timestamp_seconds", "when the open round should end", labels=["federation"]
    )
    rows = select(FederationRow.name, RoundRow.phase, RoundRow.opened_at, RoundRow.deadline_at).join(
        RoundRow, RoundRow.federation_id == FederationRow.id
    )
    for name, phase, began, ends in session.execute(rows.where(RoundRow.phase.not_in(ENDED))):
        opened.add_metric([name, phase], began)
        if ends is not None:
            deadline.add_metric([name], ends)
    yield from (running, online, opened, deadline)


def _released(session: Session) -> Iterator[Metric]:
    """Yield how far each federation's latest rollout has come."""
    wave = GaugeMetricFamily("gaitway_rollout_wave", "wave of the latest rollout, from 1", labels=["federation"])
    family = GaugeMetricFamily(
        "gaitway_rollout_devices", "devices of the latest rollout by their answer", labels=["federation", "answer"]
    )
    latest = select(func.max(RolloutRow.id)).group_by(RolloutRow.federation_id)
    rows = select(FederationRow.name, RolloutRow.id, RolloutRow.wave).join(
        RolloutRow, RolloutRow.federation_id == FederationRow.id
    )
    for name, id_, number in session.execute(rows.where(RolloutRow.id.in_(latest))):
        wave.add_metric([name], number + 1)
        answers = select(RolloutDeviceRow.answer, func.count()).where(RolloutDeviceRow.rollout_id == id_)
        for answer, count in session.execute(answers.group_by(RolloutDeviceRow.answer)):
            family.add_metric([name, answer], count)
    yield wave
    yield family


def _promoted(session: Session) -> Iterator[Metric]:
    """Yield which versions bear the server's names, and whether something is measured to be worse than before."""
    named = GaugeMetricFamily("gaitway_model_version", "version of that name", labels=["federation", "alias"])
    worse = GaugeMetricFamily(
        "gaitway_model_regressions", "models that devices measured to be worse than those before", labels=["federation"]
    )
    query = select(FederationRow.name, ModelAliasRow.alias, ModelVersionRow.version)
    query = query.join(ModelAliasRow, ModelAliasRow.federation_id == FederationRow.id)
    query = query.join(ModelVersionRow, ModelVersionRow.id == ModelAliasRow.version_id)
    for name, alias, version in session.execute(query.where(ModelAliasRow.alias.in_(("latest", "stable", "released")))):
        named.add_metric([name, alias], version)
    for name, regression in session.execute(select(FederationRow.name, FederationRow.regression)):
        worse.add_metric([name], len(regression.splitlines()))
    yield named
    yield worse


def _counter(name: str, about: str, label: str, counts: Counter[tuple[str, str]]) -> Metric:
    family = CounterMetricFamily(name, about, labels=["federation", label])
    for (federation, value), count in sorted(counts.items()):
        family.add_metric([federation, value], count)
    return family
