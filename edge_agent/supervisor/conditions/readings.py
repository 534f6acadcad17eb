"""Reads the conditions that `watcher` evaluates: psutil, sysfs, NetworkManager, and jetson-stats (jtop) if it runs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from edge_agent.config.training import ConditionsSection
from edge_agent.supervisor.conditions.watcher import Conditions

SYS = Path("/sys")
NETWORK_EVERY_S = 30.0
CPU_WINDOW_S = 5.0
"""A short burst of another program does not make the device busy."""
MIN_SPAN_S = 0.2
PLAUSIBLE_C = (-40.0, 150.0)


class Power(NamedTuple):
    """What the power supplies say."""

    has_battery: bool
    charging: bool | None
    percent: float | None


def read_power(sys: Path = SYS) -> Power:
    """Read /sys/class/power_supply; a machine without a battery counts as charging."""
    batteries, mains = [], []
    for supply in sorted((sys / "class" / "power_supply").glob("*")):
        kind = _text(supply / "type")
        if kind == "Battery" and _text(supply / "scope") != "Device":  # not a mouse's
            batteries.append(supply)
        elif kind in ("Mains", "USB", "Wireless"):
            mains.append(_text(supply / "online") == "1")
    if not batteries:
        return Power(False, True, None)
    states = [_text(battery / "status") for battery in batteries]
    known = [percent for battery in batteries if (percent := _number(battery / "capacity")) is not None]
    charging: bool | None = None
    if "Charging" in states or "Full" in states or any(mains):
        charging = True
    elif "Discharging" in states or "Not charging" in states or mains:
        charging = False
    return Power(True, charging, min(known, default=None))


def read_temperature(sys: Path = SYS) -> float | None:
    """Return the hottest thermal zone in °C; None if there is none."""
    zones = (sys / "class" / "thermal").glob("thermal_zone*")
    # a Jetson's PMIC zone is 100 °C by definition
    found = [_number(zone / "temp") for zone in zones if "pmic" not in _text(zone / "type").lower()]
    celsius = [value / 1000 for value in found if value is not None]
    return max((value for value in celsius if PLAUSIBLE_C[0] < value < PLAUSIBLE_C[1]), default=None)


def read_metered() -> bool | None:
    """Ask NetworkManager whether the connection is metered; None if it does not run here."""
    busctl = shutil.which("busctl")
    if busctl is None:
        return None
    name, path = "org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager"
    try:
        # not activated by asking: --auto-start=no
        command = [busctl, "--system", "--auto-start=no", "get-property", name, path, name, "Metered"]
        words = subprocess.run(command, capture_output=True, text=True, timeout=2.0, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    # NMMetered: 0 unknown, 1 yes, 2 no, 3 guess yes, 4 guess no
    return {"1": True, "3": True, "2": False, "4": False}.get(words[-1] if words else "")


class CpuLoad:
    """The share of the processor that programs other than this one and its training process use."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []

    def read(self, training: int | None, now: float) -> float | None:
        """Return percent over the last seconds; None at first."""
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        return self.add(now, busy, self._own(training), psutil.cpu_count() or 1)

    def add(self, now: float, busy_s: float, own_s: float, processors: int) -> float | None:
        """Take the seconds that all programs, and this one, have used so far; return the others' share in percent."""
        self._samples.append((now, busy_s, own_s))
        while len(self._samples) > 2 and now - self._samples[1][0] >= CPU_WINDOW_S:
            self._samples.pop(0)
        begin, busy, own = self._samples[0]
        span_s = now - begin
        if span_s < MIN_SPAN_S:
            return None
        share = 100 * ((busy_s - busy) - (own_s - own)) / (span_s * processors)
        return min(100.0, max(0.0, share))

    def _own(self, training: int | None) -> float:
        times = psutil.Process().cpu_times()  # with the processes that have ended
        total = times.user + times.system + times.children_user + times.children_system
        if training is not None:
            with contextlib.suppress(psutil.Error):
                child = psutil.Process(training).cpu_times()
                total += child.user + child.system + child.children_user + child.children_system
        return float(total)


class Readings:
    """Reads this machine; `training` is the id of the training process, while there is one."""

    def __init__(self, settings: ConditionsSection, folder: Path, sys: Path = SYS) -> None:
        self._settings, self._folder, self._sys = settings, folder, sys
        self._load, self._jetson = CpuLoad(), Jetson()
        self._metered: bool | None = None
        self._metered_at = -math.inf

    def read(self, training: int | None = None) -> Conditions:
        """Read what can be read; takes some milliseconds, and each half minute the time to ask NetworkManager."""
        power, now, local = read_power(self._sys), time.monotonic(), time.localtime()
        heat = [value for value in (read_temperature(self._sys), self._jetson.temperature()) if value is not None]
        return Conditions(
            charging=power.charging,
            has_battery=power.has_battery,
            battery_percent=power.percent,
            busy_percent=_unless_hidden(lambda: self._load.read(training, now)),
            metered=self._network(now),
            temperature_c=max(heat, default=None),
            free_memory_mb=_unless_hidden(lambda: _free_memory(training) / 1e6),
            free_disk_mb=_unless_hidden(lambda: shutil.disk_usage(self._folder).free / 1e6),
            minute=60 * local.tm_hour + local.tm_min,
        )

    def close(self) -> None:
        """Leave jetson-stats, if it was asked."""
        self._jetson.close()

    def _network(self, now: float) -> bool | None:
        if self._settings.metered != "auto":
            return self._settings.metered == "yes"
        if {"network", "all"}.isdisjoint(self._settings.ignore) and now - self._metered_at >= NETWORK_EVERY_S:
            self._metered, self._metered_at = read_metered(), now
        return self._metered


def _unless_hidden(read: Callable[[], float | None]) -> float | None:
    """Read, or None where the system hides it from programs, as Android does with /proc/stat."""
    try:
        return read()
    except (OSError, psutil.Error):
        return None


def _free_memory(training: int | None) -> float:
    free = float(psutil.virtual_memory().available)
    if training is not None:
        with contextlib.suppress(psutil.Error):
            free += psutil.Process(training).memory_info().rss
    return free


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:200].strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None


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
