"""What the page shows and does, by the functions that the commands call; each request opens its own databases.

Nothing of it needs the server: it is read from the data folder, and from the model at work.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from edge_agent.config.settings import Config
from edge_agent.doctor import examine
from edge_agent.errors import AgentError, LabelError, StoreError
from edge_agent.serving.classifier import LivePrediction, OwnAnswers
from edge_agent.serving.model_registry import ModelRegistry, name_of
from edge_agent.storage.consent import (
    accept_refused_plan,
    can_withdraw,
    describe_privacy,
    participation,
    promises_to_accept,
    take_part,
    withdraw,
)
from edge_agent.storage.data_folder import is_locked
from edge_agent.storage.labels import known_activity, label_span, undo, vocabulary
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.timeline import MINUTE_S, bounds, days, read_minutes, stretches, uncertain
from edge_agent.storage.window_listing import Selection, by_class, by_day, delete
from edge_agent.storage.window_store import FILE_NAME as WINDOWS_FILE
from edge_agent.storage.window_store import WindowStore
from edge_agent.supervisor.status import collected_windows, describe_device, describe_release, describe_served
from edge_agent.teaching.teacher import Teacher
from gaitway.plain_text import checked
from gaitway.python310 import Self
from har_pipeline import Window

MAX_DAYS, MAX_ASKED, MAX_JUDGED = 62, 10, 10
ASKED_S = 14 * 86_400.0
"""The day's view asks about uncertain stretches of so long, up to the newest day."""
MAX_LABEL_SPAN_S = 366 * 86_400.0
LIVE_WINDOW_S = 300.0
"""The page shows what was recognized in so long."""


class Live(Protocol):
    """The model at work, such as `serving.classifier.Classifier`."""

    error: str

    def recent(self) -> tuple[list[LivePrediction], Window | None]:
        """Return the latest predictions, and the window that came last."""

    def windows_since(self, number: int) -> tuple[int, list[Window]]:
        """Return how many windows have come so far, and those after the first `number` of them that are kept still."""

    def ask_first(self, own_answers: OwnAnswers) -> None:
        """Name the person's own activities by these answers."""


Activity = Annotated[str, Field(max_length=200), AfterValidator(checked)]
"""An activity as a request names it."""


class _PageRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


Seconds = Field(default=None, ge=0, le=1e11)


class LabelRequest(_PageRequest):
    """An activity for a span of time: from and to in seconds since 1970, or so long until now."""

    activity: Activity
    from_s: float | None = Seconds
    to_s: float | None = Seconds
    last_s: float | None = Field(default=None, gt=0, le=MAX_LABEL_SPAN_S)

    @model_validator(mode="after")
    def _one_span(self) -> Self:
        if (self.last_s is None) == (self.from_s is None) or (self.from_s is None) != (self.to_s is None):
            raise ValueError("say either last_s, or from_s and to_s")
        return self


class DeleteRequest(_PageRequest):
    """Which windows go: those of an activity ('': without one), of a day of this device's calendar, or both."""

    activity: Activity | None = None
    day: str | None = Field(default=None, max_length=10)

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.activity is None and self.day is None:
            raise ValueError("say which windows: an activity, a day, or both")
        self.selection()
        return self

    def selection(self) -> Selection:
        """Return the windows that are meant; raises ValueError for what is no day."""
        if self.day is None:
            return Selection(self.activity)
        begin = datetime.combine(date.fromisoformat(self.day), datetime.min.time())
        return Selection(self.activity, begin.timestamp(), (begin + timedelta(days=1)).timestamp())


class DayRequest(_PageRequest):
    """A day of this device's calendar; None: the newest of which something is known."""

    day: date | None = None


class ActivityRequest(_PageRequest):
    """An activity, by its name."""

    activity: Activity


class CountRequest(ActivityRequest):
    """As which of the federation's activities one of the person's own is sent; '': not at all."""

    label: Activity


class AcceptRequest(_PageRequest):
    """A person accepts what the refused plan promises, as the page has shown it."""

    promises: str = Field(min_length=1, max_length=500)


class EmptyRequest(_PageRequest):
    """A request that says all by its name."""


class PageService:
    """One device's page. Every method is safe on any thread, and raises AgentError with what to do."""

    def __init__(self, config: Config, config_file: Path, live: Live) -> None:
        self.config = config
        self._file, self._live = config_file, live
        self._folder = config.agent.data_dir
        self._examined = threading.Lock()
        self._teacher = Teacher(config, live)
        live.ask_first(self._teacher.own_answers)

    # ---- what is shown

    def now(self) -> dict[str, Any]:
        """Return what is recognized, over the last minutes too, and the raw samples of the last window."""
        history, window = self._live.recent()
        now = time.time()
        signals = window.x if window is not None and window.x.ndim == 2 and np.isfinite(window.x).all() else None
        return {
            "now": now,
            "error": self._live.error,
            "by": history[-1].by if history else "",
            "seen": [
                [entry.at, entry.label, None if entry.probability is None else round(entry.probability, 4)]
                for entry in history
                if now - entry.at <= LIVE_WINDOW_S and math.isfinite(entry.probability or 0.0)
            ],
            "signals": [] if signals is None else signals.astype(float).round(4).tolist(),
        }

    def status(self) -> dict[str, Any]:
        """Return what `status` says: what the device does, and why it does not train."""
        with closing(StateStore(self._folder)) as store:
            device = self.config.agent.device
            doing = describe_device(store, device, running=is_locked(store))
        return {"device": device, "words": [*doing, *collected_windows(self._folder, self.config.windows).words]}

    def privacy(self) -> dict[str, Any]:
        """Return what `privacy` shows; `promises`: what can be accepted here, empty where nothing can."""
        with closing(StateStore(self._folder)) as store:
            words = describe_privacy(store, self.config.privacy.require)
            return {"words": words, "promises": promises_to_accept(store) if self._has_password else ""}

    @property
    def _has_password(self) -> bool:
        return self.config.agent.page_password_hash is not None

    def windows(self) -> dict[str, Any]:
        """Return what `windows` shows, and the labels that can be given."""
        with self._windows() as store:
            return {
                **_labels_to_give(store),
                "classes": [row._asdict() for row in by_class(store, Selection())],
                "days": sorted(by_day(store, Selection()).items(), reverse=True)[:MAX_DAYS],
            }

    def day(self, request: DayRequest) -> dict[str, Any]:
        """Return a day by its minutes, and the stretches whose label would help most, of two weeks."""
        with self._windows() as store:
            known = days(store)[:MAX_DAYS]
            day = request.day or (known[0] if known else date.today())
            minutes, newest_s = read_minutes(store, *bounds(day)), bounds(known[0] if known else day)[1]
            unsure = uncertain(read_minutes(store, newest_s - ASKED_S, newest_s))
            return {
                **_labels_to_give(store),
                "day": day.isoformat(),
                "days": [past.isoformat() for past in known],
                "movement": [
                    [n * MINUTE_S, minute.movement / minute.seen] for n, minute in minutes.items() if minute.seen
                ],
                "stretches": [stretch._asdict() for stretch in stretches(minutes)],
                "uncertain": [stretch._asdict() for stretch in unsure[:MAX_ASKED]],
                "uncertain_more": max(0, len(unsure) - MAX_ASKED),
                "problem": "",
            }

    def models(self) -> dict[str, Any]:
        """Return what `models` shows."""
        with closing(StateStore(self._folder)) as store:
            kept = [{**model, "name": name_of(model)} for model in ModelRegistry(store).good_models()]
            judged = [row.reason for row in store.adoptions()][-MAX_JUDGED:]
            return {
                "models": kept,
                "used": describe_served(store),
                "why": [*judged, *describe_release(store, self.config.agent.device)],
                "choices": [{"label": "Use the one before", "name": "roll-back"}] if len(kept) > 1 else [],
            }

    def teaching(self) -> dict[str, Any]:
        """Return what Teach me shows: the lesson, what was learnt, how well it does, and which head is used."""
        with closing(StateStore(self._folder)) as store:
            used, taking_part = describe_served(store), participation(store)
            part = {"takes_part": taking_part.takes_part, "words": taking_part.words, "can": can_withdraw(store)}
        try:
            return {**self._teacher.state(), "used": used, "participation": part, "unable": ""}
        except AgentError as error:
            return {"used": used, "participation": part, "unable": str(error)}

    def doctor(self) -> dict[str, Any]:
        """Return what `doctor` finds; it takes seconds, and one at a time is enough."""
        if not self._examined.acquire(blocking=False):
            raise StoreError("the device is being examined already; wait for what comes of it")
        try:
            return {"findings": [finding._asdict() for finding in examine(self._file)]}
        finally:
            self._examined.release()

    # ---- what is done

    def label(self, request: LabelRequest) -> dict[str, Any]:
        """Give an activity to the windows of a span, as `label` does."""
        to_s = time.time() if request.to_s is None else request.to_s  # this device's clock, not the browser's
        from_s = to_s - request.last_s if request.last_s is not None else request.from_s or 0.0
        with self._windows() as store:
            done = label_span(store, from_s, to_s, known_activity(request.activity, vocabulary(store)))
        return {"windows": done.windows, "activity": done.activity}

    def undo(self, _: EmptyRequest) -> dict[str, Any]:
        """Take the last label back, as `label --undo` does."""
        with self._windows() as store:
            done = undo(store)
        return {"windows": done.windows, "activity": done.activity}

    def delete(self, request: DeleteRequest) -> dict[str, Any]:
        """Delete windows for good, as `windows --delete` does."""
        with self._windows() as store:
            return {"windows": delete(store, request.selection())}

    def roll_back(self, _: EmptyRequest) -> dict[str, Any]:
        """Use the good model before the present one, as `models --rollback` does."""
        with closing(StateStore(self._folder)) as store:
            return {"words": f"Now in use: the {name_of(ModelRegistry(store).rollback())}."}

    def teach(self, request: ActivityRequest) -> dict[str, Any]:
        """Begin a lesson."""
        self._teacher.start(request.activity)
        return {}

    def pause_lesson(self, _: EmptyRequest) -> dict[str, Any]:
        """Let the lesson wait."""
        self._teacher.pause()
        return {}

    def resume_lesson(self, _: EmptyRequest) -> dict[str, Any]:
        """Go on with the lesson."""
        self._teacher.resume()
        return {}

    def cancel_lesson(self, _: EmptyRequest) -> dict[str, Any]:
        """End the lesson without a label."""
        self._teacher.cancel()
        return {}

    def add_activity(self, request: ActivityRequest) -> dict[str, Any]:
        """Add an activity of the person's own."""
        return {"activity": self._teacher.add(request.activity)}

    def remove_activity(self, request: ActivityRequest) -> dict[str, Any]:
        """Remove an activity of the person's own."""
        return {"windows": self._teacher.remove(request.activity)}

    def count_as(self, request: CountRequest) -> dict[str, Any]:
        """Say whether, and as what, windows of a person's own activity are sent."""
        self._teacher.count_as(request.activity, request.label)
        return {}

    def withdraw(self, _: EmptyRequest) -> dict[str, Any]:
        """Have this device's sums taken out, as `withdraw` does."""
        with closing(StateStore(self._folder)) as store:
            return {"words": withdraw(store).words}

    def accept_plan(self, request: AcceptRequest) -> dict[str, Any]:
        """Require no more than the refused plan promises, as `privacy --accept` does.

        Raises:
            StoreError: if the page has no password: then whoever reaches it could loosen what the device requires.
        """
        if not self._has_password:
            raise StoreError(
                "this page has no password, so privacy can't be loosened here; run `python -m edge_agent privacy "
                "--accept` on the device, or give the page a password (`python -m edge_agent page-password`)"
            )
        with closing(StateStore(self._folder)) as store:
            accept_refused_plan(store, self.config.privacy.require, request.promises)
        return {}

    def take_part(self, _: EmptyRequest) -> dict[str, Any]:
        """Take part again, as `take-part` does."""
        with closing(StateStore(self._folder)) as store:
            return {"words": take_part(store).words}

    @contextmanager
    def _windows(self) -> Iterator[WindowStore]:
        if not (self._folder / WINDOWS_FILE).is_file():
            raise StoreError("there are no windows yet; they come once a plan is known and a sensor delivers data")
        with closing(WindowStore(self._folder)) as store:
            yield store


def _labels_to_give(store: WindowStore) -> dict[str, Any]:
    try:
        return {"labels": vocabulary(store), "why_no_labels": ""}
    except LabelError as error:
        return {"labels": (), "why_no_labels": str(error)}


Shown = Callable[[PageService], Mapping[str, Any]]
VIEWS: Mapping[str, Shown] = {
    "now": PageService.now,
    "status": PageService.status,
    "privacy": PageService.privacy,
    "windows": PageService.windows,
    "models": PageService.models,
    "teaching": PageService.teaching,
    "doctor": PageService.doctor,
}
"""What GET /api/NAME answers."""

ACTIONS: Mapping[str, tuple[type[_PageRequest], Callable[[PageService, Any], Mapping[str, Any]]]] = {
    "day": (DayRequest, PageService.day),
    "label": (LabelRequest, PageService.label),
    "undo": (EmptyRequest, PageService.undo),
    "delete": (DeleteRequest, PageService.delete),
    "roll-back": (EmptyRequest, PageService.roll_back),
    "teach": (ActivityRequest, PageService.teach),
    "pause-lesson": (EmptyRequest, PageService.pause_lesson),
    "resume-lesson": (EmptyRequest, PageService.resume_lesson),
    "cancel-lesson": (EmptyRequest, PageService.cancel_lesson),
    "add-activity": (ActivityRequest, PageService.add_activity),
    "remove-activity": (ActivityRequest, PageService.remove_activity),
    "count-as": (CountRequest, PageService.count_as),
    "withdraw": (EmptyRequest, PageService.withdraw),
    "accept-plan": (AcceptRequest, PageService.accept_plan),
    "take-part": (EmptyRequest, PageService.take_part),
}
"""What POST /api/NAME takes and does."""
