"""The clocks of the server and of the devices are set in the middle of rounds, each by itself: nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from federation.plan import Plan
from tests.live.fleet import Fleet, fleet
from tests.live.test_kills import MINUTES, PATIENT, check, is_over, settings
from tests.live.walks import DEVICES, agent_toml, plan_of, simulated

OWN_CLOCK = Path(__file__).parent / "own_clock"
HOUR_S, DAY_S = 3600, 86_400
JUMPS = [sign * size for size in (3653 * DAY_S, HOUR_S, DAY_S) for sign in (-1, 1)]
DEADLINE_S = 1200.0
"""Far longer than a round takes; every jump but the hour is longer by far."""

pytestmark = [pytest.mark.service, pytest.mark.slow]


class Clocks:
    """A file for each program that says by how much its clock is off."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def under(self, name: str) -> list[str]:
        """Return the command that runs a program under its clock."""
        self.set(name, 0)
        return ["env", f"PYTHONPATH={OWN_CLOCK}", f"TEST_CLOCK={self._file(name)}"]

    def set(self, name: str, seconds: int) -> None:
        """Set a program's clock."""
        part = self._file(name).with_suffix(".part")
        part.write_text(str(seconds))
        os.replace(part, self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"


def test_clocks_that_jump_change_nothing(tmp_path: Path) -> None:
    simulation = simulated(settings())
    clocks, jumps = Clocks(tmp_path), 0
    with fleet(tmp_path, clocks.under) as here:
        here.get("/v1/federations", {"name": "live", "plan": with_deadline().model_dump(mode="json")})
        for device in DEVICES:
            config = agent_toml(tmp_path, device, here.url, here.mqtt, MINUTES)
            config.write_text(config.read_text() + PATIENT)
            here.add_device(config)
        while not is_over(here, tmp_path):
            seen = progress(here)
            for name in ("server", *DEVICES):
                clocks.set(name, JUMPS[jumps % len(JUMPS)])
                jumps += 1
            here.wait_for(lambda before=seen: progress(here) != before or is_over(here, tmp_path), "nothing goes on")
        check(here, tmp_path, simulation.setup.method.broadcast(simulation.state, ""))
    assert jumps > len(JUMPS)
    assert here.server.log.read_text().count("clock stepped step_s=") >= 2


def with_deadline() -> Plan:
    """The plan, with a deadline that no round comes near."""
    plan = plan_of(settings())
    return plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"deadline_s": DEADLINE_S})})


def progress(here: Fleet) -> list[Any]:
    """Return what changes as the federation goes on."""
    return [(event["kind"], event["device"]) for event in here.listing("/v1/federations/live/journal")]
