"""Logs as lines of JSON, with the federation, round and device of each record in fields of their own.

The fields are taken from a record's format and its arguments ("… federation=%s round=%d"), never from the finished
text: what a device says about itself cannot make a field.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

FIELDS = ("federation", "round", "device", "update")
MESSAGE_CHARACTERS = 8_000

_DIRECTIVE = re.compile(r"(?:\b(?P<name>[a-z_]+)[= ])?%(?:%|[-#0 +]*[\d.]*(?P<kind>[a-zA-Z]))")


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
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return {}
    directives = [found for found in _DIRECTIVE.finditer(record.msg) if found["kind"]]
    named = zip((found["name"] for found in directives), record.args, strict=False)
    return {name: value for name, value in named if name in FIELDS and value not in ("", "-", None)}
