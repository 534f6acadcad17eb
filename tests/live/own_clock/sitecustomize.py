"""Python reads this first in a program run with this folder in PYTHONPATH: the clock is off by what a file says.

libfaketime would do so for C too, but makes `time.sleep` fail from Python 3.11 on, which sleeps on the monotonic clock.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_real, _file = time.time, Path(os.environ["TEST_CLOCK"])


def _off() -> float:
    return _real() + float(_file.read_text())


time.time = _off
