"""Waves of small and growing federations: each has its share of the devices, at least one, and lasts its time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.rollouts.service import NewRollout
from edge_agent.machine.releases import offered_to
from federation.rounds.rollout import MILLION, is_within
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.generated_devices import FEDERATION
from tests.aggregator_api.rollouts.test_rollouts import SOAK_S, Fleet, plan

WAVES = (0.05, 0.25, 1.0)


@pytest.fixture
def fleet7(tmp_path: Path) -> Iterator[Fleet]:
    """Seven devices, a model of one round (version 1), and nothing released."""
    found = Fleet(tmp_path / "data", plan(measured=1, waves=WAVES))
    # of which none has a place below a quarter: shares of the places alone would pass two waves over
    names = (f"h{n}" for n in range(100) if not is_within(f"h{n}", 1, MILLION // 4))
    found.devices = tuple(itertools.islice(names, 7))
    found.arrive()
    found.train()
    wait_for(lambda: found.now().state == "finished")
    yield found
    found.runtime.stop()


def served(fleet: Fleet) -> list[str]:
    """The devices that by the order themselves take the candidate."""
    order = fleet.order()
    return sorted(one for one in fleet.devices if offered_to(one, order, None) == order.candidate)


def answer_all(fleet: Fleet) -> None:
    for device in fleet.told():
        fleet.answer(device, score=0.9)


def test_seven_devices_get_three_waves_of_one_two_and_all_and_each_lasts_its_time(fleet7: Fleet) -> None:
    fleet7.runtime.rollouts.start(FEDERATION, NewRollout())
    for wave, size in enumerate((1, 2, 7), start=1):
        answer_all(fleet7)  # at once
        fleet7.wait(SOAK_S - 1)
        assert (fleet7.rollout().wave, fleet7.rollout().members) == (wave, size)
        assert served(fleet7) == sorted(fleet7.told())
        fleet7.wait(1)
    assert fleet7.rollout().phase == "completed"
    assert [one.devices for one in fleet7.rollout().progress] == [1, 1, 5]


def test_a_wave_that_gains_no_device_lasts_its_time_too(fleet7: Fleet) -> None:
    fleet7.runtime.rollouts.start(FEDERATION, NewRollout(waves=(0.01, 0.02, 0.14, 1.0)))
    for wave in (1, 2, 3):
        answer_all(fleet7)
        fleet7.wait(SOAK_S - 1)
        assert (fleet7.rollout().wave, fleet7.rollout().members) == (wave, 1)
        fleet7.wait(1)
    assert (fleet7.rollout().wave, fleet7.rollout().members) == (4, 7)


def test_a_wave_grows_with_the_devices_that_enrol_during_it(fleet7: Fleet) -> None:
    fleet7.runtime.rollouts.start(FEDERATION, NewRollout(waves=(0.25, 1.0)))
    for n in range(40):
        fleet7.devices += (f"new{n}",)
        fleet7.arrive(f"new{n}")
        if n % 8 == 7:
            before = fleet7.told()
            fleet7.wait(1)
            told = fleet7.told()
            assert set(before) <= set(told)
            assert len(told) == fleet7.rollout().members >= math.ceil(0.25 * len(fleet7.devices))
            assert served(fleet7) == sorted(told)
    assert fleet7.rollout().wave == 1


def test_a_first_device_that_enrols_during_the_rollout_is_its_first_wave(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "data", plan(measured=1, waves=WAVES))
    fleet.devices = ()
    fleet.runtime.rollouts.start(FEDERATION, NewRollout(version=0))
    fleet.devices = ("lone",)
    fleet.arrive("lone")
    fleet.wait(1)
    assert (fleet.rollout().wave, fleet.rollout().members, served(fleet)) == (1, 1, ["lone"])
    fleet.runtime.stop()


def test_a_deleted_device_is_replaced_in_its_wave(fleet7: Fleet) -> None:
    fleet7.runtime.rollouts.start(FEDERATION, NewRollout())
    first = next(iter(fleet7.told()))
    fleet7.runtime.deletion.delete_device(FEDERATION, first, dry_run=False)
    fleet7.devices = tuple(one for one in fleet7.devices if one != first)
    fleet7.wait(1)
    assert (fleet7.rollout().wave, fleet7.rollout().members) == (1, 1)
    assert first not in fleet7.told()


def test_a_restart_within_a_wave_keeps_its_time(fleet7: Fleet, tmp_path: Path) -> None:
    fleet7.runtime.rollouts.start(FEDERATION, NewRollout())
    answer_all(fleet7)
    fleet7.wait(SOAK_S / 2)
    before, order = fleet7.rollout(), fleet7.order()
    fleet7.runtime.stop()
    again = Fleet(tmp_path / "data")
    again.wait(SOAK_S - 1)
    assert (again.rollout(), again.order()) == (before, order)
    again.wait(1)
    assert again.rollout().wave == 2
    again.runtime.stop()


def test_other_devices_go_first_with_each_version(fleet7: Fleet) -> None:
    told = []
    for number, version in ((1, 0), (2, 1), (3, 0)):
        fleet7.runtime.rollouts.start(FEDERATION, NewRollout(version=version, waves=(0.4, 1.0)))
        told.append(set(fleet7.told(number)))
        fleet7.runtime.rollouts.halt(FEDERATION, number)
    assert [len(one) for one in told] == [3, 3, 3]
    assert told[0] == told[2] != told[1]
