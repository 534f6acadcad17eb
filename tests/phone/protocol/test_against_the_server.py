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
import torch

from federation import wire
from federation.aggregation.ridge_numpy import Damping, FixedSums, solve, solve_mean, sums_of, travelling
from federation.protocol.enrolment_uri import EnrolmentUri
from phone import APP
from tests.live.real_parts import wait_for_port
from tests.phone.test_javascript import HERE, why_not
from tests.ports import free_port
from tests.repository.imports import REPOSITORY

pytestmark = [
    pytest.mark.service,
    pytest.mark.ci,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "node is here"),
]

COSINES, RIDGE = 17, 1e-2
PLAN = {
    "labels": ["still", "walking"],
    "model": {"name": "har_features", "options": {"cosines": COSINES}},
    "method": {"name": "analytic", "ridge": RIDGE, "rotations": 1, "sensor_loss": True},
    "training": {"classes": 2, "feature_dim": 183 + COSINES},
    "publication": {"interval_s": 0},
    "data": {"normalization": "none"},
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


def test_one_phone_after_another_in_one_federation(server: httpx.Client) -> None:
    """What the first sent is not forgotten when the second sends; sent again it is replaced, and withdrawn it is gone.

    One waits for the operator, both are stopped within an upload, and an answered update is answered alike again.
    """
    answer(server.post("/v1/federations", json={"name": "walk", "plan": PLAN}))
    federation = "/v1/federations/walk"
    links = []
    for device, auto_approve in (("a", True), ("b", False)):
        wanted = {"device": device, "auto_approve": auto_approve}
        made = answer(server.post(f"{federation}/enrolment-tokens", json=wanted))
        links.append(str(EnrolmentUri(str(server.base_url), "walk", device, made["token"])))
    ort = APP / "vendor" / "ort"
    has_runtime = (ort / "ort.wasm.min.mjs").is_file()
    request = {"links": links, "ort": str(ort) if has_runtime else None, "dim": 183 + COSINES}
    command = ["node", "--import", str(HERE / "register.mjs"), str(HERE / "protocol" / "phones.mjs")]
    phones = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert phones.stdin is not None
    phones.stdin.write(json.dumps(request).encode())
    phones.stdin.close()
    phones.stdin = None
    try:
        pending = f"{federation}/devices?enrolment=pending"
        until(lambda: phones.poll() is not None or answer(server.get(pending))["items"])
        if phones.poll() is None:
            answer(server.post(f"{federation}/devices/b/approve"))
        out, error = phones.communicate(timeout=WITHIN_S)
    finally:
        phones.kill()
    assert phones.returncode == 0, error.decode()[-4000:]
    told = json.loads(out)
    sent = {phone["device"]: [upload_of(phone, begun) for begun in begun_of(phone)] for phone in told}
    for phone in told:
        assert phone["stopped"]
        assert phone["waited"] == (phone["device"] == "b")
        assert [(one["withdraw"], one["answer"]) for one in phone["uploads"]] == [
            (False, "accepted"), (phone["device"] == "b", "accepted")
        ]  # fmt: skip
        assert phone["again"] == {"status": "accepted", "same": True}
        assert len(set(phone["begun"])) == 2 < len(phone["begun"]), "the stopped upload was begun again, unchanged"
        assert phone["adoption"]["round"] == 4
        assert not [url for url in phone["urls"] if "gw" in url or "?" in url], "a key in a URL"
        first, second = begun_of(phone)
        assert first["sequence"] < second["sequence"] == phone["sequence"]
        figures = answer(server.get(f"{federation}/metrics?limit=200"))["items"]
        mine = {one["name"] for one in figures if one["device"] == phone["device"]}
        assert first["metrics"].keys() <= mine
    assert_versions(server, federation, sent)
    for phone in told:
        assert_heads(last_broadcast(server, federation), phone["solved"], sent[phone["device"]][-1])
    devices = {one["name"]: one for one in devices_of(server, federation)}
    assert devices["a"]["adoption"] == told[0]["adoption"]["answer"]
    assert told[-1]["untold"] == ""
    left = until(lambda: [one for one in devices_of(server, federation) if one["state"] == "offline" and one["detail"]])
    assert [(one["name"], "its owner has left" in one["detail"]) for one in left] == [("b", True)]


def begun_of(phone: dict[str, Any]) -> list[dict[str, Any]]:
    """The manifests that a phone has sent, in their order."""
    bodies = [base64.b64decode(one).partition(b"\n")[2] for one in dict.fromkeys(phone["begun"])]
    return [json.loads(body) for body in bodies]


def upload_of(phone: dict[str, Any], manifest: dict[str, Any]) -> Any:
    """The sums of one of a phone's updates; nothing of a withdrawal."""
    if manifest.get("withdraw"):
        return None
    data = b"".join(map(base64.b64decode, phone["chunks"][manifest["update_id"]]))
    assert wire.digest(data) == manifest["sha256"]
    return wire.decode(data, limit_bytes=1 << 20)


def devices_of(server: httpx.Client, federation: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(server.get(f"{federation}/devices"))["items"]
    return found


def broadcast_of(server: httpx.Client, version: dict[str, Any]) -> Any:
    return wire.decode(server.get(version["url"]).content, limit_bytes=1 << 24)


def last_broadcast(server: httpx.Client, federation: str) -> Any:
    return broadcast_of(server, answer(server.get(federation))["model"])


def assert_versions(server: httpx.Client, federation: str, sent: dict[str, list[Any]]) -> None:
    """Each version is the exact sum of what the phones had sent by then."""
    parts = [[sent["a"][0]], [sent["a"][0], sent["b"][0]], [sent["a"][1], sent["b"][0]], [sent["a"][1]]]
    versions = {one["version"]: one for one in answer(server.get(f"{federation}/models"))["items"]}
    assert sorted(versions) == [0, 1, 2, 3, 4]
    for version, expected in enumerate(parts, 1):
        sums = broadcast_of(server, versions[version])["sums"]
        assert int(sums["clients"]) == len(expected)
        for name in ("gram", "moment"):
            assert torch.equal(sums[name], sum(part[name].long() for part in expected)), (version, name)


def assert_heads(broadcast: Any, solved: dict[str, Any], sent: Any) -> None:
    """A phone's sums are those of its features bit for bit, and its heads those that Python solves of them."""
    features = np.frombuffer(base64.b64decode(solved["embeddings"]), "<f4").reshape(len(solved["y"]), -1)
    assert len(solved["y"]) == 3 * solved["windows"]  # each window, turned, and without the gyroscope
    own = travelling(sums_of(features, np.array(solved["y"]), 2, clip=4.0))
    if sent is not None:
        assert np.array_equal(sent["gram"], own.gram)
        assert np.array_equal(sent["moment"], own.moment)
    shared = FixedSums(*(np.asarray(broadcast["sums"][name]) for name in ("gram", "moment")))
    columns = solved["columns"] or None
    expected = {"shared": (None, None), "personalized": (own, None)}
    if columns:
        expected |= {"shared_any_orientation": (None, columns), "personalized_any_orientation": (own, columns)}
    assert {one["head"] for one in solved["heads"]} == set(expected)
    for one in solved["heads"]:
        mine, used = expected[one["head"]]
        head = (
            solve(shared, mine, 1, Damping(RIDGE), used)
            if used
            else solve_mean(shared, mine, 1, Damping(RIDGE), columns or (), 0.33)
        )
        np.testing.assert_allclose(numbers(one["weight"]), head.weight.reshape(-1), atol=1e-6)
        np.testing.assert_allclose(numbers(one["bias"]), head.bias, atol=1e-6)
        if one["head"] == "shared":  # which the server has solved as well
            np.testing.assert_allclose(
                numbers(one["weight"]), broadcast["params"]["head.weight"].reshape(-1), atol=1e-6
            )


def numbers(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<f8")
