"""HTTPS without a proxy: by a real client that trusts the authority alone, with keys, and with a new certificate."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import load
from aggregator_api.http.serving import Certificate
from aggregator_api.transport.mqtt.mosquitto.folders import issue_for_server
from tests.live.real_parts import wait_for_port
from tests.ports import free_port


def trusting(folder: Path) -> ssl.SSLContext:
    """A client's context that believes the folder's authority and nobody else."""
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


class Running(NamedTuple):
    """A server process with plain HTTP on loopback without keys, and HTTPS beside it."""

    folder: Path
    http: str
    https: str

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.https, verify=trusting(self.folder), trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("https")
    made = issue_for_server(folder, ["localhost"], days=2)
    http, https = free_port(), free_port()
    lines = {"tls_cert_file": made.certificate, "tls_key_file": made.key, "https_host": "127.0.0.1"}
    text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    (folder / "server.toml").write_text(f"{text}https_port = {https}\n")
    words = ["serve", "--embedded-broker", "--broker-port", str(free_port()), "--port", str(http)]
    places = ["--config", str(folder / "server.toml"), "--data-dir", str(folder / "data")]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "aggregator_api", *words, *places], stdout=out, stderr=out)
    try:
        wait_for_port(https, process, log, within_s=120)
        yield Running(folder, f"http://127.0.0.1:{http}", f"https://localhost:{https}")
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


@pytest.mark.ci
@pytest.mark.service
def test_a_client_that_trusts_the_authority_alone_needs_a_key_as_one_on_this_machine_does(server: Running) -> None:
    key = (server.folder / "data" / "operator.key").read_text().strip()
    with server.client() as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/federations").status_code == 401
        assert client.get("/v1/federations", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        page = client.get("/", headers={"accept": "text/html"})
        assert page.headers["location"].startswith("/login")
        origin = {"origin": server.https, "sec-fetch-site": "same-origin"}
        login = client.post("/login", data={"key": key}, headers=origin)
        assert login.headers["set-cookie"].startswith("__Host-gaitway=")
        assert "Secure" in login.headers["set-cookie"]
        overview = client.get("/", headers={"accept": "text/html"})
        assert overview.status_code == 200
        assert "The certificate of this server (HTTPS) expires in 2 days." in overview.text
    assert httpx.get(f"{server.http}/v1/federations", trust_env=False, timeout=60).status_code == 401


@pytest.mark.ci
@pytest.mark.service
def test_who_does_not_trust_it_and_who_speaks_no_tls_get_nothing(server: Running) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.https}/healthz", trust_env=False, timeout=60)
    port = httpx.URL(server.https).port
    with pytest.raises(httpx.ConnectError, match=r"not valid for '127\.0\.0\.1'"):
        httpx.get(f"https://127.0.0.1:{port}/healthz", verify=trusting(server.folder), trust_env=False, timeout=60)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=60)
    old = trusting(server.folder)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.https}/healthz", verify=old, trust_env=False, timeout=60)


def shown(certificate: Certificate, client: ssl.SSLContext) -> bytes:
    """Shake hands over a pair of sockets; return the certificate that the server's side shows."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with certificate.context.wrap_socket(theirs, server_side=True) as end:
            end.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="localhost") as end:
        found = end.getpeercert(binary_form=True)
        end.send(b".")
    thread.join()
    assert found is not None
    return found


def test_a_renewed_certificate_is_shown_without_a_restart_and_half_of_a_pair_is_not(tmp_path: Path) -> None:
    made = issue_for_server(tmp_path, ["localhost"], days=2)
    certificate, client = Certificate(made.certificate, made.key), trusting(tmp_path)
    before = shown(certificate, client)
    assert not certificate.refresh()
    key = made.key.read_bytes()
    issue_for_server(tmp_path, [], days=3)
    renewed, own_key = made.certificate.read_bytes(), made.key.read_bytes()
    made.key.write_bytes(key)  # as if only the certificate had been copied yet
    assert not certificate.refresh()
    assert shown(certificate, client) == before
    made.key.write_bytes(own_key)
    assert certificate.refresh()
    assert shown(certificate, client) == ssl.PEM_cert_to_DER_cert(renewed.decode()) != before
    made.certificate.unlink()
    assert not certificate.refresh()
    assert shown(certificate, client) != before


@pytest.mark.parametrize("broken", ["none", "another's", "a password"])
def test_files_that_are_no_pair_are_said(tmp_path: Path, broken: str) -> None:
    made = issue_for_server(tmp_path, ["localhost"], days=2)
    if broken == "none":
        made.key.unlink()
    elif broken == "another's":
        made.key.write_bytes(issue_for_server(tmp_path / "other", ["localhost"], days=2).key.read_bytes())
    else:
        locked = subprocess.run(
            ["openssl", "ec", "-in", str(made.key), "-aes128", "-passout", "pass:x"], capture_output=True, check=True
        )
        made.key.write_bytes(locked.stdout)
    with pytest.raises(ConfigError, match="cannot be used for HTTPS"):
        Certificate(made.certificate, made.key)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('tls_cert_file = "a"', "go together"),
        ('tls_key_file = "a"', "go together"),
        ("https_port = 8443", "need a certificate"),
        ('tls_cert_file = "a"\ntls_key_file = "b"\nhttps_port = 8080', "both 8080"),
        ('tls_cert_file = "a"\ntls_key_file = "b"\nhttps_host = "::"', "needs https_port"),
    ],
)
def test_settings_that_do_not_fit_are_said(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "server.toml").write_text(lines)
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "server.toml")


def run(*words: str) -> str:
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_signs_with_the_brokers_authority_and_keeps_the_names_when_it_renews(tmp_path: Path) -> None:
    run("broker-config", "--out", str(tmp_path))
    authority = (tmp_path / "ca.pem").read_bytes()
    said = run("server-certificate", "--out", str(tmp_path), "--host", "gaitway.example", "--host", "192.0.2.7")
    key, written = tmp_path / "server" / "https.key", tmp_path / "server" / "https.pem"
    assert f'tls_key_file = "{key}"' in said
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = written.read_bytes()
    assert "gaitway.example, 192.0.2.7" in run("server-certificate", "--out", str(tmp_path))
    assert written.read_bytes() != before
    assert (tmp_path / "ca.pem").read_bytes() == authority
    text = subprocess.run(
        ["openssl", "verify", "-CAfile", str(tmp_path / "ca.pem"), "-verify_ip", "192.0.2.7", str(written)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert text.returncode == 0, text.stderr


def test_a_new_folder_gets_an_authority_of_its_own_and_a_lost_key_is_said(tmp_path: Path) -> None:
    nameless = CliRunner().invoke(app, ["server-certificate", "--out", str(tmp_path / "new")])
    assert (nameless.exit_code, "--host" in nameless.output) == (2, True)
    out = tmp_path / "own"
    run("server-certificate", "--out", str(out), "--host", "localhost")
    assert stat.S_IMODE((out / "authority" / "ca.key").stat().st_mode) == 0o600
    assert {path.name for path in out.iterdir()} == {"authority", "ca.pem", "server"}
    (out / "authority" / "ca.key").unlink()
    lost = CliRunner().invoke(app, ["server-certificate", "--out", str(out), "--host", "localhost"])
    assert (lost.exit_code, "bring" in lost.output) == (2, True)
