"""What the app's `battery` and `network` entries say about training now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_agent.machine.events import PhoneConditions

CHARGING = {"charging": True, "full": True, "unplugged": False}
UNMETERED = {"wifi": True, "ethernet": True, "cellular": False, "wimax": False}
BATTERY_TEMPERATURE = ("batterytemp", "batterytemperature")


def conditions_of(name: str, values: Mapping[str, Any], time_s: float) -> PhoneConditions | None:
    """Read an entry by its name in small letters without spaces; None for other sensors."""
    if name == "battery":
        level, low = values.get("batteryLevel"), values.get("lowPowerMode")
        return PhoneConditions(
            time_s,
            charging=CHARGING.get(str(values.get("batteryState")).lower()),
            battery=_between(level, 0.0, 1.0),
            low_power_mode=low if isinstance(low, bool) else None,
        )
    if name == "network":
        expensive = values.get("isConnectionExpensive")
        known = UNMETERED.get(str(values.get("type")).lower())
        return PhoneConditions(time_s, unmetered=not expensive if isinstance(expensive, bool) else known)
    if name in BATTERY_TEMPERATURE:
        return PhoneConditions(time_s, temperature_c=_between(values.get("temperature"), -60.0, 150.0))
    return None


def _between(value: object, low: float, high: float) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if low <= number <= high else None
