"""The pages in headless Chromium: used by clicks, kept up to date, without a violation of the policy, for everybody.

axe-core looks for what keeps people out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation, get_federation
from aggregator_api.http.app import create_app
from aggregator_api.http.queries import listings
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, RolloutRow
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.sockets import served
from tests.aggregator_api.web.seeded import HOSTILE, WALKS, Seeder, plan, seed
from tests.browser import NEEDS_BROWSER, barriers, excess_width

if TYPE_CHECKING:
    from fastapi import FastAPI
    from playwright.sync_api import Browser, Page
    from sqlalchemy.orm import Session

pytestmark = NEEDS_BROWSER

PLACES = ("", "/devices", "/devices/phone-02", "/enrolment", "/rollouts", "/rollouts/1", "/models", "/plan")
PAGES = [
    "/",
    *(f"/federations/{WALKS}{place}" for place in (*PLACES, "/journal", "/updates")),
    *(f"/federations/{WALKS}/models/{place}" for place in ("11/promote", "13/roll-out", "10/roll-back")),
    f"/compare?federation={WALKS}&federation=gestures",
    "/audit",
    "/new-federation",
    "/login",
]
HEAVY_S = 5.0
"""A page may take so long on a machine that does other things; docs/benchmarks.md says what it takes on a quiet one."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    # its devices are rows alone: a look for the silent ones would find none of them
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("browser"), aggregation_process=False), Wires)


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    """The server's address, with something on every page."""
    with served(app) as port:
        seed(app.state.runtime)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def operator(app: FastAPI, address: str, page: Page) -> Page:
    """The page after a login by hand."""
    key = (app.state.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip()
    log_in(page, address, key)
    return page


def log_in(page: Page, address: str, key: str) -> None:
    page.goto(f"{address}/login")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()


def device_of(session: Session, federation: str, name: str) -> DeviceRow:
    found = repositories.find_device(session, get_federation(session, federation), name)
    assert found is not None
    return found


def journal(app: FastAPI, kind: str, **said: Any) -> None:
    with app.state.runtime.database.write() as session:
        repositories.journal(session, get_federation(session, WALKS), kind, **said)


def test_a_wrong_key_is_told_and_a_right_one_opens_the_overview(operator: Page, faults: list[str]) -> None:
    assert operator.get_by_role("link", name=WALKS).count() > 0
    cookies = operator.context.cookies()
    assert [(each["name"], each["httpOnly"], each["sameSite"]) for each in cookies] == [("gaitway", True, "Strict")]
    assert operator.evaluate("document.cookie") == ""
    operator.get_by_role("button", name="Log out").click()
    operator.get_by_label("API key").fill("gw_000000000000_" + "A" * 43)
    operator.get_by_role("button", name="Log in").click()
    assert "unknown, expired or revoked" in operator.get_by_role("alert").inner_text()
    assert any("401" in each for each in faults)
    faults.clear()  # the browser says that the answer was a 401


def test_the_overview_follows_what_happens(app: FastAPI, address: str, operator: Page) -> None:
    operator.get_by_text("live", exact=True).wait_for()
    with app.state.runtime.database.write() as session:
        row = get_federation(session, "gestures")
        row.status = "running"
        repositories.journal(session, row, "federation.running")
    operator.locator("article", has_text="gestures").get_by_text("running").wait_for()


def test_a_page_asks_seldom_however_much_happens(app: FastAPI, address: str, operator: Page) -> None:
    operator.goto(f"{address}/federations/{WALKS}")
    operator.get_by_text("live", exact=True).wait_for()
    asked: list[str] = []
    operator.on("request", lambda request: asked.append(request.url))
    for k in range(300):
        journal(app, "device.ready", device="phone-01", detail=f"{k}")
    operator.get_by_text("299", exact=False).first.wait_for()
    parts = [url for url in asked if "/live/" in url]
    assert 1 <= len(parts) < 60, len(parts)
    assert all(len([url for url in parts if url.endswith(name)]) < 30 for name in ("now", "journal"))


def test_a_page_becomes_live_again_after_its_server_was_away(
    app: FastAPI, address: str, operator: Page, faults: list[str]
) -> None:
    is_away = [True]
    operator.route(
        "**/federations/*/events", lambda route: route.fulfill(status=502) if is_away[0] else route.continue_()
    )
    operator.goto(f"{address}/federations/{WALKS}")
    operator.get_by_text("connecting", exact=True).wait_for()  # as a proxy answers while it restarts
    journal(app, "device.tags", device="phone-03", detail="happened meanwhile")
    is_away[0] = False
    operator.get_by_text("live", exact=True).wait_for()
    operator.get_by_text("happened meanwhile").wait_for()
    assert any("502" in each for each in faults)
    faults.clear()


def test_a_page_whose_session_has_ended_asks_for_a_login(address: str, operator: Page, faults: list[str]) -> None:
    operator.route("**/federations/*/events", lambda route: route.fulfill(status=401))
    operator.goto(f"{address}/federations/{WALKS}/devices?name=phone-0")
    operator.get_by_text("connecting", exact=True).wait_for()
    operator.context.clear_cookies()
    operator.get_by_label("API key").wait_for()
    assert operator.url.endswith(f"/login?next=/federations/{WALKS}/devices%3Fname%3Dphone-0")
    faults.clear()


def test_the_journal_of_a_federation_grows_on_its_page(app: FastAPI, address: str, operator: Page) -> None:
    operator.goto(f"{address}/federations/{WALKS}")
    operator.get_by_text("live", exact=True).wait_for()
    journal(app, "device.tags", device="phone-03", detail="seen by the browser")
    operator.get_by_text("seen by the browser").wait_for()


def test_a_federations_life_by_clicks(address: str, operator: Page) -> None:
    operator.get_by_role("link", name="New federation").click()
    operator.get_by_role("link", name="fleet").click()
    operator.get_by_label("Name", exact=True).fill("by hand")
    operator.get_by_text("name: ").wait_for()  # while it is typed: a space is not allowed
    operator.get_by_label("Name", exact=True).fill("by-hand")
    operator.get_by_text("This can be created").wait_for()
    operator.get_by_role("button", name="Create the federation").dblclick()  # and not 'there is one already'
    operator.get_by_role("heading", name="by-hand").wait_for()
    operator.get_by_role("button", name="Pause").click()
    operator.get_by_role("button", name="Resume").click()
    operator.get_by_role("button", name="Pause").wait_for()
    operator.get_by_text("Stop…").click()
    operator.get_by_role("button", name="Stop", exact=True).click()
    operator.get_by_text("Stopped, no round has begun yet", exact=False).wait_for()
    assert operator.get_by_role("button", name="Pause").count() == 0


def test_a_version_is_promoted_without_javascript(app: FastAPI, address: str, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(f"{address}/login")
    page.get_by_label("API key").fill(
        (app.state.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip()
    )
    page.get_by_role("button", name="Log in").click()
    page.goto(f"{address}/federations/{WALKS}/models")
    page.get_by_role("link", name="Promote version 9").click()
    meaning = page.get_by_text("What devices measured of the version as the server made it")
    assert not meaning.is_visible()
    page.get_by_role("button", name="macro-F1, version").first.click()
    assert meaning.is_visible()
    page.keyboard.press("Escape")
    page.get_by_label("Reason for doing it anyway").fill("to see that it works")
    page.get_by_role("button", name="Promote it").click()
    page.get_by_text("forced by an operator (to see that it works)", exact=False).wait_for()
    with app.state.runtime.database.read() as session:
        named = {one.alias: one.version for one in listings.aliases(session, get_federation(session, WALKS))}
    assert (named["stable"], named["latest"]) == (9, 13)
    app.state.runtime.aliases.move(WALKS, "stable", 13)  # as before: it is measured to be better
    context.close()


def test_a_checkpoint_is_sent_with_its_progress_and_fills_the_form_in(
    address: str, operator: Page, faults: list[str]
) -> None:
    checkpoint = operator.request.get(f"{address}/federations/gestures/models/0/checkpoint").body()
    operator.goto(f"{address}/new-federation")
    field = operator.get_by_label("Checkpoint", exact=True)
    file = {"name": "mine.safetensors", "mimeType": "application/octet-stream"}
    operator.evaluate(
        "() => { window.shares = []; const bar = document.getElementById('upload-bar');"
        " new MutationObserver(() => bar.hidden || window.shares.push(bar.value)).observe(bar, { attributes: true }) }"
    )
    field.set_input_files({**file, "buffer": checkpoint + bytes(8 << 20)})
    operator.locator("#upload-words.problem").wait_for()
    assert "checkpoint" in operator.locator("#upload-words").inner_text()
    assert field.is_enabled()
    assert any("422" in each for each in faults), faults
    faults.clear()
    shares = operator.evaluate("window.shares")
    assert shares == sorted(shares)
    assert 0 < shares[0] <= shares[-1] <= 1, shares  # a quick machine may tell the end alone
    field.set_input_files({**file, "buffer": checkpoint})
    operator.wait_for_url("**/new-federation?checkpoint=*")
    assert operator.get_by_label("Or of an uploaded checkpoint").input_value() in operator.url
    assert len(operator.get_by_label("Activities").input_value().splitlines()) >= 2


def test_fields_of_rounds_are_hidden_while_the_method_has_none(address: str, operator: Page) -> None:
    operator.goto(f"{address}/new-federation?preset=exact")
    of_rounds = ("Rounds", "Deadline, in seconds", "Epochs a round", "Batch size", "Learning rate")
    for label in of_rounds:
        assert operator.get_by_label(label, exact=True).is_hidden()
    operator.get_by_label("Method", exact=True).select_option("fedavg")
    for label in of_rounds:
        assert operator.get_by_label(label, exact=True).is_visible()


def test_a_token_is_made_and_shown_as_a_code(address: str, operator: Page) -> None:
    operator.goto(f"{address}/federations/{WALKS}/enrolment")
    operator.get_by_label("Device", exact=True).fill("phone-99")
    operator.get_by_role("button", name="Make a token").click()
    code = operator.get_by_role("img", name="QR code of the link")
    box = code.bounding_box()
    assert box is not None
    assert box["width"] > 150
    assert operator.locator("a[href^='gaitway-enrol:']").count() == 1
    operator.get_by_role("link", name="Back to enrolment").click()
    operator.set_viewport_size({"width": 390, "height": 844})
    box = operator.get_by_role("button", name="Revoke token").first.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390
    operator.get_by_role("button", name="Approve phone-new").click()
    assert operator.get_by_role("button", name="Approve phone-new").count() == 0


def test_a_reader_acts_on_nothing(app: FastAPI, address: str, page: Page, faults: list[str]) -> None:
    with app.state.runtime.database.write() as session:
        key = api_keys.make(session, "reader", ["read"])[1]
    log_in(page, address, key)
    page.goto(f"{address}/federations/{WALKS}")
    assert page.get_by_role("button", name="Pause").count() == 0
    page.goto(f"{address}/new-federation")
    assert "this needs operator" in page.get_by_role("alert").inner_text()
    assert any("403" in each for each in faults)
    faults.clear()


def test_hostile_names_hurt_nobody(address: str, operator: Page) -> None:
    operator.goto(f"{address}/federations/{WALKS}/devices")
    operator.get_by_role("link", name=HOSTILE).click()
    operator.get_by_role("heading", name=HOSTILE).wait_for()
    for place in ("updates", "enrolment"):
        operator.goto(f"{address}/federations/{WALKS}/{place}")
        assert operator.get_by_text(HOSTILE).count() > 0


def test_code_within_a_page_would_not_run(address: str, operator: Page, faults: list[str]) -> None:
    operator.evaluate(
        "() => { const code = document.createElement('script'); code.textContent = 'window.hurt = 1';"
        " document.body.append(code); document.body.insertAdjacentHTML('beforeend',"
        ' \'<img src=/static/x/none onerror="window.hurt = 1"><p style="color: red">\') }'
    )
    operator.wait_for_timeout(300)
    assert operator.evaluate("window.hurt") is None
    assert sum("Content Security Policy" in each for each in faults) >= 3
    faults.clear()


def test_the_pages_can_be_used_by_keyboard(address: str, operator: Page) -> None:
    operator.goto(address)
    operator.keyboard.press("Tab")
    assert operator.evaluate("document.activeElement.textContent") == "Skip to the content"
    operator.keyboard.press("Enter")
    assert operator.evaluate("document.activeElement.id") == "main"
    operator.keyboard.press("Tab")
    outline = operator.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_a_rollout_and_the_list_of_devices_follow_what_happens(app: FastAPI, address: str, operator: Page) -> None:
    operator.goto(f"{address}/federations/{WALKS}/rollouts/1")
    operator.get_by_text("live", exact=True).wait_for()
    with app.state.runtime.database.write() as session:
        row = session.query(RolloutRow).one()
        row.reason, was = "it was looked at by a browser", row.reason
        repositories.journal(session, get_federation(session, WALKS), "rollout.halted")
    operator.get_by_text("It was looked at by a browser.", exact=False).wait_for()
    operator.goto(f"{address}/federations/{WALKS}/devices?name=phone-0")
    operator.get_by_text("live", exact=True).wait_for()
    with app.state.runtime.database.write() as session:
        session.query(RolloutRow).one().reason = was
        device_of(session, WALKS, "phone-07").detail = "seen in the list"
        repositories.journal(session, get_federation(session, WALKS), "device.ready", device="phone-07")
    operator.get_by_text("seen in the list").wait_for()
    assert operator.get_by_role("link", name="phone-12").count() == 0


@pytest.mark.parametrize("width", [1280, 360])
def test_long_names_and_words_break_no_page(app: FastAPI, address: str, operator: Page, width: int) -> None:
    name, device = f"{width:0>64}", "M" * 64
    label = "going up the stairs with a heavy bag"
    labels = (label, "x" * 64, HOSTILE, "walking", "running", "sitting")
    app.state.runtime.federations.create(NewFederation(name=name, plan=plan(labels=labels)))
    with app.state.runtime.database.write() as session:
        Seeder(session, get_federation(session, name), 4).fill(3)
        row = device_of(session, name, "phone-01")
        row.name, row.detail, row.adoption_reason = device, "y" * 200, "z" * 200
        for kind in ("device.ready", "round.failed"):
            repositories.journal(session, get_federation(session, name), kind, device=device, detail="w" * 300)
    operator.set_viewport_size({"width": width, "height": 800})
    here = f"{address}/federations/{name}"
    for place in ("", "/devices", f"/devices/{device}", "/enrolment", "/rollouts/1", "/models", "/updates", "/journal"):
        operator.goto(here + place)
        assert excess_width(operator) == 0, place
        box = operator.get_by_role("navigation", name="Federation").get_by_role("link", name="Plan").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width, place
    operator.goto(here)
    legend = operator.locator(".u-legend").get_by_text(label)
    legend.wait_for()
    clipped = "(one) => one.closest('th').scrollWidth - one.closest('th').clientWidth"
    assert legend.evaluate(clipped) <= 1


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (360, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
        pytest.param(360, "light", marks=pytest.mark.slow),
    ],
)
def test_every_page_suits_everybody(
    app: FastAPI, address: str, operator: Page, faults: list[str], scheme: str, width: int
) -> None:
    """Axe-core finds nothing serious, nothing is wider than the window, and a page is light and quick."""
    operator.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    operator.set_viewport_size({"width": width, "height": 800})
    for path in PAGES:
        if path == "/login":
            operator.context.clear_cookies()
        operator.goto(address + path)
        if path == f"/federations/{WALKS}":
            operator.locator("canvas").first.wait_for()
        assert excess_width(operator) == 0, path
        weight, took_ms = operator.evaluate(
            "() => { const [page] = performance.getEntriesByType('navigation');"
            " const parts = performance.getEntriesByType('resource').map((one) => one.decodedBodySize);"
            " return [parts.reduce((a, b) => a + b, page.decodedBodySize), page.domContentLoadedEventEnd] }"
        )
        assert weight < 200_000, path
        assert took_ms < 1000 * HEAVY_S, path
        assert barriers(operator) == [], path


LARGE = {
    "rounds": [1, 2, 3],
    "received": [877_210, 877_260, 877_240],
    "sent": [877_230, 877_250, 877_220],
}


def test_the_axis_of_bytes_has_room_for_its_numbers(address: str, operator: Page) -> None:
    """877.21 kB read 77.21 kB: the first digit lay outside of the canvas."""
    operator.goto(f"{address}/federations/{WALKS}")
    room = operator.evaluate(
        """async data => {
            const place = document.querySelector("[data-chart=bytes]");
            draw(place, data);
            while (!place.plot.axes[1]._values) await new Promise(requestAnimationFrame);
            const { axes, ctx } = place.plot, axis = axes[1];
            ctx.font = axis.font[0];
            const widths = axis._values.map((text) => ctx.measureText(text).width / devicePixelRatio);
            return [axis._size - axis.ticks.size - axis.gap, Math.max(...widths), axis._values];
        }""",
        LARGE,
    )
    assert room[0] >= room[1], room
    assert all(re.fullmatch(r"877(\.\d+)? kB", text) for text in room[2]), room


def test_a_form_that_is_refused_says_why_where_the_eye_is(address: str, operator: Page, faults: list[str]) -> None:
    """On a phone too, where the form's own button is several screens further down."""
    operator.set_viewport_size({"width": 390, "height": 844})
    operator.goto(f"{address}/new-federation?preset=first")
    operator.get_by_label("Name", exact=True).fill("walk-2")
    operator.locator("textarea[name=further]").fill("[rounds]\nminimum_client = 3")
    operator.get_by_role("button", name="Create the federation").click()
    alert = operator.get_by_role("alert")
    assert "minimum_client: there is no such key; did you mean 'minimum_clients'?" in alert.inner_text()
    box = alert.bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 844
    assert any("422" in fault for fault in faults), faults
    faults.clear()  # the browser notes the refusal
