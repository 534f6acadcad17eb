"""A real server below a path of a real nginx: pages, files, sessions, streams, redirects, REST and phones lie there."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from aggregator_api.http.web.phone import RUNTIME, files
from federation.protocol.enrolment_uri import EnrolmentUri
from tests.aggregator_api.generated_devices import tiny_plan
from tests.browser import barriers, excess_width, launched, listen, needs_browser
from tests.conftest import REPOSITORY
from tests.live.fleet import PATIENCE_S
from tests.live.test_phones import USED, a_plan
from tests.live.test_proxies import certificate, nginx_conf, running
from tests.live.test_proxies import server as server
from tests.phone.test_page import CONTROLLED, walk
from tests.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.ci, pytest.mark.service]


@pytest.fixture(scope="module")
def proxy(server: tuple[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of nginx with the documented configuration, and the operator's key."""
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    certificate(folder)
    text = (REPOSITORY / "deploy" / "nginx" / "gaitway-path.conf").read_text()
    text = text.replace("listen 443", f"listen 127.0.0.1:{port}").replace("/etc/nginx/gaitway", f"{folder}/gaitway")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{server[0]}")
    with running(nginx_conf(folder, text), port, folder / "nginx.log"):
        yield port, (server[1] / "operator.key").read_text().strip()


class Answer(NamedTuple):
    """What came, whole."""

    status: int
    location: str
    text: bytes


def ask(port: int, path: str, key: str = "", body: Any = None, **headers: str) -> Answer:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given |= {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json", **given})
    got = connection.getresponse()
    answer = Answer(got.status, got.getheader("Location", ""), got.read())
    connection.close()
    return answer


def test_rest_and_the_way_to_the_login_lie_below_the_path(proxy: tuple[int, str]) -> None:
    port, key = proxy
    assert json.loads(ask(port, "/gaitway/v1/federations", key).text)["items"] == []
    described = json.loads(ask(port, "/gaitway/openapi.json").text)
    assert described["servers"] == [{"url": "/gaitway"}]
    asked = ask(port, "/gaitway/federations/walks", Accept="text/html")
    assert (asked.status, asked.location) == (303, "/gaitway/login?next=/federations/walks")
    assert ask(port, "/gaitway").location.endswith("/gaitway/")
    assert ask(port, "/v1/federations", key).status == 404  # of nginx: nothing of ours is at the root


def test_a_stranger_names_no_path(server: tuple[int, Path], proxy: tuple[int, str]) -> None:
    """Only `X-Forwarded-Prefix` that nginx sets counts, and one that is no path is not taken from anybody."""
    asked = ask(proxy[0], "/gaitway/", Accept="text/html", X_Forwarded_Prefix="//evil.example")
    assert asked.location == "/gaitway/login"
    connection = http.client.HTTPConnection("127.0.0.1", server[0], timeout=30)
    for said in ("//evil.example", "/v1", "/..", '/"onload', "/a b"):
        connection.request("GET", "/", headers={"Accept": "text/html", "X-Forwarded-Prefix": said})
        answer = connection.getresponse()
        answer.read()
        assert answer.getheader("Location") == "/login", said
    connection.close()


@needs_browser
def test_the_pages_work_below_the_path(proxy: tuple[int, str]) -> None:
    port, key = proxy
    here = f"https://127.0.0.1:{port}/gaitway/"
    made = {"name": "walks", "plan": tiny_plan().model_dump(mode="json")}
    assert ask(port, "/gaitway/v1/federations", key, made).status == 201
    faults: list[str] = []
    with launched() as browser:
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.set_default_timeout(60_000)
        listen(page, faults)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{here}federations/walks")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("live", exact=True).wait_for()
        assert page.url == f"{here}federations/walks"
        [cookie] = page.context.cookies()
        assert (cookie["name"], cookie["path"], cookie["secure"]) == ("__Secure-gaitway", "/gaitway/", True)
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").wait_for()
        page.get_by_text("federation paused").first.wait_for()
        page.get_by_role("link", name="Overview").click()
        page.get_by_role("link", name="walks").wait_for()
        assert page.url == here
        page.get_by_role("link", name="REST").click()
        page.get_by_text("/v1/federations/{name}", exact=True).first.wait_for()
        page.goto(here)
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("API key").wait_for()
        assert page.context.cookies() == []
        assert [url for url in asked if url.startswith("http") and not url.startswith(here)] == []
    assert faults == []


@pytest.mark.slow
@needs_browser
@pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone")
def test_a_phone_joins_collects_takes_part_and_leaves_below_the_path(
    server: tuple[int, Path], proxy: tuple[int, str]
) -> None:
    port, key = proxy
    here = f"https://127.0.0.1:{port}/gaitway"
    plan = a_plan()
    made = json.dumps({"name": "phones", "plan": plan.model_dump(mode="json")}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    # not by the proxy: the server loads its exporter, for which a busy machine takes longer than a proxy waits
    direct = urllib.request.Request(f"http://127.0.0.1:{server[0]}/v1/federations", made, headers)
    with urllib.request.urlopen(direct, timeout=PATIENCE_S) as answer:
        assert answer.status == 201
    faults: list[str] = []
    # workers need a certificate that the browser believes: it is told to believe any
    with launched("--ignore-certificate-errors") as browser:
        asked: list[str] = []

        def joined(name: str) -> Page:
            context = browser.new_context(viewport={"width": 360, "height": 740})
            context.set_default_timeout(1e3 * PATIENCE_S)
            page = context.new_page()
            listen(page, faults)
            page.on("request", lambda request: asked.append(request.url))
            wanted = {"device": name, "auto_approve": True}
            token = json.loads(ask(port, "/gaitway/v1/federations/phones/enrolment-tokens", key, wanted).text)["token"]
            page.goto(EnrolmentUri(here, "phones", name, token).phone_link)
            page.get_by_role("button", name="Join").click()
            page.get_by_text("It was approved and takes part.").wait_for()
            return page

        page = joined("phone-1")
        context = page.context
        page.evaluate(CONTROLLED)
        collects(page, here, plan.labels[0])
        page.goto(f"{here}/phone/#take-part")
        page.get_by_role("row", name="accepted").first.wait_for()
        page.get_by_text(USED).first.wait_for()
        other = joined("phone-2")  # it has labelled nothing, and uses what others have made
        other.goto(f"{here}/phone/#take-part")
        other.get_by_text(USED).first.wait_for()
        assert (barriers(other), excess_width(other)) == ([], 0)
        other.context.close()
        context.set_offline(True)
        page.goto("about:blank")
        page.goto(f"{here}/phone/#recognize")
        page.get_by_text("Ready:").wait_for()
        context.set_offline(False)
        faults.clear()  # that the server could not be reached
        page.goto(f"{here}/phone/#data")
        page.reload()
        page.get_by_text("Leave the federation …").click()
        page.get_by_role("button", name="Leave", exact=True).click()
        page.get_by_text("This phone has left the federation. The server knows it.").wait_for()
        assert [url for url in asked if url.startswith("http") and not url.startswith(f"{here}/")] == []
    device = json.loads(ask(port, "/gaitway/v1/federations/phones/devices/phone-1", key).text)
    assert (device["state"], "its owner has left" in device["detail"]) == ("offline", True)
    assert faults == []


def collects(page: Page, here: str, label: str) -> None:
    """Somebody walks, and says that it is `label`."""
    page.goto(f"{here}/phone/#collect")
    sensors = walk(page)
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name=label, exact=True).click()
    row = page.get_by_role("row", name=label)
    sensors.play_until(lambda: row.count() and int(row.inner_text().split()[-1]) >= 3)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Not recording.").wait_for()
