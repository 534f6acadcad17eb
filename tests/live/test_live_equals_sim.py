"""Two rounds through real processes and a broker give, bit for bit, the tensors of the simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from federation import wire
from tests.live.processes import live
from tests.live.walks import DEVICES, HART, ROUNDS, agent_toml, assert_same, plan_of, run_settings, simulated

MINUTES = 2.0


@pytest.mark.service
@pytest.mark.parametrize(("method", "models"), [("fedavg", ("", "")), ("fedali", ("", "")), ("fedproto", ("", "hart"))])
def test_the_live_federation_is_the_simulation(method: str, models: tuple[str, str], tmp_path: Path) -> None:
    settings = run_settings(method, minutes=MINUTES, alternatives=(HART,) if "hart" in models else ())
    simulation = simulated(settings)
    with live(tmp_path) as server:
        server.found(plan_of(settings))
        configs = [
            agent_toml(tmp_path, device, server.url, server.mqtt, MINUTES, model)
            for device, model in zip(DEVICES, models, strict=True)
        ]
        server.run_agents(configs, rounds=ROUNDS, adopt=method == "fedali")
        server.wait_until_finished()
        rounds = {device: server.rounds_of(device) for device in DEVICES}
        broadcast = server.last_broadcast(ROUNDS)

    setup = simulation.setup
    assert_same(broadcast, setup.method.broadcast(simulation.state, ""), "the last broadcast")
    assert wire.encode(broadcast) != wire.encode(
        setup.method.server_init(simulation.initial.params, simulation.initial.buffers, setup.task)
    )
    for device in DEVICES:
        assert rounds[device] == [1, 2]
        if method == "fedali":
            summary = json.loads((tmp_path / device / "summary.json").read_text())
            assert Path(summary["model"]["path"]).is_file()
        (kept,) = (tmp_path / device / "clients").iterdir()
        client = wire.decode(kept.read_bytes(), limit_bytes=1 << 24)
        assert_same(client, simulation.clients[device]._asdict(), device)
