"""Enrolment against a small server that answers as the protocol says, or as no server should."""

from __future__ import annotations

import base64
import json
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.config.settings import BrokerSection, load
from edge_agent.errors import ConfigError, EnrolError
from edge_agent.storage.consent import pinned_promises
from edge_agent.storage.credentials import (
    CREDENTIALS_FILE,
    KEY_FILE,
    PINNED_FILE,
    Credentials,
    Login,
    device_key,
    key_of,
    login,
    read_credentials,
    write_credentials,
)
from edge_agent.storage.state_store import StateStore
from edge_agent.transport.downloads import BlobDownloader
from edge_agent.transport.enrolment import Applicant, claim, credentials_for, enrol, wait_for_approval, warning_about
from federation.privacy.promises import PrivacyPromises
from federation.protocol.messages import BlobPointer
from federation.protocol.signing import Kind, fingerprint, to_sign
from tests.edge_agent.factories import make_config

SERVER_KEY = base64.b64encode(bytes(32)).decode()
TOKEN = f"gwe_secret_{fingerprint(bytes(32))}"
GIVEN = {
    "api_key": "gw_key",
    "broker": {"username": "demo~d1", "password": "secret"},
    "server_key": SERVER_KEY,
}

APPROVED = {"state": "approved", "device": "d1", "promises": {}}


class Server(BaseHTTPRequestHandler):
    """Checks signatures as the protocol says; approves when `approved` is set; `broken` overrides its answer."""

    approved, broken, keys, heard, promises = True, None, {}, [], {"mode": "masked", "min_devices": 5}

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.heard.append((self.path, said))
        code, answer = Server.broken or self._answer(said)
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.path == "/v1/enrol":
            if said["token"] != TOKEN:
                return 401, {"detail": "this enrolment token is unknown"}
            Server.keys[said["device"]] = said["public_key"]
            message = to_sign(Kind.ENROL, said["federation"], said["device"], said["token"].encode())
        else:
            message = to_sign(Kind.CLAIM, said["federation"], said["device"], str(said["issued_at"]).encode())
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(Server.keys[said["device"]]))
        try:
            key.verify(base64.b64decode(said["signature"]), message)
        except InvalidSignature:
            return 401, {"detail": "wrong signature"}
        state = "approved" if Server.approved else "pending"
        answer = {"device": said["device"], "state": state, "promises": Server.promises}
        return (201 if self.path == "/v1/enrol" else 200 if Server.approved else 202), {
            **answer, "credentials": GIVEN if Server.approved else None,
        }  # fmt: skip

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (
        ("approved", True),
        ("broken", None),
        ("keys", {}),
        ("heard", []),
        ("promises", Server.promises),
    ):
        monkeypatch.setattr(Server, name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture
def who(server: str, tmp_path: Path) -> Applicant:
    return Applicant(server, "demo", "d1", tmp_path, 5.0)


def test_a_token_brings_credentials_that_only_the_owner_may_read(who: Applicant) -> None:
    answer = enrol(who, TOKEN)
    assert answer.credentials == read_credentials(who.folder) == Credentials.model_validate(GIVEN)
    for name in (KEY_FILE, CREDENTIALS_FILE):
        assert stat.S_IMODE((who.folder / name).stat().st_mode) == 0o600
    _, said = Server.heard[0]
    assert len(base64.b64decode(said["public_key"])) == 32
    assert set(said) == {"token", "federation", "device", "public_key", "signature"}


def test_a_device_that_waits_for_approval_claims_with_its_key_alone(who: Applicant) -> None:
    Server.approved = False
    assert enrol(who, TOKEN).credentials is None
    assert read_credentials(who.folder) is None
    key = device_key(who.folder).public_key()
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        Server.approved = len(pauses) == 2

    answer = wait_for_approval(who, 1000.0, pause)
    assert (answer.state, pauses) == ("approved", [5.0, 5.0])
    assert read_credentials(who.folder) == answer.credentials
    assert device_key(who.folder).public_key() == key
    assert [path for path, _ in Server.heard] == ["/v1/enrol", *["/v1/enrol/claim"] * 3]
    assert not any("token" in said for _, said in Server.heard[1:])


def test_the_first_answer_is_what_is_pinned(who: Applicant, monkeypatch: pytest.MonkeyPatch) -> None:
    Server.approved = False
    enrol(who, TOKEN)
    Server.approved = True
    monkeypatch.setattr(Server, "promises", {"mode": "off"})
    assert claim(who).credentials is not None
    with closing(StateStore(who.folder)) as store:
        assert pinned_promises(store) == PrivacyPromises(mode="masked", min_devices=5)


def test_a_lost_answer_is_made_good_by_a_claim(who: Applicant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "broken", (201, {**APPROVED, "credentials": None}))
    Server.keys["d1"] = "unused"
    assert enrol(who, TOKEN).credentials is None  # the claim gets the same answer here
    assert [path for path, _ in Server.heard] == ["/v1/enrol", "/v1/enrol/claim"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            (401, {"detail": "this enrolment token has been used"}),
            r"refuses \(401\): this .* has been used",
        ),
        ((403, {"detail": "the device 'd1' was revoked"}), "was revoked; ask the operator for a token made for"),
        ((404, b"<html>"), "answered 404; check that .server. url is the server's base URL"),
        ((409, {"detail": "a device 'd1' is enrolled with another key; choose another name"}), "choose another name$"),
        ((422, {"detail": "issued_at: 900 s ahead; set the device's clock"}), "set the device's clock$"),
        ((429, {"detail": "slow down"}), "wait a minute"),
        ((503, {"detail": "the broker could not make the account"}), "again later, without a token"),
        ((500, b""), "answered 500; try again later"),
        ((302, b""), "answered 302"),
        ((200, b"[]"), "doesn't respond like a Gaitway server"),
        ((200, {**APPROVED, "device": "d2"}), "answered about device 'd2' instead of 'd1'"),
        ((200, b"{" * (1 << 17)), "doesn't respond like a Gaitway server"),
        (
            (200, {**APPROVED, "credentials": {**GIVEN, "server_key": "AAAA"}}),
            "the server's key has 3 bytes",
        ),
        (
            (200, {**APPROVED, "credentials": {**GIVEN, "api_key": "a\r\nHost: evil"}}),
            "doesn't respond like",
        ),
    ],
)
def test_each_refusal_is_said_in_words(
    broken: Any, words: str, who: Applicant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "broken", broken)
    monkeypatch.setattr("edge_agent.transport.server_connection.MAX_WAITS", 0)
    with pytest.raises(EnrolError, match=words):
        enrol(who, TOKEN)
    assert read_credentials(who.folder) is None
    assert len(Server.heard) == 1  # no redirect was followed


def test_its_turn_comes_after_the_server_has_closed_the_idle_connection(
    who: Applicant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_a_second(seconds: float) -> None:
        assert seconds >= 1
        time.sleep(0.2)
        monkeypatch.setattr(Server, "broken", None)

    monkeypatch.setattr(Server, "protocol_version", "HTTP/1.1")
    monkeypatch.setattr(Server, "timeout", 0.05)
    monkeypatch.setattr(Server, "broken", (429, {"detail": "slow down"}))
    monkeypatch.setattr("edge_agent.transport.server_connection.time", SimpleNamespace(sleep=wait_a_second))
    assert enrol(who, TOKEN).credentials is not None
    assert len(Server.heard) == 2


def test_a_server_without_a_port_is_said_in_words(who: Applicant) -> None:
    with pytest.raises(EnrolError, match=r"cannot reach http://host:abc/v1/enrol.*check .server. url"):
        enrol(who._replace(server="http://host:abc"), TOKEN)


def test_a_server_with_another_key_than_the_token_names_is_refused_and_leaves_nothing(who: Applicant) -> None:
    elsewhere = f"gwe_secret_{fingerprint(bytes([1]) * 32)}"
    Server.broken = (201, {**APPROVED, "credentials": GIVEN})
    with pytest.raises(EnrolError, match=r"the operator's token names .*somebody between .* nothing was kept"):
        enrol(who, elsewhere)
    assert not (who.folder / CREDENTIALS_FILE).exists()
    with pytest.raises(ConfigError, match="end with the fingerprint of the server's key; copy it whole"):
        enrol(who, TOKEN[:-1])


def test_a_claim_too_takes_credentials_of_the_pinned_server_alone(who: Applicant) -> None:
    Server.approved = False
    enrol(who, TOKEN)
    stolen = {**GIVEN, "server_key": base64.b64encode(bytes([1]) * 32).decode()}
    Server.broken = (200, {**APPROVED, "credentials": stolen})
    for _ in range(2):
        with pytest.raises(EnrolError, match="this is not the server that the token is from"):
            claim(who)
    Server.broken, Server.approved = None, True
    assert claim(who).credentials == Credentials.model_validate(GIVEN)
    Server.broken = (200, {**APPROVED, "credentials": stolen})
    (who.folder / PINNED_FILE).unlink()
    with pytest.raises(EnrolError, match="nothing was kept"):  # by what it has, where nobody pinned a key
        claim(who)
    assert read_credentials(who.folder) == Credentials.model_validate(GIVEN)


def test_no_server_and_no_key_are_said_too(who: Applicant) -> None:
    with pytest.raises(EnrolError, match="has not enrolled yet: ask the operator for a token"):
        claim(who)
    with pytest.raises(EnrolError, match=r"cannot reach http://127.0.0.1:9/v1/enrol: .*check \[server\] url"):
        enrol(who._replace(server="http://127.0.0.1:9"), TOKEN)


def test_damaged_files_are_errors_that_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / CREDENTIALS_FILE).write_text("{}")
    with pytest.raises(ConfigError, match="get new ones with `edge_agent enrol` without a token"):
        read_credentials(tmp_path)
    (tmp_path / KEY_FILE).write_text("not a key")
    with pytest.raises(ConfigError, match="move it away and enrol again"):
        device_key(tmp_path)


def test_what_travels_in_the_clear_is_warned_about() -> None:
    assert "anyone on the network path" in warning_about("http://gaitway.example")
    for safe in ("https://gaitway.example", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:8080"):
        assert warning_about(safe) == ""


def test_the_config_wins_over_the_enrolment_and_a_password_may_lie_in_a_file(tmp_path: Path) -> None:
    known = Credentials.model_validate(GIVEN)
    assert login(BrokerSection(), None, "d1") == Login("d1", None, None)
    assert login(BrokerSection(), known, "d1") == Login("demo~d1", "demo~d1", "secret")
    (tmp_path / "password").write_text("from a file\nand no more")
    own = BrokerSection(username="u", password_file=tmp_path / "password")
    assert login(own, known, "d1") == Login("u", "u", "from a file")
    with pytest.raises(ConfigError, match=r"password_file .* cannot be read"):
        login(BrokerSection(username="u", password_file=tmp_path / "none"), None, "d1")


def test_a_started_device_claims_what_was_approved_meanwhile(who: Applicant, server: str) -> None:
    config = make_config(who.folder)
    config = config.model_copy(
        update={
            "server": config.server.model_copy(update={"url": server}),
            "agent": config.agent.model_copy(update={"device": "d1"}),
        }
    )
    assert credentials_for(config) is None  # never enrolled: a federation without enrolment
    Server.approved = False
    enrol(who, TOKEN)
    with pytest.raises(EnrolError, match="has not approved this device yet"):
        credentials_for(config)
    Server.approved = True
    assert credentials_for(config) == Credentials.model_validate(GIVEN)
    asked = len(Server.heard)
    assert credentials_for(config) is not None
    assert len(Server.heard) == asked


def test_the_command_writes_a_config_enrols_and_says_when_it_must_wait(server: str, tmp_path: Path) -> None:
    runner, path = CliRunner(), tmp_path / "agent.toml"
    words = ["enrol", "--config", str(path), "--server", server]
    who = ["--federation", "demo", "--device", "d1"]
    Server.approved = False
    waits = runner.invoke(app, [*words, *who, "--token-file", "-"], input=f"{TOKEN}\n")
    assert (waits.exit_code, "waits for the operator" in waits.stdout) == (3, True), waits.output
    config = load(path, {})
    assert (config.agent.device, config.agent.federation, config.server.url) == ("d1", "demo", server)
    Server.approved = True
    done = runner.invoke(app, words)
    assert (done.exit_code, "d1 is enrolled in demo" in done.stdout) == (0, True)
    assert (tmp_path / "d1" / CREDENTIALS_FILE).is_file()
    wrong = f"gwe_wrong_{fingerprint(bytes(32))}"
    (tmp_path / "token").write_text(f"{wrong}\n")
    ways = [(["--token-file", str(tmp_path / "token")], {}), ([], {"GAITWAY_ENROL_TOKEN": wrong})]
    for given, environment in ways:
        refused = runner.invoke(app, [*words, *given], env=environment)
        assert (refused.exit_code, "this enrolment token is unknown" in refused.stderr) == (1, True)
    assert "secret" not in waits.output + done.output + refused.output


def test_the_api_key_goes_to_the_server_and_to_nobody_else(tmp_path: Path) -> None:
    blobs = BlobDownloader(tmp_path, "https://gaitway.example/base", 1.0)
    pointer = BlobPointer(sha256="a" * 64, size=1, url="x")
    headers = blobs.headers("https://gaitway.example/base/v1/blobs/x", pointer, 0, "gw_key")
    assert headers == {"Authorization": "Bearer gw_key"}
    for url in ("https://evil.example/v1/blobs/x", "https://gaitway.example/baseless", "http://gaitway.example/base/x"):
        assert blobs.headers(url, pointer, 0, "gw_key") == {}


def test_credentials_are_replaced_whole(tmp_path: Path) -> None:
    write_credentials(tmp_path, Credentials.model_validate(GIVEN))
    write_credentials(tmp_path, Credentials.model_validate({**GIVEN, "api_key": "next"}))
    found = read_credentials(tmp_path)
    assert found is not None
    assert (found.api_key, found.server_key_bytes) == ("next", bytes(32))
    assert [path.name for path in tmp_path.iterdir()] == [CREDENTIALS_FILE]


def test_a_key_is_read_from_its_file_and_without_one_there_is_none(tmp_path: Path) -> None:
    assert key_of(None) is None
    (tmp_path / "key").write_text("gw_0a1b2c3d4e5f_secret\n")
    assert key_of(tmp_path / "key") == "gw_0a1b2c3d4e5f_secret"


@pytest.mark.parametrize("text", ["", "\n", "two words", "a\nb", "x" * 2000, "gw_\x00"])
def test_what_is_no_key_is_said_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(ConfigError, match="contains no API key; expected one line"):
        key_of(tmp_path / "key")
    with pytest.raises(ConfigError, match="cannot be read"):
        key_of(tmp_path / "none")
