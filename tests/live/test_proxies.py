"""A real server behind real proxies: nobody is an operator without a key, and addresses are the clients' own."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.live.real_parts import SYSTEM, free_port, wait_for_port

pytestmark = [pytest.mark.ci, pytest.mark.service]

NAMES = ("127.0.0.1", "localhost", "evil@127.0.0.1", "gaitway.example")
UPSTREAM_1_1 = "proxy_http_version 1.1; proxy_set_header Connection '';"
"""What later versions send by themselves; the one here sends HTTP/1.0 unless it is told."""
ROUTES = {
    "proxy_pass alone": "",
    "with Host": "proxy_set_header Host $http_host;",
    "with X-Forwarded-Proto alone": "proxy_set_header X-Forwarded-Proto $scheme;",
    "of nginx 1.29.7 and later": UPSTREAM_1_1,
    "that hides itself": f"{UPSTREAM_1_1} proxy_set_header Host 127.0.0.1:8080; proxy_set_header Via ''; "
    "proxy_set_header X-Forwarded-For ''; proxy_set_header X-Forwarded-Proto ''; proxy_set_header Origin '';",
}
CLIENT = "127.0.0.5"
"""An address of this machine that no proxy has."""


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            wait_for_port(port, process, log, within_s=120)
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """A server's port and folder; its broker is away, which is no matter here."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    (folder / "server.toml").write_text('trusted_proxies = ["127.0.0.1"]\n')
    words = ["serve", "--config", "server.toml", "--port", str(port), "--broker-port", str(free_port())]
    command = [sys.executable, "-m", "aggregator_api", *words, "--data-dir", str(folder / "data")]
    command[command.index("server.toml")] = str(folder / "server.toml")
    with running(command, port, folder / "server.log"):
        yield port, folder / "data"


def ask(port: int, path: str, *, tls: bool = False, **headers: str) -> tuple[int, Any]:
    """POST a new operator's key, or GET another path; return status and answer."""
    where, source = ("127.0.0.1", port), (CLIENT, 0)
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        raw = socket.create_connection(where, 20, source)
        connection = http.client.HTTPConnection(*where)
        connection.sock = context.wrap_socket(raw, server_hostname="gaitway.example")
    else:
        connection = http.client.HTTPConnection(*where, timeout=20, source_address=source)
    posts = path == "/v1/keys"
    body = json.dumps({"name": "mine", "scopes": ["operator"]}) if posts else None
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST" if posts else "GET", path, body, {"Content-Type": "application/json", **given})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if "json" in answer.headers.get("content-type", "") else text


def refused(port: int, *, tls: bool = False) -> None:
    """Nobody makes an operator's key here without one, whatever it calls this machine."""
    for name in NAMES:
        for more in ({}, {"X_Forwarded_For": "127.0.0.1"}, {"X_Forwarded_Proto": "https"}):
            status, answer = ask(port, "/v1/keys", tls=tls, Host=name, **more)
            # nginx takes no name with an @ in it, and Caddy answers with nothing to a name that is not its own
            assert status in (400, 401) or not answer, (name, more, answer)


def test_the_server_itself_asks_for_a_key_under_every_name(server: tuple[int, Path]) -> None:
    refused(server[0])


def nginx() -> str:
    found = shutil.which("nginx", path=SYSTEM)
    if found is None:
        pytest.skip("there is no nginx on this machine")
    return found


def nginx_conf(folder: Path, servers: str) -> list[str]:
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in temporary)
    user = "user root;" if Path("/").owner() == "root" and folder.owner() == "root" else ""
    conf = folder / "nginx.conf"
    conf.write_text(
        f"daemon off; {user} pid {folder}/pid; error_log stderr warn; events {{}}\n"
        f"http {{ access_log off; {paths}\n{servers}\n}}\n"
    )
    return [nginx(), "-c", str(conf), "-p", str(folder), "-e", "stderr"]


def test_behind_plain_nginx_nobody_is_an_operator_without_a_key(server: tuple[int, Path], tmp_path: Path) -> None:
    ports = {route: free_port() for route in ROUTES}
    upstream = f"http://127.0.0.1:{server[0]}"
    servers = "\n".join(
        f"server {{ listen 127.0.0.1:{port}; location / {{ {ROUTES[route]} proxy_pass {upstream}; }} }}"
        for route, port in ports.items()
    )
    with running(nginx_conf(tmp_path, servers), ports["proxy_pass alone"], tmp_path / "nginx.log"):
        for port in ports.values():
            refused(port)
            for path in ("/v1/federations", "/v1/keys", "/metrics", "/v1/audit", f"/v1/blobs/{'0' * 64}"):
                assert ask(port, path)[0] == 401, path
            status, page = ask(port, "/", Accept="text/html")
            assert (status, b"Needs attention" in page) == (303, False)
            assert ask(port, "/healthz")[0] == 200


def certificate(folder: Path) -> None:
    subject = ["-subj", "/CN=gaitway.example", "-addext", "subjectAltName=DNS:gaitway.example"]
    out = ["-keyout", str(folder / "gaitway.key"), "-out", str(folder / "gaitway.pem")]
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run(["openssl", *made, *subject, *out], check=True, capture_output=True)


def documented_nginx(folder: Path, port: int, upstream: int) -> list[str]:
    certificate(folder)
    text = (REPOSITORY / "deploy" / "nginx" / "gaitway.conf").read_text()
    text = text.replace("listen 443", f"listen 127.0.0.1:{port}").replace("/etc/nginx/gaitway", f"{folder}/gaitway")
    return nginx_conf(folder, text.replace("127.0.0.1:8080", f"127.0.0.1:{upstream}"))


def documented_caddy(folder: Path, port: int, upstream: int) -> list[str]:
    found = shutil.which("caddy", path=SYSTEM)
    if found is None:
        pytest.skip("there is no caddy on this machine")
    certificate(folder)
    text = (REPOSITORY / "deploy" / "Caddyfile").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    tls = f"tls {folder}/gaitway.pem {folder}/gaitway.key"
    text = re.sub(
        r"^gaitway\.example \{$", f"https://gaitway.example:{port} {{\n\tbind 127.0.0.1\n\t{tls}", text, flags=re.M
    )
    text = text.replace(
        "{\n\tservers", f"{{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system {folder}\n\tservers", 1
    )
    (folder / "Caddyfile").write_text(text)
    return [found, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.mark.parametrize("proxy", [documented_nginx, documented_caddy])
def test_the_documented_proxy_asks_for_a_key_and_passes_the_true_address_on(
    server: tuple[int, Path], tmp_path: Path, proxy: Callable[[Path, int, int], list[str]]
) -> None:
    port = free_port()
    with running(proxy(tmp_path, port, server[0]), port, tmp_path / "proxy.log"):
        refused(port, tls=True)
        key = (server[1] / "operator.key").read_text().strip()
        headers = {"Host": "gaitway.example", "X_Forwarded_For": "6.6.6.6", "Authorization": f"Bearer {key}"}
        assert ask(port, "/v1/keys", tls=True, **headers)[0] == 201
        _, audit = ask(port, "/v1/audit?limit=500", tls=True, **headers)
    made = [entry for entry in audit["items"] if entry["actor"] == key.split("_")[1]]
    assert made, audit
    assert {entry["address"] for entry in made} == {CLIENT}
