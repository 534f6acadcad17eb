"""One description: a plan file is simulated, and the plan that the run leaves is sent to a server as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from federation import wire
from federation.plan import Plan
from sim.cli.app import app
from sim.results.run_directory import RunDirectory
from sim.rounds import checkpoint
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem
from tests.live.in_memory import Device
from tests.live.test_every_method import played
from tests.live.walks import DEVICES, assert_same, data_options

pytestmark = pytest.mark.ci

MINUTES = 1.0
PLAN = """
labels = ["sitting", "standing", "walking", "climbingup", "climbingdown", "running"]

[model]
name = "har_cnn"
options = { channels = [8, 8], feature_dim = 16, hidden = 8 }

[method]
name = "fedprox"
mu = 0.05

[training]
classes = 6
feature_dim = 16
epochs = 2
batch_size = 16
lr = 0.01
seed = 5

[rounds]
rounds = 2
minimum_clients = 2
max_weight_ratio = 1.0

[data]
normalization = "federated"
test_share = 0.25
"""


def simulated(folder: Path, plan: Path, *words: str) -> RunDirectory:
    """Give the command `sim run` a plan file, and return what it leaves."""
    data = [
        word for key, value in data_options(MINUTES).items() for word in ("--set", f"data.{key}={json.dumps(value)}")
    ]
    fixed = ["--engine", "serial", "--validation-share", "0", "--cache", str(folder / "cache")]
    out = folder / "run"
    done = CliRunner().invoke(app, ["run", "--plan", str(plan), *data, *fixed, *words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return RunDirectory(out)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    """The run of the file above."""
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "plan.toml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.reports.figures.run_figures.draw_run", lambda _run: None)  # most of the time
        yield simulated(folder, folder / "plan.toml")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The server as it is served."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("server"))
    with OperatorClient(create_app(settings, Wires)) as found:
        yield found


def test_the_live_federation_ends_as_the_simulation_of_its_plan_file(run: RunDirectory, tmp_path: Path) -> None:
    plan = Plan.model_validate_json((run.path / "plan.json").read_text())
    server = Bench(tmp_path / "server", plan)
    devices = [Device.named(name, tmp_path / "devices", data_options(MINUTES)) for name in DEVICES]
    played(server, devices)
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    server.runtime.stop()
    simulation = checkpoint.load(run.path / "checkpoint.bin", "cpu")
    assert simulation is not None
    assert_same(state, simulation.state, "the server's state")
    for device in devices:
        assert_same(device.kept(), simulation.client_sets["clients"][device.name]._asdict(), device.name)


def test_the_plan_of_a_run_is_what_a_server_takes(run: RunDirectory, client: TestClient) -> None:
    plan = json.loads((run.path / "plan.json").read_text())
    assert plan["data"]["statistics"]["count"] > 0
    created = client.post("/v1/federations", json={"name": "walks", "plan": plan})
    assert created.status_code == 201, created.text
    assert created.json()["plan"] == plan


def test_a_servers_plan_is_simulated_by_the_command_that_it_tells(
    run: RunDirectory, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.reports.figures.run_figures.draw_run", lambda _run: None)
    plan = json.loads((run.path / "plan.json").read_text())
    assert client.post("/v1/federations", json={"name": "again", "plan": plan}).status_code == 201
    answer = client.get("/v1/federations/again/plan")
    assert "sim run --plan plan.json" in answer.json()["simulate"]
    assert client.get("/v1/federations/again").json()["simulate"] == answer.json()["simulate"]
    (tmp_path / "plan.json").write_text(answer.text)
    shutil.copytree(run.path.parent / "cache", tmp_path / "cache")
    again = simulated(tmp_path, tmp_path / "plan.json")
    assert json.loads((again.path / "plan.json").read_text()) == plan
    assert [one.train_loss for one in again.rounds] == [one.train_loss for one in run.rounds]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"normalization": "federated"}}, "take them from the plan.json of a simulated run, or use 'client'"),
        ({"data": {"normalization": "pooled"}}, "use 'federated'"),
        ({"data": {"split": "random80"}}, "it is only for simulations; use 'temporal'"),
        ({"data": {"split": "kfold7_3"}}, "leaks between overlapping windows"),
        ({"task": {"name": "segmentation"}}, "needs images: set their shape in data.input"),
        ({"task": {"name": "clasification"}}, "did you mean 'classification'"),
        (
            {"task": {"name": "masked_reconstruction"}, "rollout": {"mode": "manual"}},
            "devices have no use for a model of masked_reconstruction",
        ),
        ({"task": {"name": "classification", "ignore": 3}}, "plan.task: unknown option of classification 'ignore'"),
    ],
)
def test_what_devices_cannot_do_is_refused_in_words(
    changes: dict[str, Any], words: str, run: RunDirectory, client: TestClient
) -> None:
    plan = json.loads((run.path / "plan.json").read_text())
    answer = client.post("/v1/federations", json={"name": "refused", "plan": {**plan, **changes}})
    assert words in problem(answer, 422)["detail"]
