"""The device's model at work: classifies live windows in a thread of the supervisor, and adds up what it recognizes."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.errors import StoreError
from edge_agent.storage import window_store
from edge_agent.storage.timeline import MINUTE_S, MinuteSum, add_minutes
from export.runtime import ExportError, Session
from gaitway.files import opener
from gaitway.threads import SupervisedThread
from har_pipeline import Window
from har_pipeline.signals.wear import NOT_WORN, WearDetector

log = logging.getLogger(__name__)

FILE_NAME = "live.json"
MAX_QUEUED = 64
"""Windows that wait; where the model is slower than the sensor, older ones are passed over."""
WRITE_EVERY_S = 1.0
LATEST_WINDOWS = 128
"""Kept of those that came last, for whoever teaches the device: three minutes."""
HISTORY_LENGTH = 300
"""Of the latest predictions, for whoever looks at the device: about six minutes."""


class LivePrediction(NamedTuple):
    """What the model made of the latest window."""

    label: str
    probability: float | None
    """Of the likeliest class; None if nobody wears the device, or the model answers with a number as `label`."""
    start_s: float
    """The window's begin on the sensor's clock."""
    at: float
    """Unix time of the prediction."""
    by: str = ""
    """What said it, where that is not the model in use."""


class OwnAnswer(NamedTuple):
    """An activity of the person's own, as their head recognizes it in a window."""

    label: str
    probability: float


OwnAnswers = Callable[[Sequence[Window]], Sequence[OwnAnswer | None]]
"""What a person's own head says of windows; None of each that is none of their own activities."""
OWN_HEAD = "your model, of Teach me"


class Classifier:
    """`submit` and `serve` return at once; only the thread touches the model. What it sees is in live.json."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._path, self._threads = folder / FILE_NAME, threads
        self._windows: deque[Window] = deque(maxlen=MAX_QUEUED)
        self._news = threading.Condition()
        self._model: Mapping[str, Any] | None = None
        self._served: Mapping[str, Any] | None = None
        self._session: Session | None = None
        self.loaded: Mapping[str, Any] | None = None
        """The model that classifies, as the registry describes it; not always the one to serve, which may not load."""
        self._stopping = False
        self._written_at = 0.0
        self.count = 0
        self.latest: LivePrediction | None = None
        self._history: deque[LivePrediction] = deque(maxlen=HISTORY_LENGTH)
        self._last_window: Window | None = None
        self._latest_windows: deque[Window] = deque(maxlen=LATEST_WINDOWS)
        self._submitted = 0
        self.error = ""
        self._own_answers: OwnAnswers | None = None
        self._minutes = MinuteLog(folder)
        self._wear = WearDetector()
        self._thread = SupervisedThread("inference", self._run)

    def start(self) -> None:
        """Begin to classify."""
        self._path.unlink(missing_ok=True)  # of an earlier run
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join(timeout_s)

    def serve(self, model: Mapping[str, Any] | None) -> None:
        """Go on with this model, as the registry describes it; a model that cannot be loaded leaves the one before."""
        with self._news:
            self._model = model
            self._news.notify()

    def ask_first(self, own_answers: OwnAnswers) -> None:
        """Name the person's own activities by these answers, which the classifier's thread asks for."""
        self._own_answers = own_answers

    @property
    def waiting(self) -> int:
        """Windows that wait to be classified."""
        return len(self._windows)

    def submit(self, windows: Sequence[Window]) -> None:
        """Have windows of raw samples classified; without a model they are passed over."""
        with self._news:
            self._windows.extend(windows)
            self._latest_windows.extend(windows)
            self._submitted += len(windows)
            self._last_window = windows[-1] if windows else self._last_window
            self._news.notify()

    def recent(self) -> tuple[list[LivePrediction], Window | None]:
        """Return the latest predictions, oldest first, and the window that came last, of raw samples (window, 6)."""
        with self._news:
            return list(self._history), self._last_window

    def windows_since(self, number: int) -> tuple[int, list[Window]]:
        """Return how many windows have come so far, and those after the first `number` of them that are kept still."""
        with self._news:
            fresh = min(self._submitted - number, len(self._latest_windows))
            return self._submitted, list(self._latest_windows)[len(self._latest_windows) - fresh :]

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._stopping or self._windows or self._model is not self._served)
                if self._stopping:
                    break
                windows, model = list(self._windows), self._model
                self._windows.clear()
            if model is not self._served:
                self._load(model)
            if windows and self._session:
                self._classify(self._session, windows)
            elif windows:
                self._minutes.add(windows, (), ())
        self._minutes.keep()

    def _load(self, model: Mapping[str, Any] | None) -> None:
        if model is None:
            self._session = self.loaded = None
        else:
            try:
                self._session, self.loaded = Session.load(Path(model["path"]), threads=self._threads), model
                self.error = ""
            except (ExportError, OSError) as error:
                self.error = f"{Path(model['path']).name} cannot be loaded: {error}"
        self._served = model  # last: after another failure it is loaded again

    def _classify(self, session: Session, windows: list[Window]) -> None:
        try:
            found = session.predict(np.stack([window.x for window in windows]))
        except (ExportError, ValueError) as error:  # windows of two lengths do not stack
            self.error = f"the windows do not fit the model: {error}"
            return
        if not found.labels:  # pixels have classes, images have none
            return
        labels, by = list(found.labels), ""
        likeliest = [*map(float, found.probabilities.max(axis=1))] if found.numbers is None else []
        if likeliest and self._own_answers:
            for i, own in enumerate(self._own_answers(windows)):
                by = OWN_HEAD if own else ""
                if own:
                    labels[i], likeliest[i] = own
        if likeliest:
            for i, window in enumerate(windows):
                if not self._wear.is_worn(window.x, window.start_s, window.session):
                    labels[i], likeliest[i] = NOT_WORN, 1.0
        self._minutes.add(windows, labels if likeliest else (), likeliest)
        is_guess, start_s = likeliest and labels[-1] != NOT_WORN, float(windows[-1].start_s)
        self.latest = LivePrediction(labels[-1], likeliest[-1] if is_guess else None, start_s, time.time(), by)
        with self._news:
            self._history.append(self.latest)
        self.count, self.error = self.count + len(windows), ""
        self._write()

    def _write(self) -> None:
        now = time.monotonic()
        if self.latest is None or (self._written_at and now - self._written_at < WRITE_EVERY_S):
            return
        self._written_at = now
        model = {name: (self.loaded or {}).get(name) for name in ("source", "round", "sha256")}
        text = json.dumps({**self.latest._asdict(), "windows": self.count, "model": model})
        part = self._path.with_suffix(".part")
        try:
            with open(part, "w", encoding="utf-8", opener=opener) as file:
                file.write(text)
            os.replace(part, self._path)  # not synced: what was seen is old after a power cut
        except OSError as error:
            self.error = f"{self._path.name} cannot be written: {error.strerror}"


def describe_live(folder: Path) -> list[str]:
    """Say what the running device's model sees; empty if it has seen nothing yet."""
    try:
        seen = json.loads((folder / FILE_NAME).read_bytes())
        model, age_s = seen["model"], max(0.0, time.time() - seen["at"])
        chance = seen["probability"]
        what = seen["label"] if chance is None else f"{seen['label']} ({100 * chance:.0f} %)"
        which = seen.get("by") or f"the {model['source']} model of round {model['round']}"
        return [f"It sees {what}, said {which} {age_s:.0f} s ago; {seen['windows']:,} windows since it started."]
    except (OSError, ValueError, KeyError, TypeError):
        return []


KEEP_EVERY_S = 30.0
MAX_SUMS = 1000
"""That wait where the database cannot be written; more are forgotten."""


class MinuteLog:
    """Sums in memory, which are kept every half minute: a crash loses no more than that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums: dict[tuple[int, str], MinuteSum] = {}
        self._kept_at = time.monotonic()

    def add(self, windows: Sequence[Window], labels: Sequence[str], probabilities: Sequence[float]) -> None:
        """Add windows with what was recognized in each; no labels where there is no model."""
        for i, window in enumerate(windows):
            if window.x.ndim != 2 or not np.isfinite(window.x).all():  # an image, or broken
                continue
            key = int(window.start_s // MINUTE_S), labels[i] if labels else ""
            before = self._sums.get(key, MinuteSum(*key, 0, 0.0, 0.0))
            self._sums[key] = before._replace(
                windows=before.windows + 1,
                probability=before.probability + (float(probabilities[i]) if labels else 0.0),
                movement=before.movement + movement(window.x),
            )
        if time.monotonic() - self._kept_at >= KEEP_EVERY_S or len(self._sums) > MAX_SUMS:
            self.keep()

    def keep(self) -> None:
        """Write what waits; windows.sqlite is made by who collects, so before it there is nothing to write to."""
        self._kept_at = time.monotonic()
        if not self._sums or not (self._folder / window_store.FILE_NAME).is_file():
            return
        try:
            with closing(window_store.WindowStore(self._folder)) as store:
                add_minutes(store, self._sums.values())
        except StoreError as error:
            log.warning("timeline not kept: %s", error)
            if len(self._sums) <= MAX_SUMS:
                return  # tried again
        self._sums.clear()


def movement(x: np.ndarray) -> float:
    """Return the standard deviation of the acceleration's magnitude, m/s², of a window (n, 6)."""
    return float(np.linalg.norm(x[:, :3].astype(np.float64), axis=1).std())
