"""One finding of a check of what the server keeps."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy.orm import Session


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    REPAIRED = "repaired"
    PROBLEM = "problem"


class FsckResult(NamedTuple):
    """What was found, and what to do about it ('' where nothing is to be done)."""

    level: Severity
    message: str
    advice: str = ""


FROM_BACKUP = "bring the server back from a backup (`restore`)"


def guarded(what: str, findings: Iterator[FsckResult], session: Session | None = None) -> Iterator[FsckResult]:
    """Yield findings; damage that ends the check of one thing is itself a finding, and the next thing is checked."""
    try:
        yield from findings
    except Exception as error:  # damage may be of any kind: whatever reads it raises what it likes
        if session is not None:
            session.rollback()
        words = " ".join(str(error).split())[:300]
        yield FsckResult(Severity.PROBLEM, f"{what} cannot be read: {words or type(error).__name__}", FROM_BACKUP)
