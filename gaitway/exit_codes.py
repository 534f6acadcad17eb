"""How every program of Gaitway ends: one set of exit codes, which scripts can go by."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What an exit status means; others come from the shell or from a signal (128 and its number)."""

    DONE = 0
    """Also of a server, a broker or a device that Ctrl-C or SIGTERM has ended."""
    FAILED = 1
    """The outcome is bad: a check found a problem, a gate refused a model, a server could not be reached."""
    REFUSED = 2
    """Nothing was done: an option, a setting or a file is not what is needed, and the message says what is."""
    PENDING = 3
    """An operator must approve first; the same command goes on afterwards."""
    INTERRUPTED = 130
    """Ctrl-C; the same command goes on where the work can be resumed."""
