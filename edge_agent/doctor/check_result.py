"""The result of one check."""

from __future__ import annotations

from typing import NamedTuple

from gaitway.python310 import StrEnum


class Level(StrEnum):
    """Severity of a result."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class CheckResult(NamedTuple):
    """A check's name, severity, finding and advice ('' if there is nothing to do)."""

    check: str
    level: Level
    message: str
    advice: str = ""


def ok(check: str, found: str) -> CheckResult:
    """Report that all is well."""
    return CheckResult(check, Level.OK, found)


def warning(check: str, found: str, todo: str) -> CheckResult:
    """Report something that works, or may work, but needs attention."""
    return CheckResult(check, Level.WARNING, found, todo)


def failure(check: str, found: str, todo: str) -> CheckResult:
    """Report something that doesn't work."""
    return CheckResult(check, Level.FAILURE, found, todo)
