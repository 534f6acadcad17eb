"""The windows of one device: as the batch preparation makes them, and in a data folder."""

from __future__ import annotations

import queue
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge_agent.machine.events import DataReady, Event
from edge_agent.sensors import open_source
from har_pipeline import ClientWindows, prepare
from tests.edge_agent.factories import DEVICE, OPTIONS, PLANS, make_config

if TYPE_CHECKING:
    from tests.edge_agent.supervised import SupervisedDevice


@pytest.fixture(scope="module")
def prepared() -> ClientWindows:
    return prepare("synthetic", None, options=OPTIONS).clients[DEVICE]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder after the sensor source has run."""
    folder = tmp_path_factory.mktemp("device")
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    replay = open_source(make_config(folder), posted.put)
    replay.start(PLANS["fedavg"])
    event = posted.get(timeout=30)
    replay.stop(5.0)
    assert isinstance(event, DataReady), event
    assert event.examples > 20
    return folder


@pytest.fixture
def supervised_device(device: Path, tmp_path: Path, request: pytest.FixtureRequest) -> SupervisedDevice:
    """A supervisor over a copy of that folder; the parameter is the number of epochs."""
    from tests.edge_agent.supervised import SupervisedDevice  # with torch, which tests of other parts run without

    return SupervisedDevice(Path(shutil.copytree(device, tmp_path / "device")), request.param)
