"""The device's page over HTTP: what it shows and does, for whom, and what it refuses."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.config.settings import load
from edge_agent.errors import ConfigError
from edge_agent.page.access import password_hash
from edge_agent.page.server import MAX_BYTES, served_page
from edge_agent.page.service import ACTIONS, VIEWS
from gaitway import views
from phone import APP
from tests.edge_agent.page.page_devices import PageDevice, Seen

PASSWORD = "correct horse"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[PageDevice]:
    found = PageDevice(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageDevice]:
    found = PageDevice(tmp_path_factory.mktemp("guarded"), password_hash(PASSWORD))
    yield found
    found.close()


def test_it_shows_what_the_device_recognizes_and_why_it_does_not_train(device: PageDevice) -> None:
    status, found, _ = device.send("GET", "/api/now")
    assert (status, found["seen"][-1][1], len(found["seen"])) == (200, "walk", 90)
    assert (len(found["signals"]), len(found["signals"][0])) == (128, 6)
    _, said, _ = device.send("GET", "/api/status")
    assert said["device"] == "kitchen-pi"
    assert "It can't train now: the battery holds 20 %, and 50 % are asked for." in said["words"]
    assert "It keeps 2 labelled windows, and 10 without an activity." in said["words"]
    _, kept, _ = device.send("GET", "/api/windows")
    assert kept["labels"] == ["sit", "walk", "run"]
    assert [(row["activity"], row["windows"]) for row in kept["classes"]] == [("sit", 2), ("", 10)]


def test_the_device_and_the_phone_answer_all_that_the_views_ask(device: PageDevice) -> None:
    sources = {path.name: path.read_text() for path in views.FOLDER.glob("*.js")}
    asked = {name for text in sources.values() for name in re.findall(r'\b(?:ask|act)\("([\w-]+)"', text)}
    asked |= set(re.findall(r'"((?:pause|resume|cancel)-lesson)"', sources["teach.js"]))
    assert {"day", "teaching", "label", "withdraw"} < asked
    assert asked <= {*VIEWS, *ACTIONS}
    phone = (APP / "device.js").read_text()
    assert [name for name in asked if not re.search(rf'^  "?{name}"?[:,]', phone, re.MULTILINE)] == []
    answers = {"Now": "now", "Privacy": "privacy", "Models": "models"}
    found = {kind: device.send("GET", f"/api/{name}")[1] for kind, name in answers.items()}
    found["Day"] = device.send("POST", "/api/day", {"day": None})[1]
    for kind, answer in found.items():
        typed = re.search(rf"@typedef \{{object\}} {kind} (.*?)\*/", sources["api.js"], re.DOTALL)
        needed = re.findall(r"@property \{(?:[^{}]|\{[^}]*\})*\} (\w+)", typed[1] if typed else "")
        assert needed
        assert set(needed) <= set(answer), kind


def test_a_label_for_the_last_minute_is_stored_and_taken_back(device: PageDevice) -> None:
    assert device.send("POST", "/api/label", {"activity": "WALK", "last_s": 60})[:2] == (
        200,
        {"windows": 10, "activity": "walk"},
    )
    assert device.classes() == {"sit": 2, "walk": 10}
    assert device.send("POST", "/api/undo", {})[1]["windows"] == 10
    assert device.classes() == {"sit": 2, "": 10}


def test_a_label_for_a_stretch_of_time(device: PageDevice) -> None:
    span = {"from_s": device.began_s + 2.56 * 2, "to_s": device.began_s + 2.56 * 5}
    assert device.send("POST", "/api/label", {"activity": "run", **span})[1]["windows"] == 3
    assert device.classes() == {"run": 3, "sit": 2, "": 7}


def test_windows_are_deleted_by_class_and_by_day(device: PageDevice) -> None:
    day = datetime.fromtimestamp(1_760_000_010).date().isoformat()
    assert device.send("POST", "/api/delete", {"activity": "", "day": day})[1] == {"windows": 0}
    assert device.send("POST", "/api/delete", {"day": day})[1] == {"windows": 2}
    assert device.send("POST", "/api/delete", {"activity": ""})[1] == {"windows": 10}
    assert device.classes() == {}


def test_the_model_before_is_used_again(device: PageDevice) -> None:
    assert device.send("POST", "/api/roll-back", {})[1] == {"words": "Now in use: the global model of round 6."}
    _, found, _ = device.send("GET", "/api/models")
    assert [(one["round"], one["adopted"]) for one in found["models"]] == [(6, True), (7, False)]
    assert "restored manually" in found["why"][-1]
    (device.data / "r7.onnx").unlink()
    status, refused, _ = device.send("POST", "/api/roll-back", {})
    assert (status, "missing or damaged" in refused["error"]) == (409, True)


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("label", {"activity": "swim", "last_s": 60}, (409, "isn't an activity of this federation")),
        ("label", {"activity": "walk"}, (422, "either last_s, or from_s and to_s")),
        ("label", {"activity": "walk", "last_s": 60, "from_s": 1, "to_s": 2}, (422, "either")),
        ("label", {"activity": "walk", "last_s": -1}, (422, "last_s")),
        ("label", {"activity": "walk", "last_s": "60"}, (422, "last_s")),
        ("label", {"activity": "walk", "last_s": 60, "device": "x"}, (422, "device")),
        ("label", b'{"activity": "walk", "last_s": NaN}', (422, "last_s")),
        ("delete", {}, (422, "say which windows")),
        ("delete", {"day": "yesterday"}, (422, "isoformat")),
        ("undo", {}, (409, "no label command")),
        ("undo", b"\xff\x00", (422, "")),
        ("shutdown", {}, (404, "no such request")),
    ],
)
def test_what_cannot_be_done_is_said(device: PageDevice, path: str, body: object, answer: tuple[int, str]) -> None:
    status, found, _ = device.send("POST", f"/api/{path}", body)
    assert (status, answer[1] in found["error"]) == (answer[0], True), found
    assert device.classes() == {"sit": 2, "": 10}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Content-Type": "text/plain"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "localhost.evil.example:80", "Origin": "http://localhost.evil.example:80"},
        {"Host": "[", "Origin": "http://["},
    ],
)
def test_another_site_changes_nothing(device: PageDevice, headers: dict[str, str]) -> None:
    assert device.send("POST", "/api/delete", {"activity": ""}, headers)[0] == 403
    assert device.classes() == {"sit": 2, "": 10}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {"Host": "evil.example"}),
        ("/api/now", {"Host": "evil.example:8090"}),
        ("/api/windows", {"Sec-Fetch-Site": "cross-site"}),
        ("/api/doctor", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
    ],
)
def test_another_site_reads_nothing(device: PageDevice, path: str, headers: dict[str, str]) -> None:
    assert device.send("GET", path, headers=headers)[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:80", "192.168.1.7:8090", socket.gethostname()])
def test_the_devices_own_names_are_answered(device: PageDevice, host: str) -> None:
    status, page, headers = device.send("GET", "/", headers={"Host": host})
    assert (status, b"<title>" in page) == (200, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_requests_are_bounded(device: PageDevice) -> None:
    assert device.send("POST", "/api/label", b" " * (MAX_BYTES + 1))[0] == 413
    assert device.send("POST", "/api/label", b"", {"Content-Length": "9" * 400})[0] == 413
    assert device.send("POST", "/api/label", b"", {"Content-Length": "-1"})[0] == 411
    assert device.send("GET", "/../agent.toml")[0] == 404
    assert device.send("PUT", "/api/label", {})[0] == 501


def test_without_the_password_nothing_is_shown_or_done(guarded: PageDevice) -> None:
    assert guarded.send("GET", "/api/session")[1] == {"needs_password": True, "open": False}
    for path in ("now", "status", "windows", "models", "doctor"):
        assert guarded.send("GET", f"/api/{path}", headers={"Cookie": "gaitway_device_1=x; ="})[0] == 401
    for path in ("label", "undo", "delete", "roll-back", "logout"):
        assert guarded.send("POST", f"/api/{path}", {})[0] == 401
    assert guarded.classes() == {"sit": 2, "": 10}


def test_a_session_lasts_from_login_to_logout(guarded: PageDevice) -> None:
    assert guarded.send("POST", "/api/login", {"password": "wrong"})[0] == 401
    status, _, headers = guarded.send("POST", "/api/login", {"password": PASSWORD})
    cookie, *properties = headers["Set-Cookie"].split("; ")
    assert (status, {"HttpOnly", "SameSite=Strict"} <= set(properties)) == (200, True)
    own = {"Cookie": cookie}
    assert guarded.send("GET", "/api/now", headers=own)[0] == 200
    assert guarded.send("POST", "/api/logout", {}, own)[0] == 200
    assert guarded.send("GET", "/api/now", headers=own)[0] == 401


def config_of(folder: Path, *lines: str) -> Path:
    found = folder / "agent.toml"
    text = ("[agent]", 'device = "d1"', 'federation = "demo"', 'data_dir = "data"', *lines)
    found.write_text("\n".join([*text, "[server]", 'url = "http://127.0.0.1:9"', ""]))
    return found


@pytest.mark.parametrize("address", ["0.0.0.0:8090", "192.168.1.7:8090", "[::]:8090"])
def test_other_machines_need_a_password(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="page-password"):
        load(config_of(tmp_path, f'page = "{address}"'))
    line = CliRunner().invoke(app, ["page-password"], input=f"{PASSWORD}\n{PASSWORD}\n").stdout.strip()
    assert load(config_of(tmp_path, f'page = "{address}"', line)).agent.page == address
    assert PASSWORD not in line


@pytest.mark.parametrize("address", ["8090", "127.0.0.1", "127.0.0.1:0", "phone.example:80", "127.0.0.1:99999"])
def test_what_is_no_address_is_said(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="page"):
        load(config_of(tmp_path, f'page = "{address}"'))


def test_a_short_password_is_refused() -> None:
    refused: Any = CliRunner().invoke(app, ["page-password"], input="short\nshort\n")
    assert (refused.exit_code, "8 to 256 characters" in refused.stderr) == (2, True)


def test_a_taken_address_is_a_setting_to_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        file = config_of(tmp_path, f'page = "127.0.0.1:{taken.getsockname()[1]}"')
        with pytest.raises(ConfigError, match="cannot be listened on"), served_page(load(file), file, Seen()):
            pass
