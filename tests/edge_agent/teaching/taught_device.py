"""A device of a continuous federation whose page is open, and recordings that its replay source plays to it."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path

import numpy as np

from edge_agent.config.settings import load
from edge_agent.machine.events import Event, NewWindows
from edge_agent.page.server import PageServer
from edge_agent.page.service import PageService
from edge_agent.sensors import open_source
from edge_agent.sensors.source import SensorSource
from edge_agent.serving.classifier import Classifier
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from tests.teaching_world import TeachingWorld

BEGAN_S = 1_790_000_000.0
DESCRIPTION = """
files = '.*\\.csv'
time = { column = "time_ms", unit = "ms" }
acceleration = "specific force"
acc = { columns = ["acc_x", "acc_y", "acc_z"] }
gyro = { columns = ["gyro_x", "gyro_y", "gyro_z"] }
"""


class TaughtDevice:
    """As after its first broadcast: plan, shared sums and the network are there, and no window."""

    def __init__(self, folder: Path, world: TeachingWorld, speed: float) -> None:
        self.world, self.folder, self.data = world, folder, folder / "data"
        lines = ["[agent]", 'device = "kitchen-pi"', 'federation = "demo"', 'data_dir = "data"']
        lines += ["[server]", 'url = "http://127.0.0.1:9"', "[sensors]", 'source = "csv"', 'path = "played"']
        lines += ['description = "played.toml"', f"replay_speed = {speed}", ""]
        (folder / "agent.toml").write_text("\n".join(lines))
        (folder / "played.toml").write_text(DESCRIPTION)
        self.config = load(folder / "agent.toml")
        self._keep()
        self.classifier = Classifier(self.data)
        self.classifier.start()
        self.classifier.serve({"path": str(self.data / "models" / "shared.onnx")})
        self.server = PageServer(PageService(self.config, folder / "agent.toml", self.classifier), "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.server.port}"
        self._source: SensorSource | None = None
        self._played = 0

    def _keep(self) -> None:
        world, path = self.world, self.data / "models" / "shared.onnx"
        write_file(self.data / "blobs" / hashlib.sha256(world.broadcast).hexdigest(), world.broadcast)
        write_file(path, world.network)
        sha256 = hashlib.sha256(world.network).hexdigest()
        model = {"round": 1, "source": "global", "head": "shared", "sha256": sha256, "path": str(path), "score": None}
        with closing(StateStore(self.data)) as store:
            store.put(plan=world.plan.model_dump_json(), identity="0/0", model=json.dumps(model), continuous="yes")
        with closing(WindowStore(self.data)) as store:
            store.put(labels=json.dumps(world.plan.labels), reads="own")

    def play(self, activity: str, from_s: float, seconds: float) -> None:
        """Have the replay source play a part of a person's recordings of an activity, from now on."""
        self.stop()
        self._played += 1
        folder = self.folder / f"played-{self._played}"
        folder.mkdir()
        recorded = self.world.recordings[activity]
        table = recorded[(recorded[:, 0] >= from_s) & (recorded[:, 0] < from_s + seconds)].copy()
        table[:, 0] = 1e3 * (table[:, 0] + BEGAN_S + 600 * self._played)
        header = "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z"
        np.savetxt(folder / "motion.csv", table, "%.6f", ",", header=header, comments="")
        sensors = self.config.sensors.model_copy(update={"path": folder})
        self._source = open_source(self.config.model_copy(update={"sensors": sensors}), self._post)
        self._source.start(self.world.plan)

    def stop(self) -> None:
        """Let nothing more be played."""
        if self._source:
            self._source.stop(5.0)
        self._source = None

    def _post(self, event: Event) -> None:
        if isinstance(event, NewWindows):
            self.classifier.submit(event.windows)

    def close(self) -> None:
        """End source, model and page."""
        self.stop()
        self.classifier.stop()
        self.server.close()

    def counts(self) -> dict[str, int]:
        """Count the kept windows."""
        with closing(WindowStore(self.data)) as store:
            return store.counts()
