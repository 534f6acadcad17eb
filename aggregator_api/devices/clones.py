"""Two programs under one device's name: a copied card, or a folder that was restored beside its original.

A broker lets one in and cuts the other off, which comes back and does the same. Every run of an agent draws a session,
a random text that its statuses carry with a rising number. A restart has a new one, and the old one is not heard again;
so a session that was replaced and says something new is the sign of two programs. Duplicates, which a broker sends
after a reconnect, carry a number that is known. Who came first stays, and the other is told to stop.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_SESSIONS = 8
"""That are remembered of one device."""
MAX_DEVICES = 50_000
"""That are remembered; beyond it, those that were heard longest ago are forgotten."""
WINDOW_S = 600.0
RETURNS = 2
"""Of replaced sessions within the window: one could be a message that overtook another in a crowded broker."""


class CloneVerdict(NamedTuple):
    """What follows from a status."""

    cloned: bool = False  # this status was the proof
    stop: bool = False  # its sender came later than another that is there


@dataclass
class _Device:
    sessions: dict[str, int] = field(default_factory=dict)  # in the order of their first status; its last number
    current: str = ""
    notified_sessions: set[str] = field(default_factory=set)
    returns: list[float] = field(default_factory=list)
    cloned: bool = False


class CloneDetector:
    """What one server process has heard since it started; only the thread that handles messages calls it."""

    def __init__(self) -> None:
        self._devices: OrderedDict[tuple[str, str], _Device] = OrderedDict()

    def observe(self, federation: str, device: str, session: str, number: int, now: float) -> CloneVerdict:
        """Take the session and number of a status, at `now` in seconds on a clock that does not jump."""
        if not session:
            return CloneVerdict()  # a last will, or another program than our agent
        seen = self._seen(federation, device)
        if number <= seen.sessions.get(session, 0):
            return CloneVerdict()
        before, seen.current = seen.current, session
        is_back = session in seen.sessions and session != before
        seen.sessions[session] = number
        if not is_back:
            _forget_oldest(seen)
            return CloneVerdict()
        seen.returns = [moment for moment in seen.returns if now - moment < WINDOW_S] + [now]
        proven = not seen.cloned and len(seen.returns) >= RETURNS
        seen.cloned = seen.cloned or proven
        stop = (
            seen.cloned
            and before not in seen.notified_sessions
            and (session in seen.notified_sessions or _came_first(seen, before, session))
        )
        if stop:
            seen.notified_sessions.add(session)
        return CloneVerdict(proven, stop)

    def _seen(self, federation: str, device: str) -> _Device:
        seen = self._devices.setdefault((federation, device), _Device())
        self._devices.move_to_end((federation, device))
        if len(self._devices) > MAX_DEVICES:
            self._devices.popitem(last=False)
        return seen


def _came_first(seen: _Device, first: str, second: str) -> bool:
    order = list(seen.sessions)
    return first in order and order.index(first) < order.index(second)


def _forget_oldest(seen: _Device) -> None:
    while len(seen.sessions) > MAX_SESSIONS:
        gone = next(session for session in seen.sessions if session != seen.current)
        del seen.sessions[gone]
        seen.notified_sessions.discard(gone)
