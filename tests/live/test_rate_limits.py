"""A fleet behind one address, or with one key, is served in turn: whoever is told 429 waits and asks again."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from edge_agent.storage.credentials import Credentials, write_credentials
from edge_agent.transport.downloads import BlobDownloader
from edge_agent.transport.enrolment import Applicant, EnrolmentAnswer, enrol
from edge_agent.transport.renewal import CredentialRenewal
from federation.protocol.messages import BlobPointer
from tests.aggregator_api.device_http.enrolled_devices import Server
from tests.aggregator_api.generated_devices import FEDERATION
from tests.edge_agent.factories import make_config

pytestmark = pytest.mark.service

Result = TypeVar("Result")
RATE_PER_S, DEVICES = 2, 12
"""Requests of one key, or one address; twice as many at once."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path / "server", key_requests_per_s=RATE_PER_S, address_requests_per_s=RATE_PER_S)
    yield found
    found.stop()


def all_at_once(work: Callable[[int], Result]) -> list[Result]:
    with ThreadPoolExecutor(DEVICES) as fleet:
        return list(fleet.map(work, range(DEVICES)))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note for how long devices wait because the server takes too many requests."""
    noted, sleep = list[float](), time.sleep

    def waiting(seconds: float) -> None:
        noted.append(seconds)
        sleep(seconds)

    monkeypatch.setattr("edge_agent.transport.server_connection.time.sleep", waiting)
    return noted


def test_devices_with_one_key_all_get_their_model(server: Server, tmp_path: Path, waits: list[float]) -> None:
    key = server.operator_key()
    headers = {"Authorization": f"Bearer {key}"}
    listed = httpx.get(f"{server.url}/v1/federations/{FEDERATION}/models", headers=headers, timeout=60).json()
    version = listed["items"][0]
    pointer = BlobPointer(sha256=version["sha256"], size=version["size"], url=version["url"])

    def download(number: int) -> bytes:
        folder = tmp_path / f"d{number}"
        server_key = base64.b64encode(server.runtime.identity.public_key).decode()
        given = {"api_key": key, "broker": {"username": "u", "password": "p"}, "server_key": server_key}
        write_credentials(folder, Credentials.model_validate(given))
        renewal = CredentialRenewal(make_config(folder))
        return BlobDownloader(folder / "blobs", server.url, 60.0, renewal).fetch(pointer).read_bytes()

    assert {len(data) for data in all_at_once(download)} == {pointer.size}
    assert waits


def test_devices_behind_one_address_all_enrol(server: Server, tmp_path: Path, waits: list[float]) -> None:
    tokens = [server.token(f"d{number}") for number in range(DEVICES)]

    def enrolled(number: int) -> EnrolmentAnswer:
        who = Applicant(server.url, FEDERATION, f"d{number}", tmp_path / f"d{number}", 60.0)
        return enrol(who, tokens[number])

    answers = all_at_once(enrolled)
    assert [answer.state for answer in answers] == ["approved"] * DEVICES
    assert waits
