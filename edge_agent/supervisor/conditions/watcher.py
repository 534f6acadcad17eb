"""The conditions for training: their readings, what blocks training, and the thread that posts changes.

The list mirrors the constraints of Android's WorkManager: power, idleness, network, battery, storage; and adds heat,
memory and the user's quiet hours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from edge_agent.config.training import Condition, ConditionsSection, minutes_of
from edge_agent.machine.events import PhoneConditions, TrainingConditions
from gaitway.threads import SupervisedThread

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
        yield Blocker("charging", "its battery doesn't report whether it is charging")
    if found.battery_percent is not None and found.battery_percent < settings.min_battery_percent:
        percent, least = found.battery_percent, settings.min_battery_percent
        yield Blocker("battery", f"its battery is at {percent:.0f} %, below {least:g} %")
    if found.saving_power:
        yield Blocker("battery", "it is in power-saving mode")


def _load(found: Conditions, settings: ConditionsSection, hottest_c: float) -> Iterator[Blocker]:
    if found.busy_percent is not None and found.busy_percent > settings.max_busy_percent:
        busy = (
            f"other programs use {found.busy_percent:.0f} % of its processor, more than {settings.max_busy_percent:g} %"
        )
        yield Blocker("idle", f"it is not idle: {busy}")
    if found.metered:
        yield Blocker("network", "its network connection is metered")
    if found.temperature_c is not None and found.temperature_c >= hottest_c:
        yield Blocker("temperature", f"its temperature is {found.temperature_c:.0f} °C; the limit is {hottest_c:g} °C")


def _room(found: Conditions, settings: ConditionsSection) -> Iterator[Blocker]:
    for condition, what, free, least in (
        (_MEMORY, "memory", found.free_memory_mb, settings.min_free_memory_mb),
        (_DISK, "disk", found.free_disk_mb, settings.min_free_disk_mb),
    ):
        if free is not None and free < least:
            yield Blocker(condition, f"only {free:,.0f} MB of its {what} are free, less than {least:,}")
    for hours in settings.quiet_hours:
        begin, end = minutes_of(hours)
        inside = found.minute is not None and (found.minute - begin) % _DAY < (end - begin) % _DAY
        if inside:
            yield Blocker("quiet_hours", f"these are quiet hours ({hours})")


_DAY = 24 * 60
_MEMORY: Condition = "memory"
_DISK: Condition = "disk"


READ_EVERY_S = 0.5
"""A quarter of the two seconds within which training must end."""
REPEAT_S = 30.0
"""The numbers in an objection change all the time; whoever reads the status need not see each of them."""


class Reader(Protocol):
    """What reads the machine."""

    def read(self, training: int | None = None) -> Conditions:
        """Read what can be read; `training` is the id of the training process."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class ConditionWatcher:
    """`post` is called at the start, whenever an objection comes or goes, and now and then while there are some."""

    def __init__(
        self,
        settings: ConditionsSection,
        reader: Reader,
        training: Callable[[], int | None],
        post: Callable[[TrainingConditions], None],
    ) -> None:
        self._settings, self._reader, self._training, self._post = settings, reader, training, post
        self._phone: tuple[PhoneConditions, float] | None = None
        self._said: tuple[object, TrainingConditions, float] | None = None
        self._stopping = threading.Event()
        self._thread = SupervisedThread("conditions", self._run)

    def start(self) -> None:
        """Look once, so that nothing begins unexamined, then go on in a thread."""
        self.check()
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._reader.close()

    def update_phone(self, phone: PhoneConditions) -> None:
        """Take a phone's word about itself."""
        if self._settings.phone:
            self._phone = (phone, time.monotonic())

    def check(self) -> None:
        """Read, and post what has changed."""
        found = self._read()
        start, to_continue = start_blockers(found, self._settings), continue_blockers(found, self._settings)
        which = tuple(objection.condition for objection in (*start, *to_continue)), len(start)
        event, now = TrainingConditions(_texts(start), _texts(to_continue)), time.monotonic()
        if self._said is not None:
            said_which, event_before, at = self._said
            if said_which == which and (event_before == event or now - at < REPEAT_S):
                return
        self._said = (which, event, now)
        self._post(event)

    def _read(self) -> Conditions:
        found = self._reader.read(self._training())
        if self._phone is None:
            return found
        phone, at = self._phone
        return with_phone(found, phone, time.monotonic() - at)

    def _run(self) -> None:
        while not self._stopping.wait(READ_EVERY_S):
            self.check()


def _texts(objections: tuple[Blocker, ...]) -> tuple[str, ...]:
    return tuple(objection.text for objection in objections)
