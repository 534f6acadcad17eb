"""The interface of sensor sources, the thread that each runs in, and the health of a live one."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from pydantic import ValidationError

from edge_agent.config.section import Section
from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, LockedError, SensorError
from edge_agent.machine.events import CollectingPaused, CollectingResumed, Event, SensorFailed
from federation.plan import Plan
from gaitway.errors import first_problem
from gaitway.threads import SupervisedThread, ThreadFailure
from har_pipeline import Finding, PipelineError, Recording, SignalChecks

log = logging.getLogger(__name__)

Post = Callable[[Event], None]
Options = TypeVar("Options", bound=Section)


class SensorSource(Protocol):
    """Fills the window store under a plan; posts DataReady whenever the number of training windows changes."""

    def start(self, plan: Plan) -> None:
        """Begin with this plan's pipeline and labels; what an earlier plan began is stopped."""
        ...

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop soon; wait for it no longer than that."""
        ...


class ThreadedSource(ABC):
    """Runs `collect` in a thread; an expected error is posted as SensorFailed, after another one it begins again.

    Meanwhile the device says that nothing is collected, and why.
    """

    makes: ClassVar[str] = "windows"
    """What it delivers; the plan asks for windows of motion sensors, or for images."""

    def __init__(self, config: Config, post: Post) -> None:
        self.config, self.post = config, post
        self._stop = threading.Event()
        self._thread: SupervisedThread | None = None

    @abstractmethod
    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Deliver until `stop` is set, or until there is no more."""

    def options(self, kind: type[Options]) -> Options:
        """Read [sensors] options as a section of this source's own.

        Raises:
            SensorError: naming the option that is unknown or wrong.
        """
        try:
            return kind.model_validate(self.config.sensors.options)
        except ValidationError as error:
            raise SensorError(f"[sensors] options: {first_problem(error, model=kind)}; see [sensors] source") from error

    def start(self, plan: Plan) -> None:
        """Begin with this plan's pipeline and labels; what an earlier plan began is stopped."""
        self.stop()
        stop = self._stop = threading.Event()
        self._thread = SupervisedThread(
            "sensors",
            lambda: self._run(plan, stop),
            on_failure=self._pause,
            on_restart=lambda: self.post(CollectingResumed()),
        )
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop within one delivery; wait for it no longer than that."""
        self._stop.set()
        if self._thread:
            self._thread.join(timeout_s)

    def _check(self, plan: Plan) -> None:
        wanted = "windows" if plan.data.input is None else "images"
        if wanted != self.makes:
            what = "windows of motion sensors" if wanted == "windows" else "images"
            raise SensorError(
                f"the federation learns from {what}, but [sensors] source = {self.config.sensors.source!r} delivers "
                f"{self.makes}; set another source, or join another federation"
            )

    def _pause(self, failure: ThreadFailure) -> None:
        kind = self.config.sensors.source
        self.post(CollectingPaused(f"the sensor source {kind!r} failed and starts again: {failure.error}"))

    def _run(self, plan: Plan, stop: threading.Event) -> None:
        try:
            self._check(plan)
            self.collect(plan, stop)
        except LockedError:  # it begins again, and another program will have ended by then
            raise
        except (AgentError, PipelineError, OSError) as error:
            if not stop.is_set():
                self.post(SensorFailed(str(error)))
        except ModuleNotFoundError as error:  # of pandas or Pillow, which `edge-lite` leaves out
            kind = self.config.sensors.source
            self.post(SensorFailed(f"[sensors] source = {kind!r} needs {error.name}: pip install {error.name}"))
        finally:
            give_memory_back()


def give_memory_back() -> None:
    """Return to the system what a replay has freed (measured: 14 of 108 MB), where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


SPAN_S = 10.0
"""Seconds of samples that are looked at."""
NOTES = 5
CHECKED_S, SETTLED_S = 3600.0, 60.0
"""After an hour the signals are judged anew, so that what was put right is forgotten; for a minute as before."""
REST_SPREAD = 0.3
"""Below this standard deviation of |acceleration|, in m/s², the device lies still."""


class SensorHealth:
    """The last seconds of both sensors, and counts since the start."""

    def __init__(self, source: str) -> None:
        self.source, self._declared_hz = source, dict[str, float]()
        self.samples = {"acc": 0, "gyro": 0}
        self.counts: dict[str, int] = {}
        self.lost = 0
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._recent: dict[str, deque[Recording]] = {"acc": deque(), "gyro": deque()}
        self._heard_at = 0.0
        self._checks, self._checked_since = SignalChecks(), time.monotonic()
        self._before: tuple[Finding, ...] | None = None

    def declare(self, rates_hz: Mapping[str, float]) -> None:
        """Check the sensors' rates from now on against those that are stated."""
        self._declared_hz = dict(rates_hz)
        self._checks = SignalChecks(self._declared_hz)

    def check(self, recording: Recording) -> None:
        """Take note of samples of any source, live or not, for `findings`."""
        if time.monotonic() - self._checked_since > CHECKED_S:
            self._before = self._checks.findings()
            self._checks, self._checked_since = SignalChecks(self._declared_hz), time.monotonic()
        self._checks.add(recording)

    def findings(self) -> tuple[Finding, ...]:
        """Return what is odd about the samples of the last hour or so."""
        early = time.monotonic() - self._checked_since < SETTLED_S
        return self._before if early and self._before is not None else self._checks.findings()

    def record(self, recording: Recording) -> None:
        """Take note of samples that came."""
        if not len(recording.times_s):
            return
        self.samples[recording.sensor] += len(recording.times_s)
        self._heard_at = time.time()
        recent = self._recent[recording.sensor]
        if recent and recent[-1].times_s[-1] > recording.times_s[0]:
            recent.clear()  # the clock jumped
        recent.append(recording)
        while recent and recent[0].times_s[-1] < recording.times_s[-1] - SPAN_S:
            recent.popleft()

    def note(self, words: str) -> None:
        """Keep a sentence about something that went wrong; the last few stay."""
        self._notes.append(words)

    def summary(self) -> dict[str, Any]:
        """Describe it as JSON; a quantity is None where there were no samples."""
        acc, gyro = (self._values(name) for name in ("acc", "gyro"))
        size = np.linalg.norm(acc, axis=1)
        still = bool(len(size)) and float(size.std()) < REST_SPREAD
        return {
            "source": self.source,
            "at": time.time(),
            "heard_at": self._heard_at,
            "rate_hz": {name: self._rate(name) for name in self._recent},
            "acceleration": float(np.median(size)) if len(size) else None,
            "direction": acc.mean(axis=0).round(3).tolist() if still else None,
            "at_rest": still,
            "rotation": float(np.linalg.norm(gyro.mean(axis=0))) if len(gyro) else None,
            "samples": self.samples,
            "left_out": self.counts,
            "windows_lost": self.lost,
            "notes": list(self._notes),
        }

    def _values(self, name: str) -> np.ndarray:
        chunks = [recording.values for recording in self._recent[name]]
        return np.concatenate(chunks) if chunks else np.empty((0, 3))

    def _rate(self, name: str) -> float | None:
        recent = self._recent[name]
        count = sum(len(recording.times_s) for recording in recent)
        span_s = float(recent[-1].times_s[-1] - recent[0].times_s[0]) if recent else 0.0
        return round((count - 1) / span_s, 1) if span_s > 0 else None
