"""Masked batches through real processes, over MQTT and HTTP: killed at each stage, the sums are those in the open.

Three devices join a continuous federation in one batch, all leave in the next one, and so on; in each batch the server
or a device is ended by SIGKILL as soon as the database says that the sum is at the wanted stage.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from federation.plan import SecureSettings
from federation.records import Tree
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.test_continuous import COSINES, SYNTHETIC, World, ask, newest, rows, world_of
from tests.live.walks import assert_same, data_options, experiment_for, plan_of

STAGES = ("keys", "shares", "vectors", "lists", "opening")
VICTIMS = ("server", "device")
LOOK_S = 3.0
STAGE_OF_OPEN = (
    "SELECT s.stage FROM secure_sums s JOIN rounds r ON r.id = s.round_id "
    "WHERE r.phase IN ('collecting', 'aggregating')"
)


def world() -> World:
    """Describe the federation of three devices, in clear."""
    options = {**data_options(2.0), "phones": ["phone100", "phone200", "phone50"]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    return world_of(SYNTHETIC, settings, None, COSINES)


def start(here: Fleet, world: World, folder: Path) -> list[Path]:
    """Create the federation with masks, and start its devices, which enrol."""
    plan = plan_of(world.settings)
    unjudged = plan.rounds.model_copy(update={"norm_factor": None, "max_weight_ratio": None})
    plan = plan.model_copy(update={"rounds": unjudged, "secure": SecureSettings(mode="masked")})
    here.get("/v1/federations", {"name": "live", "plan": plan.model_dump(mode="json")})
    transports = ("mqtt", "http", "mqtt")
    configs = [
        world.write_config(folder, name, here, transport)
        for name, transport in zip(world.names, transports, strict=True)
    ]
    for config in configs:
        here.add_device(config, enrols=True)
    return configs


def kill_at(here: Fleet, config: Path, stage: str, victim: str, is_over: Callable[[], bool]) -> bool:
    """End the victim at that stage of the open batch, and start it again; false if the batch was over before."""
    database, looked = here.folder / "data" / "gaitway.sqlite3", time.monotonic()
    while rows(database, STAGE_OF_OPEN) != [stage]:
        if time.monotonic() - looked > LOOK_S:  # a look costs the server more than a stage lasts
            looked = time.monotonic()
            if is_over():
                return False
        time.sleep(0.01)
    program = here.server if victim == "server" else here.devices[config.stem]
    program.kill()
    program.start()
    here.wait_for(here.is_ready, "the server is not ready")
    return True


def clients(here: Fleet) -> int:
    """Count the devices in the newest version's sums; -1 while the server does not answer."""
    try:
        return int(newest(here).get("clients", 0))
    except OSError:
        return -1


def settled(here: Fleet, configs: list[Path], wanted: Tree, what: str) -> None:
    """Wait for the batch's version, and compare it; then until every device knows that the batch has it."""
    count = int(wanted["sums"]["clients"])
    here.wait_for(lambda: clients(here) == count, f"no version {what} comes")
    assert_same(here.last_broadcast()["sums"], wanted["sums"], what)
    for config in configs if not count else ():
        is_told = f"{config.stem} is not told that it is out"
        here.wait_for(lambda config=config: "has confirmed" in ask(config, "status"), is_told)


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(3600)
def test_kills_at_each_stage_change_no_bit_of_masked_sums(tmp_path: Path) -> None:
    here_world = world()
    everybody = here_world.broadcast_of(here_world.names)
    nobody = {"sums": {name: value * 0 for name, value in everybody["sums"].items()}}
    wanted = [(stage, victim) for victim in VICTIMS for stage in STAGES]
    killed = []
    with fleet(tmp_path, broker=embedded) as here:
        configs = start(here, here_world, tmp_path)
        for number in itertools.count():
            expected, what = (nobody, "of nobody") if number % 2 else (everybody, "of everybody")
            if number:
                for config in configs:
                    ask(config, "withdraw" if number % 2 else "take-part")
            count = int(expected["sums"]["clients"])
            stage, victim = wanted[0]
            if kill_at(here, configs[number % 3], stage, victim, lambda count=count: clients(here) == count):
                killed.append(wanted.pop(0))
                print(f"batch {number + 1}: {victim} killed at {stage}", flush=True)
            settled(here, configs, expected, what)
            if not wanted or number > 30:
                break
        failed = [row["reason"] for row in here.listing("/v1/federations/live/rounds") if row["phase"] == "failed"]
        here.server.stop()
        found = here.command("fsck")
    assert not wanted, killed
    assert "bit for bit" in found
    print(f"failed batches: {failed}", flush=True)
