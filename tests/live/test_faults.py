"""Faults of the network and the broker in the middle of an upload: what arrives is what was sent, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.bad_network import bad_network
from tests.live.fleet import Fleet, fleet
from tests.live.test_kills import PATIENT, answered
from tests.live.walks import DEVICES, ROUNDS, agent_toml, assert_same, experiment_for, plan_of, simulated

MINUTES = 2.0
CUTS = [4_000, 6_500, 9_000, 11_001, 5_000] * 3
"""Bytes after which a device's connections are cut, one after the other; an update has about 15 000."""

pytestmark = [pytest.mark.service, pytest.mark.slow]  # a minute each; tests of the chunks themselves are quick


@pytest.mark.parametrize("transport", ["mqtt", "http"])
def test_a_network_that_cuts_chunks_in_two(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAITWAY_CHUNK_BYTES", "1024")
    settings = experiment_for("fedavg", minutes=MINUTES)
    simulation = simulated(settings)
    with fleet(tmp_path) as here, bad_network(here.http if transport == "http" else here.mqtt, CUTS) as network:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(settings).model_dump(mode="json")})
        for device, cut in zip(DEVICES, (True, False), strict=True):
            url = f"http://127.0.0.1:{network.port}" if cut and transport == "http" else here.url
            port = network.port if cut and transport == "mqtt" else here.mqtt
            config = agent_toml(tmp_path, device, url, port, MINUTES, transport=transport)
            config.write_text(config.read_text() + PATIENT)
            here.add_device(config)
        here.wait_for(lambda: over(here, tmp_path), "the federation does not finish")
        broadcast = here.last_broadcast()
    assert len(network.cuts) >= 3  # of two updates; how many more depends on what else a connection carries
    assert_same(broadcast, simulation.setup.method.broadcast(simulation.state, ""), "the last broadcast")


def over(here: Fleet, folder: Path) -> bool:
    """Whether the server has finished and every device has its answers."""
    finished = here.get("/v1/federations/live")["status"] == "finished"
    return finished and all(len(answered(folder, device, "accepted")) == ROUNDS for device in DEVICES)
