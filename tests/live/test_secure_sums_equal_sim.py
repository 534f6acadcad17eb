"""Two rounds of real training whose updates a secure sum adds up give, bit for bit, the simulation's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_agent.supervisor.persistence import load_agent, save_round
from federation import wire
from federation.plan import SecureSettings
from sim.experiment.settings import Experiment
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve
from tests.aggregator_api.bench import Bench, wait_for
from tests.live.fleet import embedded, fleet
from tests.live.in_memory import Device
from tests.live.summing_devices import SummingDevice, invited_to
from tests.live.walks import ROUNDS, agent_toml, assert_same, data_options, experiment_for, plan_of

OPTIONS: dict[str, Any] = {**data_options(1.0), "places": ["chest", "waist"]}


def secure_experiment(method: str, **options: str) -> Experiment:
    """Describe four devices of one person."""
    plain = experiment_for(method, **options)
    rounds = plain.rounds.model_copy(update={"max_weight_ratio": None, "norm_factor": None, "minimum_clients": 4})
    secure = SecureSettings(mode="masked")
    return plain.model_copy(update={"dataset_options": OPTIONS, "rounds": rounds, "secure": secure})


def simulated(settings: Experiment) -> Simulation:
    simulation = build_simulation(resolve(settings), load_data(resolve(settings), None, None, None))
    for _record in simulation.run_rounds():
        pass
    return simulation


@pytest.mark.ci
@pytest.mark.parametrize(
    ("method", "options"),
    [("fedavg", {}), ("fedproto", {"average_over": "round"}), ("fesem", {"clustering": "one_step"})],
)
def test_the_live_sum_is_the_simulations(method: str, options: dict[str, str], tmp_path: Path) -> None:
    settings = secure_experiment(method, **options)
    simulation = simulated(settings)
    server = Bench(tmp_path / "server", plan_of(settings))
    trained = [Device.named(name, tmp_path, OPTIONS) for name in simulation.data.clients]
    devices = [SummingDevice(tmp_path, one.name) for one in trained]
    for one, device in zip(trained, devices, strict=True):
        device.enrol(server)
        one.collect(server.now().plan)
    for device in devices:
        server.say(device.name, "ready", examples=1)
    for number in range(1, ROUNDS + 1):
        invited_to(server, devices, number)
        for one, device in zip(reversed(trained), reversed(devices), strict=True):
            with device.store() as store:
                load_agent(store)
                save_round(store, one.train(server, store))
            device.send(server)
        for _stage in ("shares", "vectors", "lists", "opening"):
            for device in devices:
                device.take_part(server)
        if number < ROUNDS:
            wait_for(lambda number=number: server.collects(number + 1))
    wait_for(lambda: server.now().state == "finished")
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    server.stop()
    assert {answer.status for device in devices for answer in device.answers} == {"accepted"}
    assert_same(state, simulation.state, "the server's state")
    for one in trained:
        assert_same(one.kept(), simulation.clients[one.name]._asdict(), one.name)


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
