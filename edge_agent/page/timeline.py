"""The day as a page of its own, which works without JavaScript; timeline.js adds dragging and tapping.

Times are minutes of this device's clock, as the forms send them.
"""

from __future__ import annotations

from contextlib import closing
from datetime import date, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from edge_agent.config.settings import Config
from edge_agent.errors import LabelError, StoreError
from edge_agent.page.timeline_html import DayView, Done, address_of, day_page
from edge_agent.storage.labels import known_activity, label_span, undo, vocabulary
from edge_agent.storage.timeline import bounds, days, read_minutes, uncertain
from edge_agent.storage.window_store import FILE_NAME, WindowStore
from gaitway.plain_text import checked
from gaitway.python310 import Self

ASKED_DAYS, MAX_DAYS = 14, 62
DAY_S = 86_400.0
_TIME = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?$|^24:00$"

Activity = Annotated[str, Field(max_length=200), AfterValidator(checked)]
"""An activity as a request names it."""


class SpanLabel(BaseModel):
    """What a form of this page says: an activity from one minute to another of a day."""

    model_config = ConfigDict(extra="forbid")
    day: date
    begin: str = Field(alias="from", pattern=_TIME)
    end: str = Field(alias="to", pattern=_TIME)
    activity: Activity

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.begin < self.end:
            raise ValueError("the stretch ends before it begins; swap from and to")
        return self

    def span(self) -> tuple[float, float]:
        """Return begin and end in seconds since 1970."""
        return _moment(self.day, self.begin), _moment(self.day, self.end)


def _moment(day: date, clock: str) -> float:
    if clock == "24:00":
        return bounds(day)[1]
    return datetime.fromisoformat(f"{day.isoformat()}T{clock}").timestamp()


class DayQuery(BaseModel):
    """Which day is shown, and what was done before."""

    day: date | None = None
    done: int | None = Field(default=None, ge=0, le=10**9)
    activity: Activity | None = None


class TimelinePage:
    """The timeline of one device; every method is safe on any thread."""

    def __init__(self, config: Config) -> None:
        self._config, self._folder = config, config.agent.data_dir

    def show(self, query: DayQuery, problem: str = "") -> str:
        """Write the page of a day, the newest of which something is known if none is asked for."""
        done = None
        if query.done is not None and query.activity is not None:
            done = Done(query.day, query.done, query.activity)
        return day_page(self._config.agent.device, self._read(query.day), done, problem)

    def label(self, request: SpanLabel) -> str:
        """Give an activity to a span, and return where the page says so; raises AgentError."""
        with closing(self._open()) as store:
            activity = known_activity(request.activity, vocabulary(store))
            done = label_span(store, *request.span(), activity)
        return address_of(request.day, done=str(done.windows), activity=activity)

    def undo(self, day: date) -> str:
        """Take the last label back, and return where the page shows it; raises AgentError."""
        with closing(self._open()) as store:
            undo(store)
        return address_of(day)

    def _open(self) -> WindowStore:
        if not (self._folder / FILE_NAME).is_file():
            raise StoreError("there are no windows yet; they come once a plan is known and a sensor delivers data")
        return WindowStore(self._folder)

    def _read(self, wanted: date | None) -> DayView | None:
        if not (self._folder / FILE_NAME).is_file():
            return None
        with closing(WindowStore(self._folder)) as store:
            known = days(store)[:MAX_DAYS]
            day = wanted or (known[0] if known else date.today())
            begin_s, end_s = bounds(day)
            newest_s = bounds(known[0])[1] if known else end_s
            uncertain_stretches = uncertain(read_minutes(store, newest_s - ASKED_DAYS * DAY_S, newest_s))
            try:
                labels, why_none = vocabulary(store), ""
            except LabelError as error:
                labels, why_none = (), str(error)
            return DayView(day, known, read_minutes(store, begin_s, end_s), uncertain_stretches, labels, why_none)
