"""The operator's work with devices: list, approve, revoke, group, and let many in with a sheet of QR codes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zxingcpp
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings
from aggregator_api.devices import enrolment_tokens
from aggregator_api.devices.enrolment_tokens import IssuedToken
from aggregator_api.http.app import create_app
from edge_agent.__main__ import app as agent
from edge_agent.transport.server_connection import ServerAnswer, ServerConnection
from federation.protocol import topics
from federation.protocol.enrolment_uri import EnrolmentUri, read_enrolment_uri
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"
SERVER = "https://gaitway.example"


@pytest.fixture
def folder(waiting: Bench) -> Path:
    """The data folder of a running server with a federation; devices come and go by messages."""
    return waiting.runtime.settings.data_dir


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[TestClient]:
    """An operator on the server's machine, with one federation."""
    server: FastAPI = create_app(Settings(data_dir=tmp_path / "server"), Wires)
    with OperatorClient(server) as client:
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
        yield client


def run(*words: str, folder: Path, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, [*words, "--data-dir", str(folder)], input=given, env={"COLUMNS": "200"})


def listed(folder: Path, *words: str) -> list[dict[str, Any]]:
    answer = run("devices", "list", "--json", *words, folder=folder)
    assert answer.exit_code == 0, answer.output
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def test_devices_are_listed_as_a_table_and_as_json(waiting: Bench, folder: Path) -> None:
    waiting.say("a", "ready", examples=7)
    waiting.say("b", "ready")
    waiting.say("b", "offline")
    first, second = listed(folder, "--federation", FEDERATION)
    assert (first["name"], first["state"], first["examples"], first["enrolment"]) == ("a", "ready", 7, "open")
    assert second["state"] == "offline"
    assert listed(folder, "--enrolment", "pending") == []
    table = run("devices", "list", folder=folder).stdout
    assert re.search(r"^ *a +walk +ready +\d{4}-\d\d-\d\d \d\d:\d\d +7 +open", table, re.MULTILINE)
    wrong = run("devices", "list", "--enrolment", "new", folder=folder)
    assert wrong.exit_code == 2
    assert "expected open, pending, approved or revoked" in wrong.stderr


def test_a_revoked_device_is_out_and_a_running_server_takes_nothing_more_of_it(waiting: Bench, folder: Path) -> None:
    waiting.say("a", "ready")
    waiting.say("b", "ready")
    parcel = waiting.update_of("a")
    answer = run("devices", "revoke", "--federation", FEDERATION, "a", folder=folder)
    assert answer.exit_code == 0, answer.output
    assert listed(folder, "--enrolment", "revoked")[0]["state"] == "offline"
    assert "revoked" in waiting.refused(parcel)
    unknown = run("devices", "approve", "--federation", FEDERATION, "nobody", folder=folder)
    assert unknown.exit_code == 2
    assert "has no device 'nobody'" in unknown.stderr


def test_approving_is_all_or_nothing(waiting: Bench, folder: Path) -> None:
    waiting.say("a", "ready")
    answer = run("devices", "approve", "--federation", FEDERATION, "a", folder=folder)
    assert answer.exit_code == 2
    assert "the device 'a' has presented no key; make a token with which it can enrol" in answer.stderr


# ---- many at once


def enrol(folder: Path, table: str, out: Path, *words: str) -> Result:
    given = ("--federation", FEDERATION, "--csv", "-", "--server", SERVER, "--out", str(out), *words)
    return run("devices", "enrol", *given, folder=folder, given=table)


def decoded(page: str) -> list[str]:
    """Read every QR code of a sheet."""
    return [zxingcpp.read_barcodes(drawn(path))[0].text for path in re.findall(r' d="([^"]+)"', page)]


def drawn(path: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Draw a QR code's path: `m` moves by (dx, dy) from where the line ended, `h` draws a row of dark modules."""
    image = np.full((200, 200), 255, np.uint8)
    x, y = 0.0, 0.0
    for command, numbers in re.findall(r"([Mmh])([-\d. ]+)", path):
        values = [float(value) for value in numbers.split()]
        if command == "h":
            image[int(y), int(x) : int(x + values[0])] = 0
            x += values[0]
        else:
            x, y = (values[0], values[1]) if command == "M" else (x + values[0], y + values[1])
    return np.kron(image, np.ones((4, 4), np.uint8))


def test_a_sheet_holds_a_code_for_each_device_that_the_agent_takes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.html"
    done = enrol(folder, "device,tags\nphone1,pilot; left\nphone2,\n", out)
    assert done.exit_code == 0, done.output
    assert out.stat().st_mode & 0o777 == 0o600
    page = out.read_text()
    codes = [read_enrolment_uri(text) for text in decoded(page)]
    assert [code[:3] for code in codes] == [(SERVER, FEDERATION, "phone1"), (SERVER, FEDERATION, "phone2")]
    assert len({code.token for code in codes}) == 2
    assert not [code for code in codes if code.token in done.output]
    assert "<h2>phone1</h2>" in page
    assert "left pilot" in page
    assert "src=" not in page
    assert "url(" not in page  # it loads nothing


def test_the_tokens_come_as_csv_too_and_a_file_is_never_overwritten(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens.csv"
    assert enrol(folder, "device\nphone1\n", out).exit_code == 0
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    assert read_enrolment_uri(row["uri"]).token == row["token"]
    again = enrol(folder, "device\nphone2\n", out)
    assert again.exit_code == 2
    assert "already exists and may hold tokens" in again.stderr


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", ["the first line must name the columns"]),
        ("name\na\n", ["the first line must name the columns, `device` and, where wanted, `tags`; it has name"]),
        ("device\n", ["it lists no devices"]),
        ("device\na b\nok\nok\n", ["line 2: 'a b' isn't a valid name", "line 4: the device 'ok' is already in line 3"]),
        ("device,tags\na,bad/tag\n", ["line 2: 'bad/tag' isn't a valid name"]),
        ("device,tags\na,b,c\n", ["line 2: it has more cells"]),
        ("device\nthere\n", ["line 2: the device 'there' has already enrolled"]),
    ],
)
def test_what_is_wrong_in_a_csv_is_said_line_by_line(table: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as wrong:
        enrolment_tokens.read_devices(table, ["there"])
    for part in words:
        assert part in str(wrong.value)


def test_a_wrong_line_makes_no_token_at_all(operator: TestClient, tmp_path: Path) -> None:
    folder = operator.runtime.settings.data_dir
    wrong = enrol(folder, "device\ngood\nb/ad\n", tmp_path / "sheet.html")
    assert wrong.exit_code == 2
    assert "line 3: 'b/ad' isn't a valid name" in wrong.stderr
    assert operator.get(f"{HERE}/enrolment-tokens").json()["items"] == []
    assert not (tmp_path / "sheet.html").exists()


def test_a_device_enrols_with_its_code_and_gets_its_tags(
    operator: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's own command, with the server's application in place of the network."""
    folder = operator.runtime.settings.data_dir
    assert enrol(folder, "device,tags\nphone1,pilot\n", tmp_path / "t.csv", "--auto-approve").exit_code == 0
    (row,) = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text()))

    class Connection(ServerConnection):
        def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> ServerAnswer:
            answer = operator.post(path, json=json.loads(body or b""))
            assert answer.status_code == 201, answer.text
            return ServerAnswer(answer.status_code, answer.content)

    monkeypatch.setattr("edge_agent.transport.enrolment.ServerConnection", Connection)
    config = tmp_path / "phone" / "agent.toml"
    words = ["enrol", "--config", str(config), "--token-file", "-"]
    done = CliRunner().invoke(agent, words, input=row["uri"])
    assert done.exit_code == 0, done.output
    assert operator.get(f"{HERE}/devices", params={"tag": "pilot"}).json()["items"][0]["name"] == "phone1"
    assert SERVER in config.read_text()
    other = CliRunner().invoke(agent, words, input=row["uri"].replace("phone1", "phone2"))
    assert other.exit_code == 1
    assert "the code is for device 'phone2' of 'walk', but" in other.stderr
    broken = CliRunner().invoke(agent, words, input="gaitway-enrol:?server=https%3A%2F%2Fa")
    assert "the enrolment URI lacks federation, device, token; scan the code again" in broken.stderr


def test_the_page_shows_names_as_text() -> None:
    made = IssuedToken(EnrolmentUri("https://a/<b>", "f", "d", "t"), (), 0.0)
    assert "&lt;b&gt;" in enrolment_tokens.sheet([made])
    assert "<b>" not in enrolment_tokens.sheet([made])


# ---- groups


def test_an_operator_puts_devices_into_groups_and_a_device_does_not(operator: TestClient) -> None:
    said = json.loads(status("ready")) | {"tags": ["mine"]}
    operator.runtime.ingest.handle(topics.status(FEDERATION, "a"), status("ready"))
    operator.runtime.ingest.handle(topics.status(FEDERATION, "a"), json.dumps(said).encode())
    assert operator.get(f"{HERE}/devices/a").json()["tags"] == []
    answer = operator.put(f"{HERE}/devices/a/tags", json={"tags": ["pilot", "left", "pilot"]})
    assert answer.json()["tags"] == ["left", "pilot"]
    assert operator.put(f"{HERE}/devices/a/tags", json={"tags": ["left"]}).json()["tags"] == ["left"]
    assert operator.get(f"{HERE}/devices", params={"tag": "pilot"}).json()["items"] == []
    problem(operator.put(f"{HERE}/devices/a/tags", json={"tags": ["a/b"]}), 422)
    problem(operator.put(f"{HERE}/devices/nobody/tags", json={"tags": []}), 404)
    actions = [entry["action"] for entry in operator.get("/v1/audit", params={"device": "a"}).json()["items"]]
    assert actions.count("tags.set") == 3


def test_a_cohort_is_drawn_from_the_groups_of_the_plan(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", tiny_plan(cohort_tags=["pilot", "second"]))
    try:
        for device in ("a", "b", "c", "d"):
            bench.say(device, "ready")
        assert bench.now().state == "waiting"
        for device, tag in (("b", "pilot"), ("d", "second")):
            done = run("devices", "tag", "--federation", FEDERATION, device, "--tag", tag, folder=tmp_path / "data")
            assert done.exit_code == 0, done.output
        bench.say("c", "offline")  # a running server notices with the next device that comes or goes
        bench.say("c", "ready")
        assert bench.collects(1)
        assert bench.invited() == ("b", "d")
    finally:
        bench.runtime.stop()
