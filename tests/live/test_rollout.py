"""A model goes out to real devices, outlives a killed server, and is taken back; training is as in the simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from federation import wire
from federation.plan import RolloutSettings
from tests.live.fleet import Fleet, fleet
from tests.live.walks import DEVICES, agent_toml, assert_same, experiment_for, plan_of, simulated

HERE = "/v1/federations/live"
ALL_AT_ONCE = RolloutSettings(mode="automatic", waves=(1.0,), success_threshold=1.0, soak_s=0.0)


def models_of(folder: Path, device: str) -> dict[str, Any]:
    """Ask a running device as its user does."""
    command = [sys.executable, "-m", "edge_agent", "models", "--json", "--config", str(folder / f"{device}.toml")]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def answers_of(programs: Fleet) -> dict[str, str]:
    """Return each device's last word about the first rollout."""
    return {one["device"]: one["answer"] for one in programs.listing(f"{HERE}/rollouts/1/devices")}


def wait_for(programs: Fleet, **wanted: Any) -> dict[str, Any]:
    """Wait until the first rollout is so."""
    found: dict[str, Any] = {}

    def is_so() -> bool:
        if rollouts := programs.listing(f"{HERE}/rollouts"):
            found.update(programs.get(f"{HERE}/rollouts/{rollouts[0]['number']}"))
        flat = {**found, **(found["progress"][-1] if found else {})}
        return all(flat.get(name) == value for name, value in wanted.items())

    programs.wait_for(is_so, f"no rollout with {wanted}")
    return found


@pytest.mark.slow  # three quarters of a minute
@pytest.mark.service
def test_devices_adopt_what_is_released_and_go_back_when_it_is_withdrawn(tmp_path: Path) -> None:
    settings = experiment_for("fedavg")
    settings = settings.model_copy(update={"rounds": settings.rounds.model_copy(update={"rounds": 1})})
    plan = plan_of(settings).model_copy(update={"rollout": ALL_AT_ONCE.model_copy(update={"mode": "manual"})})
    with fleet(tmp_path) as programs:
        programs.get("/v1/federations", {"name": "live", "plan": plan.model_dump(mode="json")})
        for device in DEVICES:
            programs.add_device(agent_toml(tmp_path, device, programs.url, programs.mqtt, 1.0))
        programs.wait_for(lambda: programs.get(HERE)["status"] == "finished", "it has not finished")
        programs.command("devices", "tag", DEVICES[1], "--federation", "live", "--tag", "pilot")
        programs.get(f"{HERE}/rollouts", {"waves": [{"tags": ["pilot"]}, 1.0]})
        done = wait_for(programs, phase="completed", adopted=1)
        told = programs.listing(f"{HERE}/rollouts/1/devices")
        assert {one["device"]: one["wave"] for one in told} == {DEVICES[0]: 2, DEVICES[1]: 1}
        for device in DEVICES:
            said = models_of(tmp_path, device)
            assert [(model["rollout"], model["source"]) for model in said["models"]] == [(1, "global")]
            assert said["released"] == ["It uses the model of release 1."]

        programs.server.kill()
        programs.start()
        assert programs.get(f"{HERE}/rollouts/1") == done
        programs.get(f"{HERE}/rollouts/1/halt", {})
        programs.wait_for(
            lambda: set(answers_of(programs).values()) == {"rolled_back"}, "the devices have not gone back"
        )
        assert [models_of(tmp_path, device)["models"] for device in DEVICES] == [[], []]
        answers = programs.listing(f"{HERE}/rollouts/1/devices")
        assert {(one["answer"], one["reason"]) for one in answers} == {("rolled_back", "withdrawn by the server")}
        data = programs.blob(programs.get(HERE)["model"]["sha256"])

    simulation = simulated(settings)
    expected = simulation.setup.method.broadcast(simulation.state, "")
    assert_same(wire.decode(data, limit_bytes=len(data)), expected, "the model")


@pytest.mark.ci  # three quarters of a minute
@pytest.mark.service
def test_a_version_that_does_not_work_is_adopted_by_nobody_and_halts_its_rollout(tmp_path: Path) -> None:
    settings = experiment_for("fedavg", minutes=4.0)  # 36 windows of six activities in each holdout
    more = settings.rounds.model_copy(update={"minimum_clients": 3})  # than there are: nobody trains
    settings = settings.model_copy(update={"rounds": more})
    plan = plan_of(settings).model_copy(update={"rollout": ALL_AT_ONCE.model_copy(update={"mode": "manual"})})
    with fleet(tmp_path) as programs:
        programs.get("/v1/federations", {"name": "live", "plan": plan.model_dump(mode="json")})
        programs.get(f"{HERE}/rollouts", {"version": 0})  # the initial weights
        for device in DEVICES:
            programs.add_device(agent_toml(tmp_path, device, programs.url, programs.mqtt, 4.0))
        halted = wait_for(programs, phase="halted", failed=2)
        assert halted["reason"] == "2 of 2 devices that answered have failed"
        for one in programs.listing(f"{HERE}/rollouts/1/devices"):
            assert "global model of round 0: not adopted. It does not work" in one["reason"]
            assert "of always answering the most frequent class" in one["reason"]
        assert {one["adoption"] for one in programs.listing(f"{HERE}/devices")} == {"failed"}
        assert [models_of(tmp_path, device)["models"] for device in DEVICES] == [[], []]
        status = [sys.executable, "-m", "edge_agent", "status", "--config", str(tmp_path / f"{DEVICES[0]}.toml")]
        said = subprocess.run(status, capture_output=True, check=True, text=True).stdout
        assert "The last model that it might have used does not work: global model of round 0: not adopted" in said
