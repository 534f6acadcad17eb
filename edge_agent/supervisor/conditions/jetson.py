"""jetson-stats (jtop), where it is installed and its service runs: the board's own temperatures; nothing is set."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

PACKAGE = "jtop"
"""No extra of ours requires it: it is of use on a Jetson alone, and is installed with its service."""


class Jetson:
    """The connection to jtop's service; without jetson-stats there is nothing to read."""

    def __init__(self) -> None:
        self._jtop: Any = None
        if importlib.util.find_spec(PACKAGE) is None:
            return
        # whatever is wrong with it (no service, no permission, another version): the thermal zones remain
        with contextlib.suppress(Exception):
            jtop = importlib.import_module(PACKAGE).jtop()
            jtop.start()
            self._jtop = jtop

    def temperature(self) -> float | None:
        """Return the hottest sensor that is on, in °C."""
        if self._jtop is None:
            return None
        found: list[float] = []
        with contextlib.suppress(Exception):  # the service may stop at any time
            found = [_celsius(value) for value in dict(self._jtop.temperature).values() if _is_on(value)]
        return max((value for value in found if -40 < value < 150), default=None)

    def close(self) -> None:
        """Leave the service."""
        if self._jtop is not None:
            with contextlib.suppress(Exception):
                self._jtop.close()


def _is_on(value: Any) -> bool:
    return not isinstance(value, Mapping) or bool(value.get("online", True))


def _celsius(value: Any) -> float:
    # version 4 says {"temp": 45.5, "online": True}, version 3 the number alone
    return float(value["temp"] if isinstance(value, Mapping) else value)
