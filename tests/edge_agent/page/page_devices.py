"""A device with windows and two models in its data folder, its page served, and what a browser would send it."""

from __future__ import annotations

import hashlib
import http.client
import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.config.sensors import WindowsSection
from edge_agent.config.settings import load
from edge_agent.page.server import PageServer
from edge_agent.page.service import PageService
from edge_agent.serving.classifier import LivePrediction, OwnAnswers
from edge_agent.storage.data_folder import lock_folder
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from har_pipeline import Window
from tests.edge_agent.window_factories import LABELS, SETTINGS, window

SERVER = "http://127.0.0.1:9"  # nobody listens there: the server is away


class Seen:
    """A model at work that has seen walking for two minutes, and then sitting."""

    error = ""

    def recent(self) -> tuple[list[LivePrediction], Window | None]:
        now, times = time.time(), np.arange(128) / 50
        seen = [(LABELS[n >= 30], 0.65 + 0.3 * abs(np.sin(n / 9)), now - 1.28 * (90 - n)) for n in range(90)]
        waves = [
            a * np.sin(2 * np.pi * f * times + a) for a, f in ((2, 2), (3, 1.9), (4, 2), (1, 1), (0.5, 2), (0.8, 3))
        ]
        x = np.stack(waves, 1).astype(np.float32) + np.float32([0, 0, 9.8, 0, 0, 0])
        return [LivePrediction(label, p, at, at) for label, p, at in seen], Window(x, -1, now, 0)

    def ask_first(self, own_answers: OwnAnswers) -> None:
        """It knows the federation's activities alone."""


class PageDevice:
    """Ten unlabelled windows of the last half minute, two of `sit` of last year, two good models."""

    def __init__(self, folder: Path, password_hash: str | None = None) -> None:
        self.data, config = folder / "data", folder / "agent.toml"
        lines = ("[agent]", 'device = "kitchen-pi"', 'federation = "demo"', 'data_dir = "data"')
        if password_hash:
            lines = (*lines, f'page_password_hash = "{password_hash}"')
        config.write_text("\n".join([*lines, "[server]", f'url = "{SERVER}"', ""]))
        self.began_s = time.time() - 26
        with closing(WindowStore(self.data)) as store:
            recent = [window(-1, n)._replace(start_s=self.began_s + 2.56 * n) for n in range(10)]
            old = [window(0, n)._replace(start_s=1_760_000_000.0 + n) for n in range(10, 12)]
            store.add(old + recent, LABELS, SETTINGS, WindowsSection(), origin="phone:1")
            store.put(labels=json.dumps(LABELS))
        self._keep_models()
        with closing(StateStore(self.data)) as store:
            self._lock = lock_folder(store, load(config).agent)  # as an agent that runs
        self.server = PageServer(PageService(load(config), config, Seen()), "127.0.0.1", 0, password_hash)
        self.address = f"http://127.0.0.1:{self.server.port}"

    def close(self) -> None:
        """End the page and the agent."""
        self.server.close()
        self._lock.close()

    def _keep_models(self) -> None:
        doing = {"words": "collecting, without a connection", "left": False, "at": time.time()}
        with closing(StateStore(self.data)) as store:
            for name, number in (("model", 7), ("previous", 6)):
                path = self.data / f"r{number}.onnx"
                path.write_bytes(bytes([number]))
                sha256 = hashlib.sha256(bytes([number])).hexdigest()
                described = {"round": number, "source": "global", "sha256": sha256, "path": str(path), "score": 0.8}
                store.put(**{name: json.dumps(described)})
            store.put(doing=json.dumps({**doing, "blockers": ["the battery holds 20 %, and 50 % are asked for"]}))

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Send what the page would send, with other headers laid over it; return status, answer and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        own = {"Origin": self.address, "Content-Type": "application/json"} if method == "POST" else {}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {**own, **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
            found = json.loads(content) if answer.headers["Content-Type"] == "application/json" else content
            return answer.status, found, dict(answer.headers)
        finally:
            connection.close()

    def classes(self) -> dict[str, int]:
        """Count the kept windows."""
        with closing(WindowStore(self.data)) as store:
            return store.counts()
