"""What a browser gets: Swagger UI from this server alone, and headers that forbid the rest."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.api.middleware.headers import DOCS, NOTHING
from aggregator_api.http.app import create_app
from aggregator_api.http.web.phone import DOCS_PATHS, SWAGGER
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(data_dir=tmp_path_factory.mktemp("web")), Wires)) as found:
        yield found


def test_the_vendored_files_are_those_of_the_release() -> None:
    listed = dict(reversed(line.split()) for line in (SWAGGER / "SHA256SUMS").read_text().splitlines()[1:])
    assert set(listed) == {"LICENSE", "NOTICE", "favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css"}
    for name, expected in listed.items():
        assert hashlib.sha256((SWAGGER / name).read_bytes()).hexdigest() == expected, name


def test_the_page_loads_only_files_of_this_server_and_pins_their_hashes(client: TestClient) -> None:
    page = client.get("/docs").text
    loaded = dict(re.findall(r'(?:src|href)="([^"]+\.(?:js|css))" integrity="sha384-([^"]+)"', page))
    assert len(loaded) == len(re.findall(r"<script|stylesheet", page)) == 3
    for path, expected in loaded.items():
        answer = client.get(f"/{path}")
        assert answer.status_code == 200
        assert base64.b64encode(hashlib.sha384(answer.content).digest()).decode() == expected
    assert "://" not in page
    assert "<script>" not in page
    assert client.get("/docs/favicon-32x32.png").headers["content-type"] == "image/png"
    for gone in ("/redoc", "/docs/oauth2-redirect", "/docs/SHA256SUMS", "/docs/%2e%2e/files.py"):
        assert client.get(gone).status_code in (401, 404)


@pytest.mark.parametrize("path", [*DOCS_PATHS, "/healthz", "/readyz", "/openapi.json", "/v1/federations", "/nothing"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == (DOCS if path == "/docs" else NOTHING)
    assert headers["cache-control"] == ("no-cache" if path in DOCS_PATHS else "no-store")
    assert "server" not in headers


def test_an_answer_with_a_secret_is_kept_nowhere(client: TestClient, tmp_path: Path) -> None:
    key = (client.runtime.settings.data_dir / "operator.key").read_text().strip()
    body = {"name": "x", "scopes": ["read"]}
    answer = client.post("/v1/keys", json=body, headers={"Authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
