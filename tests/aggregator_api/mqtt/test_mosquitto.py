"""What broker-config writes: certificates that a TLS library accepts, secrets that others cannot read, rules."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from pathlib import Path, PurePosixPath

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import load
from aggregator_api.transport.mqtt.mosquitto import folders, roles
from aggregator_api.transport.mqtt.mosquitto.certificates import issue, make_authority
from federation.errors import WireError
from federation.protocol import topics


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["broker-config", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_certificate_names_every_host_and_is_signed_by_the_authority() -> None:
    authority = make_authority("a")
    pair = issue(authority, ["mqtt.example.org", "10.0.0.7", "::1"], days=30)
    parent, child = (x509.load_pem_x509_certificate(each.certificate) for each in (authority, pair))
    child.verify_directly_issued_by(parent)
    names = child.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["mqtt.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
    usage = child.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not child.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    life = child.not_valid_after_utc - child.not_valid_before_utc
    assert life.days == 30
    limits = parent.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)


@pytest.mark.parametrize(("hosts", "said"), [([], "at least one host"), (["bücher"], "neither an address")])
def test_a_host_that_no_certificate_can_name_is_refused(hosts: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        issue(make_authority("a"), hosts, days=1)


def test_secrets_are_for_their_owner_alone_and_the_authority_stays_with_the_operator(tmp_path: Path) -> None:
    run("--out", str(tmp_path), "--host", "localhost")
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    secret = {name for name, mode in modes.items() if mode == 0o600}
    assert secret == {
        "authority/ca.key",
        "broker/server.key",
        "broker/data/dynamic-security.json",
        "server/mqtt_password",
        "server/broker_admin_password",
        "server/server.toml",
    }
    assert set(modes) - secret == {
        "ca.pem",
        "broker/ca.pem",
        "server/ca.pem",
        "broker/server.pem",
        "broker/mosquitto.conf",
    }
    folder_modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
    assert set(folder_modes.values()) == {0o700}


def test_the_server_reads_the_settings_that_were_written(tmp_path: Path) -> None:
    run("--out", str(tmp_path), "--host", "mqtt.example.org", "--port", "9883")
    settings = load(tmp_path / "server" / "server.toml")
    assert (settings.broker_host, settings.broker_port) == ("mqtt.example.org", 9883)
    assert settings.mqtt_login.ca_file == tmp_path / "server" / "ca.pem"
    admin = settings.broker_admin_login
    assert admin is not None
    assert admin.username == roles.ADMIN_ROLE
    assert len({settings.mqtt_login.password, admin.password}) == 2
    described = json.loads((tmp_path / "broker" / "data" / "dynamic-security.json").read_text())
    for login in (settings.mqtt_login, admin):
        (client,) = [each for each in described["clients"] if each["username"] == login.username]
        expected = hashlib.pbkdf2_hmac(
            "sha512", str(login.password).encode(), base64.b64decode(client["salt"]), client["iterations"]
        )
        assert base64.b64decode(client["password"]) == expected
        assert str(login.password) not in json.dumps(described)


def test_places_in_the_files_are_those_of_the_containers(tmp_path: Path) -> None:
    run("--out", str(tmp_path), "--broker-dir", "/mosquitto", "--server-dir", "/etc/gaitway", "--user", "mosquitto")
    text = (tmp_path / "broker" / "mosquitto.conf").read_text()
    assert str(tmp_path) not in text
    assert "user mosquitto\n" in text
    assert "keyfile /mosquitto/server.key\n" in text
    assert "allow_anonymous false\n" in text
    assert text.count("\nlistener ") == 1
    assert str(tmp_path) not in (tmp_path / "server" / "server.toml").read_text()


def test_a_second_run_overwrites_nothing_and_renew_replaces_only_the_certificate(tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = CliRunner().invoke(app, ["broker-config", "--out", str(tmp_path)])
    assert again.exit_code == 2
    assert "--renew" in again.output
    assert {path: path.read_bytes() for path in before} == before
    run("--out", str(tmp_path), "--renew", "--host", "other.example.org")
    changed = {path.name for path, data in before.items() if path.read_bytes() != data}
    assert changed == {"server.pem", "server.key"}
    parent = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    x509.load_pem_x509_certificate((tmp_path / "broker" / "server.pem").read_bytes()).verify_directly_issued_by(parent)


def test_renewing_without_an_installation_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no authority to renew with"):
        folders.renew(folders.Installation(tmp_path, plugin=PurePosixPath("/p")))


def test_a_device_may_publish_two_things_and_hear_five() -> None:
    rules = {(rule["acltype"], rule["topic"]) for rule in roles.device_role("f", "d")}
    own = "gaitway/v1/f/devices/d"
    assert rules == {
        ("publishClientSend", f"{own}/status"),
        ("publishClientSend", f"{own}/update/#"),
        *(
            (kind, topic)
            for kind in ("subscribeLiteral", "publishClientReceive")
            for topic in (topics.announce("f"), f"{own}/invitation", f"{own}/offer", f"{own}/ack", f"{own}/notice")
        ),
    }


@pytest.mark.parametrize("device", ["+", "#", "a/b", "", "a" * 65])
def test_a_name_with_a_wildcard_gets_no_role(device: str) -> None:
    with pytest.raises(WireError):
        roles.device_role("f", device)
