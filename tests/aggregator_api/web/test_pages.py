"""Every page on a server with something to show: what it says, that all is escaped, and how much it weighs."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import update

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import FederationService, NewFederation, get_federation
from aggregator_api.http.api.middleware.headers import PAGES as POLICY
from aggregator_api.http.app import create_app
from aggregator_api.http.web.phone import FILES, MEDIA_TYPES, SHARED, url_of
from aggregator_api.storage.db.models import DeviceRow, RolloutRow
from federation.tasks import TASKS
from gaitway.plain_text import label_text
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem
from tests.aggregator_api.web.seeded import HOSTILE, LABELS, Seeder, plan
from tests.aggregator_api.web.visitors import HTML, Visitor, key_of

WALKS = "/federations/walks"
SHOWS = {
    "/": ["Rollout 1 was halted", "went into quarantine", "2 devices wait for your approval", "macro-F1", "of 14"],
    WALKS: [
        "round 14 is collecting",
        "9 of 12 devices have reported",
        "1 update came before the deadline",
        "Pause",
        "Stop",
    ],
    f"{WALKS}/devices": ["phone-12", "the battery is at 18 %", "pilot"],
    f"{WALKS}/devices?tag=pilot": ["phone-05"],
    f"{WALKS}/devices?name=phone-1&enrolment=approved": ["phone-10", 'name="enrolment" value="approved"'],
    f"{WALKS}/devices?name=nobody": ["No device here has a name that begins with nobody"],
    f"{WALKS}/devices/phone-02": [
        "Why it does not take part",
        "the battery is at 18 %, 30 % are needed",
        "climbing down",
    ],
    f"{WALKS}/enrolment": ["phone-new", "Approve", "any device", "by phone-01"],
    f"{WALKS}/rollouts": ["halted", "2 of 3 devices that answered failed", "Roll out version 13"],
    f"{WALKS}/rollouts/1": ["wave 2 of 3", ">rolled back</span>", "Worse than the most frequent class", "70.00 %"],
    f"{WALKS}/models": ["round 13, from v12", "stable", "checkpoint"],
    f"{WALKS}/updates": ["conv1.weight has NaN"],
    f"{WALKS}/updates?status=accepted": ["phone-01", "Next page"],
    f"{WALKS}/journal": [">quarantined</span>", ">published</span>", "round 13: version 13", 'round 13, <a href="'],
    f"{WALKS}/plan": ["python -m sim run --plan plan.json", "&#34;fedavg&#34;"],
    "/new-federation": ["Presets", "climbingdown", "hart_alp", "More settings"],
    "/new-federation?preset=fleet": ["over_selection = 1.25"],
    "/federations/gestures": ["Paused, no round has begun yet", "Resume", "No device has joined yet", "agent.toml"],
    "/federations/gestures/devices": ["A token lets one in"],
    "/federations/gestures/rollouts": ["No rollouts yet"],
    "/audit": ["keys.create", "this machine"],
    "/compare": ["Choose two or more federations"],
}
LIVE = [
    "/live/overview",
    *(f"/live{WALKS}/{part}" for part in ("now", "rounds", "grid", "journal", "scores")),
    f"/live{WALKS}/devices",
    f"/live{WALKS}/devices/phone-02",
    f"/live{WALKS}/rollouts",
    f"/live{WALKS}/rollouts/1/rollout",
    f"/live{WALKS}/rollouts/1/waves?answer=failed",
]


class Elements(HTMLParser):
    """Names and attributes of a page's elements, and its scripts' and styles' own text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style"):
            self.inline += data


@pytest.mark.parametrize("path", SHOWS)
def test_a_page_says_what_there_is_and_holds_no_code_and_no_hostile_word(operator: Visitor, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 200, answer.text[-500:]
    for words in SHOWS[path]:
        assert words in answer.text, words
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY
    page = Elements(answer.text)
    assert page.inline.strip() == ""
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("src", "href", "action"):
            assert not (attributes.get(name) or "").startswith(("http", "//", "javascript:")), attributes
    assert HOSTILE not in answer.text
    assert not [attributes for tag, attributes in page.found if tag == "img" and attributes.get("src") == "x"]
    assert "None" not in re.sub(r"<script.*?</script>", "", answer.text)


def test_hostile_names_are_shown_as_they_are(operator: Visitor) -> None:
    shown = operator.get(f"{WALKS}/devices").text
    assert "&lt;img src=x onerror=&#34;window.hurt=1&#34;&gt;" in shown
    links = [attributes["href"] for tag, attributes in Elements(shown).found if tag == "a" and "img" in str(attributes)]
    assert links == [f"{WALKS}/devices/%3Cimg%20src%3Dx%20onerror%3D%22window.hurt%3D1%22%3E"]
    detail = operator.get(links[0])
    assert detail.status_code == 200
    assert HOSTILE not in detail.text


@pytest.mark.parametrize("path", ["/", WALKS, f"{WALKS}/models", f"{WALKS}/devices/phone-02"])
def test_a_page_with_its_files_weighs_less_than_200_kb_uncompressed(operator: Visitor, path: str) -> None:
    answer = operator.get(path)
    names = [one.split("/")[-1] for one in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)]
    files = sum(len(operator.get(url_of(name)).content) for name in set(names))
    assert len(answer.content) + files < 200_000
    assert len(gzip.compress(answer.content)) < 20_000


@pytest.mark.parametrize("path", LIVE)
def test_a_part_that_is_shared_holds_no_sessions_token(operator: Visitor, reader: Visitor, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 200
    assert operator.token("/") not in answer.text
    numbers = re.compile(r"[0-9.]+")  # a round that is open grows between two answers
    assert numbers.sub("", reader.get(path).text) == numbers.sub("", answer.text)


@pytest.mark.parametrize(
    ("path", "tab"),
    [(WALKS, "walks"), (f"{WALKS}/devices/phone-02", "Devices"), (f"{WALKS}/rollouts/1", "Rollouts")],
)
def test_one_tab_says_where_one_is(operator: Visitor, path: str, tab: str) -> None:
    tabs = re.search(r'<nav class="tabs".*?</nav>', operator.get(path).text, re.DOTALL)
    assert tabs is not None
    assert re.findall(r'aria-current="\w+">(\w+)</a>', tabs[0]) == [tab]


def test_a_listing_is_narrowed_by_name_group_and_enrolment_together(operator: Visitor) -> None:
    wanted = "name=phone-0&tag=pilot&limit=1"
    text = operator.get(f"{WALKS}/devices?{wanted}").text
    shown = re.findall(r">(phone-\d+)</a>", text)
    assert shown == ["phone-01"]
    links = [html.unescape(one) for one in re.findall(r'href="(\?[^"]*)"', text)]
    assert "?enrolment=approved&name=phone-0&tag=pilot" in links
    assert any(one.startswith("?name=phone-0&tag=pilot&cursor=") for one in links)
    assert [html.unescape(one) for one in re.findall(r'hx-get="([^"]+)"', text)] == [f"/live{WALKS}/devices?{wanted}"]
    assert "phone-05" not in text
    assert "phone-1" not in operator.get(f"{WALKS}/devices?name=phone-0").text


def test_the_charts_numbers_are_the_devices_own(operator: Visitor) -> None:
    found = json.loads(operator.get(f"/live{WALKS}/scores").text)
    assert found["rounds"] == list(range(1, 15))
    assert found["metric"] == "macro-F1 (%)"
    assert [one["label"] for one in found["classes"]] == [label_text(label) for label in LABELS]
    with operator.server.runtime.database.read() as session:
        rows = session.connection().exec_driver_sql(
            "SELECT value FROM metrics WHERE round_number = 9 AND name = 'macro_f1_after'"
        )
        values = sorted(100 * row[0] for row in rows)
    assert found["mean"][8] == pytest.approx(sum(values) / len(values), abs=1e-3)
    assert found["worst"][8] == pytest.approx(values[0], abs=1e-3)  # a tenth of eleven devices is one
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert found["high"][8] - found["low"][8] == pytest.approx(2 * spread, abs=2e-3)
    assert found["received"][8] == 41_000 * len(values)


def test_the_scores_name_is_the_tasks(operator: Visitor) -> None:
    label = TASKS["classification"].metric_kinds[TASKS["classification"].primary_metric].label
    assert f">{label}, own models</button></dt>" in operator.get("/").text


def test_who_only_reads_sees_no_button_to_act_with(reader: Visitor) -> None:
    for path in (WALKS, f"{WALKS}/enrolment", f"{WALKS}/rollouts/1", f"{WALKS}/models", f"{WALKS}/devices/phone-01"):
        actions = [one for tag, one in Elements(reader.get(path).text).found if tag == "form" and one.get("method")]
        assert [one["action"] for one in actions] == ["/logout"], path


def test_what_is_wrong_is_told_in_the_same_look(operator: Visitor) -> None:
    for path, status, words in (
        ("/federations/nowhere", 404, "there is no federation"),
        (f"{WALKS}/devices/nobody", 404, "no device"),
        (f"{WALKS}/rollouts/77", 404, "no rollout 77"),
        ("/nothing", 404, "There is no page at this address"),
        (f"{WALKS}/enrolment-tokens", 405, "only accepts forms from a page"),
        (f"{WALKS}/devices?limit=9999", 422, "limit"),
    ):
        answer = operator.get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert words in answer.text
        assert "<main" in answer.text
    conflict = operator.submit(f"{WALKS}/resume")
    assert conflict.status_code == 409
    assert "is running" in conflict.text
    assert f'<a href="{WALKS}">Back to walks</a>' in conflict.text
    program = operator.server.get("/federations/nowhere", headers={"cookie": operator.cookie})
    assert program.headers["content-type"] == "application/problem+json"


def test_the_first_minute_says_what_to_do(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, admission="enrolled", aggregation_process=False), Wires)
    with TestClient(app) as client:
        key = (tmp_path / api_keys.OPERATOR_FILE).read_text().strip()
        operator, reader = Visitor.logged_in(client, key), Visitor.logged_in(client, key_of(client, ["read"]))
        for path in ("/", "/live/overview"):
            assert '<a href="/new-federation">New federation</a> makes one' in operator.get(path).text
            assert "/new-federation" not in reader.get(path).text
            assert "operator's key" in html.unescape(reader.get(path).text)
        client.runtime.federations.create(NewFederation(name="first", plan=plan()))
        shown = operator.get("/federations/first").text
        assert "no round has begun yet" in shown
        assert "0 of the 2 devices that a round needs are online" in shown
        assert 'make one under <a href="/federations/first/enrolment">Enrolment</a>.' in shown
        assert "agent.toml" not in shown  # a device needs a token here
        assert "0 of the 2 devices that a round needs are online" in operator.get("/").text


def test_with_many_federations_the_newest_come_first_and_the_worst_is_on_top(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, aggregation_process=False), Wires)
    with OperatorClient(app) as client:
        for name in ("oldest", "warned", "broken"):
            client.runtime.federations.create(NewFederation(name=name, plan=plan()))
        with client.runtime.database.write() as session:
            Seeder(session, get_federation(session, "broken"), 4).fill(2)
            Seeder(session, get_federation(session, "warned"), 4).fill(2)
            session.execute(update(RolloutRow).where(RolloutRow.federation_id == 2).values(phase="completed"))
        text = client.get("/", headers=HTML).text
        assert re.findall(r'<h3><a href="/federations/(\w+)">', text) == ["broken", "warned", "oldest"]
        levels = re.findall(r'<li class="(\w+)">', text)
        assert levels == sorted(levels)
        assert set(levels) == {"error", "warning"}
        assert "Only the federations on this page are checked" not in text
        first = client.get("/?limit=2", headers=HTML).text
        assert "Only the federations on this page are checked" in first
        following = re.search(r'href="\?cursor=(\d+)" rel="next"', first)
        assert following is not None
        rest = client.get(f"/?limit=2&cursor={following[1]}", headers=HTML).text
        assert re.findall(r'<h3><a href="/federations/(\w+)">', rest) == ["oldest"]


def test_who_waits_beyond_the_first_hundred_is_led_to(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, aggregation_process=False), Wires)
    with OperatorClient(app) as client:
        client.runtime.federations.create(NewFederation(name="many", plan=plan()))
        with client.runtime.database.write() as session:
            common = {
                "federation_id": get_federation(session, "many").id,
                "state": "collecting",
                "enrolment": "pending",
            }
            common |= {"enrolled_at": 1.0, "seen_at": 1.0, "examples": 0, "detail": ""}
            session.add_all(DeviceRow(**common, name=f"d{k:03d}") for k in range(101))
        shown = client.get("/federations/many/enrolment", headers=HTML).text
        assert 'href="/federations/many/devices?enrolment=pending">All waiting devices</a>' in shown
        assert "d099" in shown
        assert not re.search(r"\bd100\b", shown)  # a key's number may have these letters


def test_what_nobody_has_foreseen_is_told_as_a_page_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("not foreseen")

    app = create_app(Settings(data_dir=tmp_path, aggregation_process=False), Wires)
    with OperatorClient(app, raise_server_exceptions=False) as client:
        monkeypatch.setattr(FederationService, "pause", failing)
        key = client.headers.pop("Authorization").removeprefix("Bearer ")
        visitor = Visitor.logged_in(client, key)
        answer = visitor.post("/federations/walks/pause", {"csrf": visitor.token("/")})
        assert answer.status_code == 500
        assert "internal error; the server log has the details" in answer.text
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"] == POLICY
        assert "<main" in answer.text
        assert (
            problem(client.post("/v1/federations/walks/pause", headers={"Authorization": f"Bearer {key}"}), 500)[
                "title"
            ]
            == "Internal server error"
        )
    assert "not foreseen" in caplog.text


def test_a_part_of_a_session_that_has_ended_leads_to_the_login(server: TestClient) -> None:
    asked = {"hx-request": "true", "hx-current-url": "http://127.0.0.1/federations/walks?cursor=3"}
    answer = Visitor(server).get("/live/federations/walks/now", **asked)
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login?next=/federations/walks%3Fcursor%3D3")


def test_files_are_kept_for_ever_under_a_name_that_changes_with_them(server: TestClient) -> None:
    for name in MEDIA_TYPES:
        answer = server.get(url_of(name))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-type"].partition(";")[0] == MEDIA_TYPES[name]
    assert server.get("/static/000000000000/base.css").headers["cache-control"] == "no-cache"
    for gone in ("/static/x/SHA256SUMS", "/static/x/../files.py", "/static/x/LICENSE-htmx"):
        assert server.get(gone).status_code in (401, 404)


def test_lists_are_paged(operator: Visitor) -> None:
    first = operator.get(f"{WALKS}/devices?limit=5").text
    following = re.search(r'href="\?cursor=(\d+)" rel="next"', first)
    assert following is not None
    second = operator.get(f"{WALKS}/devices?limit=5&cursor={following[1]}").text
    assert "phone-05" in first
    assert "phone-06" not in first
    assert "phone-06" in second
    assert "First page" in second


def test_the_vendored_files_are_those_of_the_releases() -> None:
    listed = dict(reversed(line.split()) for line in (FILES / "SHA256SUMS").read_text().splitlines()[1:])
    assert set(listed) == {"LICENSE-htmx", "LICENSE-uPlot", "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"}
    for name, expected in listed.items():
        assert hashlib.sha256((FILES / name).read_bytes()).hexdigest() == expected, name


def test_every_file_is_served_or_says_where_another_is_from() -> None:
    own = {*MEDIA_TYPES} - {*SHARED}
    assert {path.name for path in FILES.iterdir()} == {*own, "LICENSE-htmx", "LICENSE-uPlot", "SHA256SUMS"}
    assert all(path.is_file() for path in SHARED.values())
