"""Phones, which are node with the browser's modules, and a real server process: from their links to the last model."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from federation import wire
from federation.protocol.enrolment_uri import EnrolmentUri
from phone import APP
from tests.live.real_parts import free_port, wait_for_port
from tests.phone.test_javascript import HERE, why_not
from tests.repository.imports import REPOSITORY

pytestmark = [
    pytest.mark.service,
    pytest.mark.ci,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "node is here"),
]

PLAN = {
    "labels": ["still", "walking"],
    "model": {"name": "har_cnn", "options": {"channels": [8, 8], "feature_dim": 8, "hidden": 8}},
    "method": {"name": "fedproto", "backbone": "frozen"},
    "training": {"classes": 2, "feature_dim": 8},
    "rounds": {"rounds": 2, "clients_per_round": 2, "minimum_clients": 2},
    "light_clients": True,
}
WITHIN_S = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[httpx.Client]:
    """A server that lets in whom its operator has approved."""
    port, log = free_port(), tmp_path / "server.log"
    settings = {"ADMISSION": "enrolled", "AGGREGATION_PROCESS": "false", "CHUNK_BYTES": "1024"}
    command = [sys.executable, "-m", "aggregator_api", "serve", "--embedded-broker"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--broker-port", str(free_port()), "--data-dir", str(tmp_path / "data")],
            env={**os.environ, **{f"GAITWAY_{name}": value for name, value in settings.items()}},
            cwd=REPOSITORY,
            stdout=out,
            stderr=out,
        )
    wait_for_port(port, process, log, within_s=WITHIN_S)
    key = (tmp_path / "data" / "operator.key").read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=WITHIN_S, trust_env=False) as http:
        until(lambda: http.get("/readyz").status_code == 200)
        yield http
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


def until(happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
    return found


def answer(response: httpx.Response) -> Any:
    assert response.is_success, response.text
    return response.json()


def test_two_phones_take_part_until_the_last_model(server: httpx.Client) -> None:
    """One waits for the operator, both are stopped within an upload, and an answered update is answered alike again."""
    answer(server.post("/v1/federations", json={"name": "walk", "plan": PLAN}))
    federation = "/v1/federations/walk"
    links = []
    for device, auto_approve in (("a", True), ("b", False)):
        wanted = {"device": device, "auto_approve": auto_approve}
        made = answer(server.post(f"{federation}/enrolment-tokens", json=wanted))
        links.append(str(EnrolmentUri(str(server.base_url), "walk", device, made["token"])))
    ort = APP / "vendor" / "ort"
    request = {"links": links, "ort": str(ort) if (ort / "ort.wasm.min.mjs").is_file() else None}
    command = ["node", "--import", str(HERE / "register.mjs"), str(HERE / "protocol" / "phones.mjs")]
    phones = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert phones.stdin is not None
    phones.stdin.write(json.dumps(request).encode())
    phones.stdin.close()
    phones.stdin = None
    try:
        pending = f"{federation}/devices?enrolment=pending"
        until(lambda: phones.poll() is not None or answer(server.get(pending))["items"])
        server.post(f"{federation}/devices/b/approve")
        out, error = phones.communicate(timeout=WITHIN_S)
    finally:
        phones.kill()
    assert phones.returncode == 0, error.decode()[-4000:]
    told = json.loads(out)
    updates = answer(server.get(f"{federation}/updates"))["items"]
    assert [update["status"] for update in updates] == ["accepted"] * 4, updates
    last_round = []
    for phone in told:
        assert phone["stopped"]
        assert phone["waited"] == (phone["device"] == "b")
        assert [(one["round"], one["answer"]) for one in phone["uploads"]] == [(1, "accepted"), (2, "accepted")]
        assert phone["again"] == {"status": "accepted", "same": True}
        assert len(set(phone["begun"])) == 2 < len(phone["begun"]), "the stopped upload was begun again, unchanged"
        assert phone["adoption"]["round"] == 2
        assert not [url for url in phone["urls"] if "gw" in url or "?" in url], "a key in a URL"
        manifest = json.loads(base64.b64decode(phone["begun"][-1]).partition(b"\n")[2])
        figures = answer(server.get(f"{federation}/metrics?round=2&limit=200"))["items"]
        mine = {one["name"]: one["value"] for one in figures if one["device"] == phone["device"]}
        assert mine == manifest["metrics"]
        assert 0 <= mine["macro_f1_before"] <= 1
        sent = b"".join(map(base64.b64decode, phone["chunks"][manifest["update_id"]]))
        assert wire.digest(sent) == manifest["sha256"]
        last_round.append(wire.decode(sent, limit_bytes=1 << 20))
    devices = {one["name"]: one for one in devices_of(server, federation)}
    assert {name: one["adoption"] for name, one in devices.items()} == {
        one["device"]: one["adoption"]["answer"] for one in told
    }
    assert told[-1]["untold"] == ""
    left = until(lambda: [one for one in devices_of(server, federation) if one["state"] == "offline" and one["detail"]])
    assert [(one["name"], "its owner has left" in one["detail"]) for one in left] == [("b", True)]
    assert_last_model(server, federation, last_round)


def devices_of(server: httpx.Client, federation: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(server.get(f"{federation}/devices"))["items"]
    return found


def assert_last_model(server: httpx.Client, federation: str, uploads: list[Any]) -> None:
    """The last model is the mean of what was sent, weighted by examples (FedProto, eq. 6)."""
    model = server.get(f"/v1/blobs/{answer(server.get(federation))['model']['sha256']}")
    last = wire.decode(model.content, limit_bytes=1 << 24)
    counts = np.stack([np.asarray(one["counts"], np.float64) for one in uploads])[:, :, None]
    means = np.stack([np.asarray(one["prototypes"], np.float64) for one in uploads])
    assert np.array_equal(np.asarray(last["known"]), [1, 1])
    np.testing.assert_allclose(np.asarray(last["prototypes"]), (counts * means).sum(0) / counts.sum(0), rtol=1e-6)
