"""The examples of docs/: programs as they are on stand-ins, and a federation that ends well."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import har_pipeline
import models
from edge_agent.config.settings import load
from edge_agent.training.local_data import local_data, pipeline_settings
from federation.methods import method_from_json
from federation.plan import Plan
from federation.records import Examples
from federation.training.client_round import train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import Setup
from federation.training.prediction import predict
from gaitway.tasks.classification import confusion, scores_of
from tests.export.test_runtime import model_bytes
from tests.repository.imports import REPOSITORY


@pytest.mark.ci
def test_the_board_reads_its_imu(tmp_path: Path) -> None:
    """A device as the kernel lays it out, at rest with z up: raw 981 times 0.01 m/s²."""
    device = tmp_path / "iio:device0"
    device.mkdir()
    for kind, scale in (("accel", "0.01"), ("anglvel", "0.001")):
        (device / f"in_{kind}_scale").write_text(scale + "\n")
        for axis in "xyz":
            raw = "981" if (kind, axis) == ("accel", "z") else "0"
            (device / f"in_{kind}_{axis}_raw").write_text(raw + "\n")
    (tmp_path / "model.onnx").write_bytes(model_bytes())
    command = [sys.executable, str(REPOSITORY / "docs/examples/raspberry_pi.py"), str(tmp_path / "model.onnx"), device]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline().startswith("jog (100%), 0.")  # acc_z is the third logit
        finally:
            running.terminate()


def test_the_page_on_inference_in_python(tmp_path: Path) -> None:
    """Its block, on the recording that its shell block makes; tests/repository/test_documents_run.py runs that."""
    block, _of_images = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "inference.md").read_text(), re.S)
    (tmp_path / "model.onnx").write_bytes(model_bytes())
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    maker = [sys.executable, str(REPOSITORY / "docs/examples/make_recording.py")]
    with (tmp_path / "phone.csv").open("w") as file:
        subprocess.run(maker, cwd=tmp_path, env=environment, stdout=file, check=True)
    command = [sys.executable, "-c", block]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) > 20
    assert re.match(r"0\.0 to 2\.6 s: \w+ \(\d+%\)", ran.stdout)


def test_the_example_files_of_the_page_fit_each_other() -> None:
    federation = json.loads((REPOSITORY / "demo" / "federation.json").read_text())
    plan = Plan.model_validate(federation["plan"])
    config = load(REPOSITORY / "demo" / "agent.toml", {})
    assert config.agent.federation == federation["name"]
    assert plan.labels == har_pipeline.dataset_labels(config.sensors.dataset, config.sensors.options)


def test_the_example_of_the_page_ends_with_a_model_that_works() -> None:
    plan = Plan.model_validate(json.loads((REPOSITORY / "demo" / "federation.json").read_text())["plan"])
    config = load(REPOSITORY / "demo" / "agent.toml", {})
    settings = pipeline_settings(config.sensors, plan.data)
    prepared = har_pipeline.prepare(
        config.sensors.dataset, None, settings, clients=[config.sensor_client], options=config.sensors.options
    )
    data = local_data(prepared.clients[config.sensor_client], plan.data, settings)
    module = initial_model(lambda: models.build(plan.model.name, classes=plan.training.classes), plan.training.seed)
    client, setup = initial_client(module), Setup(method_from_json(plan.method), plan.training, network(module))
    x, y = torch.from_numpy(data.normalized(data.train)), torch.from_numpy(data.train.y)
    for number in range(1, plan.rounds.rounds + 1):  # the mean of one device is that device
        broadcast = {"params": client.params}
        client = train_one(
            setup, client, broadcast, Examples(x, y), client_id=config.agent.device, round_number=number
        ).client
    answers = predict(setup, client, torch.from_numpy(data.normalized(data.holdout)), 64)
    f1 = scores_of(confusion(data.holdout.y, answers, plan.training.classes)).macro_f1
    assert f1 >= 0.85, f"docs/edge_agent.md promises 0.9 and seeds 0 to 2 gave 0.95 to 1.0; now {f1:.2f}"
