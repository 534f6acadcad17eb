"""kill -9 of the devices and the server of a continuous federation: the sums are those of an undisturbed one.

Each program kills itself at a step that is drawn when it starts: before or after a commit, a file, a message or an
acknowledgement, or at any moment, and so do training processes; it is started again at once. A device that has sent
has nothing left to lose, so those that are idle are taken out of the federation or come back: there is always one that
trains, sends, or takes its sums out again.
A hundred kills with the comparison took 278 s on two quiet cores (2026-11-26), 50 of them 671 s with a load of 12 to
30: most of it is the server's starts, in which nothing else can go on.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edge_agent.storage.consent import participation, take_part, withdraw
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import load_contribution
from tests.live.fleet import Fleet, embedded
from tests.live.test_continuous import COSINES, SYNTHETIC, World, expect, serves, world_of
from tests.live.walks import data_options, experiment_for, plan_of
from tests.live.warm import Death, WarmProgram

DEVICE, SERVER, TRAINING, WORKER = "edge_agent", "aggregator_api", "entrypoint", "aggregation_worker"
AT_ONCE = 50
"""Kills of one federation."""


class KilledFleet(Fleet):
    """A fleet whose devices and server kill themselves, from `begin_killing` to `make_peace`."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, broker=embedded)
        self.notes, self.configs = folder / "kills.jsonl", list[Path]()
        self._random, self._seeds, self._is_killing = random.Random(seed), itertools.count(1000 * seed), False
        self.server = WarmProgram(self.server.command, self.server.log, self._next_death)

    def add_killed_device(self, config: Path) -> None:
        """Start a device, which may kill itself later."""
        self.add_device(config)
        first = self.devices[config.stem]
        first.stop()
        self.devices[config.stem] = WarmProgram(first.command, first.log, self._next_death)
        self.devices[config.stem].start()
        self.configs.append(config)

    def _next_death(self) -> Death | None:
        return Death(next(self._seeds), self.notes) if self._is_killing else None

    def kills(self) -> list[dict[str, str]]:
        """What was killed until now, at which step."""
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    def kill_many(self, wanted: int) -> None:
        """Start again whatever has killed itself, and give idle devices something to do, until there are enough."""
        self._is_killing = True
        self._kill_all()
        while len(self.kills()) < wanted:
            time.sleep(0.05)
            for program in self._programs():
                program.start()
            config = self._random.choice(self.configs)
            with closing(StateStore(self.folder / config.stem)) as store:
                if is_settled(store):
                    toggle(store)
        self._is_killing = False
        self._kill_all()
        for config in self.configs:
            with closing(StateStore(self.folder / config.stem)) as store:
                take_part(store)

    def _kill_all(self) -> None:
        for program in self._programs():
            program.kill()
            program.start()

    def _programs(self) -> list[WarmProgram]:
        return [one for one in (self.server, *self.devices.values()) if isinstance(one, WarmProgram)]


@contextmanager
def killed_fleet(folder: Path, seed: int) -> Iterator[KilledFleet]:
    found = KilledFleet(folder, seed)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def is_settled(store: StateStore) -> bool:
    """Whether the server has answered what this device is to have in the sums, and nothing is on the way."""
    sent, wish = load_contribution(store), participation(store)
    return sent is not None and sent.kind == ("sums" if wish.takes_part else "withdrawn") and not store.outbox()


def toggle(store: StateStore) -> None:
    """Take a device's sums out of the federation, or let it take part again."""
    (withdraw if participation(store).takes_part else take_part)(store)


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_devices_and_server_change_no_bit_of_the_sums(tmp_path: Path) -> None:
    wanted, kills = int(os.environ.get("GAITWAY_KILLS", "100")), Counter[str]()
    begun = time.monotonic()
    for seed in itertools.count(1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += episode(world(SYNTHETIC), folder, seed=seed, kills=min(AT_ONCE, wanted - kills.total()))
        print(f"after federation {seed} and {time.monotonic() - begun:.0f} s: {dict(kills)}", flush=True)
        if kills.total() >= wanted:
            break
    assert min(kills[who] for who in (DEVICE, SERVER, TRAINING)) >= wanted // 20, kills


def world(names: tuple[str, ...]) -> World:
    """Describe the federation of these devices."""
    options = {**data_options(2.0), "phones": ["phone100", "phone200", "phone50"][: len(names)]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    return world_of(names, settings, None, COSINES)


def episode(world: World, folder: Path, *, seed: int, kills: int) -> Counter[str]:
    """Run one federation while its programs kill themselves, and compare its sums; returns what was killed."""
    undisturbed = world.broadcast_of(world.names)
    with killed_fleet(folder, seed) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(world.settings).model_dump(mode="json")})
        transports = ("mqtt", "http", "mqtt")
        for name, transport in zip(world.names, transports, strict=False):
            here.add_killed_device(world.write_config(folder, name, here, transport))
        here.kill_many(kills)
        here.wait_for(here.is_ready, "the server does not come back")
        for name in world.names:
            with closing(StateStore(folder / name)) as store:
                failure = f"seed {seed}: not everything that {name} is to send is answered"
                here.wait_for(lambda store=store: is_settled(store), failure)
        expect(here, undisturbed, f"with everybody, seed {seed}")
        for name in world.names:
            here.wait_for(lambda name=name: serves(folder, name), f"{name} serves no model")
        expect(here, undisturbed, "a little later")
        here.server.stop()
        here.command("fsck")  # the sum of all that was kept is the running one; else it ends with 1
        steps = Counter(f"{kill['who']} {kill['step']}" for kill in here.kills())
        print(json.dumps(steps, indent=1, sort_keys=True), file=sys.stderr)
    return Counter(kill["who"] for kill in here.kills())
