"""Phones as a sensor source: a transport fills the inbox, and this thread passes its messages to the collector."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Protocol

from edge_agent.sensors.collector import Collector
from edge_agent.sensors.sensor_logger.inbox import (
    PATH,
    TAKEOVER_AFTER_S,
    Listener,
    PhoneInbox,
    Subscription,
    Vocabulary,
)
from edge_agent.sensors.sensor_logger.message import SampleBatch
from edge_agent.sensors.sensor_logger.stream import PhoneStream
from edge_agent.sensors.source import ThreadedSource
from federation.plan import Plan

log = logging.getLogger(__name__)

WAIT_S = 0.5


class InboxTransport(Protocol):
    """What fills the inbox until it is closed."""

    def close(self) -> None:
        """Stop."""
        ...


class PhoneSource(ThreadedSource):
    """Sensor Logger over HTTP or MQTT, as [sensors] source says."""

    _inbox: PhoneInbox | None = None

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop at once, after what has been taken; wait for it no longer than that."""
        self._stop.set()
        if self._inbox:
            self._inbox.wake()
        super().stop(timeout_s)

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Listen until `stop` is set."""
        self._inbox = inbox = PhoneInbox(self.config.phone)
        collector = Collector(self.config, plan, self.post, origin="phone", live=True, stop=stop)
        try:
            transport = self._open(inbox)
            try:
                self._listen(inbox, collector, plan, stop)
            finally:
                transport.close()
        finally:
            collector.close()

    def _open(self, inbox: PhoneInbox) -> InboxTransport:
        phone = self.config.phone
        if self.config.sensors.source == "sensor_logger_mqtt":
            log.info("waiting for a phone topic=%s", phone.topic)
            return Subscription(self.config, inbox)
        listener = Listener(phone, inbox)
        scheme = "https" if phone.tls_cert else "http"
        log.info("waiting for a phone url=%s://%s:%d%s", scheme, phone.listen, listener.port, PATH)
        return listener

    def _listen(self, inbox: PhoneInbox, collector: Collector, plan: Plan, stop: threading.Event) -> None:
        vocabulary = Vocabulary(self.config.phone, plan.labels)
        if vocabulary.unknown:
            words = f"[phone] annotations names {', '.join(vocabulary.unknown)}, which the plan doesn't have"
            log.warning("%s; its labels are %s", words, ", ".join(plan.labels))
            collector.health.note(words)
        stream = PhoneStream(collector, self.config.phone.reorder_s, vocabulary.activity_of)
        collector.health.counts = stream.counts
        collector.post_ready()
        heard: float | None = None
        while not stop.is_set() or not inbox.batches.empty():
            batch = _next(inbox)
            if batch:
                heard = time.monotonic()
                stream.accept(batch)
                for conditions in batch.conditions:
                    self.post(conditions)
            elif heard is not None and time.monotonic() - heard > TAKEOVER_AFTER_S:
                stream.finish()
                heard = None
            collector.tick()
        stream.finish()
        collector.flush()  # before the transport is closed, which takes a while


def _next(inbox: PhoneInbox) -> SampleBatch | None:
    try:
        return inbox.batches.get(timeout=WAIT_S)
    except queue.Empty:
        return None
