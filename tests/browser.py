"""Headless Chromium for the tests of pages: Debian's, driven by playwright, with axe-core to find barriers.

A module of such tests says `pytestmark = NEEDS_BROWSER`. `tests/conftest.py` gives its fixtures to every test.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

Test = TypeVar("Test", bound=Callable[..., None])

CHROMIUM = shutil.which("chromium")
NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.ci,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="no playwright: pip install -e '.[dev]'"),
]
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
OPTIONS += ["--disable-component-update", "--disable-sync"]
PATIENCE_MS = 60_000
SCREENSHOTS = "GAITWAY_SCREENSHOTS"
"""Names the folder for the documents' screenshots (`make screenshots`); without it a test has them in its own."""
MAX_SCREENSHOT_BYTES = 150_000
SCREENSHOT_COLOURS = 96
ANIMATION_WIDTH = 760


def needs_browser(test: Test) -> Test:
    """Mark one test of a module whose others need no browser."""
    for mark in NEEDS_BROWSER:
        test = mark(test)
    return test


@contextmanager
def launched(*options: str) -> Iterator[Browser]:
    """Run Chromium with `options` of its command line besides our own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        found = player.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS, *options])
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


class Screenshots:
    """Takes the documents' screenshots while tests use the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, page: Page, name: str, *, height: int | None = None, width: int | None = None) -> None:
        """Write what `page` shows as `name`.png: as high as its window or `height`, scaled to `width`."""
        from PIL import Image

        window = page.viewport_size
        assert window is not None
        scale = 1.0 if width is None else width / window["width"]
        if height is not None:  # not the whole page: a bar at the window's foot would lie across it
            page.set_viewport_size({"width": window["width"], "height": round(height / scale)})
        image = page.screenshot(animations="disabled")
        page.set_viewport_size({"width": window["width"], "height": window["height"]})
        with Image.open(io.BytesIO(image)) as whole:
            size = (round(whole.width * scale), round(whole.height * scale))
            shown = whole.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        path = self.folder / f"{name}.png"
        shown.quantize(SCREENSHOT_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size <= MAX_SCREENSHOT_BYTES, f"{path} has {path.stat().st_size:,} bytes"

    def animate(self, frames: list[bytes], name: str, *, frame_ms: int) -> None:
        """Write screenshots one after the other as `name`.webp."""
        from PIL import Image

        images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
        for image in images:
            image.thumbnail((ANIMATION_WIDTH, ANIMATION_WIDTH))
        first, *others = images
        path = self.folder / f"{name}.webp"
        first.save(path, save_all=True, append_images=others, duration=frame_ms, loop=0, quality=50, method=6)
        assert path.stat().st_size <= MAX_SCREENSHOT_BYTES, f"{path} has {path.stat().st_size:,} bytes"


@pytest.fixture
def screenshots(tmp_path: Path) -> Screenshots:
    """Where the documents' screenshots go."""
    named = os.environ.get(SCREENSHOTS)
    return Screenshots(Path(named) if named else tmp_path)


@pytest.fixture
def faults() -> list[str]:
    """What the console says of errors and warnings; a violation of a page's policy is an error there."""
    return []


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser's profile of the test's own: cookies, storage."""
    found = browser.new_context(viewport={"width": 1280, "height": 800})
    found.set_default_timeout(PATIENCE_MS)
    yield found
    found.close()


@pytest.fixture
def page(context: BrowserContext, faults: list[str]) -> Iterator[Page]:
    """A page; the test fails where its console had an error, and where a hostile name set `window.hurt`."""
    found = context.new_page()
    listen(found, faults)
    yield found
    assert faults == []
    assert found.evaluate("window.hurt") is None


def listen(page: Page, faults: list[str]) -> None:
    """Note what `page` says of errors and warnings in `faults`."""
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))


def barriers(page: Page) -> list[Any]:
    """Return what axe-core finds on `page` that is moderate or worse: its impact, rule and first element."""
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    inspector = page.context.new_cdp_session(page)  # a page's policy lets no page load it
    inspector.send("Runtime.evaluate", {"expression": axe})
    found = page.evaluate(
        "async () => (await axe.run()).violations.map((one) => [one.impact, one.id, one.nodes[0].html])"
    )
    inspector.detach()
    return [one for one in found if one[0] in ("serious", "critical", "moderate")]


def excess_width(page: Page) -> int:
    """Return how many pixels `page` is wider than its window, 0 where it fits."""
    found = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return max(0, int(found))
