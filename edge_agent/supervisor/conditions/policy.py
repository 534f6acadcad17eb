"""Under what conditions a device trains: what was read, what blocks training, in words; pure functions.

The list mirrors the constraints of Android's WorkManager: power, idleness, network, battery, storage; and adds heat,
memory and the user's quiet hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from edge_agent.config.training import Condition, ConditionsSection, minutes_of
from edge_agent.machine.events import PhoneConditions

PHONE_READING_TTL_S = 900.0
"""A phone's word about itself holds for so long."""


@dataclass(frozen=True)
class Conditions:
    """One reading; None where there is nothing to read."""

    charging: bool | None = None
    """True also for a machine without a battery."""
    has_battery: bool = False
    battery_percent: float | None = None
    saving_power: bool = False
    busy_percent: float | None = None
    """Share of the processor that other programs use."""
    metered: bool | None = None
    temperature_c: float | None = None
    free_memory_mb: float | None = None
    """With what the training process holds counted as free."""
    free_disk_mb: float | None = None
    minute: int | None = None
    """Of the local day."""


class Blocker(NamedTuple):
    """Why the device is not to train now."""

    condition: Condition
    text: str


def start_blockers(found: Conditions, settings: ConditionsSection) -> tuple[Blocker, ...]:
    """Say what blocks the beginning of training; empty if nothing does."""
    return _objections(found, settings, settings.start_below_c)


def continue_blockers(found: Conditions, settings: ConditionsSection) -> tuple[Blocker, ...]:
    """Say why training that runs is to be stopped; only the temperature has a limit of its own for that."""
    return _objections(found, settings, settings.abort_above_c)


def with_phone(found: Conditions, phone: PhoneConditions | None, age_s: float) -> Conditions:
    """Lay what a phone said of itself over the reading of the machine that its samples come to."""
    if phone is None or age_s > PHONE_READING_TTL_S:
        return found
    readings: dict[str, Any] = {
        "charging": phone.charging,
        "battery_percent": None if phone.battery is None else 100 * phone.battery,
        "saving_power": phone.low_power_mode,
        "metered": None if phone.unmetered is None else not phone.unmetered,
        "temperature_c": phone.temperature_c,
    }
    known = {name: value for name, value in readings.items() if value is not None}
    return replace(found, has_battery=found.has_battery or phone.battery is not None, **known)


def _objections(found: Conditions, settings: ConditionsSection, hottest_c: float) -> tuple[Blocker, ...]:
    if "all" in settings.ignore:
        return ()
    every = (*_power(found, settings), *_load(found, settings, hottest_c), *_room(found, settings))
    return tuple(objection for objection in every if objection.condition not in settings.ignore)


def _power(found: Conditions, settings: ConditionsSection) -> Iterator[Blocker]:
    if found.charging is False:
        yield Blocker("charging", "it is not charging")
    if found.charging is None and found.has_battery:
        yield Blocker("charging", "its battery does not say whether it charges")
    if found.battery_percent is not None and found.battery_percent < settings.min_battery_percent:
        percent, least = found.battery_percent, settings.min_battery_percent
        yield Blocker("battery", f"its battery is at {percent:.0f} %, below {least:g} %")
    if found.saving_power:
        yield Blocker("battery", "it saves power")


def _load(found: Conditions, settings: ConditionsSection, hottest_c: float) -> Iterator[Blocker]:
    if found.busy_percent is not None and found.busy_percent > settings.max_busy_percent:
        busy = (
            f"other programs use {found.busy_percent:.0f} % of its processor, more than {settings.max_busy_percent:g} %"
        )
        yield Blocker("idle", f"it is not idle: {busy}")
    if found.metered:
        yield Blocker("network", "its network connection is metered")
    if found.temperature_c is not None and found.temperature_c >= hottest_c:
        yield Blocker("temperature", f"it is {found.temperature_c:.0f} °C hot, the limit is {hottest_c:g} °C")


def _room(found: Conditions, settings: ConditionsSection) -> Iterator[Blocker]:
    for condition, what, free, least in (
        (_MEMORY, "memory", found.free_memory_mb, settings.min_free_memory_mb),
        (_DISK, "disk", found.free_disk_mb, settings.min_free_disk_mb),
    ):
        if free is not None and free < least:
            yield Blocker(condition, f"only {free:,.0f} MB of its {what} are free, fewer than {least:,}")
    for hours in settings.quiet_hours:
        begin, end = minutes_of(hours)
        inside = found.minute is not None and (found.minute - begin) % _DAY < (end - begin) % _DAY
        if inside:
            yield Blocker("quiet_hours", f"these are quiet hours ({hours})")


_DAY = 24 * 60
_MEMORY: Condition = "memory"
_DISK: Condition = "disk"
