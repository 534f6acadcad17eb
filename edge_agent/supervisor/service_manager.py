"""What systemd wants to hear (sd_notify): ready, alive, stopping, and a line for `systemctl status`.

Without systemd, as with Type=simple, there is nobody to tell. docs: man 3 sd_notify.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class ServiceManager:
    """The other end of NOTIFY_SOCKET; every call returns at once, also where nobody listens."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._every_s = _watchdog_s(environment) / 3
        self._alive_at = 0.0
        self._status = ""

    def ready(self) -> None:
        """Say that the agent works."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Say that the agent ends in order."""
        self._send("STOPPING=1")

    def alive(self, status: str = "") -> None:
        """Say so three times per watchdog interval, and what the agent is doing when that has changed."""
        now = time.monotonic()
        if self._every_s and now - self._alive_at >= self._every_s:
            self._alive_at = now
            self._send("WATCHDOG=1")
        if status and status != self._status:
            self._status = status
            self._send(f"STATUS={status.splitlines()[0]}")

    def _send(self, text: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # a name that begins with @ is in Linux's abstract namespace
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(text.encode(), address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the interval that the unit asks for; 0 without one, or where it is another process's."""
    try:
        is_ours = int(environment.get("WATCHDOG_PID", os.getpid())) == os.getpid()
        return int(environment.get("WATCHDOG_USEC", 0)) / 1e6 if is_ours else 0.0
    except ValueError:
        return 0.0
