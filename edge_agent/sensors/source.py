"""What a sensor source is to the supervisor, and the thread that every one of them runs in."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

from pydantic import ValidationError

from edge_agent.config.section import Section
from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, LockedError, SensorError
from edge_agent.machine.events import CollectingPaused, CollectingResumed, Event, SensorFailed
from federation.plan import Plan
from gaitway.errors import first_problem
from gaitway.threads import SupervisedThread, ThreadFailure
from har_pipeline import PipelineError

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
                f"the federation learns from {what}, and [sensors] source = {self.config.sensors.source!r} gives "
                f"{self.makes}; set another source, or take part in another federation"
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
