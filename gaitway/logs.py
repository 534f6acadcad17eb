"""Log records with separate fields for the federation, round, device and update that they are about.

Pass them as `extra=about(federation=…, round=…)`, never within the message, so that text from a device can't forge a
field. `JsonLines` writes each as a key, `TextLines` after the message.
"""

from __future__ import annotations

import copy
import json
import logging
from datetime import datetime
from typing import Any

from gaitway.python310 import UTC

FIELDS = ("federation", "round", "device", "update")
MESSAGE_CHARACTERS = 8_000


def about(
    *, federation: str = "", round: int | None = None, device: str = "", update: str = ""
) -> dict[str, str | int]:
    """Return a record's `extra` with the given fields only."""
    given = {"federation": federation, "round": round, "device": device, "update": update}
    return {name: value for name, value in given.items() if value not in ("", None)}


class TextLines(logging.Formatter):
    """Readable lines: the message, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line with its fields, and its traceback below."""
        shown = copy.copy(record)
        fields = [f"{name}={value}" for name, value in _fields(record).items()]
        shown.msg, shown.args = " ".join([record.getMessage(), *fields]), None
        return super().format(shown)


class JsonLines(logging.Formatter):
    """One line per record; `constant` fields are in every one."""

    def __init__(self, **constant: str) -> None:
        super().__init__()
        self._constant = constant

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MESSAGE_CHARACTERS],
            **self._constant,
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MESSAGE_CHARACTERS:]
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
