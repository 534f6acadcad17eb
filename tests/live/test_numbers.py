"""A number is learnt live: from a description's column to a device that answers, and bit for bit as simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.runtime import Session
from federation.plan import TrainingConfig
from har_pipeline import PipelineSettings, prepare, recordings
from sim.experiment.settings import Experiment
from sim.run import build_simulation, load_data, resolve
from tests.live.fleet import embedded, fleet
from tests.live.test_live_equals_sim import is_over
from tests.live.walks import DEVICES, FEATURES, agent_toml, assert_same, experiment_for, plan_of

NAME = "cadence (steps/min)"
TASK = {"name": "regression", "center": 80.0, "spread": 60.0}
MINUTES = 4.0
DESCRIPTION = """\
files = '[^/]+\\.csv'
sensor = "kind"
time = "t"
acceleration = "specific force"
acc = { columns = ["x", "y", "z"] }
gyro = { columns = ["x", "y", "z"] }
number = { column = "steps", name = "cadence", unit = "steps/min", min = 0, max = 300 }
"""


def learning_numbers(minutes: float) -> Experiment:
    """The small federation of these tests, whose devices learn a cadence."""
    settings = experiment_for("fedavg", minutes=minutes)
    training: TrainingConfig = settings.training.model_copy(update={"classes": 1, "feature_dim": FEATURES})
    return settings.model_copy(update={"task": TASK, "labels": (NAME,), "training": training})


@pytest.mark.ci
@pytest.mark.service
def test_the_live_federation_of_numbers_is_the_simulation(tmp_path: Path) -> None:
    settings = learning_numbers(2.0)
    torch.set_num_threads(1)
    simulation = build_simulation(resolve(settings), load_data(resolve(settings), None, None, None))
    for _record in simulation.run_rounds():
        pass
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(settings).model_dump(mode="json")})
        for device in DEVICES:
            here.add_device(agent_toml(tmp_path, device, here.url, here.mqtt, 2.0), "--until-finished")
        here.wait_for(lambda: is_over(here, tmp_path), "the federation does not finish")
        broadcast = here.last_broadcast()
    assert_same(broadcast, simulation.setup.method.broadcast(simulation.state, ""), "the last broadcast")


def write_recording(folder: Path, phone: str) -> None:
    """One generated person's phone as a file of its own: a row a sample of one sensor, with the true cadence."""
    folder.mkdir()
    rows: list[tuple[float, str]] = []
    options = {"subjects": 1, "phones": [phone], "minutes": MINUTES}
    for part in recordings("synthetic", None, options=options):
        assert part.number is not None
        for time, values, steps in zip(part.times_s, part.values, part.number, strict=True):
            cells = ",".join(f"{each:.6g}" for each in values)
            rows.append((time, f"{part.sensor},{time:.4f},{cells},{steps:.5g}"))
    (folder / "walk.csv").write_text("\n".join(["kind,t,x,y,z,steps", *(row for _, row in sorted(rows))]) + "\n")


def config_of(folder: Path, device: str, phone: str, url: str, mqtt: int) -> Path:
    write_recording(folder / f"{device}-files", phone)
    (folder / f"{device}-data.toml").write_text(DESCRIPTION)
    path = folder / f"{device}.toml"
    path.write_text(
        f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\n'
        f'[server]\nurl = "{url}"\n[broker]\nhost = "127.0.0.1"\nport = {mqtt}\n'
        f'[sensors]\nsource = "csv"\npath = "{device}-files"\ndescription = "{device}-data.toml"\n'
    )
    return path


def summary_of(folder: Path, device: str) -> dict[str, Any]:
    path = folder / device / "summary.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def adopted(folder: Path, device: str, number: int) -> bool:
    """Whether a device uses a model of that round."""
    model = summary_of(folder, device).get("model")
    return model is not None and model["round"] == number


def said(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow  # minutes; CI watches the live federation of numbers
@pytest.mark.service
def test_from_a_described_column_to_a_device_that_says_how_fast_its_owner_steps(tmp_path: Path) -> None:
    """Two devices with CSV files, the server and a broker as processes; then the adopted model on another recording."""
    plan = plan_of(learning_numbers(1.0)).model_dump(mode="json")
    plan["training"] |= {"epochs": 12, "lr": 3e-3}
    plan["rounds"]["rounds"] = 3
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan})
        devices = {"ann": "phone100", "bob": "phone200"}
        configs = [config_of(tmp_path, device, phone, here.url, here.mqtt) for device, phone in devices.items()]
        for config in configs:
            here.add_device(config)
        here.wait_for(lambda: all(adopted(tmp_path, device, 3) for device in devices), "a device adopts no model")
        score = here.get("/v1/federations/live/models/3")["score"]
    assert score["metric"] == "mae"
    assert score["value"] < 30 < score["trivial"]
    other = next(
        iter(prepare("synthetic", None, PipelineSettings(), options={"minutes": 3, "seed": 7}).clients.values())
    )
    for device, config in zip(devices, configs, strict=True):
        model = summary_of(tmp_path, device)["model"]
        assert model["metric"] == "mae"
        assert model["score"] < 30
        assert model["r2"] > 0.5
        assert "mean absolute error" in " ".join(summary_of(tmp_path, device)["adoption"])
        found = Session.load(model["path"]).predict(other.x)
        assert found.numbers is not None
        constant = np.abs(other.number - np.median(other.number)).mean()
        assert np.abs(found.numbers - other.number).mean() < 0.75 * constant
        answers = said(
            "export", "recognize", model["path"], str(tmp_path / f"{device}-files"),
            "--describe", str(tmp_path / f"{device}-data.toml"),
        )  # fmt: skip
        assert f"{NAME}: " in answers
        assert "%" not in answers
        refused = said("edge_agent", "label", "--activity", "walking", "--last", "5m", "--config", str(config))
        assert "this federation learns a number" in refused
