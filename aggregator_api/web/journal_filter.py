"""How a person narrows a journal: by what it is about, by device, by time, kept in the address."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Query

from aggregator_api.api.journal_queries import EventFilter
from aggregator_api.db.event_kinds import EVENT_KINDS

EVENT_SUBJECTS = tuple(dict.fromkeys(kind.partition(".")[0] for kind in EVENT_KINDS))
"""What events are about, as the first part of their kind says."""
JOURNAL_SPANS = {"": (None, "any time"), "hour": (3600.0, "the last hour"), "day": (86_400.0, "the last day")}
JOURNAL_SPANS |= {"week": (604_800.0, "the last week")}
ShortText = Annotated[str, Query(max_length=64)]


class JournalFilter(NamedTuple):
    """What was chosen; words that nothing knows narrow nothing."""

    about: str
    device: str
    within: str

    def wanted(self, now: float) -> EventFilter:
        """Return which events that means at a time."""
        kinds = tuple(kind for kind in EVENT_KINDS if kind.partition(".")[0] == self.about)
        span = JOURNAL_SPANS.get(self.within, (None, ""))[0]
        return EventFilter(kinds, self.device, None if span is None else now - span)

    @property
    def is_on(self) -> bool:
        """Whether anything was chosen."""
        return any(self)


async def journal_filter(about: ShortText = "", device: ShortText = "", within: ShortText = "") -> JournalFilter:
    """Read what was chosen."""
    return JournalFilter(about, device.strip(), within)


JournalFilterDep = Annotated[JournalFilter, Depends(journal_filter)]
