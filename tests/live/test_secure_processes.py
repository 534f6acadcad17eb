"""A federation with secure sums as real processes, over MQTT and HTTP, ends with the simulation's model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.fleet import embedded, fleet
from tests.live.test_secure_sums_equal_sim import secure_experiment, simulated
from tests.live.walks import agent_toml, assert_same, plan_of

MINUTES = 1.0
TRANSPORTS = ("mqtt", "http", "mqtt", "http")


@pytest.mark.service
@pytest.mark.slow
def test_programs_add_up_what_the_simulation_adds_up(tmp_path: Path) -> None:
    settings = secure_experiment("fedavg")
    simulation = simulated(settings)
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(settings).model_dump(mode="json")})
        for device, transport in zip(simulation.data.clients, TRANSPORTS, strict=True):
            config = agent_toml(tmp_path, device, here.url, here.mqtt, MINUTES, transport=transport)
            config.write_text(config.read_text().replace('["waist"]', '["chest", "waist"]'))
            here.add_device(config, enrols=True)
        here.wait_for(lambda: here.get("/v1/federations/live")["status"] == "finished", "it does not finish")
        broadcast = here.last_broadcast()
        rounds = here.listing("/v1/federations/live/rounds")
        metrics = here.listing("/v1/federations/live/metrics")
    assert [row["phase"] for row in rounds] == ["published", "published"]
    assert metrics == []  # nothing of a single device's scores
    assert_same(broadcast, simulation.setup.method.broadcast(simulation.state, ""), "the last broadcast")
