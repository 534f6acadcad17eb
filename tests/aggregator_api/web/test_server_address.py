"""What links and QR codes hold: what the operator has set, never what a request's Host claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError

from aggregator_api.auth import api_keys
from aggregator_api.core.errors import UnprocessableError
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web.routes import SUBJECTS, enrolment
from aggregator_api.http.web.routes.enrolment import own_url, server_url
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.seeded import seed
from tests.aggregator_api.web.visitors import Visitor

EVIL = "evil.example"


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "outgoing_address", lambda: "192.168.1.20")


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("address"), aggregation_process=False)
    with TestClient(create_app(settings, Wires)) as client:
        seed(client.runtime, devices=4, rounds=3)
        yield Visitor.logged_in(client, (settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip())


@pytest.mark.parametrize(
    ("set_to", "asked", "expected"),
    [
        ({}, "http://127.0.0.1:8080/", "http://127.0.0.1:8080"),  # it listens there alone: nothing else is known
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8080/", "http://192.168.1.20:8080"),
        ({"host": "0.0.0.0"}, "http://localhost:8080/", "http://192.168.1.20:8080"),
        ({"host": "10.0.0.7", "port": 80}, "http://[::1]:80/", "http://10.0.0.7:80"),
        ({"host": "0.0.0.0", "root_path": "/gaitway"}, "http://127.0.0.1:8080/", "http://192.168.1.20:8080/gaitway"),
        ({"host": "0.0.0.0"}, "http://192.168.1.20:8080/", "http://192.168.1.20:8080"),
        ({"public_url": "https://gaitway.example/"}, "http://127.0.0.1:8080/", "https://gaitway.example"),
        ({"public_url": "https://gaitway.example"}, f"http://{EVIL}/", "https://gaitway.example"),
        ({}, f"http://{EVIL}/", None),
        ({"host": "0.0.0.0"}, f"http://{EVIL}/", None),
        ({"host": "0.0.0.0"}, "http://127.0.0.1.evil.example/", None),
    ],
)
def test_where_devices_are_sent(set_to: dict[str, object], asked: str, expected: str | None) -> None:
    settings = Settings.model_validate(set_to)
    if expected is None:
        with pytest.raises(UnprocessableError, match="public_url"):
            server_url(settings, asked, "")
    else:
        assert server_url(settings, asked, "") == expected


def test_https_wins_over_plain_http(tmp_path: Path) -> None:
    tls = {"tls_cert_file": tmp_path / "c.pem", "tls_key_file": tmp_path / "k.pem"}
    settings = Settings(https_host="0.0.0.0", https_port=8443, **tls)
    assert own_url(settings) == "https://192.168.1.20:8443"
    assert own_url(Settings()) is None


@pytest.mark.parametrize(
    "url", ["gaitway.example", "ftp://a", "https://", "https://a/?q", "https://a b", "https://u:p@a"]
)
def test_a_public_url_is_one(url: str) -> None:
    with pytest.raises(ValidationError, match="base URL"):
        Settings(public_url=url)


def pages() -> list[str]:
    """Every page that can be looked at, with the seeded names in its path."""
    filled = {"{name}": "walks", "{device}": "phone-01", "{number}": "1", "{version}": "1", "{shown}": "now"}
    found = []
    for router in SUBJECTS:
        for route in router.routes:
            if isinstance(route, APIRoute) and "GET" in route.methods and not route.path.endswith("/events"):
                path = route.path
                for part, value in filled.items():
                    path = path.replace(part, value)
                found.append(path)
    return [path for path in found if not path.endswith(("/onnx", "/checkpoint"))]


@pytest.mark.parametrize("path", pages())
def test_no_page_repeats_a_hostile_host(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path, host=EVIL)
    assert EVIL not in answer.text
    assert EVIL not in str(answer.headers)


def test_a_token_is_not_made_for_a_hostile_host(visitor: Visitor) -> None:
    page = "/federations/walks/enrolment"
    before = visitor.get(page).text.count("<tr>")
    fields = {"device": "phone-99", "hours": "1", "csrf": visitor.token(page)}
    answer = visitor.post("/federations/walks/enrolment-tokens", fields, host=EVIL, origin=f"http://{EVIL}")
    assert answer.status_code == 422
    assert "public_url" in answer.text
    assert f"http://{EVIL}" not in answer.text
    assert visitor.get(page).text.count("<tr>") == before
