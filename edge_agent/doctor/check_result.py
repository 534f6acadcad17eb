"""What one check came to."""

from __future__ import annotations

from typing import NamedTuple

from gaitway.python310 import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class CheckResult(NamedTuple):
    """A check's name, how bad it is, what was found, and what to do about it ('' where nothing is to be done)."""

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, found: str) -> CheckResult:
    """Report that all is well."""
    return CheckResult(check, Level.OK, found)


def warning(check: str, found: str, todo: str) -> CheckResult:
    """Report what works, or may; someone should look."""
    return CheckResult(check, Level.WARNING, found, todo)


def failure(check: str, found: str, todo: str) -> CheckResult:
    """Report what does not work."""
    return CheckResult(check, Level.FAILURE, found, todo)
