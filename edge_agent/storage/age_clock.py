"""How old windows are: time that the device has lived through, not what its clock was set to.

A board without a battery for its clock starts in 1970, or at its last shutdown, until the network sets it; and a clock
that is set forward by years must not make everything too old to be kept. So age counts by the kernel's clock that
nobody sets, across restarts of the program. What the machine was switched off for counts as its clock says, but at the
most `LONGEST_OFF_S`, for there a leap cannot be told from time.
"""

from __future__ import annotations

import time
import uuid
from functools import cache
from pathlib import Path
from typing import NamedTuple

LONGEST_OFF_S = 86_400.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """A reading of all three clocks, as it is kept."""

    age_s: float
    """What ages are counted by; began as Unix time, and never goes back."""
    wall_s: float
    running_s: float
    boot: str
    """Tells one start of the machine from another: `running_s` goes on within it."""


def now(before: Moment | None) -> Moment:
    """Read the clocks; `before` is what was read last, by this program or an earlier one."""
    wall_s, running_s, boot = time.time(), _running_s(), _boot()
    if before is None:
        return Moment(wall_s, wall_s, running_s, boot)
    if boot == before.boot:
        passed_s = max(0.0, running_s - before.running_s)
    else:
        passed_s = min(max(0.0, wall_s - before.wall_s), LONGEST_OFF_S)
    return Moment(before.age_s + passed_s, wall_s, running_s, boot)


def _running_s() -> float:
    """Seconds since the machine's start, with what it slept where the system counts that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex  # where the system hides it, each start of the program counts as one of the machine
