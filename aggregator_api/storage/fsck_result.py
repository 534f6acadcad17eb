"""One finding of a check of what the server keeps."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
