"""Screenshots of the operator's pages, with generated numbers; `make screenshots` puts them where they belong.

The documents' pictures go to docs/images, every page at the sizes of a phone and of a screen to build/pages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.sockets import served
from tests.aggregator_api.web.seeded import WALKS, seed
from tests.aggregator_api.web.test_browser import PAGES as EVERY_PAGE
from tests.browser import NEEDS_BROWSER, Screenshots, excess_width

if TYPE_CHECKING:
    from fastapi import FastAPI
    from playwright.sync_api import Page

pytestmark = [*NEEDS_BROWSER, pytest.mark.slow]  # test_browser.py looks at every page
HERE = f"/federations/{WALKS}"
WIDTH = 896
"""Of what a window of 1280 shows."""
PAGES = [
    ("pages-overview", "/", 448),
    ("pages-federation-wide", HERE, 670),
    ("pages-federation", HERE, 1300),
    ("pages-device", f"{HERE}/devices/phone-02", 448),
    ("pages-models", f"{HERE}/models", 448),
    ("pages-release", f"{HERE}/models/13/roll-out?schedule=standard", 900),
    ("pages-rollout", f"{HERE}/rollouts/1", 540),
    ("pages-compare", f"/compare?federation={WALKS}&federation=gestures", 800),
    ("pages-new", "/new-federation?preset=first", 900),
]


SIZES = [(390, 844), (1440, 900)]
"""A phone's and a screen's."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    settings = Settings(data_dir=tmp_path_factory.mktemp("screenshots"), aggregation_process=False)
    return create_app(settings, Wires)


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with served(app) as port:
        seed(app.state.runtime, hostile=False)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def operator(app: FastAPI, address: str, page: Page) -> Page:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{address}/login")
    page.get_by_label("API key").fill(
        (app.state.runtime.settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip()
    )
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    return page


def test_the_operators_pages(operator: Page, address: str, screenshots: Screenshots) -> None:
    for name, path, height in PAGES:
        operator.goto(f"{address}{path}")
        operator.get_by_role("heading", level=1).wait_for()
        operator.wait_for_load_state("networkidle") if "federation" not in path else operator.wait_for_timeout(1500)
        screenshots.take(operator, name, height=height, width=WIDTH)


@pytest.mark.parametrize("size", SIZES, ids=["phone", "screen"])
def test_every_page_at_the_size_of(size: tuple[int, int], operator: Page, address: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("GAITWAY_PAGES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    operator.set_viewport_size({"width": size[0], "height": size[1]})
    for path in EVERY_PAGE:
        if path == "/login":
            operator.context.clear_cookies()
        operator.goto(f"{address}{path}")
        operator.get_by_role("heading", level=1).wait_for()
        operator.wait_for_timeout(500)  # charts are drawn
        assert excess_width(operator) == 0, path
        name = re.sub(r"[^a-z0-9]+", "-", path).strip("-") or "overview"
        operator.screenshot(path=folder / f"{name}-{size[0]}.png", full_page=True)


def test_a_token_as_link_and_code(operator: Page, address: str, screenshots: Screenshots) -> None:
    operator.goto(f"{address}{HERE}/enrolment")
    operator.get_by_label("Device", exact=True).fill("phone-99")
    operator.get_by_label("Server's address").fill("https://gaitway.example")
    operator.get_by_role("button", name="Make a token").click()
    operator.get_by_text("For a phone's browser").wait_for()
    screenshots.take(operator, "pages-token", height=780, width=WIDTH)


def test_on_a_phone_at_night(operator: Page, address: str, screenshots: Screenshots) -> None:
    operator.emulate_media(color_scheme="dark")
    operator.set_viewport_size({"width": 360, "height": 900})
    operator.goto(f"{address}{HERE}")
    operator.get_by_text("live", exact=True).wait_for()
    screenshots.take(operator, "pages-phone", height=900)
