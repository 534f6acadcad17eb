"""A continuous federation through real processes: devices join one after another, one is killed, one leaves.

Each version is bit for bit the simulation's one round with the devices that are in it, also after one has left.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from federation.plan import ModelSpec, PublicationSettings
from federation.records import Tree
from models.har_features import FEATURES
from sim.data.federated_data import FederatedData
from sim.experiment.settings import Experiment
from sim.run import build_simulation, load_data, resolve
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.walks import assert_same, data_options, experiment_for, plan_of

SYNTHETIC = ("s00_phone100-waist", "s00_phone200-waist", "s00_phone50-waist")
COSINES = 41


class World(NamedTuple):
    """The devices of a federation, where their recordings are, and the same as a simulation."""

    names: Sequence[str]
    settings: Experiment
    data: FederatedData
    root: Path | None

    def broadcast_of(self, names: Sequence[str]) -> Tree:
        """What the simulation's server sends after one round with these clients alone."""
        torch.set_num_threads(1)
        chosen = {name: self.data.clients[name] for name in names}
        simulation = build_simulation(resolve(self.settings), replace(self.data, clients=chosen))
        for _record in simulation.run_rounds():
            pass
        return simulation.setup.method.broadcast(simulation.state, "")

    def write_config(self, folder: Path, device: str, here: Fleet, transport: str) -> Path:
        """Write a device's config file."""
        dataset, options = self.settings.dataset, self.settings.dataset_options
        root = f'root = "{self.root}"\n' if self.root else ""
        listed = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
        path = folder / f"{device}.toml"
        path.write_text(
            f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\n'
            f'[server]\nurl = "{here.url}"\ntransport = "{transport}"\n'
            f'[broker]\nhost = "127.0.0.1"\nport = {here.mqtt}\n'
            f'[sensors]\ndataset = "{dataset}"\n{root}options = {{ {listed} }}\n'
            '[conditions]\nignore = ["all"]\n[training]\nretry_s = 0.2\nattempts = 100\n'
            "[uploads]\nack_timeout_s = 2.0\n"
        )
        return path


def world_of(names: Sequence[str], settings: Experiment, root: Path | None, cosines: int) -> World:
    """Describe the analytic federation of some clients, which publishes at once."""
    training = settings.training.model_copy(update={"feature_dim": FEATURES + cosines, "classes": len(settings.labels)})
    changes = {
        "model": ModelSpec(name="har_features", options={"cosines": cosines}),
        "training": training,
        "data": settings.data.model_copy(update={"normalization": "none"}),
        "rounds": settings.rounds.model_copy(update={"rounds": 1, "minimum_clients": 1, "max_weight_ratio": None}),
        "publication": PublicationSettings(interval_s=0.0),
    }
    settings = settings.model_copy(update=changes)
    return World(names, settings, load_data(resolve(settings), root, None, None), root)


@pytest.mark.ci  # the server's own tests publish and withdraw without processes; minutes on a busy machine
@pytest.mark.service
def test_devices_join_are_killed_and_leave_and_every_version_is_the_simulations(tmp_path: Path) -> None:
    options = {**data_options(2.0), "phones": ["phone100", "phone200", "phone50"]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    episode(world_of(SYNTHETIC, settings, None, COSINES), tmp_path)


def episode(world: World, folder: Path) -> None:
    """Let all join, the last one be killed as it sends, the second leave and come back; compare each version."""
    transports = ("mqtt", "http", "mqtt", "http")
    with fleet(folder, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(world.settings).model_dump(mode="json")})
        configs = [
            world.write_config(folder, name, here, transport)
            for name, transport in zip(world.names, transports, strict=False)
        ]
        *first, last = configs
        for number, config in enumerate(first, start=1):
            here.add_device(config)
            joined = world.names[:number]
            expect(here, world.broadcast_of(joined), f"with {joined}")
            here.wait_for(lambda name=config.stem: serves(folder, name), f"{config.stem} serves no model")
        add_and_kill_while_it_sends(here, last)
        everybody = world.broadcast_of(world.names)
        expect(here, everybody, "with everybody, one of them killed")
        here.wait_for(lambda: serves(folder, last.stem), f"{last.stem} serves no model")

        leaver, sent = configs[1], updates_of(here, configs[1].stem)
        ask(leaver, "withdraw")
        left = [name for name in world.names if name != leaver.stem]
        expect(here, world.broadcast_of(left), f"without {leaver.stem}")
        here.wait_for(
            lambda: "excludes this device's windows" in ask(leaver, "status"), "the withdrawal is not confirmed"
        )
        time.sleep(2.0)
        assert updates_of(here, leaver.stem) - sent <= 1  # the withdrawal itself, where it is listed
        ask(leaver, "take-part")
        expect(here, everybody, f"with {leaver.stem} again")
        assert [program.has_left for program in here.devices.values()] == [False] * len(world.names)


def expect(here: Fleet, wanted: Tree, what: str) -> None:
    """Wait until the newest version is of as many devices, and compare it bit for bit."""
    clients = int(wanted["sums"]["clients"])
    here.wait_for(lambda: int(newest(here).get("clients", -1)) == clients, f"no version {what} comes")
    assert_same(here.last_broadcast(), wanted, what)


def newest(here: Fleet) -> Tree:
    """The sums of the newest version; empty before any is there."""
    try:
        return dict(here.last_broadcast()["sums"])
    except ValueError:
        return {}


def add_and_kill_while_it_sends(here: Fleet, config: Path) -> None:
    """Start a device and kill -9 it when its update is on the way, and the server has not answered; start it again."""
    here.add_device(config)
    device, database = here.devices[config.stem], config.parent / config.stem / "agent.sqlite"
    here.wait_for(lambda: device.has_child, "nothing is trained")
    here.server.process.send_signal(signal.SIGSTOP)
    try:
        here.wait_for(lambda: bool(rows(database, "SELECT update_id FROM outbox")), "nothing is to be sent")
        device.kill()
    finally:
        here.server.process.send_signal(signal.SIGCONT)
    waiting = rows(database, "SELECT update_id FROM outbox")
    device.start()
    here.wait_for(lambda: not rows(database, "SELECT update_id FROM outbox"), "the update is not answered")
    accepted = rows(database, "SELECT update_id FROM rounds WHERE status = 'accepted'")
    assert accepted == waiting  # the very one that waited: nothing was made, and counted, twice


def serves(folder: Path, device: str) -> bool:
    """Whether a device has a model, and says why."""
    path = folder / device / "summary.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return bool(found.get("model")) and "model" in found["serving"]


def updates_of(here: Fleet, device: str) -> int:
    """Count what the server has noted of a device's updates."""
    return sum(update["device"] == device for update in here.listing("/v1/federations/live/updates"))


def ask(config: Path, command: str) -> str:
    """Run one of the device's commands beside its agent."""
    run = [sys.executable, "-m", "edge_agent", command, "--config", str(config)]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout


def rows(path: Path, query: str) -> list[Any]:
    """Ask a device's database, which need not be there yet."""
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            return [row[0] for row in database.execute(query)]
        finally:
            database.close()
    except sqlite3.OperationalError:
        return []
