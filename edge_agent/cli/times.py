"""Times and durations as people write them."""

from __future__ import annotations

import re
from datetime import datetime

from edge_agent.errors import LabelError

UNITS = {"": 60.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
EXPECTED = "expected 14:30, 14:30:15, 2026-11-21T14:30, or seconds since 1970"


def moment(text: str, now: datetime) -> float:
    """Return seconds since 1970; a time without a date is today's, one without a zone is this device's.

    Raises:
        LabelError: if it is no time.
    """
    text = text.strip()
    if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
        return float(text)
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
        text = f"{now.date().isoformat()}T{text.zfill(len(text) + (text.index(':') == 1))}"
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise LabelError(f"{text!r} is no time; {EXPECTED}") from error
    return found.timestamp()


def duration_s(text: str) -> float:
    """Return seconds of 90s, 10m, 2h, 1d; a bare number is minutes.

    Raises:
        LabelError: if it is none of these.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d|)\s*", text)
    if not match:
        raise LabelError(f"{text!r} is no duration; expected 90s, 10m, 2h or 1d")
    return float(match[1]) * UNITS[match[2]]


def shown(time_s: float) -> str:
    """Write a time for a person, on this device's clock."""
    return datetime.fromtimestamp(time_s).isoformat(sep=" ", timespec="seconds")
