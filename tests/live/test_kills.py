"""Nothing that was acknowledged is lost: kill -9 of server, broker, devices and training at random moments.

Every device takes part in every round, so the result must be the undisturbed one, bit for bit.
"""

from __future__ import annotations

import functools
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from federation.records import Tree
from tests.live.fleet import Fleet, fleet
from tests.live.walks import DEVICES, agent_toml, assert_same, experiment_for, plan_of, simulated

MINUTES = 2.0
ROUNDS = 4
Transports = tuple[str, str]
BOTH_MQTT, BOTH_HTTP = ("mqtt", "mqtt"), ("http", "http")
PATIENT = "[training]\nattempts = 1000\nretry_s = 0.1\n[uploads]\nack_timeout_s = 1.0\n"
"""A round's training is tried again however often it is killed, and soon."""


class Reaper:
    """Kills one thing after another, as one seed says, and starts it again.

    It waits for as long as a start takes on this machine, so that kills are spread over the rounds also where all is
    slow, and for a training process where one is to be killed.
    """

    def __init__(self, here: Fleet, seed: int, over: Callable[[], bool]) -> None:
        self.fleet, self.kills = here, Counter[str]()
        self._random, self._over = random.Random(seed), over
        self._pause_s = max(2.5, here.start_s)

    def strike(self) -> None:
        """Wait, kill, wait, and start again; a device that trains may lose its training process alone."""
        time.sleep(self._random.uniform(0.1, self._pause_s))
        kind = self._random.choice(("server", "broker", "device", "training", "training"))
        devices = [self.fleet.devices[name] for name in sorted(self.fleet.devices)]
        self._random.shuffle(devices)
        if kind == "training":
            if not any(one.has_child for one in devices):
                self.fleet.wait_for(lambda: any(one.has_child for one in devices) or self._over(), "nobody trains")
                time.sleep(self._random.uniform(0.0, self._pause_s))
            self.kills[kind] += any(one.kill_child() for one in devices)
            return
        program = {"server": self.fleet.server, "broker": self.fleet.broker, "device": devices[0]}[kind]
        program.kill()
        self.kills[kind] += 1
        time.sleep(self._random.uniform(0.0, 1.0))
        program.start()


@pytest.fixture(scope="module")
def undisturbed() -> Tree:
    """What the last broadcast is when nothing is killed."""
    simulation = simulated(settings())
    return simulation.setup.method.broadcast(simulation.state, "")


def settings() -> Any:
    """Describe the federation: as many rounds as there is time to kill in."""
    few = experiment_for("fedavg", minutes=MINUTES)
    return few.model_copy(update={"rounds": few.rounds.model_copy(update={"rounds": ROUNDS})})


@pytest.mark.service
@pytest.mark.parametrize(
    "transports",
    [
        pytest.param(("mqtt", "http"), marks=(pytest.mark.ci, pytest.mark.daily), id="mixed"),
        pytest.param(BOTH_MQTT, marks=pytest.mark.slow, id="mqtt"),
        pytest.param(BOTH_HTTP, marks=pytest.mark.slow, id="http"),
    ],
)
def test_a_few_kills_change_nothing(transports: Transports, undisturbed: Tree, tmp_path: Path) -> None:
    episode(tmp_path, undisturbed, seed=0, kills=6, transports=transports)


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("transports", [BOTH_MQTT, BOTH_HTTP, ("mqtt", "http")], ids="-".join)
def test_two_hundred_kills_change_nothing(transports: Transports, undisturbed: Tree, tmp_path: Path) -> None:
    wanted, kills = int(os.environ.get("GAITWAY_KILLS", "200")), Counter[str]()
    for seed in range(1, 1000):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += episode(folder, undisturbed, seed=seed, kills=min(25, wanted - kills.total()), transports=transports)
        print(f"after federation {seed}: {dict(kills)}", flush=True)
        if kills.total() >= wanted:
            break
    assert min(kills[kind] for kind in ("server", "broker", "device", "training")) >= wanted // 20


def episode(folder: Path, undisturbed: Tree, *, seed: int, kills: int, transports: Transports) -> Counter[str]:
    """Run one federation to its end while killing, and compare; returns what was killed."""
    with fleet(folder) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(settings()).model_dump(mode="json")})
        for device, transport in zip(DEVICES, transports, strict=True):
            config = agent_toml(folder, device, here.url, here.mqtt, MINUTES, transport=transport)
            config.write_text(config.read_text() + PATIENT)
            here.add_device(config)
        over = functools.partial(is_over, here, folder)
        reaper = Reaper(here, seed, over)
        while reaper.kills.total() < kills and not over():
            reaper.strike()
        here.wait_for(here.is_ready, "the server does not come back")
        here.wait_for(over, f"seed {seed}: the federation does not finish")
        check(here, folder, undisturbed)
    return reaper.kills


def is_over(here: Fleet, folder: Path) -> bool:
    """Whether the server has finished and every device has its answer; while something is down, it is not."""
    try:
        finished = here.get("/v1/federations/live")["status"] == "finished"
    except OSError:
        return False
    return finished and all(len(answered(folder, device, "accepted")) == ROUNDS for device in DEVICES)


def check(here: Fleet, folder: Path, undisturbed: Tree) -> None:
    """Each update that a device was told is safe is in its round exactly once, and the model is the undisturbed one."""
    rounds = here.listing("/v1/federations/live/rounds")
    assert [(each["number"], each["phase"]) for each in rounds] == [(n + 1, "published") for n in range(ROUNDS)]
    updates = here.listing("/v1/federations/live/updates")
    accepted = sorted((u["device"], u["update_id"]) for u in updates if u["status"] == "accepted")
    told = sorted((device, update) for device in DEVICES for update in answered(folder, device, "accepted"))
    assert accepted == told
    assert len(told) == ROUNDS * len(DEVICES)
    assert_same(here.last_broadcast(), undisturbed, "the last broadcast")


def answered(folder: Path, device: str, status: str) -> list[str]:
    """Return the updates that a device was told this about, from its own database."""
    path = folder / device / "agent.sqlite"
    return _asked(path, lambda db: db.execute("SELECT update_id FROM rounds WHERE status = ?", (status,)).fetchall())


def _asked(path: Path, query: Callable[[sqlite3.Connection], list[Any]]) -> list[str]:
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    except sqlite3.OperationalError:
        return []  # the device has not begun
    try:
        return [row[0] for row in query(database)]
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()
