"""What one check came to."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Finding(NamedTuple):
    """A check's name, how bad it is, what was found, and what to do about it ('' where nothing is to be done)."""

    check: str
    level: Level
    found: str
    todo: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, todo: str) -> Finding:
    """It works, or may; someone should look."""
    return Finding(check, Level.WARNING, found, todo)


def failure(check: str, found: str, todo: str) -> Finding:
    """It does not work."""
    return Finding(check, Level.FAILURE, found, todo)
