"""Login, sessions and what protects them."""

from __future__ import annotations

import re
import threading
from urllib.parse import quote

import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner

from aggregator_api.auth import api_keys, sessions
from aggregator_api.cli.app import app as cli
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web.routes import SUBJECTS
from aggregator_api.storage.db.models import AuditRow, CredentialRow, WebSessionRow
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.visitors import FROM_HERE, HTML, Visitor, key_of


def test_a_page_asks_for_a_key_first_and_comes_back_to_itself(server: TestClient) -> None:
    visitor = Visitor(server)
    first = visitor.get("/federations/walks/devices")
    assert (first.status_code, first.headers["location"]) == (303, "/login?next=/federations/walks/devices")
    login = visitor.get(first.headers["location"])
    assert 'value="/federations/walks/devices"' in login.text
    answer = visitor.log_in(key_of(server, ["read"]), next="/federations/walks/devices")
    assert (answer.status_code, answer.headers["location"]) == (303, "/federations/walks/devices")
    assert "phone-01" in visitor.get(answer.headers["location"]).text


def test_the_cookie_is_for_this_server_alone_and_no_script_reads_it(server: TestClient) -> None:
    plain = Visitor(server).log_in(key_of(server, ["read"])).headers["set-cookie"].lower()
    assert plain.startswith("gaitway=")
    for part in ("httponly", "samesite=strict", "path=/"):
        assert part in plain
    assert "domain" not in plain


def test_over_tls_the_cookie_is_secure(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=tmp_path_factory.mktemp("tls"), trusted_proxies="127.0.0.1")
    with TestClient(create_app(settings, Wires)) as client:
        visitor = Visitor(client)
        answer = visitor.post("/login", {"key": key_of(client, ["read"])}, **{"x-forwarded-proto": "https"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-gaitway=")
        assert "secure" in cookie.lower()
        visitor.cookie = cookie.partition(";")[0]
        assert visitor.get("/", **{"x-forwarded-proto": "https"}).status_code == 200
        assert visitor.get("/").status_code == 303  # not over plain HTTP


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/login"]
)
def test_login_leads_to_no_other_site(server: TestClient, target: str) -> None:
    assert Visitor(server).log_in(key_of(server, ["read"]), next=target).headers["location"] == "/"


def test_a_wrong_key_is_refused_in_words_and_many_are_slowed_down(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=tmp_path_factory.mktemp("wrong"), failed_keys_per_s=0.01)
    with TestClient(create_app(settings, Wires)) as client:
        visitor = Visitor(client)
        answer = visitor.log_in("gw_000000000000_" + "A" * 43)
        assert answer.status_code == 401
        assert "unknown, expired or revoked" in answer.text
        assert "set-cookie" not in answer.headers
        assert visitor.log_in("gw_000000000000_" + "A" * 43).status_code == 429
        with client.runtime.database.read() as session:
            said = [row.detail for row in session.scalars(select(AuditRow).where(AuditRow.action == "sessions.create"))]
        assert not any("A" * 43 in one for one in said)


def test_a_devices_key_opens_no_page(server: TestClient) -> None:
    answer = Visitor(server).log_in(key_of(server, ["device"]))
    assert answer.status_code == 403
    assert "opens models, not pages" in answer.text


def test_a_login_waits_for_whoever_writes(server: TestClient) -> None:
    key, answers = key_of(server, ["read"]), list[int]()
    login = threading.Thread(target=lambda: answers.append(Visitor(server).log_in(key).status_code))
    with server.runtime.database.write() as session:
        session.scalar(select(AuditRow.id).limit(1))  # the first statement takes the writers' lock
        login.start()
        login.join(0.3)
        during = list(answers)
    login.join()
    assert (during, answers) == ([], [303])


def test_logout_ends_the_session_wherever_its_cookie_is(operator: Visitor) -> None:
    copied = operator.cookie
    answer = operator.submit("/logout", on="/")
    assert answer.headers["location"] == "/login"
    assert 'gaitway=""' in answer.headers["set-cookie"]
    operator.cookie = copied
    assert operator.get("/").status_code == 303


def test_who_sends_a_form_after_the_end_of_the_session_comes_back_to_its_page(server: TestClient) -> None:
    key = key_of(server, ["operator"])
    visitor = Visitor.logged_in(server, key)
    page = "/federations/walks/devices?tag=pilot"
    token = visitor.token("/")
    visitor.submit("/logout", on="/")
    answer = visitor.post("/federations/walks/pause", {"csrf": token}, referer=f"http://127.0.0.1{page}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={quote(page)}")
    assert visitor.log_in(key, next=page).headers["location"] == page
    nowhere = Visitor(server).post("/federations/walks/pause", {"csrf": token})
    assert nowhere.headers["location"] == "/login"


def test_two_tabs_log_out(operator: Visitor) -> None:
    fields = {"csrf": operator.token("/")}
    for _ in range(2):
        assert operator.post("/logout", fields).headers["location"] == "/login"


def test_a_session_ends_with_its_key(server: TestClient) -> None:
    key = key_of(server, ["read"])
    visitor = Visitor.logged_in(server, key)
    assert visitor.get("/").status_code == 200
    operator = (server.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip()
    headers = {"authorization": f"Bearer {operator}"}
    assert server.post(f"/v1/keys/{key.split('_')[1]}/revoke", headers=headers).status_code == 200
    assert visitor.get("/").status_code == 303
    assert Visitor(server).log_in(key).status_code == 401


def test_a_session_ends_by_itself(server: TestClient) -> None:
    visitor = Visitor.logged_in(server, key_of(server, ["read"]))
    with server.runtime.database.write() as session:
        token = visitor.cookie.partition("=")[2]
        assert sessions.find(session, token, 0) is not None
        session.execute(update(WebSessionRow).values(expires_at=1.0))
    assert visitor.get("/").status_code == 303


def test_a_key_has_a_bounded_number_of_sessions(server: TestClient) -> None:
    key = key_of(server, ["read"])
    visitors = [Visitor.logged_in(server, key) for _ in range(sessions.MAX_SESSIONS_PER_KEY + 1)]
    assert visitors[0].get("/").status_code == 303
    assert visitors[1].get("/").status_code == visitors[-1].get("/").status_code == 200


def test_the_database_holds_no_session_that_could_be_used(server: TestClient) -> None:
    visitor = Visitor.logged_in(server, key_of(server, ["read"]))
    token = visitor.cookie.partition("=")[2]
    with server.runtime.database.read() as session:
        assert all(token not in row.token_sha256 for row in session.scalars(select(WebSessionRow)))
    assert token not in visitor.get("/").text


def test_rest_takes_no_session(operator: Visitor) -> None:
    for path in ("/v1/federations", "/v1/federations/walks", "/v1/keys", "/metrics"):
        assert operator.get(path).status_code == 401, path


POSTS = sorted({route.path for each in SUBJECTS for route in each.routes if "POST" in getattr(route, "methods", ())})


def address_of(path: str) -> str:
    """Put names that exist into a route's path."""
    names = {"name": "walks", "device": "phone-01", "number": "1", "token": "2", "alias": "stable", "version": "1"}
    return re.sub(r"\{(\w+)\}", lambda found: names[found[1]], path)


def test_there_are_forms_for_everything_that_an_operator_does() -> None:
    assert len(POSTS) >= 17


@pytest.mark.parametrize("path", POSTS)
def test_no_form_is_taken_from_another_site_or_without_the_sessions_token(operator: Visitor, path: str) -> None:
    address, token = address_of(path), operator.token("/")
    other = {"sec-fetch-site": "cross-site"}
    assert operator.post(address, {"csrf": token}, **other).status_code == 403
    evil = operator.server.post(
        address,
        data={"csrf": token},
        headers={**HTML, "cookie": operator.cookie, "origin": "http://evil.example"},
        follow_redirects=False,
    )
    assert evil.status_code == 403
    nameless = {**HTML, "cookie": operator.cookie}
    assert operator.server.post(address, data={"csrf": token}, headers=nameless).status_code == 403
    if path != "/login":
        for wrong in ({}, {"csrf": "0" * 64}):
            answer = operator.post(address, {"device": "x", **wrong})
            assert answer.status_code == 403
            assert "another session" in answer.text


@pytest.mark.parametrize("path", [path for path in POSTS if path not in ("/login", "/logout")])
def test_who_reads_does_not_act(reader: Visitor, path: str) -> None:
    answer = reader.post(address_of(path), {"csrf": reader.token("/")})
    assert answer.status_code == 403
    assert "the scope read" in answer.text


def test_a_token_of_another_session_is_refused(operator: Visitor, reader: Visitor) -> None:
    assert operator.post("/federations/walks/pause", {"csrf": reader.token("/")}).status_code == 403


def test_a_key_for_one_federation_sees_and_steers_only_that(server: TestClient) -> None:
    visitor = Visitor.logged_in(server, key_of(server, ["operator"], "gestures"))
    overview = visitor.get("/").text
    assert "gestures" in overview
    assert "walks" not in overview
    assert "New federation" not in overview
    for path in ("/federations/walks", "/federations/walks/devices", "/live/federations/walks/now", "/new-federation"):
        assert visitor.get(path).status_code == 403, path
    assert visitor.post("/federations/walks/pause", {"csrf": visitor.token("/")}).status_code == 403
    answer = visitor.submit("/federations/gestures/resume", on="/federations/gestures")
    assert answer.headers["location"] == "/federations/gestures"
    assert visitor.submit("/federations/gestures/pause", on="/federations/gestures").status_code == 303


def link_of(server: TestClient, *words: str) -> str:
    """Return the path of a link that the command beside a server prints."""
    folder = str(server.runtime.settings.data_dir)
    said = CliRunner().invoke(cli, ["login-link", "--data-dir", folder, "--port", "8099", *words])
    assert said.exit_code == 0, said.output
    found = re.fullmatch(r"http://127\.0\.0\.1:8099(/login/[A-Za-z0-9_-]{43})\n", said.stdout)
    assert found is not None, said.stdout
    return found[1]


def test_a_login_link_lets_one_browser_in_once(server: TestClient) -> None:
    path, visitor = link_of(server), Visitor(server)
    with server.runtime.database.read() as session:
        hashes = session.scalars(select(WebSessionRow.token_sha256)).all()
    token = path.rpartition("/")[2]
    assert token not in hashes
    visitor.cookie = f"gaitway={token}"
    assert visitor.get("/").status_code == 303  # it is no session itself
    visitor.cookie = ""
    answer = visitor.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    visitor.cookie = answer.headers["set-cookie"].partition(";")[0]
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "Needs attention" in visitor.get("/").text
    assert visitor.submit("/federations/walks/pause").status_code == 303  # an operator's
    again = Visitor(server).get(path)
    assert (again.status_code, "this link was used, or its time is over" in again.text) == (401, True)
    assert "set-cookie" not in again.headers
    with server.runtime.database.read() as session:
        actions = session.scalars(select(AuditRow.action).where(AuditRow.detail == "by a link")).all()
    assert actions == ["sessions.create"]


def test_a_login_link_that_is_cut_off_is_answered_with_a_page(server: TestClient) -> None:
    answer = Visitor(server).get(link_of(server)[:-5])
    assert (answer.status_code, "This link is cut off" in answer.text) == (422, True)
    assert "text/html" in answer.headers["content-type"]


def test_a_login_link_ends_with_its_time_its_key_and_is_of_this_machine(server: TestClient) -> None:
    away = TestClient(server.served, host="203.0.113.9")
    path = link_of(server)
    assert "machine alone, and not from 203.0.113.9" in away.get(path, headers=HTML).text
    with server.runtime.database.write() as session:
        session.execute(update(WebSessionRow).values(expires_at=1.0))
    assert Visitor(server).get(path).status_code == 401
    key = key_of(server, ["operator"])
    id = key.split("_")[1]
    path = link_of(server, "--key", id)
    with server.runtime.database.write() as session:
        session.execute(update(CredentialRow).where(CredentialRow.prefix == id).values(revoked_at=1.0))
    assert Visitor(server).get(path).status_code == 401
    folder = str(server.runtime.settings.data_dir)
    said = CliRunner().invoke(cli, ["login-link", "--data-dir", folder, "--key", id])
    assert (said.exit_code, f"the key {id} is no longer valid" in said.stderr) == (2, True)
    for path in ("/login/x", "/login/" + "x" * 44, "/login/" + "x" * 43):
        assert Visitor(server).get(path).status_code in (401, 422)


def test_the_audit_says_who_did_what_in_the_same_words_as_rest(operator: Visitor) -> None:
    operator.submit("/federations/walks/devices/phone-05/tags", {"tags": "east, west"})
    with operator.server.runtime.database.read() as session:
        row = session.scalars(select(AuditRow).order_by(AuditRow.id.desc())).first()
        assert row is not None
        assert (row.action, row.federation, row.device) == ("tags.set", "walks", "phone-05")
        assert "east, west" in row.detail
        assert "csrf" not in row.detail
        assert re.fullmatch(r"[0-9a-f]{12}", row.actor)


def test_a_body_that_is_no_form_is_refused(operator: Visitor) -> None:
    headers = {**HTML, **FROM_HERE, "cookie": operator.cookie, "content-type": "application/json"}
    answer = operator.server.post("/federations/walks/pause", content=b"{}", headers=headers)
    assert answer.status_code == 422
    many = "&".join(f"a{k}=1" for k in range(200))
    answer = operator.server.post(
        "/federations/walks/pause",
        content=many,
        headers={**headers, "content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 422
