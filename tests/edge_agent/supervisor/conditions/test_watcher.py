"""A supervisor with a real training process, on a machine whose conditions the test sets."""

from __future__ import annotations

import time
from dataclasses import replace

import psutil
import pytest

from tests.edge_agent.supervised import BUSY_S, GOOD, SupervisedDevice, run, until

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("supervised_device", [2], indirect=True)
def test_a_training_process_that_does_not_listen_is_gone_within_two_seconds(
    supervised_device: SupervisedDevice,
) -> None:
    supervised_device.drivers.jobs.program = "tests.edge_agent.unresponsive_trainer"

    def play() -> None:
        first = supervised_device.invite()
        until(lambda: first.status() == psutil.STATUS_SLEEPING)
        broken_at = time.monotonic()
        supervised_device.machine.found = replace(GOOD, temperature_c=85.0)
        until(lambda: not first.is_running())
        assert time.monotonic() - broken_at < 2.0 + BUSY_S
        until(
            lambda: supervised_device.status_says(
                "not training for round 1: its temperature is 85 °C; the limit is 75 °C"
            )
        )
        supervised_device.machine.found = replace(GOOD, temperature_c=76.0)  # cool enough to go on, not to begin
        time.sleep(1.2)
        assert supervised_device.drivers.jobs.pid is None
        supervised_device.machine.found = GOOD
        until(lambda: supervised_device.drivers.jobs.pid)

    run(supervised_device.supervisor, play)


@pytest.mark.parametrize("supervised_device", [2], indirect=True)
def test_a_device_that_nobody_has_invited_says_that_it_would_not_train(supervised_device: SupervisedDevice) -> None:
    supervised_device.machine.found = replace(GOOD, metered=True)

    def play() -> None:
        until(lambda: supervised_device.status_says("It can't train now: its network connection is metered."))
        supervised_device.machine.found = GOOD
        until(lambda: not supervised_device.status_says("It can't train now"))

    run(supervised_device.supervisor, play)
