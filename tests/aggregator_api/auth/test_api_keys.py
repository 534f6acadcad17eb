"""API keys: who needs one, what each opens, and that no secret is kept."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from typer.testing import CliRunner, Result

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.callers import CACHE_TTL_S, CallerCache, network
from aggregator_api.cli.app import app as cli
from aggregator_api.core.settings import Settings
from aggregator_api.http.api.middleware.authentication import MAX_CALLERS, TokenBuckets
from aggregator_api.http.app import create_app
from aggregator_api.storage.db.database import Database
from tests.aggregator_api.auth.route_table import OPEN
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem
from tests.live.real_parts import Postgres

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
        client.headers["Authorization"] = f"Bearer {operator_key(app)}"
        for name in (FEDERATION, "other"):
            body = {"name": name, "plan": tiny_plan().model_dump(mode="json")}
            assert client.post("/v1/federations", json=body).status_code == 201
        yield client


def operator_key(app: FastAPI) -> str:
    return (app.state.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip()


def make(admin: TestClient, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = admin.post("/v1/keys", json={"name": "test", "scopes": scopes, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def with_key(app: FastAPI, key: str) -> TestClient:
    return TestClient(app, host=AWAY, key=key)


def test_the_first_start_writes_a_key_that_only_its_user_may_read(admin: TestClient, app: FastAPI) -> None:
    file: Path = app.state.runtime.settings.data_dir / api_keys.OPERATOR_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert re.fullmatch(r"gw_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", operator_key(app))
    assert api_keys.ensure_operator(app.state.runtime.database, file.parent) is None  # a second start makes none


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
    body["plan"]["training"]["seed"] = 5  # the same plan would give the same blob
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
        assert api_keys.find(session, expiring["key"], expiring["expires_at"] - 1) is not None
        assert api_keys.find(session, expiring["key"], expiring["expires_at"]) is None


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


def test_a_program_on_this_machine_needs_a_key_too(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(data_dir=tmp_path), Wires)) as client:
        for headers in ({}, {"Host": "127.0.0.1"}, {"Host": "localhost"}, {"Host": "evil@127.0.0.1"}):
            assert "operator.key" in problem(client.get("/v1/federations", headers=headers), 401)["detail"]
        assert client.get("/readyz").status_code == 200


def test_every_command_that_gives_a_result_gives_it_as_json(tmp_path: Path) -> None:
    with OperatorClient(create_app(Settings(data_dir=tmp_path / "server"), Wires)) as client:
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
    of_federation = ("--federation", FEDERATION)
    for words, has in {
        ("keys", "create", "--name", "x", "--scope", "read"): {"id", "key"},
        ("tokens", "create", *of_federation): {"id", "token"},
        ("backup", "--out", str(tmp_path / "backup")): {"folder", "keys", "blobs", "bytes"},
        ("gc", "--dry-run"): {"blobs", "bytes"},
        ("retention", "apply"): {"versions", "updates", "events"},
        ("audit", "verify"): {"entries", "last_id", "digest"},
        ("audit", "list"): {"at", "actor", "address", "action", "federation", "device", "detail"},
        ("keys", "list"): {"id", "name", "scopes", "federation", "created_at", "used_at", "ends"},
        ("federations", "list"): {"name", "status", "method", "created_at"},
        ("versions", "list", *of_federation): {"version", "round", "created_at", "bytes", "needed_for"},
        ("devices", "list"): set[str](),
        ("vouch", "list", *of_federation): set[str](),
        ("rollouts", "list", *of_federation): set[str](),
    }.items():
        made = CliRunner().invoke(cli, [*words, "--data-dir", str(tmp_path / "server"), "--json"])
        assert (made.exit_code, made.stderr) == (0, ""), made.output
        found = json.loads(made.stdout)
        assert set(found if isinstance(found, dict) else next(iter(found), {})) == has


def test_a_server_that_had_a_key_before_gets_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert CliRunner().invoke(cli, ["migrate", "--data-dir", str(tmp_path)]).exit_code == 0
    made = CliRunner().invoke(cli, ["keys", "create", "--name", "x", "--scope", "read", "--data-dir", str(tmp_path)])
    assert made.exit_code == 0, made.output
    with TestClient(create_app(Settings(data_dir=tmp_path), Wires), key=made.stdout.strip()) as client:
        assert client.get("/v1/federations").status_code == 200
    assert not (tmp_path / api_keys.OPERATOR_FILE).exists()
    assert "no valid operator key" in caplog.text


def test_the_log_says_where_the_first_key_is_and_not_what_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aggregator_api")
    app = create_app(Settings(data_dir=tmp_path / "new"), Wires)
    with TestClient(app):
        key = operator_key(app)
    assert str(tmp_path / "new" / "operator.key") in caplog.text
    assert key.split("_", 2)[2] not in caplog.text
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "new" / "operator.key").unlink()
    with TestClient(app, key=key) as client:  # the file may go, the key stays, and no second one comes
        assert client.get("/v1/federations").status_code == 200
    assert not (tmp_path / "new" / "operator.key").exists()


@pytest.mark.ci
def test_of_several_processes_on_one_database_one_makes_the_first_key(cluster: Postgres, tmp_path: Path) -> None:
    url = cluster.new_database()
    databases = [Database(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        folders = [tmp_path / str(n) for n in range(4)]
        made = [path for path in pool.map(api_keys.ensure_operator, databases, folders) if path is not None]
    with databases[0].read() as session:
        assert len(api_keys.every(session)) == 1
    for database in databases:
        database.close()
    assert len(made) == 1
    assert len(list(tmp_path.glob("*/*"))) == 1


def test_too_many_requests_are_told_when_to_come_again(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host="0.0.0.0", key_requests_per_s=0.5, address_requests_per_s=0.01)
    app = create_app(settings, Wires)
    with TestClient(app) as client:
        client.headers["Authorization"] = f"Bearer {operator_key(app)}"
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


def test_wrong_keys_are_limited_by_address_and_a_good_key_of_the_same_address_is_not(tmp_path: Path) -> None:
    limits = {"failed_keys_per_s": 0.5, "address_requests_per_s": 0.01}
    app = create_app(Settings(data_dir=tmp_path, host="0.0.0.0", **limits), Wires)
    wrong = f"gw_{'0' * 12}_{'A' * 43}"
    with TestClient(app, host=AWAY, key=wrong) as client:
        assert [client.get("/v1/federations").status_code for _ in range(3)] == [401, 429, 429]
        assert [TestClient(app, host=AWAY).get("/healthz").status_code for _ in range(2)] == [200, 429]
        good = TestClient(app, host=AWAY, key=operator_key(app))
        assert [good.get("/v1/federations").status_code for _ in range(20)] == [200] * 20
        assert TestClient(app, host="198.51.100.1", key=wrong).get("/v1/federations").status_code == 401


def test_a_key_that_another_process_revokes_is_remembered_for_a_second(
    admin: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, runtime, now = make(admin, "read"), app.state.runtime, 0.0
    callers = CallerCache(clock=lambda: now)
    asked = []
    find = api_keys.find
    monkeypatch.setattr(api_keys, "find", lambda *given: asked.append(given) or find(*given))

    def look(key: str = made["key"]) -> Caller | None:
        return anyio.run(callers.find, runtime.database, key)

    assert look() == look()
    assert [key for _, key, _ in asked].count(made["key"]) == 1  # the server may look its administrator's up again
    admin.post(f"/v1/keys/{made['id']}/revoke")
    now = 0.9 * CACHE_TTL_S
    assert look() is not None
    now = 1.1 * CACHE_TTL_S
    assert look() is None
    assert look("gw_nonsense") is None


def test_a_key_in_use_is_looked_up_again_before_its_time_is_over_and_nobody_waits_for_it(
    admin: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, runtime, now = make(admin, "read"), app.state.runtime, 0.0
    callers, busy, find = CallerCache(clock=lambda: now), threading.Event(), api_keys.find

    async def look() -> Caller | None:
        return await asyncio.wait_for(callers.find(runtime.database, made["key"]), 20)

    def slowly(*given: Any) -> Caller | None:
        assert busy.wait(60)
        return find(*given)

    async def play() -> None:
        nonlocal now
        assert await look() is not None
        monkeypatch.setattr(api_keys, "find", slowly)
        now = 0.6 * CACHE_TTL_S
        assert await look() == await look()  # while it is looked up
        busy.set()
        await _until(lambda: callers.is_idle)
        now = 1.2 * CACHE_TTL_S
        busy.clear()
        assert await look() is not None  # from what was looked up meanwhile
        busy.set()
        await _until(lambda: callers.is_idle)
        await asyncio.to_thread(admin.post, f"/v1/keys/{made['id']}/revoke")
        now = 1.8 * CACHE_TTL_S
        assert await look() is not None
        await _until(lambda: callers.is_idle)
        assert await look() is None  # revoked, and known to be before its time is over

    asyncio.run(play())


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_key_that_is_forgotten_while_it_is_looked_up_is_not_remembered(
    admin: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, find = make(admin, "read"), api_keys.find
    callers = CallerCache()

    def revoked_meanwhile(*given: Any) -> Caller | None:
        found = find(*given)
        callers.forget()
        return found

    monkeypatch.setattr(api_keys, "find", revoked_meanwhile)
    assert anyio.run(callers.find, app.state.runtime.database, made["key"]) is not None
    assert len(callers) == 0


def test_a_bucket_fills_with_time_and_buckets_are_bounded() -> None:
    now = 0.0
    buckets = TokenBuckets(2.0, 4.0, clock=lambda: now)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now = 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") == 0.5
    now = 1000.0
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]  # no more than the burst
    for n in range(MAX_CALLERS + 10):
        buckets.take(str(n))
    assert len(buckets) == MAX_CALLERS
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

    app = create_app(Settings(data_dir=tmp_path, host="0.0.0.0"), Wires)
    with TestClient(app):
        first = operator_key(app)
    made = run("keys", "create", "--name", "grafana", "--scope", "read", "--days", "3")
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    id_ = key.split("_")[1]
    listed = run("keys", "list").stdout
    assert id_ in listed
    assert key.split("_", 2)[2] not in listed
    with TestClient(app, host=AWAY, key=key) as client:
        assert client.get("/v1/federations").status_code == 200
        assert operator_key(app) == first != key
        assert run("keys", "revoke", id_).stdout == f"{id_} is revoked\n"
        wait_for(lambda: client.get("/v1/federations").status_code == 401)  # in the running server too, in a second
    assert "revoked" in run("keys", "list").stdout
    for words, said in [
        (("keys", "revoke", "0"), "there is no key '0'"),
        (("keys", "create", "--name", "x", "--scope", "root"), "--scope root: expected operator, read or device"),
        (("keys", "create", "--name", "x", "--scope", "read", "--federation", "none"), "no federation 'none'"),
        (("tokens", "create", "--federation", "none"), "no federation 'none'"),
    ]:
        failed = run(*words)
        assert (failed.exit_code, said in failed.stderr) == (2, True), failed.output


def test_the_command_line_makes_tokens(tmp_path: Path) -> None:
    with OperatorClient(create_app(Settings(data_dir=tmp_path), Wires)) as client:
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
        words = ["tokens", "create", "--federation", FEDERATION, "--device", "phone", "--data-dir", str(tmp_path)]
        made = CliRunner().invoke(cli, words)
        assert made.exit_code == 0
        assert re.fullmatch(r"gwe_[A-Za-z0-9_-]{43}_[0-9a-f]{32}\n", made.stdout), made.output
        rows = CliRunner().invoke(cli, ["tokens", "list", "--json", "--data-dir", str(tmp_path)])
        (row,) = json.loads(rows.stdout)
        assert (row["device"], row["federation"], row["state"]) == ("phone", FEDERATION, "open")
        (listed,) = client.get(f"{HERE}/enrolment-tokens").json()["items"]
        assert (listed["device"], listed["auto_approve"]) == ("phone", False)
        assert listed["expires_at"] - listed["created_at"] == pytest.approx(24 * 3600)
