"""A server whose certificate only an authority of one's own has signed: `[server] ca_file` lets every request through.

The server is real TLS on a port; the system's authorities do not know it.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from aggregator_api.transport.mqtt.mosquitto import certificates
from aggregator_api.transport.mqtt.mosquitto.certificates import issue, make_authority
from edge_agent.config.settings import load
from edge_agent.doctor.network import check_server
from edge_agent.errors import ConfigError, DownloadError, EnrolError
from edge_agent.transport.downloads import BlobDownloader
from edge_agent.transport.enrolment import Applicant, enrol
from edge_agent.transport.server_connection import ServerConnection
from federation.protocol.messages import BlobPointer
from federation.protocol.signing import pinned_key

BLOB = b"weights"
SHA256 = hashlib.sha256(BLOB).hexdigest()
TOKEN = "gwe_" + "A" * 43 + "_" + "b" * 32


class Server(NamedTuple):
    """Where it is, and the authority that signed its certificate."""

    url: str
    ca_file: Path


class Handler(BaseHTTPRequestHandler):
    """Answers every GET with the blob, and no POST as the server would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BLOB)))
        self.end_headers()
        self.wfile.write(BLOB)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("tls")) as server:
        yield server


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serve over TLS with a certificate of an authority that is made for it."""
    authority = make_authority("Test")
    mine = issue(authority, ["127.0.0.1"], days=2)
    for name, data in (("ca.pem", authority.certificate), ("server.pem", mine.certificate), ("server.key", mine.key)):
        (folder / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.socket = context.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield Server(f"https://127.0.0.1:{made.server_address[1]}", folder / "ca.pem")
    made.shutdown()
    made.server_close()
    thread.join()


def message(url: str, ca_file: Path | None, folder: Path) -> str:
    """Ask as the link over HTTP does."""
    connection = ServerConnection(url, 10, ca_file)
    try:
        return connection.request("GET", "/", None, {}).body.decode()
    except OSError as error:
        return str(error)
    finally:
        connection.close()


def download(url: str, ca_file: Path | None, folder: Path) -> str:
    """Fetch a blob as a device does."""
    pointer = BlobPointer(sha256=SHA256, size=len(BLOB), url=f"/v1/blobs/{SHA256}")
    try:
        return BlobDownloader(folder, url, 10, ca_file=ca_file).fetch(pointer).read_text()
    except DownloadError as error:
        return str(error)


def enrolment(url: str, ca_file: Path | None, folder: Path) -> str:
    """Show a token, which this server refuses."""
    assert pinned_key(TOKEN)
    try:
        enrol(Applicant(url, "demo", "d1", folder, 10, ca_file), TOKEN)
    except EnrolError as error:
        return str(error)
    raise AssertionError


WAYS: dict[Callable[[str, Path | None, Path], str], str] = {
    message: BLOB.decode(),
    download: BLOB.decode(),
    enrolment: "the server refuses (403)",
}


@pytest.mark.parametrize("way", WAYS)
def test_only_who_knows_the_authority_believes_the_server(
    way: Callable[[str, Path | None, Path], str], server: Server, tmp_path: Path
) -> None:
    assert WAYS[way] in way(server.url, server.ca_file, tmp_path)
    (tmp_path / "other.pem").write_bytes(make_authority("Other").certificate)
    for ca_file in (None, tmp_path / "other.pem"):
        assert "certificate verify failed" in way(server.url, ca_file, tmp_path / f"{ca_file is None}")


def test_an_authority_that_cannot_be_read_is_said(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[server\] ca_file .*none.pem cannot be read"):
        message(server.url, tmp_path / "none.pem", tmp_path)


def test_the_doctor_knows_the_configs_authority_which_needs_https(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    text = '[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "data"\n[server]\n'
    config.write_text(f'{text}url = "{server.url}"\nca_file = "{server.ca_file}"\n')
    found = {one.check: one.level for one in check_server(load(config, {}))}
    assert found["server: TLS"] != "failure"
    assert found["server"] == "ok"
    config.write_text(f'{text}url = "http://127.0.0.1"\nca_file = "{server.ca_file}"\n')
    with pytest.raises(ConfigError, match="ca_file is set but url is http:"):
        load(config, {})


def test_a_certificate_that_is_not_valid_yet_makes_the_doctor_look_at_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on boards without a battery, whose clock is unset after power-up (issue 1059 of ruuvi/ruuvi.gateway_esp.c)."""
    monkeypatch.setattr(certificates, "EARLY", timedelta(days=-1))
    with serving(tmp_path) as server:
        config = tmp_path / "agent.toml"
        text = '[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "data"\n[server]\n'
        config.write_text(f'{text}url = "{server.url}"\nca_file = "{server.ca_file}"\n')
        (found,) = [one for one in check_server(load(config, {})) if one.check == "server: TLS"]
    assert "certificate is not yet valid" in found.message
    assert "this device's clock says" in found.advice
