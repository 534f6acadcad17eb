"""Where a device's broker is: its config says it, or the server said it at the enrolment; nothing is guessed."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.config.brokers import BrokerPlace
from edge_agent.config.settings import Config, load
from edge_agent.errors import ConfigError
from edge_agent.storage.broker_address import broker_place, is_loopback, require_place, unsafe_address
from edge_agent.storage.credentials import BrokerAddress, BrokerLogin, Credentials, write_credentials
from edge_agent.transport.fallback_link import open_link
from edge_agent.transport.http_link import HttpLink
from edge_agent.transport.renewal import CredentialRenewal

KEY = "A" * 43 + "="


def config_of(folder: Path, more: str = "", url: str = "http://127.0.0.1:9") -> Config:
    path = folder / "agent.toml"
    me = '[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "data"\n'
    path.write_text(f'{me}[server]\nurl = "{url}"\n{more}')
    (folder / "data").mkdir(exist_ok=True)
    return load(path, {})


def enrolled(folder: Path, host: str, port: int = 8883, tls: bool = True) -> None:
    login = BrokerLogin(username="demo~d1", password="secret", address=BrokerAddress(host=host, port=port, tls=tls))
    write_credentials(folder / "data", Credentials(api_key="k", broker=login, server_key=KEY))


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every address that anything in this process tries to connect to; nobody is reached."""
    tried: list[Any] = []

    def refuse(_: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError("a test reaches nobody")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


def test_a_config_of_only_the_servers_url_connects_to_no_broker_and_says_what_to_do(
    tmp_path: Path, connections: list[Any]
) -> None:
    config_of(tmp_path)
    result = CliRunner().invoke(app, ["run", "--config", str(tmp_path / "agent.toml"), "--once"])
    assert result.exit_code != 0
    assert connections == []
    words = " ".join(result.output.split())
    for part in ("[broker] host is not set", 'transport = "http"', "public_broker_url"):
        assert part in words, words


@pytest.mark.parametrize("transport", ["auto", "http"])
def test_without_a_known_broker_messages_go_to_the_server_where_the_transport_allows_it(
    tmp_path: Path, transport: str
) -> None:
    config = config_of(tmp_path, f'transport = "{transport}"\n')
    link = open_link(config, CredentialRenewal(config), post=lambda _: None, verify=lambda _, payload: payload)
    assert isinstance(link, HttpLink)


def test_the_place_is_the_configs_or_else_what_the_server_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no broker address configured"):
        require_place(config_of(tmp_path))
    enrolled(tmp_path, "mqtt.example")
    ca = '[broker]\nca_file = "ca.pem"\n'
    assert broker_place(config_of(tmp_path, ca)) == BrokerPlace("mqtt.example", 8883, True, tmp_path / "ca.pem")
    assert broker_place(config_of(tmp_path, '[broker]\nhost = "own"\n')) == BrokerPlace("own", 1883)
    assert broker_place(config_of(tmp_path, '[broker]\nhost = "own"\ntls = true\n')) == BrokerPlace("own", 8883, True)


def test_a_port_without_a_host_is_half_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port is 1883, but there is no host"):
        config_of(tmp_path, "[broker]\nport = 1883\n")


def test_a_broker_on_loopback_is_nobodys_business_on_another_machine(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        enrolled(tmp_path, host, 1883, tls=False)
        assert broker_place(config_of(tmp_path)) == BrokerPlace(host, 1883)
        for url in ("http://gaitway.example", "https://gaitway.example"):
            assert broker_place(config_of(tmp_path, url=url)) is None


def test_who_enrolled_over_tls_is_not_led_to_a_broker_without(tmp_path: Path) -> None:
    enrolled(tmp_path, "evil.example", 1883, tls=False)
    with pytest.raises(ConfigError, match="without TLS"):
        require_place(config_of(tmp_path, url="https://gaitway.example"))
    with pytest.raises(ConfigError, match="tls is set"):
        require_place(config_of(tmp_path, "[broker]\ntls = true\n"))


HOSTS = st.sampled_from(["127.0.0.1", "::1", "localhost", "10.0.0.1", "mqtt.example", "127.example", "localhost.evil"])


@given(HOSTS, HOSTS, st.booleans(), st.booleans())
def test_an_address_is_refused_exactly_where_it_takes_tls_away(server: str, host: str, tls: bool, secure: bool) -> None:
    name = f"[{server}]" if ":" in server else server
    refused = unsafe_address(f"{'https' if secure else 'http'}://{name}", BrokerAddress(host=host, port=1, tls=tls))
    near = host in ("127.0.0.1", "::1", "localhost")
    assert is_loopback(host) is near
    assert bool(refused) is (secure and not tls and not near)


@pytest.mark.parametrize("host", ["", "a b", "mqtt://x", "x/y", "user@host", "h" * 254, 7])
def test_no_other_text_than_a_host_is_taken_from_the_server(host: Any) -> None:
    said = {"username": "u", "password": "p", "address": {"host": host, "port": 1, "tls": True}}
    with pytest.raises(ValueError, match="host"):
        BrokerLogin.model_validate_json(json.dumps(said))
