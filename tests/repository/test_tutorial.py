"""The first hour: the tutorial's commands, a browser that does what it says, the images that it shows, the notebook.

The phone is Chromium at a phone's size, its motion a generated recording of somebody who is in no federation.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from aggregator_api.http.web.phone import RUNTIME, files
from deploy.document_blocks import shell_blocks
from gaitway.threads import run_in_thread
from sim.cli.app import app as sim
from tests.browser import Screenshots, listen
from tests.phone.taught_phone import move
from tests.repository.imports import REPOSITORY
from tests.teaching_world import longest_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = REPOSITORY / "docs"
TUTORIAL = DOCS / "tutorial.md"
NOTEBOOK = DOCS / "examples" / "first_simulation.ipynb"
ANY_PORTS = ("--http-port", "0", "--mqtt-port", "0", "--phone-port", "0")
DEMO_S, PHONE_S = 600.0, 120.0
FRAME_EVERY_S, MAX_FRAMES = 2.0, 14
LOGIN = r"^\s*(http://127\.0\.0\.1:\d+/login/\S+)"
MOTION_S = 120.0
"""A lesson takes twenty, and waits where a busy machine does not come round to it."""
OWN = "pushing the pram"
LESSONS = {"standing": "standing", "walking": "walking", OWN: "running"}
"""What is taught, in this order, and the motion that is played: two activities of the federation's and one's own."""


class RunningDemo:
    """A demo in a process of its own, and the lines that it has printed."""

    def __init__(self, words: list[str], out: Path) -> None:
        command = [sys.executable, str(REPOSITORY / "demo" / "run.py"), *words, *ANY_PORTS, "--out", str(out)]
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = run_in_thread("demo-output", self._read)

    def has_said(self, pattern: str) -> re.Match[str] | None:
        """Find the pattern in a line."""
        return next((found for line in list(self.lines) if (found := re.search(pattern, line))), None)

    def wait_for(self, pattern: str, timeout_s: float = DEMO_S) -> re.Match[str]:
        """Wait until a line has the pattern."""
        deadline = time.monotonic() + timeout_s
        while (found := self.has_said(pattern)) is None:
            ended = self._process.poll() is not None
            assert not ended, "".join(self.lines)
            assert time.monotonic() < deadline, f"{pattern} was not printed:\n{''.join(self.lines)}"
            with self._news:
                self._news.wait(0.5)
        return found

    def end(self) -> None:
        """End it as its user does; its own tests look at what is left."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line)
                with self._news:
                    self._news.notify_all()


def demo_words(*wanted: str) -> list[str]:
    """Return the demo's options in the tutorial's `make demo` that has those words."""
    for block in shell_blocks(TUTORIAL):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["make", "demo"]:
                given = [word.removeprefix("DEMO_ARGS=") for word in words[2:] if word.startswith("DEMO_ARGS=")]
                options = [option for text in given for option in text.split()]
                if set(wanted) <= set(options):
                    return options
    raise AssertionError(f"the tutorial has no `make demo` with {wanted}")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[RunningDemo]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else what runs below ignores Ctrl-C
    found = RunningDemo(demo_words("--phone"), tmp_path / "out")
    signal.signal(signal.SIGINT, before)
    yield found
    found.end()


def opened(browser: Browser, width: int, height: int, faults: list[str]) -> Page:
    """Open a page of that size which accepts the demo's own certificate, as the tutorial says."""
    context = browser.new_context(viewport={"width": width, "height": height}, ignore_https_errors=True)
    context.set_default_timeout(1000 * PHONE_S)
    page = context.new_page()
    listen(page, faults)
    return page


@pytest.fixture(scope="module")
def motion() -> dict[str, npt.NDArray[np.float64]]:
    """Somebody's motion by activity."""
    options = {"subjects": 3, "phones": ["phone100"], "places": ["waist"], "minutes": 6.0}
    runs = longest_runs("synthetic", None, "s02_phone100-waist", options)
    return {activity: repeated(run, MOTION_S) for activity, run in runs.items()}


def repeated(run: npt.NDArray[np.float64], seconds: float) -> npt.NDArray[np.float64]:
    """Repeat a run of motion (n, 7) until it lasts so long."""
    period = run[-1, 0] + run[1, 0] - run[0, 0]
    times = int(seconds // period) + 1
    later = np.array([period, 0, 0, 0, 0, 0, 0])
    return np.concatenate([run + k * later for k in range(times)])


@pytest.mark.timeout(1500)
@pytest.mark.slow
@pytest.mark.service
@pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone")
def test_a_newcomer_teaches_a_phone_an_activity_of_their_own(
    browser: Browser,
    demo: RunningDemo,
    motion: dict[str, npt.NDArray[np.float64]],
    screenshots: Screenshots,
    faults: list[str],
) -> None:
    operator, phone = opened(browser, 1120, 700, faults), opened(browser, 360, 740, faults)
    began = time.monotonic()
    operator.goto(demo.wait_for(LOGIN)[1])
    follow_rounds(operator, demo, screenshots)
    link = demo.wait_for(r"^(https://\S+/phone/#\S+)")[1]
    ready_s = time.monotonic() - began
    demo.wait_for("Everything stays until Ctrl-C")
    phone.goto(link)
    phone.get_by_role("button", name="Join").wait_for()
    phone.get_by_role("button", name="Close").click()  # it cannot keep an app whose certificate it does not know
    screenshots.take(phone, "tutorial-join")
    phone.get_by_role("button", name="Join").click()
    phone.get_by_text("It was approved and takes part.").wait_for()
    teach(phone, motion, screenshots)
    recognize(phone, motion, screenshots)
    phone.get_by_role("link", name="Take part").click()
    phone.get_by_text(re.compile(r"Sums accepted\s*[1-9]")).wait_for()
    screenshots.take(phone, "phone-take-part")
    operator.goto(operator.url.partition("/federations")[0] + "/federations/demo-analytic/devices")
    operator.get_by_role("link", name="phone-1").wait_for()
    screenshots.take(operator, "tutorial-devices", height=560)
    print(f"demo until the phone's link {ready_s:.0f} s, all {time.monotonic() - began:.0f} s")
    # a service worker wants a certificate that is trusted, and Chromium says so in one of two ways
    assert [one for one in faults if not re.search("[Ss]ervice ?[Ww]orker|SSL certificate error", one)] == []


def follow_rounds(operator: Page, demo: RunningDemo, screenshots: Screenshots) -> None:
    """Look at the federation while it runs, and keep what is seen as a short animation."""
    operator.get_by_role("heading", name="Overview").wait_for()
    demo.wait_for("now the rounds")
    operator.goto(operator.url.rstrip("/") + "/federations/demo")
    frames: list[bytes] = []
    while not demo.has_said("A phone in the same network"):
        frames.append(operator.screenshot(animations="disabled"))
        time.sleep(FRAME_EVERY_S)
    step = -(-len(frames) // MAX_FRAMES)
    screenshots.animate(frames[::step], "tutorial-rounds", frame_ms=900)
    operator.reload()
    screenshots.take(operator, "tutorial-federation")


def teach(phone: Page, motion: dict[str, npt.NDArray[np.float64]], screenshots: Screenshots) -> None:
    """Teach two activities that the federation knows and one that it does not."""
    phone.get_by_role("link", name="Teach me").click()
    phone.get_by_label("Name", exact=True).fill(OWN)
    phone.get_by_role("button", name="Add it").click()
    for count, (activity, played) in enumerate(LESSONS.items(), 1):
        move(phone, motion[played], seconds=MOTION_S)
        phone.locator(".taught").get_by_role("button", name=re.compile(f"^{activity}")).click()
        if activity == OWN:
            phone.locator(".dial strong", has_text=re.compile("^1[0-4]$")).wait_for()
            screenshots.take(phone, "tutorial-lesson")
        phone.get_by_text(f"{activity}: 20 s learnt").wait_for()
        phone.wait_for_function(f"() => document.querySelectorAll('.confusion tbody tr').length === {count}")
    phone.get_by_text(re.compile(f"looks like\\s*{OWN}")).wait_for()
    screenshots.take(phone, "tutorial-taught", height=1240)
    right, windows = map(int, re.findall(r"\d+", phone.locator(".score strong").inner_text()))
    assert right >= 0.8 * windows


def recognize(phone: Page, motion: dict[str, npt.NDArray[np.float64]], screenshots: Screenshots) -> None:
    """See what it makes of the activities that it was taught, the person's own among them."""
    phone.get_by_role("link", name="Recognize").click()
    move(phone, motion[LESSONS[OWN]], 5.0, MOTION_S)
    phone.locator(".answer", has_text=OWN).wait_for()
    move(phone, motion["walking"], 5.0, MOTION_S)
    phone.locator(".answer", has_text="walking").wait_for()
    screenshots.take(phone, "phone-recognize")
    phone.get_by_role("link", name="Collect").click()
    phone.get_by_text("Recording").first.wait_for()
    screenshots.take(phone, "phone-collect")


@pytest.mark.slow  # tests/sim/cli runs these commands
@pytest.mark.parametrize("page", ["tutorial.md", "compare-runs.md"])
def test_the_simulations_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "\n".join(block.text for block in shell_blocks(DOCS / page) if not block.not_run)
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    commands = [words[3:] for words in lines if words[:3] == ["python", "-m", "sim"]]
    assert [words[0] for words in commands] == ["run", "run", "compare"]
    for words in commands:
        done = CliRunner().invoke(sim, words)
        assert done.exit_code == 0, done.output
    out = Path(commands[-1][commands[-1].index("--out") + 1])
    compared = json.loads((out / "comparison.json").read_text())
    assert [row["method"] for row in compared["groups"][0]["rows"]] == ["local", "fedavg"]


@pytest.mark.ci
def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    names: dict[str, object] = {}
    shown = [run_cell("".join(cell["source"]), names) for cell in cells]
    tables = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) == 5  # three runs, and two frames
    assert all("<table" in table for table in tables)
    assert isinstance(shown[-1], Path)
    assert shown[-1].is_file()


def run_cell(source: str, names: dict[str, object]) -> object:
    """Run a cell as a notebook does, and return what it would show: the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names) if last is not None else None
