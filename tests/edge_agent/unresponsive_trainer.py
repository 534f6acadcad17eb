"""Stands in for the training process: says that an epoch is done, and does not listen when it is asked to end."""

from __future__ import annotations

import signal
import sys
import time

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write('{"event": "epoch", "epoch": 1}\n')
    sys.stdout.flush()
    time.sleep(60)
