"""A device without torch beside one with it: the server makes the program, both train, and the model is good for both.

The device's interpreter finds no torch, onnx, scipy, pandas and Pillow; everything else is as it is installed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest
import torch

from edge_agent.storage.window_store import WindowStore
from edge_agent.training.local_data import LocalData, local_data
from federation.methods import method_from_json
from federation.plan import ModelSpec, Plan, RoundSettings, TrainingConfig
from federation.records import Client, Examples, Tree
from federation.tasks import task_from_json
from federation.training.client_round import train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import Setup
from federation.training.prediction import measure
from har_pipeline import dataset_labels, dataset_settings
from models import build
from tests.live.fleet import PATIENCE_S, embedded, fleet

ROUNDS = 4
WITH, WITHOUT = "s00_phone100-waist", "s00_phone100-shin"
LITE_PYTHON = os.environ.get("GAITWAY_LITE_PYTHON", sys.executable)
"""Of the device without torch: `make check-python310` gives one that has no torch."""
NOT_IN_EDGE_LITE = frozenset({"torch", "onnx", "onnxscript", "scipy", "pandas", "PIL"})
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Hidden())
"""


def plan() -> Plan:
    labels = dataset_labels("synthetic")
    return Plan(
        labels=labels,
        model=ModelSpec(name="har_cnn", options={"channels": [8, 8], "feature_dim": 16, "hidden": 24}),
        method={"name": "fedavg"},
        training=TrainingConfig(classes=len(labels), feature_dim=16, epochs=6, batch_size=16, lr=1e-2, seed=5),
        rounds=RoundSettings(rounds=ROUNDS, minimum_clients=2),
    )


def agent_toml(folder: Path, device: str, url: str, mqtt: int) -> Path:
    place = device.partition("-")[2]
    options = f'{{ subjects = 1, phones = ["phone100"], places = ["{place}"], minutes = 2.0 }}'
    path = folder / f"{device}.toml"
    path.write_text(
        f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\n'
        f'[server]\nurl = "{url}"\n[broker]\nhost = "127.0.0.1"\nport = {mqtt}\n'
        f'[sensors]\ndataset = "synthetic"\noptions = {options}\n[training]\nnice = 0\n'
    )
    return path


def data_of(folder: Path) -> LocalData:
    with closing(WindowStore(folder)) as store:
        windows = store.read(folder.name, dataset_settings("synthetic"), plan().labels)
    return local_data(windows, plan().data, dataset_settings("synthetic"))


def torch_hidden(
    folder: Path, name: str, devices: Collection[str], hidden: Collection[str] = NOT_IN_EDGE_LITE
) -> list[str]:
    """Return what a fleet's program is run under: some devices find no torch, the server makes programs."""
    if name == "server":
        return ["env", "GAITWAY_PROGRAMS=true"]
    if name not in devices:
        return []
    place = folder / "hidden"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(HIDDEN.replace("{names}", repr(set(hidden))))
    return ["env", f"PYTHONPATH={place}:{Path(__file__).resolve().parents[2]}"]


class Judge:
    """Trains on one device's windows alone as long as the federation did, and scores on all devices' holdouts."""

    def __init__(self, agreed: Plan, data: dict[str, LocalData]) -> None:

        def make() -> torch.nn.Module:
            return build(agreed.model.name, classes=len(agreed.labels), **agreed.model.options)

        module, self.data = initial_model(make, agreed.training.seed), data
        task = task_from_json(agreed.task)
        self.setup = Setup(
            method_from_json(agreed.method), agreed.training, network(module), task, rounds=agreed.rounds.rounds
        )
        self.initial = initial_client(module)

    def score(self, params: Tree) -> float:
        client = Client(dict(params), self.initial.buffers, {})
        found = [
            measure(self.setup, client, _examples(mine, holdout=True), 256)["confusion"] for mine in self.data.values()
        ]
        return float(self.setup.task.metrics({"confusion": torch.stack(found).sum(0)})["macro_f1"])

    def alone(self, device: str) -> float:
        broadcast: Tree = {"params": self.initial.params}
        client, examples = self.initial, _examples(self.data[device])
        for number in range(1, self.setup.rounds + 1):
            result = train_one(
                self.setup, client, broadcast, examples, client_id=device, round_number=number, max_steps=None
            )
            client, broadcast = result.client, {"params": result.upload["params"]}
        return self.score(broadcast["params"])


def _examples(data: LocalData, *, holdout: bool = False) -> Examples:
    part = data.holdout if holdout else data.train
    return Examples(torch.from_numpy(data.normalized(part)), torch.from_numpy(part.y))


@pytest.mark.ci
@pytest.mark.service
@pytest.mark.timeout(3 * PATIENCE_S)  # the waits end first, and show what every program said
def test_a_device_without_torch_and_one_with_it_make_a_model_that_is_better_than_each_alone(tmp_path: Path) -> None:
    with fleet(tmp_path, lambda name: torch_hidden(tmp_path, name, {WITHOUT}), broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan().model_dump(mode="json")})
        assert here.get("/v1/federations/live")["program"]["state"] in ("making", "ready")  # the request did not wait
        for device in (WITH, WITHOUT):
            python = LITE_PYTHON if device == WITHOUT else sys.executable
            here.add_device(agent_toml(tmp_path, device, here.url, here.mqtt), "--until-finished", python=python)
        # the other one's exports are tested elsewhere, and take longer than all rounds
        here.wait_for(lambda: here.devices[WITHOUT].has_left, "the device without torch does not leave")
        assert here.devices[WITHOUT].process.returncode == 0, here.devices[WITHOUT].said()
        assert here.get("/v1/federations/live")["status"] == "finished"
        program = here.get("/v1/federations/live")["program"]
        assert (program["state"], program["note"]) == ("ready", "")
        assert len(here.blob(program["file"]["sha256"])) == program["file"]["size"]
        broadcast = here.last_broadcast()

    assert runtimes(tmp_path) == {(WITH, "torch"): ROUNDS, (WITHOUT, "onnx"): ROUNDS}
    summary = json.loads((tmp_path / WITHOUT / "summary.json").read_text())
    assert Path(summary["model"]["path"]).is_file()  # one that it has exported and judged itself
    judge = Judge(plan(), {device: data_of(tmp_path / device) for device in (WITH, WITHOUT)})
    together, *alone = judge.score(broadcast["params"]), judge.alone(WITH), judge.alone(WITHOUT)
    assert together > max(alone), (together, alone)


def runtimes(folder: Path) -> dict[tuple[str, str], int]:
    """Return how many updates of each device the server has, and what trained them, as their manifests say."""
    (path,) = (folder / "data").glob("*.sqlite3")
    query = (
        "SELECT d.name, coalesce(json_extract(u.manifest, '$.runtime'), 'torch'), count(*) FROM updates u "
        "JOIN devices d ON d.id = u.device_id GROUP BY 1, 2"
    )
    with closing(sqlite3.connect(path)) as database:
        return {(name, runtime): count for name, runtime, count in database.execute(query)}
