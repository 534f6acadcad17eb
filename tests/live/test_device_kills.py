"""kill -9 of the devices of a continuous federation, at any moment: the sums are those of an undisturbed one.

A device that has sent has nothing left to lose, so those that are idle are taken out of the federation or come back:
there is always one that trains, sends, or takes its sums out again. Sending takes a fraction of a second and training
many, so that one of them is waited for by name.
Its training process may be killed as often as it comes (`attempts`): by itself a device tries three times, and then
again after twelve minutes.
25 kills took six minutes on two cores with a load of 4 to 15, and 36 with one of 20 to 30: most of it is processes that
start.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.live.fleet import Fleet, Program, embedded, fleet
from tests.live.test_continuous import COSINES, SYNTHETIC, World, ask, expect, rows, serves, world_of
from tests.live.walks import data_options, experiment_for, plan_of

TRAINS, SENDS, IDLE, STARTS = "it trains", "it sends", "it is idle", "it starts"
WORK = (TRAINS, SENDS)


class DeviceReaper:
    """Kills one device after another, as one seed says, and starts it again; counts what it was doing."""

    def __init__(self, here: Fleet, configs: list[Path], seed: int) -> None:
        self.fleet, self.kills, self.configs = here, Counter[str](), configs
        self.withdrawn: set[str] = set()
        self._random = random.Random(seed)
        self._pause_s = max(2.5, here.start_s)

    def strike(self) -> None:
        """Give a device that is idle something to do; kill it, or its training process alone; start it again."""
        config = self._random.choice(self.configs)
        device = self.fleet.devices[config.stem]
        if self.doing(config, device) == IDLE:
            self.toggle(config)
        wanted = self._random.choice((TRAINS, SENDS, None))
        if wanted is None:
            time.sleep(self._random.uniform(0.0, self._pause_s))
        else:
            wanted = SENDS if config.stem in self.withdrawn else wanted  # which trains nothing
            deadline = time.monotonic() + 4 * self._pause_s
            while self.doing(config, device) != wanted and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(self._random.uniform(0.0, 0.5 if wanted == TRAINS else 0.05))
        seen = self.doing(config, device)
        if seen == TRAINS and self._random.random() < 0.5 and device.kill_child():
            self.kills[seen] += 1
            return
        device.kill()
        self.kills[seen] += 1
        time.sleep(self._random.uniform(0.0, 0.5))
        device.start()

    def doing(self, config: Path, device: Program) -> str:
        """Say what a device does."""
        database = config.parent / config.stem / "agent.sqlite"
        if rows(database, "SELECT update_id FROM outbox"):
            return SENDS
        if device.has_child:
            return TRAINS
        return IDLE if rows(database, "SELECT update_id FROM rounds WHERE status = 'accepted'") else STARTS

    def toggle(self, config: Path) -> None:
        """Take a device's sums out of the federation, or let it take part again."""
        ask(config, "take-part" if config.stem in self.withdrawn else "withdraw")
        self.withdrawn ^= {config.stem}

    def make_peace(self) -> None:
        """Kill nobody any more, and let everybody take part."""
        for config in self.configs:
            self.fleet.devices[config.stem].start()
            if config.stem in self.withdrawn:
                self.toggle(config)


@pytest.mark.slow  # minutes where two cores are shared
@pytest.mark.service
def test_a_few_kills_of_devices_change_no_bit_of_the_sums(tmp_path: Path) -> None:
    found = episode(world(SYNTHETIC[:2]), tmp_path, seed=0, kills=3)
    assert found.total() == 3


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(7200)
def test_a_hundred_kills_of_devices_change_no_bit_of_the_sums(tmp_path: Path) -> None:
    wanted, kills = int(os.environ.get("GAITWAY_KILLS", "100")), Counter[str]()
    begun = time.monotonic()
    for seed in range(1, 1000):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += episode(world(SYNTHETIC), folder, seed=seed, kills=min(25, wanted - kills.total()))
        print(f"after federation {seed} and {time.monotonic() - begun:.0f} s: {dict(kills)}", flush=True)
        if kills.total() >= wanted:
            break
    assert min(kills[what] for what in WORK) >= wanted // 20, kills


def world(names: tuple[str, ...]) -> World:
    """Describe the federation of these devices."""
    options = {**data_options(2.0), "phones": ["phone100", "phone200", "phone50"][: len(names)]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    return world_of(names, settings, None, COSINES)


def episode(world: World, folder: Path, *, seed: int, kills: int) -> Counter[str]:
    """Run one federation while its devices are killed, and compare its sums; returns what was killed."""
    undisturbed = world.broadcast_of(world.names)
    with fleet(folder, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(world.settings).model_dump(mode="json")})
        transports = ("mqtt", "http", "mqtt")
        configs = [
            world.write_config(folder, name, here, transport)
            for name, transport in zip(world.names, transports, strict=False)
        ]
        for config in configs:
            here.add_device(config)
        reaper = DeviceReaper(here, configs, seed)
        while reaper.kills.total() < kills:
            reaper.strike()
        reaper.make_peace()
        here.wait_for(lambda: settled(here, reaper), f"seed {seed}: not everything that is to be sent is answered")
        expect(here, undisturbed, f"with everybody, seed {seed}")
        for name in world.names:
            here.wait_for(lambda name=name: serves(folder, name), f"{name} serves no model")
        expect(here, undisturbed, "a little later")
        here.server.stop()
        here.command("fsck")  # the sum of all that was kept is the running one; else it ends with 1
    return reaper.kills


def settled(here: Fleet, reaper: DeviceReaper) -> bool:
    """Whether no device has anything on the way; some may solve heads still."""
    return all(reaper.doing(config, here.devices[config.stem]) in (IDLE, TRAINS) for config in reaper.configs)
