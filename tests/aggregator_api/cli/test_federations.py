"""`federations list` and `create`: from the database, and by the running server's REST interface."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from tests.ports import free_port
from tests.samples.messages import plan

RUNNER = CliRunner()


class StandIn(BaseHTTPRequestHandler):
    """A server that takes one federation, and refuses a second one of its name."""

    requests: list[tuple[str, str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_new = body["name"] not in {known["name"] for _, _, known in self.requests}
        self.requests.append((self.path, self.headers["Authorization"], body))
        self.send_response(201 if is_new else 409)
        self.end_headers()
        self.wfile.write(b"{}" if is_new else b'{"detail": "there is one of that name"}')

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    StandIn.requests = []
    with HTTPServer(("127.0.0.1", 0), StandIn) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "operator.key").write_text("gw_a_b\n")
    (tmp_path / "plan.json").write_text(plan().model_dump_json())
    return ["federations", "create", "walk", "--plan", str(tmp_path / "plan.json"), "--data-dir", str(tmp_path)]


def test_a_federation_is_created_on_the_running_server(
    server: HTTPServer, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAITWAY_PORT", str(server.server_port))
    done = RUNNER.invoke(app, words)
    assert done.exit_code == 0, done.output
    ((path, key, body),) = StandIn.requests
    assert (path, key, body["name"]) == ("/v1/federations", "Bearer gw_a_b", "walk")
    assert body["plan"] == plan().model_dump(mode="json")
    again = RUNNER.invoke(app, words)
    assert (again.exit_code, again.stderr) == (2, "error: the server refuses it: there is one of that name\n")


def test_it_asks_where_the_server_noted_that_it_listens_unless_a_port_is_given(
    server: HTTPServer, words: list[str]
) -> None:
    Path(words[-1], "address.txt").write_text(f"http://127.0.0.1:{server.server_port}\n")
    assert RUNNER.invoke(app, words).exit_code == 0
    assert "no server answers at http://127.0.0.1:1:" in RUNNER.invoke(app, [*words, "--port", "1"]).stderr


def test_a_name_that_can_be_none_is_refused_with_what_it_may_have(words: list[str]) -> None:
    words[2] = "my walk"
    done = RUNNER.invoke(app, words)
    assert (done.exit_code, "a name has letters, digits" in done.stderr) == (2, True), done.output


def test_without_a_server_it_says_so(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAITWAY_PORT", "1")
    done = RUNNER.invoke(app, words)
    assert done.exit_code == 2
    assert "no server answers at http://127.0.0.1:1" in done.stderr


def test_a_new_server_lists_no_federation_and_no_key(tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path)]
    RUNNER.invoke(app, ["migrate", *where])
    for command in ("federations", "keys", "tokens"):
        assert json.loads(RUNNER.invoke(app, [command, "list", "--json", *where]).stdout) == []


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "No such file or directory"), (b"", "expected one line"), (b"a\nb", "one line"), (b"\xff\xfe", "ASCII")],
)
def test_a_key_that_cannot_be_one_is_refused_with_advice(words: list[str], key: bytes | None, reason: str) -> None:
    path = Path(words[-1]) / "operator.key"
    path.unlink()
    if key is not None:
        path.write_bytes(key)
    done = RUNNER.invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: no operator's key in {path}: ")
    assert reason in done.stderr


class Stranger(StandIn):
    """Another program at the server's port, which answers with a page."""

    def do_POST(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>not here</html>")


class Rude(StandIn):
    """Another program at the server's port, which doesn't speak HTTP."""

    def do_POST(self) -> None:
        self.wfile.write(b"220 mail.example ESMTP\r\n")


@pytest.mark.parametrize(("other", "reason"), [(Stranger, "404 Not Found"), (Rude, "220 mail.example")])
def test_what_is_not_the_server_is_told_in_a_sentence(
    words: list[str], server: HTTPServer, monkeypatch: pytest.MonkeyPatch, other: type[StandIn], reason: str
) -> None:
    monkeypatch.setattr(server, "RequestHandlerClass", other)
    monkeypatch.setenv("GAITWAY_PORT", str(server.server_port))
    done = RUNNER.invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert reason in done.stderr


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_server_notes_its_address_while_it_runs_and_runs_as_well_if_it_cannot(
    is_writable: bool, tmp_path: Path
) -> None:
    note, ports = tmp_path / "address.txt", [free_port(), free_port()]
    if not is_writable:
        note.mkdir()
    place = ["--port", str(ports[0]), "--broker-port", str(ports[1]), "--data-dir", str(tmp_path)]
    command = [sys.executable, "-m", "aggregator_api", "serve", "--embedded-broker", *place]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        try:
            log = next(line for line in program.stderr if "listening at" in line)
            if is_writable:
                link = RUNNER.invoke(app, ["login-link", "--data-dir", str(tmp_path)])
                assert (link.exit_code, link.stderr) == (0, "")
                assert link.stdout.startswith(f"http://127.0.0.1:{ports[0]}/login/")
        finally:
            program.send_signal(signal.SIGTERM)
            program.communicate(timeout=60)
    assert f"http://127.0.0.1:{ports[0]};" in log
    assert program.returncode == 0
    assert note.exists() != is_writable
    link = RUNNER.invoke(app, ["login-link", *place[:2], *place[4:]])
    assert "nothing answers" in link.stderr
