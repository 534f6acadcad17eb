"""When a device may train: what each reading means, how it is read from sysfs, and what is posted of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
from pydantic import ValidationError

from edge_agent.config.training import ConditionsSection
from edge_agent.machine.events import PhoneConditions, TrainingConditions
from edge_agent.supervisor.conditions.readings import CpuLoad, Jetson, Readings, read_power, read_temperature
from edge_agent.supervisor.conditions.watcher import (
    PHONE_READING_TTL_S,
    Conditions,
    ConditionWatcher,
    continue_blockers,
    start_blockers,
    with_phone,
)

GOOD = Conditions(
    charging=True,
    has_battery=True,
    battery_percent=50.0,
    busy_percent=50.0,
    metered=False,
    temperature_c=74.9,
    free_memory_mb=600.0,
    free_disk_mb=1000.0,
    minute=12 * 60,
)
NIGHT = ConditionsSection(quiet_hours=("22:00-06:30",))


def which(found: Conditions, settings: ConditionsSection = NIGHT) -> list[str]:
    return [objection.condition for objection in start_blockers(found, settings)]


def test_a_device_on_its_limits_may_train_and_one_that_knows_nothing_too() -> None:
    assert which(GOOD) == []
    assert which(Conditions()) == []


@pytest.mark.parametrize(
    ("condition", "change", "words"),
    [
        ("charging", {"charging": False}, "not charging"),
        ("charging", {"charging": None}, "doesn't report whether it is charging"),
        ("battery", {"battery_percent": 49.0}, "49 %, below 50 %"),
        ("battery", {"saving_power": True}, "power-saving"),
        ("idle", {"busy_percent": 51.0}, "other programs use 51 %"),
        ("network", {"metered": True}, "metered"),
        ("temperature", {"temperature_c": 75.0}, "temperature is 75 °C; the limit is 75 °C"),
        ("memory", {"free_memory_mb": 599.0}, "only 599 MB of its memory are free, less than 600"),
        ("disk", {"free_disk_mb": 999.0}, "only 999 MB of its disk are free, less than 1,000"),
        ("quiet_hours", {"minute": 22 * 60}, "quiet hours (22:00-06:30)"),
        ("quiet_hours", {"minute": 6 * 60 + 29}, "quiet hours"),
    ],
)
def test_each_condition_speaks_against_training_in_words_and_can_be_ignored(
    condition: Any, change: dict[str, Any], words: str
) -> None:
    found = replace(GOOD, **change)
    (objection,) = start_blockers(found, NIGHT)
    assert objection.condition == condition
    assert words in objection.text
    assert which(found, NIGHT.model_copy(update={"ignore": (condition,)})) == []
    assert which(found, NIGHT.model_copy(update={"ignore": ("all",)})) == []


def test_quiet_hours_end_and_may_lie_within_a_day() -> None:
    assert which(replace(GOOD, minute=6 * 60 + 30)) == []
    assert which(replace(GOOD, minute=21 * 60 + 59)) == []
    noon = ConditionsSection(quiet_hours=("12:00-13:00",))
    assert [which(replace(GOOD, minute=m), noon) for m in (719, 720, 779, 780)] == [
        [], ["quiet_hours"], ["quiet_hours"], [],
    ]  # fmt: skip


def test_training_that_runs_may_get_hotter_than_training_that_begins() -> None:
    assert [o.condition for o in continue_blockers(replace(GOOD, temperature_c=84.9), NIGHT)] == []
    assert [o.condition for o in continue_blockers(replace(GOOD, temperature_c=85.0), NIGHT)] == ["temperature"]
    assert [o.condition for o in continue_blockers(replace(GOOD, charging=False), NIGHT)] == ["charging"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quiet_hours": ("22-6",)}, "expected one such as"),
        ({"quiet_hours": ("08:00-08:00",)}, "is empty; to never train"),
        ({"start_below_c": 90.0}, "would be stopped as soon as it began"),
        ({"ignore": ("heat",)}, "temperature"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ConditionsSection(**settings)


def test_a_phone_speaks_for_its_battery_and_network_for_a_while() -> None:
    phone = PhoneConditions(0.0, charging=False, battery=0.4, unmetered=False)
    assert which(with_phone(Conditions(charging=True), phone, 0.0)) == ["charging", "battery", "network"]
    assert which(with_phone(Conditions(charging=True), phone, PHONE_READING_TTL_S + 1)) == []
    assert which(with_phone(Conditions(charging=False), PhoneConditions(0.0, charging=True), 0.0)) == []
    assert which(with_phone(GOOD, PhoneConditions(0.0), 0.0)) == []


def supply(sys_folder: Path, name: str, **files: str) -> None:
    folder = sys_folder / "class" / "power_supply" / name
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(f"{text}\n")


def test_power_supplies_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    assert read_power(tmp_path) == (False, True, None)  # no battery: as good as charging
    supply(tmp_path, "hid-mouse", type="Battery", scope="Device", status="Discharging", capacity="5")
    assert read_power(tmp_path) == (False, True, None)
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", capacity="80")
    assert read_power(tmp_path) == (True, False, 80.0)
    supply(tmp_path, "BAT1", type="Battery", status="Unknown", capacity="30")
    assert read_power(tmp_path) == (True, False, 30.0)
    supply(tmp_path, "AC", type="Mains", online="1")
    assert read_power(tmp_path) == (True, True, 30.0)


def test_a_battery_that_says_nothing_leaves_it_open(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Unknown", capacity="what")
    assert read_power(tmp_path) == (True, None, None)


def test_the_hottest_sane_zone_counts(tmp_path: Path) -> None:
    assert read_temperature(tmp_path) is None
    for number, (kind, value) in enumerate(
        [("cpu-thermal", "61500"), ("PMIC-Die", "100000"), ("gpu", "-256000"), ("broken", ""), ("soc", "48000")]
    ):
        zone = tmp_path / "class" / "thermal" / f"thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(kind)
        (zone / "temp").write_text(value)
    assert read_temperature(tmp_path) == 61.5


def test_a_jetson_is_asked_where_its_service_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Jetson().temperature() is None

    class Board:
        temperature: ClassVar = {
            "cpu": {"temp": 55.5, "online": True},
            "cv0": {"temp": -256.0, "online": False},
            "tj": 56,
        }

        def start(self) -> None: ...

        def close(self) -> None: ...

    module = ModuleType("jtop")
    module.jtop = Board
    module.__spec__ = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "jtop", module)
    assert Jetson().temperature() == 56.0
    Board.start = lambda self: 1 / 0
    assert Jetson().temperature() is None


def test_this_machine_can_be_read_and_its_own_work_is_not_other_programs(tmp_path: Path) -> None:
    found = Readings(ConditionsSection(metered="yes"), tmp_path).read()
    assert (found.metered, found.busy_percent) == (True, None)  # a load needs two readings
    assert found.free_memory_mb is not None
    assert found.free_memory_mb > 1
    assert found.free_disk_mb is not None
    assert 0 <= (found.minute or 0) < 24 * 60


def test_what_the_system_hides_leaves_the_rest_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> Any:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", hidden)
    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    found = Readings(ConditionsSection(), tmp_path).read()
    assert (found.busy_percent, found.free_memory_mb) == (None, None)
    assert found.free_disk_mb is not None


def test_the_load_is_that_of_other_programs_over_the_last_seconds() -> None:
    load = CpuLoad()
    assert load.add(0.0, 100.0, 10.0, processors=2) is None
    # of 2 processor seconds 1.5 were busy, 0.5 of them with the agent and its training
    assert load.add(1.0, 101.5, 10.5, processors=2) == pytest.approx(50.0)
    assert load.add(2.0, 101.5, 10.5, processors=2) == pytest.approx(25.0)
    for second in range(3, 8):
        last = load.add(float(second), 101.5, 10.5, processors=2)
    assert last == 0.0  # the busy second is more than five seconds ago
    assert load.add(8.0, 107.0, 10.5, processors=2) == pytest.approx(100 * 5.5 / 10)


class Scripted:
    """A machine that says what the test wants."""

    def __init__(self, found: Conditions) -> None:
        self.found, self.closed, self.asked = found, False, list[int | None]()

    def read(self, training: int | None = None) -> Conditions:
        self.asked.append(training)
        return self.found

    def close(self) -> None:
        self.closed = True


def test_only_what_has_changed_is_posted() -> None:
    machine, posted = Scripted(replace(GOOD, battery_percent=40.0)), list[TrainingConditions]()
    watch = ConditionWatcher(ConditionsSection(), machine, lambda: 7, posted.append)
    watch.check()
    machine.found = replace(GOOD, battery_percent=39.0)  # the number alone is no news
    watch.check()
    assert [len(event.start) for event in posted] == [1]
    machine.found = GOOD
    watch.check()
    watch.update_phone(PhoneConditions(0.0, charging=False))
    watch.check()
    assert [event.start for event in posted[1:]] == [(), ("it is not charging",)]
    assert machine.asked == [7] * 4
    watch.stop()
    assert machine.closed


def test_a_phone_is_not_listened_to_where_the_config_says_so() -> None:
    posted = list[TrainingConditions]()
    watch = ConditionWatcher(ConditionsSection(phone=False), Scripted(GOOD), lambda: None, posted.append)
    watch.update_phone(PhoneConditions(0.0, charging=False))
    watch.check()
    assert posted == [TrainingConditions()]
