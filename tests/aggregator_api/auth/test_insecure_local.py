"""`--insecure-local` lets in who sits at the machine, and nobody whom a proxy or a web page speaks for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from typer.testing import CliRunner

from aggregator_api.app import create_app
from aggregator_api.auth.insecure_local import names_loopback, refusal
from aggregator_api.cli.app import app as cli
from aggregator_api.errors import ConfigError
from aggregator_api.settings import Settings, load
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient, problem


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("local"), insecure_local=True), Wires)
    with TestClient(app) as found:
        yield found


def test_a_program_on_this_machine_needs_no_key(client: TestClient) -> None:
    assert client.get("/v1/federations").status_code == 200
    for host in ("127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.0.0.2"):
        assert client.get("/v1/federations", headers={"Host": host}).status_code == 200
    assert client.get("/v1/federations", headers={"Origin": "http://localhost:8080"}).status_code == 200
    assert "unknown" in problem(client.get("/v1/federations", headers={"Authorization": "Bearer wrong"}), 401)["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "203.0.113.9"},
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Prefix": "/"},
        {"X-Real-IP": "203.0.113.9"},
        {"Forwarded": "for=203.0.113.9"},
        {"Via": "1.1 proxy"},
        {"Host": "evil.example"},
        {"Host": "evil@127.0.0.1"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://evil@127.0.0.1"},
        {"Origin": "file://"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/federations", "/healthz"])
def test_what_a_proxy_or_a_web_page_sends_is_refused_in_words(
    client: TestClient, headers: dict[str, str], path: str
) -> None:
    said = problem(client.get(path, headers=headers), 403)["detail"]
    assert "--insecure-local" in said


def test_another_peer_an_old_protocol_and_two_hosts_are_refused() -> None:
    fine = [(b"host", b"127.0.0.1")]
    assert refusal("127.0.0.1", Headers(raw=fine), "1.1") is None
    assert "192.0.2.1" in str(refusal("192.0.2.1", Headers(raw=fine), "1.1"))
    assert "HTTP/1.0" in str(refusal("127.0.0.1", Headers(raw=fine), "1.0"))
    assert "host" in str(refusal("127.0.0.1", Headers(raw=[*fine, (b"host", b"evil.example")]), "1.1"))
    assert "(none)" in str(refusal("127.0.0.1", Headers(raw=[]), "1.1"))


@pytest.mark.parametrize("netloc", ["", ":80", "127.0.0.1:", "127.0.0.1:123456", "127.1", "0.0.0.0", "localhost "])
def test_what_does_not_name_this_machine(netloc: str) -> None:
    assert not names_loopback(netloc)


def test_it_is_refused_on_any_address_that_others_reach(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        with pytest.raises(ConfigError, match=r"insecure_local lets anybody in who reaches"):
            load(insecure_local=True, host=host)
    with pytest.raises(ConfigError, match=r"insecure_local takes nothing from proxies"):
        load(insecure_local=True, trusted_proxies="127.0.0.1")
    words = ["serve", "--insecure-local", "--host", "0.0.0.0", "--data-dir", str(tmp_path / "none")]
    answer = CliRunner().invoke(cli, words)
    assert (answer.exit_code, "listen on 127.0.0.1" in answer.stderr) == (2, True), answer.output
    assert not (tmp_path / "none").exists()


def test_the_log_warns_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for insecure_local in (True, False):
        caplog.clear()
        with TestClient(create_app(Settings(data_dir=tmp_path, insecure_local=insecure_local), Wires)):
            pass
        warned = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert ["insecure_local" in record.message for record in warned] == [True] * insecure_local


def test_proxies_are_given_as_a_list_or_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAITWAY_TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8,2001:db8::/32")
    assert [str(network) for network in load().trusted_proxies] == ["127.0.0.1/32", "10.0.0.0/8", "2001:db8::/32"]
    monkeypatch.setenv("GAITWAY_TRUSTED_PROXIES", "nginx")
    with pytest.raises(ConfigError, match=r"^setting trusted_proxies.0: .*nginx"):
        load()
