"""What this folder raises on purpose, without torch."""

from __future__ import annotations

from export.runtime import ExportError


class ProgramError(ExportError):
    """A program cannot be made, is not what it claims to be, or is run with what it does not take."""
