"""CONTRIBUTING's recipes in one package of somebody else: a set, a model, a partition, a task and a sensor."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.config.sensors import SensorsSection
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import open_source
from models import MODELS
from sim.cli import app
from tests.edge_agent.factories import make_config, make_plan
from tests.gaitway.conftest import Install, task_modules

READER = """
import numpy as np
from har_pipeline import Recording
from har_pipeline.recording import Origin
from har_pipeline.readers.reader import RecordingReader

LABELS = ("rest", "stride")

def recordings(source, clients, options):
    for person in range(3):
        for number, label in enumerate(LABELS):
            times = 1000.0 * number + np.arange(6000) / 100
            swing = 4.0 * number * np.sin(2 * np.pi * (1.5 + 0.3 * person) * times)
            values = np.stack([swing, np.zeros_like(swing), np.full_like(swing, 9.81)], 1)
            activity = np.full(len(times), label)
            yield Recording(f"p{person}", str(number), activity, "acc", times, values)
            yield Recording(f"p{person}", str(number), activity, "gyro", times, 0.2 * values[:, ::-1])

READER = RecordingReader(
    name="strides", summary="generated strides", labels=lambda options: LABELS, layouts=lambda options: (),
    recordings=recordings, acceleration="specific force",
    origin=lambda client: Origin("strides", client, "phone", "hip"),
)
"""
MODEL = '''
import torch
from torch import nn
from models.model import Model, ModelOutput

class Deviation(Model):
    """Each channel's deviation in a window, and a linear layer."""

    input_kinds = ("window",)
    input_shape = (128, 6)
    feature_dim = 6

    def __init__(self, classes):
        super().__init__(classes)
        self.head = nn.Linear(6, classes)

    def forward(self, x, mask=None):
        features = (x - x.mean(1, keepdim=True)).square().mean(1)
        return ModelOutput(features, self.head(features))
'''
PARTITION = '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from sim.data.partitions.partition import LabelPartition

@dataclass(frozen=True, kw_only=True)
class Hoarder(LabelPartition):
    """The first client has two thirds of everything."""

    kind: ClassVar[str] = "hoarder"

    def counts(self, sizes, seed):
        others = np.repeat([sizes // (3 * (self.clients - 1))], self.clients - 1, 0)
        return np.concatenate([[sizes - others.sum(0)], others])
'''
SENSOR = '''
import time
import numpy as np
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.source import ThreadedSource
from har_pipeline import Recording

class Shelf(ThreadedSource):
    """A board at rest."""

    def collect(self, plan, stop):
        collector = Collector(self.config, plan, self.post, origin="shelf", live=True, stop=stop)
        times = time.time() - 20 + np.arange(2000) / 100
        collector.push(Recording("shelf", "1", "", "acc", times, np.tile((0.0, 0.0, 9.81), (2000, 1))))
        collector.push(Recording("shelf", "1", "", "gyro", times, np.zeros((2000, 3))))
        collector.end_session()
        collector.post_ready()
        collector.close()
'''
MODULES = {
    "gaitway_strides": READER,
    "gaitway_deviation": MODEL,
    "gaitway_hoarder": PARTITION,
    **task_modules("missed"),
    "gaitway_shelf": SENSOR,
}
ENTRIES = {
    "readers:strides": "gaitway_strides:READER",
    "models:deviation": "gaitway_deviation:Deviation",
    "partitions:hoarder": "gaitway_hoarder:Hoarder",
    "tasks:missed": "gaitway_missed:Falls",
    "sensors:shelf": "gaitway_shelf:Shelf",
}


@pytest.fixture
def package(install: Install) -> None:
    install("gaitway-recipes", ENTRIES, **MODULES)


@pytest.mark.ci
@pytest.mark.usefixtures("package")
def test_a_federation_learns_a_new_task_from_a_new_set_with_a_new_model_and_partition(tmp_path: Path) -> None:
    """Two generated activities that any model tells apart."""
    words = ["run", "--data", "strides", "--model", "deviation", "--task", "missed", "--partition", "hoarder"]
    words += ["--set", "partition.clients=3", "--method", "fedavg", "--rounds", "3", "--lr", "0.1", "--seed", "1"]
    out = tmp_path / "run"
    done = CliRunner(env={"COLUMNS": "200"}).invoke(
        app.app, [*words, "--cache", str(tmp_path / "cache"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    summary = json.loads((out / "summary.json").read_text())
    plan = json.loads((out / "plan.json").read_text())
    assert set(plan["packages"]) == {"models:deviation", "tasks:missed"}
    assert summary["global"] == {"missed": 0.0}
    clients = json.loads((out / "clients.json").read_text())
    sizes = sorted(client["train"] for client in clients.values())
    assert sizes[-1] > sum(sizes[:-1])
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert rounds[2]["train_loss"] < rounds[0]["train_loss"]


@pytest.mark.usefixtures("package")
def test_a_device_collects_from_a_new_sensor(tmp_path: Path) -> None:
    config = make_config(tmp_path).model_copy(update={"sensors": SensorsSection(source="shelf")})
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = open_source(config, posted.put)
    source.start(make_plan())
    while not isinstance(event := posted.get(timeout=60), DataReady):
        assert not isinstance(event, SensorFailed), event
    source.stop(5.0)


@pytest.mark.usefixtures("package")
def test_a_new_model_is_asked_for_nothing_that_it_does_not_say_itself() -> None:
    assert MODELS["deviation"].learns("missed")
    assert MODELS["deviation"].learns("classification")
    assert not MODELS["deviation"].learns("segmentation")
    assert np.prod(MODELS["deviation"].input_shape) == 768
