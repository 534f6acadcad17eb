"""What each route declares, against a table; what is at no route; and that a route which declares nothing is closed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Mount, Route, WebSocketRoute

from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.scopes import Need, check, declared_routes, requires
from aggregator_api.core.errors import ForbiddenError
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from tests.aggregator_api.auth.route_table import ROUTES, rows
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

AT_NO_ROUTE = """
GET     /v1/anything                                                operator read | the server
POST    /v1/anything                                                operator | the server
GET     /nothing                                                    operator read | the server
POST    /nothing/at/all                                             operator | the server
GET     /healthz/                                                   operator read | the server
POST    /healthz                                                    anybody
GET     /v1/enrol                                                   anybody
GET     /v1/enrol/nothing                                           operator read | the server
GET     /logout                                                     anybody
GET     /docs/nothing                                               anybody
PUT     /docs                                                       anybody
GET     /static/nothing                                             anybody
GET     /static                                                     operator read | the server
GET     /login/a/b                                                  anybody
GET     /phone/nothing                                              anybody
DELETE  /phone/a/b                                                  anybody
GET     /federations                                                operator read | its own
POST    /federations                                                operator | the server
GET     /federations/                                               operator read | its own
GET     /federations/walk/nothing                                   operator read | walk
POST    /federations/walk/nothing                                   operator | walk
GET     /federations/walk/pause                                     operator read | walk
HEAD    /federations/walk                                           operator read | walk
GET     /live                                                       operator read | its own
GET     /live/nothing                                               operator read | its own
GET     /live/federations/walk                                      operator read | walk
POST    /live/federations/walk/now                                  operator | walk
GET     /events/nothing                                             operator read | its own
GET     /new-federation/nothing                                     operator | the server
GET     /v1/federations/                                            operator read | its own
HEAD    /v1/federations                                             operator read | its own
PUT     /v1/federations                                             operator | the server
GET     /v1/federations/walk/                                       operator read | walk
GET     /v1/federations/walk/nothing                                operator read | walk
PUT     /v1/federations/walk/nothing/at/all                         operator | walk
GET     /v1/federations/walk/pause                                  operator read | walk
OPTIONS /v1/federations/walk/pause                                  operator read | walk
POST    /v1/federations/walk/rounds                                 operator | walk
BREW    /v1/federations/walk                                        operator | walk
GET     /v1/federations/walk%2Fx                                    operator read | walk%2Fx
GET     /v1/federations/walk/devices/d/status                       device | walk | d
PUT     /v1/federations/walk/devices/d/status                       device | walk | d
POST    /v1/federations/walk/devices/d/update                       device | walk | d
GET     /v1/federations/walk/devices/d/update/u/nothing             device | walk | d
POST    /v1/federations/walk/devices/d/messages/                    device | walk | d
GET     /v1/federations/walk/devices/d/nothing                      operator read | walk
GET     /v1/keys/                                                   operator | its own
GET     /v1/keys/0a/revoke                                          operator | its own
PUT     /v1/keys                                                    operator | its own
DELETE  /v1/keys/0a                                                 operator | its own
GET     /v1/audit/nothing                                           operator | the server
POST    /v1/audit                                                   operator | the server
POST    /metrics                                                    operator | the server
GET     /metrics/                                                   operator read | the server
HEAD    /metrics                                                    operator read | the server
GET     /v1/blobs                                                   operator read device | its own
PUT     /v1/blobs/0a                                                operator read device | its own
GET     /v1/blobs/0a/0b                                             operator read device | its own
GET     //v1/keys                                                   operator read | its own
GET     /V1/keys                                                    operator read | the server
POST    /v1/federations/walk/devices/d/approve/                     operator | walk
"""
"""What is needed to hear that nothing is there, or not by this method; written before routes declared anything."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("routes")), Wires)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[OperatorClient]:
    """A server with a router whose author has forgotten what it needs."""
    app = create_app(Settings(data_dir=tmp_path), Wires)
    forgotten = APIRouter(prefix="/v1/federations/{name}")

    @forgotten.get("/secrets")
    def secrets(name: str) -> str:
        return name

    @app.get("/static/secrets")
    def static_secrets() -> str:
        return "secrets"

    app.include_router(forgotten)
    with OperatorClient(app) as client:
        yield client


def asked(app: FastAPI, method: str, path: str, root_path: str = "") -> Need | None:
    scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": [], "app": app}
    return declared_routes(app).need(scope)


def in_words(need: Need | None) -> str:
    if need is None:
        return "anybody"
    where = {None: "the server", "": "its own"}.get(need.federation, need.federation)
    return " | ".join((" ".join(need.scopes), str(where), *([need.device] if need.device else [])))


def test_every_route_is_in_the_table_with_its_scope(app: FastAPI) -> None:
    found = {}
    for each in declared_routes(app).routes:
        assert each.access is not None, f"{each.path} declares nothing, so it is closed: see auth/scopes.py"
        named = {name: "{" + name + "}" for name in re.findall(r"{(\w+)", each.path)}
        found |= {(method, each.path): in_words(each.access.need(named)) for method in each.methods}
    assert found == {(method, path.replace(":path", "")): needed for (method, path), needed in ROUTES.items()}


def test_a_request_to_each_route_needs_what_the_table_says(app: FastAPI) -> None:
    """The path names what its places are called, so that a federation `name` is asked of as {name}."""
    for (method, path), needed in ROUTES.items():
        asked_for = path.replace(":path", "").replace("{", "").replace("}", "")
        assert in_words(asked(app, method, asked_for)) == needed.replace("{", "").replace("}", ""), (method, path)


@pytest.mark.parametrize(("method", "path", "needed"), [(*key, needed) for key, needed in rows(AT_NO_ROUTE).items()])
def test_what_is_at_no_route_is_told_to_those_who_may_ask_beside_it(
    app: FastAPI, method: str, path: str, needed: str
) -> None:
    assert in_words(asked(app, method, path)) == needed


def test_all_routes_are_ones_that_are_asked_for_a_key(app: FastAPI) -> None:
    """A WebSocket or a mounted application would pass authentication by, or hide its routes from the table."""
    flat = [each.matches.__self__ for each in declared_routes(app).routes]  # type: ignore[attr-defined]
    assert not [route for route in flat if isinstance(route, Mount | WebSocketRoute)]
    assert sum(isinstance(route, Route) for route in flat) <= len(flat)


def test_a_route_that_declares_nothing_is_closed_to_everybody(served: OperatorClient) -> None:
    assert served.get("/v1/federations").status_code == 200
    for path in ("/v1/federations/walk/secrets", "/static/secrets"):  # the latter in an open folder
        assert "declares no scope" in problem(served.get(path), 403)["detail"]
        problem(TestClient(served.served).get(path), 401)


def test_no_scope_at_all_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="expected at least one scope"):
        requires()


def test_a_path_that_the_router_takes_from_a_proxy_needs_what_its_route_needs(app: FastAPI) -> None:
    """The router takes `root_path` off once more; what was asked by the longer path was open below /static/."""
    for path, root in (("/static/v1/keys", "/static"), ("/docs/v1/keys", "/docs")):
        assert asked(app, "GET", path, root) == Need(("operator",), "")


def test_very_long_paths_are_decided_at_once(app: FastAPI) -> None:
    before = time.perf_counter()
    assert asked(app, "GET", "/v1/federations/walk" + "/a" * 30_000) == Need(("operator", "read"), "walk")
    assert time.perf_counter() - before < 0.5


def test_an_operator_is_not_let_through_a_closed_door() -> None:
    with pytest.raises(ForbiddenError, match="no key has access"):
        check(Caller("0" * 12, frozenset({"operator", "read", "device"}), None), Need((), None))
