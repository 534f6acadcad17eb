"""The door between a phone's transport and the collecting thread: what is wrong is said at once, in words."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from edge_agent.config.sensors import PhoneSection
from edge_agent.errors import ConfigError, MessageError
from edge_agent.sensors.sensor_logger.calibration import CALIBRATE, signed, wrong_direction, wrong_units
from edge_agent.sensors.sensor_logger.message import SampleBatch, parse
from har_pipeline.apps.export import ActivityWords

MAX_QUEUED = 16
"""Messages that wait for the collecting thread; as arrays at most 640 kB each."""
TAKEOVER_AFTER_S = 30.0
"""After which another phone may take over."""
HASHED = "sha256:"


class Outcome(Enum):
    """What becomes of a message."""

    ACCEPTED = "taken"
    REFUSED = "refused"  # and the phone's user can do something about it
    BROKEN = "broken"
    BUSY = "busy"


class Reply(NamedTuple):
    """A verdict, and words for the phone's user."""

    verdict: Outcome
    message: str


class PhoneInbox:
    """Thread-safe; `batches` is what the collecting thread takes from."""

    def __init__(self, settings: PhoneSection) -> None:
        self.settings = settings
        self.batches: queue.Queue[SampleBatch | None] = queue.Queue(MAX_QUEUED)
        self._lock = threading.Lock()
        self._device, self._heard = "", 0.0

    def take(self, body: bytes) -> Reply:
        """Check one message, and queue it if it can be used."""
        try:
            batch = parse(body)
        except MessageError as error:
            return Reply(Outcome.BROKEN, str(error))
        if batch is None:
            return Reply(Outcome.ACCEPTED, "connected; start a recording")
        if words := self._stranger(batch.device) or wrong_units(batch):
            return Reply(Outcome.REFUSED, words)
        batch = signed(batch, self.settings.platform)
        if any(note.text.strip().lower() == CALIBRATE for note in batch.notes) and (words := wrong_direction(batch)):
            return Reply(Outcome.REFUSED, words)
        try:
            self.batches.put_nowait(batch)
        except queue.Full:
            return Reply(Outcome.BUSY, "this device cannot keep up; choose a lower rate or fewer sensors in the app")
        return Reply(Outcome.ACCEPTED, "")

    def wake(self) -> None:
        """Let the collecting thread look up although no message came."""
        with contextlib.suppress(queue.Full):
            self.batches.put_nowait(None)

    def _stranger(self, device: str) -> str:
        """Say why a phone's messages are not wanted now; '' if they are."""
        wanted = self.settings.device_id
        if wanted is not None and device != wanted:
            return f"not enrolled: this device listens to the phone {wanted!r} only; this one is {device!r}"
        with self._lock:
            now = time.monotonic()
            if device != self._device and self._device and now - self._heard < TAKEOVER_AFTER_S:
                return "another phone is recording to this device; stop it there first"
            self._device, self._heard = device, now
        return ""


class TokenCheck:
    """Compares tokens in constant time; only the hash stays in memory."""

    def __init__(self, token: str | None) -> None:
        if token is None:
            raise ConfigError(
                "[phone] token is missing; make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe(16))'`, "
                "set it as GAITWAY_EDGE_PHONE_TOKEN, and see docs/phones.md"
            )
        self._hash = token.removeprefix(HASHED) if token.startswith(HASHED) else _hash(token)

    def matches(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(_hash(token).encode(), self._hash.lower().encode())


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Vocabulary(ActivityWords):
    """What the texts of annotations mean under a plan's labels."""

    def __init__(self, settings: PhoneSection, labels: Sequence[str]) -> None:
        super().__init__(labels, settings.annotations, settings.stop_annotations)
