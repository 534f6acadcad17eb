"""A backup from before a device's withdrawal: the restored server's next version is bit for bit without the device."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.live.fleet import Fleet, embedded, fleet
from tests.live.test_continuous import COSINES, SYNTHETIC, ask, expect, serves, world_of
from tests.live.walks import data_options, experiment_for, plan_of

NAMES = SYNTHETIC[:2]


@pytest.mark.service
@pytest.mark.parametrize(
    "who", [pytest.param("the ledger", marks=pytest.mark.ci), pytest.param("the device", marks=pytest.mark.slow)]
)
def test_a_restored_server_forgets_a_withdrawn_device_again(who: str, tmp_path: Path) -> None:
    """The ledger says it where the device is gone for good; the device says it where the ledger knows nothing."""
    options = {**data_options(2.0), "phones": ["phone100", "phone200"]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    world = world_of(NAMES, settings, None, COSINES)
    both, stays = world.broadcast_of(NAMES), world.broadcast_of(NAMES[:1])
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(world.settings).model_dump(mode="json")})
        configs = [world.write_config(tmp_path, name, here, "mqtt") for name in NAMES]
        for config in configs:
            here.add_device(config)
        expect(here, both, "with both")
        for name in NAMES:
            here.wait_for(lambda name=name: serves(tmp_path, name), f"{name} serves no model")
        here.command("backup", "--out", str(tmp_path / "backup"))
        leaver = here.devices[NAMES[1]]
        ask(configs[1], "withdraw")
        expect(here, stays, "after the withdrawal")
        here.wait_for(
            lambda: "excludes this device's windows" in ask(configs[1], "status"), "the withdrawal is not confirmed"
        )
        if who == "the ledger":
            leaver.stop()
        said = lose_and_restore(here, forget=who == "the device")
        assert ("the sums of 1 devices were taken out again" in said) is (who == "the ledger")
        here.wait_for(lambda: epoch_of(here) > 1_000_000_000, "the server is not back")
        expect(here, stays, f"after the restore, as {who} says")
        if who == "the device":
            time.sleep(2.0)  # nothing of it comes back
            expect(here, stays, "a little later")
            assert not leaver.has_left


def lose_and_restore(here: Fleet, *, forget: bool) -> str:
    """Kill the server, lose its data and bring the backup back; its ledger may be as old as the backup."""
    here.server.kill()
    (here.folder / "data").rename(here.folder / "lost")
    (ledger,) = here.folder.glob("*/revocations.jsonl")
    if forget:
        lines = ledger.read_text().splitlines(keepends=True)
        ledger.write_text("".join(line for line in lines if json.loads(line).get("kind") != "withdrawn"))
    said = here.command("restore", "--from", str(here.folder / "backup"))
    shutil.copy(here.folder / "lost" / "operator.key", here.key_file)
    here.server.start()
    here.wait_for(here.is_ready, "the restored server is not ready")
    return said


def epoch_of(here: Fleet) -> int:
    return int(here.get("/v1/federations/live")["epoch"])
