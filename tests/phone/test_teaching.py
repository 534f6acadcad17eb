"""Teach me in headless Chromium at a phone's size: three activities and one of the person's own, from recordings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web.phone import RUNTIME, files
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.sockets import served
from tests.browser import NEEDS_BROWSER, barriers, excess_width, listen
from tests.phone.taught_phone import mount, play
from tests.teaching_world import TeachingWorld, synthetic_world, teaching_world

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    *NEEDS_BROWSER,
    pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone"),
]
PATIENCE_MS = 60_000
SPOKEN = {"climbingdown": "climbing down", "std": "standing", "wlk": "walking", "jog": "jogging"}


@pytest.fixture(scope="module")
def world() -> TeachingWorld:
    return synthetic_world()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("teach"), aggregation_process=False), Wires)
    with served(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def phone(browser: Browser, faults: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    context.set_default_timeout(PATIENCE_MS)
    found = context.new_page()
    listen(found, faults)
    yield found
    assert faults == []
    context.close()


def tap(page: Page, activity: str) -> None:
    page.locator(".taught").get_by_role("button", name=re.compile(f"^{activity}")).click()


def teach(page: Page, world: TeachingWorld, activity: str, played: str, count: int) -> None:
    """Tap an activity, move as in a recording, and wait until `count` activities have a row."""
    play(page, world, played)
    tap(page, activity)
    page.get_by_text(f"{activity}: 20 s learnt").wait_for()  # whatever its case
    page.wait_for_function(f"() => document.querySelectorAll('.confusion tbody tr').length === {count}")


def counts(page: Page) -> list[list[int]]:
    """Read the confusion matrix."""
    found: list[list[int]] = page.locator(".confusion tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].slice(1).map((cell) => Number(cell.textContent) || 0))"
    )
    return found


def marks(page: Page) -> dict[str, int]:
    """Count the stored windows of each label."""
    found: list[Any] = page.evaluate("async () => (await taught.store.marks()).map((mark) => mark.label)")
    return {str(label): found.count(label) for label in found}


def test_a_person_teaches_three_activities_and_one_of_their_own(
    address: str, phone: Page, world: TeachingWorld, tmp_path: Path
) -> None:
    activities = ("standing", "running", "climbingdown")
    assert_taught_and_forgotten(address, phone, world, activities, "sitting", tmp_path)


@pytest.mark.data
@pytest.mark.slow
def test_the_same_from_the_recordings_of_a_person_of_motionsense(
    address: str, phone: Page, gaitway_data: Path, tmp_path: Path
) -> None:
    """Four others' sums, which know no stairs: these are the activity of the person's own."""
    others, unknown = [f"s{number:02d}" for number in range(2, 6)], ("ups", "dws")
    world = teaching_world("motionsense", gaitway_data, "s01", others, cosines=600, options={}, unknown=unknown)
    assert_taught_and_forgotten(address, phone, world, ("std", "wlk", "jog"), "ups", tmp_path)


def assert_taught_and_forgotten(
    address: str, phone: Page, world: TeachingWorld, activities: tuple[str, ...], own: str, folder: Path
) -> None:
    """Teach these and, as 'pushing the pram', the own one; look at the matrix, at what may be sent, and remove it."""
    mount(phone, address, world)
    for count, activity in enumerate(activities, 1):
        teach(phone, world, SPOKEN.get(activity, activity), activity, count)
    phone.get_by_label("Name", exact=True).fill("pushing the pram")
    phone.get_by_role("button", name="Add it").click()
    teach(phone, world, "pushing the pram", own, 4)
    matrix = counts(phone)
    phone.screenshot(path=folder / "teach-phone.png", full_page=True)
    right = sum(int(text) for text in phone.locator(".confusion td.right").all_inner_texts() if text.isdigit())
    assert all(sum(row) >= 3 for row in matrix)
    assert right >= 0.8 * sum(map(sum, matrix))
    assert phone.locator(".score strong").inner_text() == f"{right} of {sum(map(sum, matrix))}"
    solved = re.search(r"computed in ([\d.]+) s", phone.locator(".score span").inner_text())
    assert solved
    assert float(solved[1]) < 1
    labelled = marks(phone)
    assert {*activities, "pushing the pram"} <= labelled.keys()
    assert barriers(phone) == []
    assert excess_width(phone) == 0

    phone.evaluate("recognize()")
    for played, named in ((own, "pushing the pram"), (activities[1], SPOKEN.get(activities[1], activities[1]))):
        play(phone, world, played, from_s=5.0)
        phone.locator(".answer", has_text=named).wait_for()
        by = "your model, of Teach me" if played == own else "the shared model of version 1"
        phone.get_by_text(re.compile(rf"\d %, by {by}$")).wait_for()
        phone.screenshot(path=folder / f"recognized-{played}.png")
        phone.evaluate("teach()")  # which says the same
        phone.locator(".looks", has_text=named).get_by_text(re.compile(rf"\d %, by {by}$")).wait_for()
        phone.evaluate("recognize()")
    phone.evaluate("teach()")

    federated = "async () => (await taught.store.windows()).filter((one) => one.personal).map((one) => one.label)"
    assert phone.evaluate(federated) == []
    phone.get_by_label("Sent to the federation").select_option(activities[1])
    phone.wait_for_function(f"() => taught.personal[0].countsAs === '{activities[1]}'")
    # counted only now: the lesson's last window ends after the lesson
    assert phone.evaluate(federated) == [activities[1]] * marks(phone)["pushing the pram"]
    phone.get_by_text("Remove pushing the pram …").click()
    phone.get_by_role("button", name="Remove", exact=True).click()
    phone.get_by_label("Sent to the federation").wait_for(state="detached")
    assert "pushing the pram" not in marks(phone)


def test_a_window_that_ends_after_its_activity_was_removed_has_no_label(
    address: str, phone: Page, world: TeachingWorld
) -> None:
    """The last window of a lesson comes when the lesson is over: by then its activity may be gone, or taken back."""
    mount(phone, address, world)
    phone.get_by_label("Name", exact=True).fill("pushing the pram")
    phone.get_by_role("button", name="Add it").click()
    play(phone, world, "running", seconds=60)
    tap(phone, "pushing the pram")
    phone.wait_for_function(
        "async () => (await taught.store.marks()).some((mark) => mark.label === 'pushing the pram')"
    )
    # within the half window after which the label of the next one is certain, and before it is whole
    phone.evaluate(
        "async () => { taught.lesson.doneMs = 20000; taught.tick(); await taught.remove('pushing the pram'); }"
    )
    last = phone.evaluate("async () => Math.max(...(await taught.store.marks()).map((mark) => mark.startMs))")
    phone.wait_for_function(
        f"async () => (await taught.store.marks()).filter((one) => one.startMs > {last}).length > 2"
    )
    assert "pushing the pram" not in marks(phone)


def test_a_lesson_waits_for_motion_pauses_and_is_cancelled(address: str, phone: Page, world: TeachingWorld) -> None:
    mount(phone, address, world)
    tap(phone, "standing")
    phone.get_by_text("No motion comes, and the countdown waits for it.").wait_for()
    assert phone.locator(".dial strong").inner_text() == "20"
    play(phone, world, "standing", seconds=12)
    phone.locator(".dial strong", has_text=re.compile("^1[0-7]$")).wait_for()
    phone.get_by_role("button", name="Pause").click()
    phone.get_by_text("Nothing counts until you go on.").wait_for()
    left = phone.locator(".dial strong").inner_text()
    phone.wait_for_timeout(1500)
    assert phone.locator(".dial strong").inner_text() == left
    phone.get_by_role("button", name="Go on").click()
    phone.wait_for_timeout(1500)
    phone.get_by_role("button", name="Cancel").click()
    phone.get_by_text("Not learnt, as you wished.").wait_for()
    phone.get_by_role("button", name="Stop recording").click()
    phone.wait_for_function("async () => !(await taught.store.marks()).some((mark) => mark.label)")
