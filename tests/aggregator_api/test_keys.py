"""API keys: who needs one, what each opens, and that no secret is kept."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from typer.testing import CliRunner, Result

from aggregator_api import keys
from aggregator_api.access import OPEN
from aggregator_api.app import create_app
from aggregator_api.cli import app as cli
from aggregator_api.gate import is_local
from aggregator_api.limits import MOST, TokenBuckets, network
from aggregator_api.settings import Settings

from .asking import TestClient, problem
from .devices import FEDERATION, Wires, tiny_plan

HERE = f"/v1/federations/{FEDERATION}"
AWAY = "203.0.113.9"


@pytest.fixture(scope="module")
def app(backend: None, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """A server that listens to everybody, so that it asks for keys."""
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("keys"), host="0.0.0.0"), Wires)


@pytest.fixture(scope="module")
def admin(app: FastAPI) -> Iterator[TestClient]:
    """The operator, with the key that the first start made, and two federations."""
    with TestClient(app, host=AWAY) as client:
        client.headers["Authorization"] = f"Bearer {admin_key(app)}"
        for name in (FEDERATION, "other"):
            body = {"name": name, "plan": tiny_plan().model_dump(mode="json")}
            assert client.post("/v1/federations", json=body).status_code == 201
        yield client


def admin_key(app: FastAPI) -> str:
    return (app.state.runtime.settings.data_dir / keys.ADMIN_FILE).read_text().strip()


def make(admin: TestClient, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = admin.post("/v1/keys", json={"name": "test", "scopes": scopes, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def with_key(app: FastAPI, key: str) -> TestClient:
    return TestClient(app, host=AWAY, key=key)


def test_the_first_start_writes_a_key_that_only_its_user_may_read(admin: TestClient, app: FastAPI) -> None:
    file: Path = app.state.runtime.settings.data_dir / keys.ADMIN_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert re.fullmatch(r"gw_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", admin_key(app))
    assert keys.ensure_admin(app.state.runtime.database, file.parent) is None  # a second start makes none


def test_every_route_but_the_open_ones_asks_for_a_key(admin: TestClient, app: FastAPI) -> None:
    nobody = TestClient(app, host=AWAY)
    asked = 0
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            place = path.replace("{sha256}", "0" * 64).replace("{", "").replace("}", "")
            answer = nobody.request(method, place)
            if path in OPEN:
                assert answer.status_code != 401 or path.startswith("/v1/enrol"), path
                continue
            asked += 1
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == 'Bearer realm="gaitway"'
            if method != "head":
                problem(answer, 401)
    assert asked >= 20
    # what is in no document at all is not open either
    problem(nobody.get("/v1/anything"), 401)
    problem(nobody.get("/healthz/"), 401)


@pytest.mark.parametrize(
    "authorization",
    ["Bearer", "Bearer x", "Basic Z3c6Z3c=", f"Bearer gw_{'0' * 12}_{'A' * 43}", "Bearer gw_ÿ", "bearer  "],
)
def test_a_wrong_key_is_refused(admin: TestClient, app: FastAPI, authorization: str) -> None:
    nobody = TestClient(app, host="203.0.113.77")
    answer = nobody.get("/v1/federations", headers={"Authorization": authorization.encode("latin-1")})
    problem(answer, 401)
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_a_key_with_one_letter_changed_is_refused(admin: TestClient, app: FastAPI) -> None:
    key = make(admin, "read")["key"]
    assert with_key(app, key).get("/v1/federations").status_code == 200
    for changed in (key[:-1] + ("A" if key[-1] != "A" else "B"), key[:4] + ("0" if key[4] != "0" else "1") + key[5:]):
        problem(with_key(app, changed).get("/v1/federations"), 401)


def test_scopes(admin: TestClient, app: FastAPI) -> None:
    model = admin.get(HERE).json()["model"]["url"]
    reader, device = (with_key(app, make(admin, scope)["key"]) for scope in ("read", "device"))
    for path in ("/v1/federations", HERE, f"{HERE}/devices", model):
        assert reader.get(path).status_code == 200
    for path in (f"{HERE}/pause", "/v1/federations", "/v1/keys"):
        answer = reader.post(path)
        problem(answer, 403)
        assert 'error="insufficient_scope", scope="operator"' in answer.headers["www-authenticate"]
    problem(reader.get("/v1/keys"), 403)
    assert device.get(model).status_code == 200
    for path in ("/v1/federations", HERE, f"{HERE}/devices"):
        assert "this needs operator or read" in problem(device.get(path), 403)["detail"]


def test_a_key_for_one_federation_sees_nothing_of_another(admin: TestClient, app: FastAPI) -> None:
    operator, reader = (with_key(app, make(admin, scope, federation="other")["key"]) for scope in ("operator", "read"))
    assert [one["name"] for one in reader.get("/v1/federations").json()["items"]] == ["other"]
    assert reader.get("/v1/federations/other").status_code == 200
    for path in (HERE, "/v1/federations/unknown"):
        assert "another federation" in problem(reader.get(path), 403)["detail"]
    body = {"name": "third", "plan": tiny_plan().model_dump(mode="json")}
    assert "the whole server" in problem(operator.post("/v1/federations", json=body), 403)["detail"]
    # keys: its own alone
    made = make(operator, "read", federation="other")
    problem(operator.post("/v1/keys", json={"name": "k", "scopes": ["read"]}), 403)
    problem(operator.post("/v1/keys", json={"name": "k", "scopes": ["read"], "federation": FEDERATION}), 403)
    shown = operator.get("/v1/keys").json()["items"]
    assert made["id"] in {key["id"] for key in shown}
    assert {key["federation"] for key in shown} == {"other"}
    foreign = make(admin, "read")
    problem(operator.post(f"/v1/keys/{foreign['id']}/revoke"), 404)
    assert with_key(app, foreign["key"]).get(HERE).status_code == 200


def test_a_federations_key_downloads_its_models_alone(admin: TestClient, app: FastAPI) -> None:
    body = {"name": "seeded", "plan": tiny_plan().model_dump(mode="json")}
    body["plan"]["task"]["seed"] = 5  # the same plan would give the same blob
    assert admin.post("/v1/federations", json=body).status_code == 201
    ours, theirs = (admin.get(f"/v1/federations/{name}").json()["model"]["url"] for name in (FEDERATION, "seeded"))
    assert ours != theirs
    device = with_key(app, make(admin, "device", federation=FEDERATION)["key"])
    assert device.get(ours).status_code == 200
    problem(device.get(theirs), 404)
    assert device.head(theirs).status_code == 404


def test_revoked_and_expired_keys_open_nothing(admin: TestClient, app: FastAPI) -> None:
    made = make(admin, "read", lifetime_s=3600)
    client = with_key(app, made["key"])
    assert client.get(HERE).status_code == 200
    revoked = admin.post(f"/v1/keys/{made['id']}/revoke").json()
    assert revoked["revoked_at"] is not None
    problem(client.get(HERE), 401)
    assert admin.post(f"/v1/keys/{made['id']}/revoke").json() == revoked
    problem(admin.post(f"/v1/keys/{'0' * 12}/revoke"), 404)
    expiring = make(admin, "read", lifetime_s=60)
    with app.state.runtime.database.read() as session:
        assert keys.find(session, expiring["key"], expiring["expires_at"] - 1) is not None
        assert keys.find(session, expiring["key"], expiring["expires_at"]) is None


def test_listing_shows_use_and_no_secret(admin: TestClient, app: FastAPI) -> None:
    made = make(admin, "read")
    listed = {key["id"]: key for key in admin.get("/v1/keys", params={"limit": 500}).json()["items"]}
    assert listed[made["id"]]["used_at"] is None
    assert "key" not in listed[made["id"]]
    with_key(app, made["key"]).get(HERE)
    listed = {key["id"]: key for key in admin.get("/v1/keys", params={"limit": 500}).json()["items"]}
    assert listed[made["id"]]["used_at"] is not None
    secret = made["key"].split("_", 2)[2]
    with app.state.runtime.database.read() as session:
        rows = session.execute(text("SELECT * FROM credentials")).all()
    assert made["id"] in str(rows)
    assert secret not in str(rows)


def test_who_sits_at_the_machine_needs_no_key_unless_told_so(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(data_dir=tmp_path / "auto"), Wires)) as client:
        assert client.get("/v1/federations").status_code == 200
        problem(client.get("/v1/federations", headers={"Authorization": "Bearer wrong"}), 401)
        for headers in ({"X-Forwarded-For": AWAY}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            problem(client.get("/v1/federations", headers=headers), 401)
        assert client.get("/v1/federations", headers={"Origin": "http://localhost:8080"}).status_code == 200
    with TestClient(create_app(Settings(data_dir=tmp_path / "always", require_keys="always"), Wires)) as client:
        problem(client.get("/v1/federations"), 401)
        assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("headers", "host", "local"),
    [
        ({"host": "127.0.0.1:8080"}, "127.0.0.1", True),
        ({"host": "[::1]:8080"}, "::1", True),
        ({"host": "localhost"}, "127.0.0.1", True),
        ({"host": "localhost"}, "192.0.2.1", False),
        ({"host": "localhost.evil.example"}, "127.0.0.1", False),
        ({"host": "localhost", "origin": "null"}, "127.0.0.1", False),
        ({"host": "localhost", "forwarded": "for=192.0.2.1"}, "127.0.0.1", False),
        ({"host": "[::1"}, "127.0.0.1", False),
        ({}, "127.0.0.1", False),
    ],
)
def test_what_counts_as_this_machine(headers: dict[str, str], host: str, local: bool) -> None:
    assert is_local(headers, host) is local


def test_too_many_requests_are_told_when_to_come_again(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host="0.0.0.0", key_requests_per_s=0.5, address_requests_per_s=0.01)
    app = create_app(settings, Wires)
    with TestClient(app) as client:  # an address of this machine has no limit, a key has
        client.headers["Authorization"] = f"Bearer {admin_key(app)}"
        assert client.get("/v1/federations").status_code == 200
        answer = client.get("/v1/federations")
        problem(answer, 429)
        assert 1 <= int(answer.headers["retry-after"]) <= 2
        assert client.get("/healthz").status_code == 200
    with TestClient(app, host=AWAY) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/healthz")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 60


def test_a_wrong_key_costs_its_address_more(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, host="0.0.0.0", address_requests_per_s=10), Wires)
    with TestClient(app, host=AWAY, key="wrong") as client:
        assert [client.get("/v1/federations").status_code for _ in range(3)] == [401, 429, 429]
        assert TestClient(app, host="198.51.100.1").get("/healthz").status_code == 200


def test_a_bucket_fills_with_time_and_buckets_are_bounded() -> None:
    now = 0.0
    buckets = TokenBuckets(2.0, 4.0, clock=lambda: now)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now = 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") == 0.5
    now = 1000.0
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]  # no more than the burst
    for n in range(MOST + 10):
        buckets.take(str(n))
    assert len(buckets) == MOST
    assert buckets.take("a") == 0  # it was forgotten


def test_an_ipv6_customer_is_one_caller() -> None:
    assert network("2001:db8:1:2:3::4") == network("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"
    assert network("2001:db8:1:3::") != network("2001:db8:1:2::")
    assert network("::ffff:192.0.2.1") == "192.0.2.1"
    assert network("testclient") == "testclient"


def test_the_command_line_makes_lists_and_revokes_keys(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path)]

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, *folder], env={"COLUMNS": "200"})

    made = run("keys", "create", "--name", "grafana", "--scope", "read", "--days", "3")
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    id_ = key.split("_")[1]
    listed = run("keys", "list").stdout
    assert id_ in listed
    assert key.split("_", 2)[2] not in listed
    app = create_app(Settings(data_dir=tmp_path, host="0.0.0.0"), Wires)
    with TestClient(app, host=AWAY, key=key) as client:
        assert client.get("/v1/federations").status_code == 200
        assert admin_key(app) != key  # a reader's key is not the operator's
        assert run("keys", "revoke", id_).stdout == f"{id_} is revoked\n"
        problem(client.get("/v1/federations"), 401)  # in the running server too
    assert "revoked" in run("keys", "list").stdout
    for words, said in [
        (("keys", "revoke", "0"), "there is no key '0'"),
        (("keys", "create", "--name", "x", "--scope", "root"), "scopes.0: Input should be"),
        (("keys", "create", "--name", "x", "--scope", "read", "--federation", "none"), "no federation 'none'"),
        (("tokens", "create", "--federation", "none"), "no federation 'none'"),
    ]:
        failed = run(*words)
        assert (failed.exit_code, said in failed.stderr) == (2, True), failed.output


def test_the_command_line_makes_tokens(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(data_dir=tmp_path), Wires)) as client:
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
        words = ["tokens", "create", "--federation", FEDERATION, "--device", "phone", "--data-dir", str(tmp_path)]
        made = CliRunner().invoke(cli, words)
        assert re.fullmatch(r"gwt_[A-Za-z0-9_-]{43}\n", made.stdout), made.output
        (listed,) = client.get(f"{HERE}/enrolment-tokens").json()["items"]
        assert (listed["device"], listed["auto_approve"]) == ("phone", False)
        assert listed["expires_at"] - listed["created_at"] == pytest.approx(24 * 3600)
