"""A server with `root_path`: asked with and without it, as proxies that take it off and those that leave it do."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings, load
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.api.middleware.headers import below
from aggregator_api.http.app import create_app
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient, TestClient
from tests.aggregator_api.web.seeded import plan

HTML = {"accept": "text/html"}


def test_a_path_may_be_left_on_or_taken_off(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, aggregation_process=False, root_path="/a/gaitway/")
    with TestClient(create_app(settings, Wires), follow_redirects=False) as client:
        for path in ("/healthz", "/a/gaitway/healthz"):
            assert client.get(path).status_code == 200
        for path in ("/federations/walks", "/a/gaitway/federations/walks"):
            assert client.get(path, headers=HTML).headers["location"] == "/a/gaitway/login?next=/federations/walks"
        assert client.get("/a/gaitway/phone").headers["location"] == "/a/gaitway/phone/"
        asked = client.get("/a/gaitway/docs/")  # the routes send it on to their own path
        assert asked.headers["location"] == "http://127.0.0.1/a/gaitway/docs"
        shown = client.get("/a/gaitway/login", headers=HTML).text
        assert 'action="/a/gaitway/login"' in shown
        assert 'href="/a/gaitway/static/' in shown
        assert client.get("/a/gaitwayhealthz").status_code == 401  # another path, which is not open


def test_a_form_below_a_path_comes_back_to_its_page_after_a_login(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, aggregation_process=False, root_path="/gaitway")
    with TestClient(create_app(settings, Wires), follow_redirects=False) as client:
        headers = {**HTML, "referer": "http://127.0.0.1/gaitway/federations/walks?before=3"}
        answer = client.post("/gaitway/federations/walks/pause", data={"csrf": "x"}, headers=headers)
        assert answer.headers["location"] == "/gaitway/login?next=/federations/walks%3Fbefore%3D3"


def test_a_page_below_a_path_names_rest_below_it(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, aggregation_process=False, root_path="/gaitway")
    with OperatorClient(create_app(settings, Wires)) as client:
        client.runtime.federations.create(NewFederation(name="walks", plan=plan(rollout={"mode": "off"})))
        shown = client.get("/gaitway/federations/walks/rollouts", headers=HTML).text
        assert 'action="/gaitway/federations/walks"' in shown
        assert 'hx-get="/gaitway/live/federations/walks/rollouts"' in shown


@pytest.mark.parametrize("path", ["/v1", "/static/x", "/phone", "gaitway", "/a//b", "/a/../b", "/a b", '/"x', "//host"])
def test_what_is_no_path_for_a_server_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="root_path"):
        load(None, root_path=path)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/login", "/g/login"),
        ("http://here/x?y=1", "http://here/g/x?y=1"),
        ("http://there/x", "http://there/x"),
        ("//there/x", "//there/x"),
        ("x", "x"),
    ],
)
def test_only_redirects_to_this_server_are_put_below(target: str, expected: str) -> None:
    assert below("/g", target, "here") == expected
