"""The device's page in headless Chromium: used by clicks, without a violation of its policy, while the server is away.

axe-core looks for what keeps people out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge_agent.page.access import password_hash
from edge_agent.storage.consent import keep_pin, note_refused_plan, pinned_promises
from edge_agent.storage.state_store import StateStore
from federation.privacy.promises import PrivacyPromises, describe_promises, shortfall
from tests.browser import NEEDS_BROWSER, Screenshots, barriers, excess_width
from tests.edge_agent.page.page_devices import PageDevice
from tests.edge_agent.page.test_timeline import DAY, lived

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = NEEDS_BROWSER
PASSWORD = "correct horse"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[PageDevice]:
    found = PageDevice(tmp_path, password_hash(PASSWORD))
    yield found
    found.close()


def test_a_person_logs_in_labels_deletes_and_goes_back_to_a_model(
    page: Page, device: PageDevice, screenshots: Screenshots, tmp_path: Path
) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(device.address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("kitchen-pi is collecting, without a connection").wait_for()
    page.locator(".answer", has_text="walk").wait_for()
    assert page.locator(".lines").first.evaluate("c => c.querySelector('polyline').points.length") == 128
    page.get_by_text("This device takes part.").wait_for()
    screenshots.take(page, "device-page", height=1100, width=1100)
    assert barriers(page) == []
    page.get_by_role("region", name="Table: Models").get_by_text("0.800").first.wait_for()  # as the words say it
    times = page.get_by_role("region", name="Table: By activity").locator("td:nth-child(5)").all_inner_texts()
    assert times
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", each) for each in times), times

    page.get_by_label("What", exact=True).select_option("run")
    page.get_by_role("button", name="Label it").click()
    page.get_by_text("10 windows are run now.").wait_for()
    assert device.classes() == {"sit": 2, "run": 10}
    page.get_by_role("button", name="Take the last label back").click()
    page.get_by_text("Taken back: run; 10 windows").wait_for()
    page.get_by_role("button", name="Delete sit").click()
    page.get_by_text("2 windows are deleted.").wait_for()
    assert device.classes() == {"": 10}
    page.get_by_role("button", name="Use the one before").click()
    page.get_by_text("Now in use: the global model of round 6.").wait_for()
    page.get_by_role("button", name="Examine this device").click()
    page.get_by_text("server: port: 127.0.0.1:9: Connection refused").wait_for()
    page.set_viewport_size({"width": 360, "height": 800})
    assert excess_width(page) == 0
    page.screenshot(path=tmp_path / "device-page-narrow.png", full_page=True)
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Password").wait_for()


def test_nothing_is_asked_any_more_once_a_session_ends(page: Page, device: PageDevice) -> None:
    """However slow the agent is: a question after the session's end would be refused, an error in the console."""
    held: list[Route] = []
    page.goto(device.address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.locator(".answer", has_text="walk").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.route("**/api/status", lambda route: held.append(route))  # the page asks for more once it is answered
    while not held:
        page.wait_for_timeout(50)
    page.get_by_role("button", name="Log out").click()
    page.wait_for_timeout(500)
    assert "logout" not in asked
    for route in held:
        route.continue_()
    page.get_by_label("Password").wait_for()
    page.wait_for_timeout(2500)  # as long as the page waits between two looks
    assert asked[-1] == "logout"


def test_a_person_reads_which_plan_is_refused_and_accepts_it(page: Page, device: PageDevice, tmp_path: Path) -> None:
    promised = PrivacyPromises(mode="masked", min_devices=50, min_colluding_share=0.3)
    less = promised.model_copy(update={"min_devices": 3})
    with closing(StateStore(device.data)) as store:
        keep_pin(store, promised)
        note_refused_plan(store, shortfall(less, promised), less)
    page.goto(device.address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    privacy = page.get_by_role("region", name="Privacy")
    privacy.get_by_text("secure.min_devices is 3, and this device requires 50 or more").wait_for()
    assert barriers(page) == []
    privacy.screenshot(path=tmp_path / "privacy.png")
    privacy.get_by_text("Accept the plan …").click()
    assert describe_promises(less) in privacy.locator(".confirm").inner_text()
    privacy.get_by_role("button", name="Accept", exact=True).click()
    privacy.get_by_text(f"Required by this device: {describe_promises(less)}").wait_for()
    with closing(StateStore(device.data)) as store:
        assert pinned_promises(store) == less


def test_a_stretch_of_a_day_is_dragged_over_and_labelled(page: Page, screenshots: Screenshots, tmp_path: Path) -> None:
    device = PageDevice(tmp_path)
    lived(device.data)
    page.goto(f"{device.address}/timeline?day={DAY}")
    chart = page.locator(".day-chart")
    chart.wait_for()
    assert barriers(page) == []
    box = chart.bounding_box()
    assert box
    y, minute = box["y"] + 20, box["width"] / 60  # the hour from noon on
    page.mouse.move(box["x"] + 2.5 * minute, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 5.5 * minute, y, steps=3)
    page.mouse.up()
    assert page.get_by_label("From", exact=True).input_value() == "12:02"
    assert page.get_by_label("To", exact=True).input_value() == "12:06"
    screenshots.take(page, "device-timeline", height=1180, width=1100)
    page.get_by_role("button", name="sitting", exact=True).click()
    page.get_by_text("80 windows are sitting now, from 12:02 to 12:06.").wait_for()
    page.set_viewport_size({"width": 360, "height": 800})
    assert excess_width(page) == 0
    page.screenshot(path=tmp_path / "device-timeline-narrow.png", full_page=True)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] * 25 / 60, box["y"] + 60)  # a tap takes the whole stretch
    assert page.get_by_label("From", exact=True).input_value() == "12:20"
    page.get_by_role("button", name="Take it back").click()
    page.get_by_text("Taken back").wait_for()
    device.close()
    assert {name: count for name, count in device.classes().items() if name} == {"sit": 2, "run": 200}
