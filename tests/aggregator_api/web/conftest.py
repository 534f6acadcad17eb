"""A server with something on every page, and browsers' sessions at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.seeded import seed
from tests.aggregator_api.web.visitors import Visitor, key_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with federations, rounds, devices and a rollout; `visit` opens sessions at it."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("pages"), aggregation_process=False)
    with TestClient(create_app(settings, Wires)) as client:
        seed(client.runtime)
        yield client


@pytest.fixture
def operator(server: TestClient) -> Visitor:
    """A browser that was logged in with an operator's key."""
    return Visitor.logged_in(server, (server.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip())


@pytest.fixture
def reader(server: TestClient) -> Visitor:
    """A browser that was logged in with a key that reads."""
    return Visitor.logged_in(server, key_of(server, ["read"]))
