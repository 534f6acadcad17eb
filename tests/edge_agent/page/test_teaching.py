"""Teach me on the device's page, in headless Chromium at a phone's size: recordings are replayed to the device."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import NEEDS_BROWSER, barriers, excess_width
from tests.edge_agent.teaching.taught_device import TaughtDevice
from tests.teaching_world import TeachingWorld, synthetic_world

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = NEEDS_BROWSER
SPEED = 8.0


@pytest.fixture(scope="module")
def world() -> TeachingWorld:
    return synthetic_world()


@pytest.fixture
def device(world: TeachingWorld, tmp_path: Path) -> Iterator[TaughtDevice]:
    found = TaughtDevice(tmp_path, world, SPEED)
    yield found
    found.close()


def teach(page: Page, device: TaughtDevice, activity: str, played: str, from_s: float = 0.0) -> None:
    """Tap an activity, and move until it is said to be learnt."""
    page.get_by_role("group", name="Activities").get_by_role("button", name=re.compile(f"^{activity}")).click()
    page.get_by_text(f"Now: {activity}").wait_for()
    device.play(played, from_s, 30.0 - from_s)
    page.get_by_text(f"{activity}: 20 s learnt").wait_for()
    device.stop()


def test_a_person_teaches_three_activities_and_one_of_their_own(
    page: Page, device: TaughtDevice, tmp_path: Path
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(device.address)
    page.get_by_text("Tap an activity").wait_for()
    for activity, played in (("standing",) * 2, ("running",) * 2, ("climbing down", "climbingdown")):
        teach(page, device, activity, played)
    page.get_by_label("Name", exact=True).fill("pushing the pram")
    page.get_by_role("button", name="Add it").click()
    teach(page, device, "pushing the pram", "sitting")

    rows = page.locator(".confusion tbody th").all_inner_texts()
    assert rows == ["standing", "climbing down", "running", "pushing the pram"]
    counts = [
        [int(cell) for cell in row.replace("·", "0").split()]
        for row in page.locator(".confusion tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent).join(' '))"
        )
    ]
    assert all(sum(row) >= 3 for row in counts)
    right, windows = map(int, page.locator(".score strong").inner_text().split(" of "))
    assert windows == sum(map(sum, counts))
    assert right >= 0.8 * windows
    assert device.counts().keys() >= {"standing", "running", "climbingdown", "pushing the pram"}
    words = page.locator(".score span").inner_text()
    assert "test windows right, of 4 activities" in words
    solved = float(re.search(r"computed in ([\d.]+) s", words)[1])  # type: ignore
    assert solved < 1.0
    assert page.locator(".used").inner_text() == "It uses the shared model of version 1."
    device.play("sitting", 0.0, 30.0)  # what was taught as the pram, and is no activity of the federation's model
    page.locator(".answer", has_text="pushing the pram").wait_for()
    assert page.locator(".details").inner_text().endswith("by your model, of Teach me")
    assert page.locator(".minutes .legend").inner_text().count("pushing the pram") == 1
    assert barriers(page) == []
    assert excess_width(page) == 0
    page.screenshot(path=tmp_path / "teach-narrow.png", full_page=True)


def test_an_activity_of_ones_own_is_sent_as_another_only_where_the_person_says_so(
    page: Page, device: TaughtDevice
) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(device.address)
    page.get_by_label("Name", exact=True).fill("pushing the pram")
    page.get_by_role("button", name="Add it").click()
    choice = page.get_by_label("Sent to the federation")
    chosen = "select => select.selectedOptions[0].textContent"
    assert choice.evaluate(chosen) == "no, it stays on this device"
    choice.select_option("yes, as walking")
    page.get_by_text("This device takes part.").wait_for()
    page.reload()
    assert choice.evaluate(chosen) == "yes, as walking"
    page.get_by_text("Remove pushing the pram …").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    choice.wait_for(state="detached")


def test_a_lesson_is_paused_cancelled_and_says_that_no_motion_comes(page: Page, device: TaughtDevice) -> None:
    page.goto(device.address)
    page.get_by_role("group", name="Activities").get_by_role("button", name=re.compile("^standing")).click()
    page.get_by_text("Now: standing").wait_for()
    device.play("standing", 0.0, 8.0)
    page.locator(".dial strong", has_text=re.compile("^1[0-7]$")).wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Nothing counts until you go on.").wait_for()
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("No motion has come for").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Standing: not learnt, as you wished.").wait_for()
    time.sleep(0.5)
    assert "standing" not in device.counts()


def test_a_device_is_withdrawn_and_takes_part_again(page: Page, device: TaughtDevice) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(device.address)
    page.get_by_text("Withdraw …").click()
    page.get_by_role("button", name="Withdraw", exact=True).click()
    page.locator(".part", has_text="the server hasn't confirmed it yet").wait_for()
    page.get_by_role("button", name="Take part again").click()
    page.locator(".part", has_text="This device takes part.").wait_for()
