"""A private `analytic` federation of real processes: its sums are the simulation's, bit for bit, whatever is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from federation.plan import SecureSettings
from tests.live.fleet import Fleet, Program, embedded, fleet
from tests.live.test_continuous import COSINES, SYNTHETIC, World, newest, rows, world_of
from tests.live.walks import assert_same, data_options, experiment_for, plan_of

OPEN = "JOIN rounds r ON r.id = s.round_id WHERE r.phase IN ('collecting', 'aggregating')"
STAGE = f"SELECT s.stage FROM secure_sums s {OPEN}"
UPLOADED = (
    "SELECT s.uploaded FROM secure_sum_devices s JOIN devices d ON d.id = s.device_id JOIN rounds r ON "
    "r.id = s.round_id WHERE r.phase IN ('collecting', 'aggregating') AND d.name = '{device}'"
)


class Watch:
    """What the server's database says of the open sum; it's read without the server."""

    def __init__(self, federation: Fleet) -> None:
        self._fleet, self._database = federation, federation.folder / "data" / "gaitway.sqlite3"

    def stage(self) -> str:
        """Return where the sum stands; empty while none is open."""
        return next(iter(rows(self._database, STAGE)), "")

    def has_sent(self, device: str, part: str) -> bool:
        """Whether the server has this part of a device's."""
        found = rows(self._database, UPLOADED.format(device=device))
        return bool(found) and part in json.loads(found[0])


def private_world() -> World:
    """Describe the federation of three devices with masks."""
    options = {**data_options(2.0), "phones": ["phone100", "phone200", "phone50"]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    world = world_of(SYNTHETIC, settings, None, COSINES)
    changes = {"minimum_clients": 3, "norm_factor": None, "max_weight_ratio": None}
    rounds = world.settings.rounds.model_copy(update=changes)
    secure = SecureSettings(mode="masked")
    return world._replace(settings=world.settings.model_copy(update={"rounds": rounds, "secure": secure}))


@contextmanager
def held(program: Program) -> Iterator[None]:
    """Let a program do nothing for a while."""
    program.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        program.process.send_signal(signal.SIGCONT)


def restart(federation: Fleet, program: Program) -> None:
    """Kill a program, and start it again."""
    program.kill()
    program.start()
    federation.wait_for(federation.is_ready, "the server isn't ready")


@pytest.mark.ci
@pytest.mark.service
def test_kills_of_server_and_device_in_a_masked_sum_leave_it_the_simulations(tmp_path: Path) -> None:
    """The server is killed in collection and in unmasking, and a device between its vector and its shares."""
    world = private_world()
    expected = world.broadcast_of(world.names)
    steady, victim = world.names[1:]
    with fleet(tmp_path, broker=embedded) as federation:
        watch, programs = Watch(federation), federation.devices
        federation.get("/v1/federations", {"name": "live", "plan": plan_of(world.settings).model_dump(mode="json")})
        for name in world.names:
            federation.add_device(world.write_config(tmp_path, name, federation, "mqtt"), enrols=True)

        federation.wait_for(lambda: watch.stage() == "keys", "no round opens", every_s=0.01)
        assert not all(watch.has_sent(name, "keys") for name in world.names)
        restart(federation, federation.server)

        federation.wait_for(lambda: watch.has_sent(victim, "vector"), "no vector comes", every_s=0.01)
        programs[victim].kill()
        assert not watch.has_sent(victim, "opened")
        federation.wait_for(lambda: watch.has_sent(steady, "list"), "the list isn't signed", every_s=0.01)
        with held(programs[steady]):  # so that the next stage lasts
            programs[victim].start()
            federation.wait_for(lambda: watch.stage() == "opening", "the sum doesn't go on", every_s=0.01)
            restart(federation, federation.server)
            assert watch.stage() == "opening"

        federation.wait_for(lambda: int(newest(federation).get("clients", 0)) == 3, "no version comes")
        assert_same(federation.last_broadcast(), expected, "the version of everybody")
        played = federation.listing("/v1/federations/live/rounds")
        federation.server.stop()
        federation.command("fsck")
    assert [row["phase"] for row in played if row["phase"] in ("published", "failed")] == ["published"]
