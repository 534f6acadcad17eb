"""Teach me: lessons, the head that they give, and a person's own activities; what the device's page shows and asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, LabelError, StoreError
from edge_agent.serving.classifier import OwnAnswer
from edge_agent.serving.model_registry import ModelRegistry
from edge_agent.storage.labels import (
    SHARE,
    add_activity,
    count_as,
    known_activity,
    label_span,
    personal_activities,
    plan_labels,
    remove_activity,
)
from edge_agent.storage.shared_sums import SharedSums, newest_broadcast, read_shared_sums
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import FILE_NAME, WindowOutline, WindowStore
from edge_agent.teaching.learned_head import EmbeddedWindows, LearnedHead, described, is_named, learn
from edge_agent.teaching.lesson import LESSON_S, Lesson
from edge_agent.training.local_data import pipeline_settings
from export.runtime import ExportError, Session
from federation.plan import Plan
from gaitway.plain_text import label_text
from har_pipeline import PipelineSettings, Window

MAX_WINDOWS = 1000
"""The newest labelled ones, which are learnt from: 20 minutes."""
FRESH_S = 12.0
"""A window is in the database after so long at the latest; until then it is known from the sensor alone."""
LEFT_ALONE_S = 60.0
"""After which a lesson ends that no page asks about any more."""

OWN_EVERY_S = 30.0
"""After which it is looked for labels that nobody watching this page has given."""


class LiveWindows(Protocol):
    """What has just been measured, such as `serving.classifier.Classifier`."""

    def windows_since(self, number: int) -> tuple[int, list[Window]]:
        """Return how many windows have come so far, and those after the first `number` of them that are kept still."""


class _Fresh(NamedTuple):
    window: Window
    at: float


class _Network(NamedTuple):
    sha256: str
    session: Session


class _Learnt(NamedTuple):
    """What was learnt last, and of what."""

    key: object
    head: LearnedHead
    session: Session
    activities: tuple[str, ...]
    federated: int
    """So many of the activities are the federation's, the first ones."""


class Teacher:
    """One device's lessons. Every method is safe on any thread, and raises AgentError with what to do."""

    def __init__(self, config: Config, live: LiveWindows, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._live, self._clock = config, live, clock
        self._lock = threading.RLock()
        self._lesson: Lesson | None = None
        self._said, self._asked_at, self._number = "", 0.0, 0
        self._fresh: list[_Fresh] = []
        self._taught: list[tuple[float, float, str]] = []
        self._network: _Network | None = None
        self._shared: SharedSums | None = None
        self._features: dict[tuple[float, int], NDArray[np.float32]] = {}
        self._found: _Learnt | None = None
        self._own_due, self._is_own_known = 0.0, False

    # ---- what is shown

    def state(self) -> dict[str, Any]:
        """Return the lesson that runs, what was learnt, how well it does, and what heads make of the last window."""
        with self._lock, self._windows() as store:
            plan, settings = self._plan()
            self._advance(store, settings)
            labels, own = plan_labels(store), personal_activities(store)
            shown: dict[str, Any] = {
                "labels": labels,
                "personal": [{"name": name, "counts_as": label} for name, label in own.items()],
                "lesson": self._lesson and self._described_lesson(self._lesson),
                "message": self._said,
                "lesson_s": LESSON_S,
            }
            try:
                return {**shown, **self._learnt(store, plan, settings, (*labels, *own)), "why_not": ""}
            except (StoreError, ExportError) as error:
                return {**shown, "result": None, "why_not": str(error)}

    def _described_lesson(self, lesson: Lesson) -> dict[str, Any]:
        return {
            "activity": lesson.activity,
            "done_s": round(min(lesson.done_s, LESSON_S), 2),
            "paused": lesson.is_paused,
            "warning": lesson.warning(self._clock()),
        }

    def _learnt(
        self, store: WindowStore, plan: Plan, settings: PipelineSettings, activities: tuple[str, ...]
    ) -> dict[str, Any]:
        found = self._solve(store, plan, settings, activities)
        return {"result": described(found.head, activities)}

    def _solve(
        self, store: WindowStore, plan: Plan, settings: PipelineSettings, activities: tuple[str, ...]
    ) -> _Learnt:
        """Have the head of all labelled windows, which is solved anew where something else is known."""
        shared, network = self._shared_sums(len(plan.labels)), self._loaded()
        if network.session.metadata.labels != tuple(plan.labels):
            raise StoreError("the current model belongs to another plan; wait for the federation's next one")
        outlines, fresh = store.newest(settings, activities, MAX_WINDOWS), self._labelled_fresh(store, settings)
        key = (shared.version, network.sha256, activities, *outlines, *fresh)
        if self._found is None or self._found.key != key:
            windows = self._embedded(store, settings, network.session, outlines, fresh, activities)
            head = learn(windows, len(activities), shared, plan.method, settings.window_s)
            self._found = _Learnt(key, head, network.session, activities, len(plan.labels))
        return self._found

    # ---- what is recognized

    def own_answers(self, windows: Sequence[Window]) -> list[OwnAnswer | None]:
        """Name the windows that the person's own head takes for one of their own activities, as the phone does.

        None for every other window, and where no activity of their own is told apart on left-out windows.
        """
        with self._lock:
            if self._clock() >= self._own_due:
                self._is_own_known = self._learn_own()
                self._own_due = self._clock() + OWN_EVERY_S
            found = self._found
        if not self._is_own_known or found is None:
            return [None] * len(windows)
        named = [code for code in range(found.federated, len(found.activities)) if is_named(found.head, code)]
        return [_own_answer(found, window, named) if named else None for window in windows]

    def _learn_own(self) -> bool:
        """Learn what was labelled meanwhile; whether the head can be asked."""
        if not (self._config.agent.data_dir / FILE_NAME).is_file():
            return False
        try:
            with self._windows() as store:
                if own := personal_activities(store):
                    plan, settings = self._plan()
                    self._solve(store, plan, settings, (*plan_labels(store), *own))
                return bool(own)
        except (AgentError, ExportError):  # Teach me says it
            return False

    # ---- what is done

    def start(self, activity: str) -> None:
        """Begin a lesson of an activity; one that runs is ended, and counts for nothing."""
        with self._lock, self._windows() as store:
            _, settings = self._plan()
            name = known_activity(activity, (*plan_labels(store), *personal_activities(store)))
            self._listen()
            self._lesson = Lesson(name, settings.window_s, self._clock(), self._latest)
            self._said, self._asked_at = "", self._clock()

    def pause(self) -> None:
        """Count nothing until `resume`."""
        with self._lock:
            self._running().pause()

    def resume(self) -> None:
        """Go on with a paused lesson."""
        with self._lock:
            self._listen()
            self._running().resume(self._clock(), self._latest)

    def cancel(self) -> None:
        """End the lesson; its windows get no label."""
        with self._lock:
            self._said, self._lesson = f"{label_text(self._running().activity)}: not learnt, as you wished.", None

    def add(self, name: str) -> str:
        """Add an activity of the person's own; returns its name."""
        with self._lock, self._windows() as store:
            self._own_due = 0.0
            return add_activity(store, name, plan_labels(store))

    def remove(self, name: str) -> int:
        """Remove an activity of the person's own; its windows stay without a label. Returns how many."""
        with self._lock, self._windows() as store:
            if self._lesson and self._lesson.activity == name:
                self._lesson = None
            self._taught = [taught for taught in self._taught if taught[2] != name]
            self._own_due = 0.0
            return remove_activity(store, name)

    def count_as(self, name: str, label: str) -> None:
        """Let windows of an activity be sent as one of the federation's; '': not."""
        with self._lock, self._windows() as store:
            count_as(store, name, label, plan_labels(store))

    # ---- lessons

    @property
    def _latest(self) -> Window | None:
        return self._fresh[-1].window if self._fresh else None

    def _running(self) -> Lesson:
        if self._lesson is None:
            raise LabelError("no lesson is running; start one with an activity")
        return self._lesson

    def _listen(self) -> list[Window]:
        """Take what has come since the last time."""
        now = self._clock()
        self._number, windows = self._live.windows_since(self._number)
        signals = [window for window in windows if window.x.ndim == 2 and np.isfinite(window.x).all()]
        last = self._fresh[-1:]
        kept = [window for window in self._fresh if now - window.at <= FRESH_S] or last
        self._fresh = [*kept, *(_Fresh(window, now) for window in signals)]
        return signals

    def _advance(self, store: WindowStore, settings: PipelineSettings) -> None:
        now, windows, lesson = self._clock(), self._listen(), self._lesson
        if lesson is None:
            return
        if now - self._asked_at > LEFT_ALONE_S:
            self._said, self._lesson = f"{label_text(lesson.activity)}: ended, since the page was closed.", None
            return
        self._asked_at = now
        lesson.take(windows, now)
        if lesson.is_complete:
            for from_s, to_s in lesson.spans:
                label_span(store, from_s, to_s, lesson.activity)
                self._taught.append((from_s, to_s, lesson.activity))
            self._said, self._lesson = (
                f"{label_text(lesson.activity)}: {LESSON_S:.0f} s learnt. Choose the next one.",
                None,
            )

    def _labelled_fresh(self, store: WindowStore, settings: PipelineSettings) -> list[WindowOutline]:
        """List windows of lessons that are not in the database yet."""
        now, known, found = self._clock(), self._kept_starts(store), list[WindowOutline]()
        for place, (window, at) in enumerate(self._fresh):
            start_s = float(window.start_s)
            activity = self._activity(start_s, settings.window_s)
            if activity and now - at <= FRESH_S and start_s not in known:
                found.append(WindowOutline(-1 - place, activity, start_s, _session_of(store, start_s)))
        return found

    def _kept_starts(self, store: WindowStore) -> set[float]:
        if not self._fresh:
            return set()
        starts = [float(window.window.start_s) for window in self._fresh]
        with store.reading() as db:
            rows = db.execute("SELECT start_s FROM windows WHERE start_s BETWEEN ? AND ?", (min(starts), max(starts)))
            return {float(row[0]) for row in rows}

    def _activity(self, start_s: float, window_s: float) -> str:
        inside = [
            activity
            for from_s, to_s, activity in self._taught
            if min(to_s, start_s + window_s) - max(from_s, start_s) >= SHARE * window_s
        ]
        return inside[-1] if inside else ""

    # ---- features

    def _embedded(
        self,
        store: WindowStore,
        settings: PipelineSettings,
        session: Session,
        outlines: list[WindowOutline],
        fresh: list[WindowOutline],
        activities: tuple[str, ...],
    ) -> EmbeddedWindows:
        """Have the features of all these windows; those that are known are not computed again."""
        everything = [*outlines, *fresh]
        wanted = {(taught.start_s, taught.session) for taught in everything}
        self._features = {key: value for key, value in self._features.items() if key in wanted}
        new = [taught for taught in everything if (taught.start_s, taught.session) not in self._features]
        kept = [taught for taught in new if taught.number >= 0]
        x = [*store.samples([taught.number for taught in kept], settings)]
        if len(x) != len(kept):
            raise StoreError("windows were just deleted; retrying")
        x += [self._fresh[-1 - taught.number].window.x for taught in new if taught.number < 0]
        if new:
            features = session.predict(np.stack(x)).embedding
            in_order = [*kept, *(taught for taught in new if taught.number < 0)]
            self._features |= {
                (taught.start_s, taught.session): row for taught, row in zip(in_order, features, strict=True)
            }
        code = {name: i for i, name in enumerate(activities)}
        rows = [self._features[(taught.start_s, taught.session)] for taught in everything]
        return EmbeddedWindows(
            np.stack(rows) if rows else np.zeros((0, self._width), np.float32),
            np.array([code[taught.activity] for taught in everything], np.int64),
            np.array([taught.start_s for taught in everything], np.float64),
            np.array([taught.session for taught in everything], np.int64),
            session.metadata.orientation_free_columns,
        )

    @property
    def _width(self) -> int:
        return len(self._shared.sums.moment) - 1 if self._shared else 0

    def _loaded(self) -> _Network:
        """Return the network of the newest head, which need not be the model in use."""
        with closing(StateStore(self._config.agent.data_dir)) as store:
            model = ModelRegistry(store).newest_head()
        if model is None:
            raise StoreError(
                "there is no model yet: it arrives after contact with the server and half a minute of recording"
            )
        if self._network is None or self._network.sha256 != model["sha256"]:
            self._network = _Network(model["sha256"], Session.load(Path(model["path"])))
            self._features = {}
        return self._network

    def _shared_sums(self, classes: int) -> SharedSums:
        path = newest_broadcast(self._config.agent.data_dir)
        if path is None:
            raise StoreError("the federation's sums haven't arrived yet; the device downloads them from the server")
        if self._shared is None or self._shared.version != path.name:
            self._shared = read_shared_sums(path, classes)
        return self._shared

    def _plan(self) -> tuple[Plan, PipelineSettings]:
        with closing(StateStore(self._config.agent.data_dir)) as store:
            text = store.get("plan")
        if not text:
            raise StoreError("The federation's plan isn't known yet: it arrives with the connection to the server.")
        plan = Plan.model_validate_json(text)
        if plan.method.get("name") != "analytic":
            raise StoreError(
                f"this federation learns by {plan.method.get('name')}, which takes a round; Teach me is for the method "
                "analytic, whose heads are solved in a second"
            )
        return plan, pipeline_settings(self._config.sensors, plan.data)

    @contextmanager
    def _windows(self) -> Iterator[WindowStore]:
        folder = self._config.agent.data_dir
        if not (folder / FILE_NAME).is_file():
            raise AgentError("there are no windows yet; they come once a plan is known and a sensor delivers data")
        with closing(WindowStore(folder)) as store:
            yield store


def _own_answer(found: _Learnt, window: Window, named: Sequence[int]) -> OwnAnswer | None:
    """Say which named activity it is, if one is the likeliest of all, by scores that were fitted to 0 and 1."""
    if window.x.ndim != 2 or not np.isfinite(window.x).all():
        return None
    scores = found.head.personal.scores(found.session.predict(window.x[None]).embedding)[0]
    code, likely = int(scores.argmax()), np.maximum(scores, 0)
    if code not in named:
        return None
    return OwnAnswer(found.activities[code], float(likely[code] / likely.sum()) if likely.sum() > 0 else 1.0)


def _session_of(store: WindowStore, start_s: float) -> int:
    """Return the session of a window that is not in the database yet: it goes on with the last one, or is the next."""
    with store.reading() as db:
        last = db.execute("SELECT session, start_s FROM windows ORDER BY id DESC LIMIT 1").fetchone()
    is_next = last is not None and 0 < start_s - last[1] <= FRESH_S
    return int(last[0]) if is_next else store.next_session()
