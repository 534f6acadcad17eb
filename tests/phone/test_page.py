"""The phone's page in headless Chromium, its sensors played to it: record, label, export, offline, for everybody."""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web import phone as web
from aggregator_api.transport.mqtt.mosquitto.folders import issue_for_server
from phone import APP
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.sockets import served
from tests.browser import CHROMIUM, NEEDS_BROWSER, OPTIONS, Screenshots, barriers, excess_width, listen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page, Route

pytestmark = NEEDS_BROWSER
VIEWS = ("join", "collect", "recognize", "take-part", "data")
DEADLINE_S = 120
CONTROLLED = """() => new Promise((done) => {
  const { serviceWorker } = navigator;
  if (serviceWorker.controller) done();
  else serviceWorker.addEventListener("controllerchange", () => done(), { once: true });
})"""
HEADER = "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z,activity,session"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("phone"), aggregation_process=False), Wires)
    with served(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def phone(browser: Browser, faults: list[str]) -> Iterator[Page]:
    """A page of a phone's size; nothing may be wrong in its console at the end."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, accept_downloads=True)
    context.set_default_timeout(60_000)
    found = context.new_page()
    listen(found, faults)
    yield found
    assert faults == []
    context.close()


class Sensors:
    """A phone's sensors: Chromium makes real `devicemotion` events of what is set here."""

    def __init__(self, page: Page, shown: dict[str, Callable[[float], tuple[float, float, float]]]) -> None:
        self.inspector: CDPSession = page.context.new_cdp_session(page)
        self.shown = shown
        for kind in shown:
            self.inspector.send("Emulation.setSensorOverrideEnabled", {"enabled": True, "type": kind})
        self.set()

    def end(self) -> None:
        """Let others be set."""
        for kind in self.shown:
            self.inspector.send("Emulation.setSensorOverrideEnabled", {"enabled": False, "type": kind})

    def set(self) -> None:
        for kind, at in self.shown.items():
            x, y, z = at(time.monotonic())
            reading = {"xyz": {"x": x, "y": y, "z": z}}
            self.inspector.send("Emulation.setSensorOverrideReadings", {"type": kind, "reading": reading})

    def play_until(self, done: Callable[[], Any]) -> None:
        """Move until something has happened."""
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline, "it never happened"
            for _ in range(20):
                self.set()
                time.sleep(0.005)


def walk(page: Page, sign: float = 1.0) -> Sensors:
    """Somebody walks: two steps a second, and the phone turns by a radian a second at the most."""

    def acceleration(at: float) -> tuple[float, float, float]:
        return (0.5 * sign, 2 * sign * math.sin(4 * math.pi * at), sign * (9.81 + 3 * math.sin(4 * math.pi * at)))

    def rotation(at: float) -> tuple[float, float, float]:
        return (math.sin(2 * math.pi * at), 0.0, 0.3)

    still = {"linear-acceleration": lambda at: (0.0, 0.0, 0.0)}
    return Sensors(page, {"accelerometer": acceleration, "gyroscope": rotation, **still})


def lie(page: Page, z: float) -> Sensors:
    """It lies on a table."""
    zero = (0.0, 0.0, 0.0)
    return Sensors(
        page,
        {
            "accelerometer": lambda at: (0.1, 0.0, z),
            "gyroscope": lambda at: zero,
            "linear-acceleration": lambda at: zero,
        },
    )


def windows_of(page: Page) -> list[dict[str, Any]]:
    """Read the page's database as it lies there."""
    found: list[dict[str, Any]] = page.evaluate(
        """async () => {
          const database = await new Promise((done) => {
            const asked = indexedDB.open("gaitway-phone");
            asked.onsuccess = () => done(asked.result);
          });
          const all = (store) => new Promise((done) => {
            const asked = database.transaction(store).objectStore(store).getAll();
            asked.onsuccess = () => done(asked.result);
          });
          const [marks, samples] = [await all("marks"), await all("samples")];
          database.close();
          return marks.map((mark, i) => ({ ...mark, x: Array.from(samples[i]) }));
        }"""
    )
    return found


def test_motion_becomes_windows_that_are_labelled_exported_deleted_and_imported(
    address: str, phone: Page, tmp_path: Path
) -> None:
    phone.goto(f"{address}/phone/#collect")
    sensors = walk(phone)
    phone.get_by_role("button", name="Start").click()
    phone.get_by_role("button", name="walking").click()
    phone.get_by_text("From now on everything is walking").wait_for()
    row = phone.get_by_role("row", name="walking")
    sensors.play_until(lambda: row.count() and int(row.inner_text().split()[-1]) >= 3)
    phone.get_by_role("button", name="Stop").click()
    phone.get_by_text("Not recording.").wait_for()

    stored = windows_of(phone)
    walked = [each for each in stored if each["label"] == "walking"]
    assert len(walked) >= 3
    assert all(len(each["x"]) == 128 * 6 for each in stored)
    z = [each for window in walked for each in window["x"][2::6]]
    assert 9 < sum(z) / len(z) < 10.5
    assert max(z) - min(z) > 3
    turned = max(abs(each) for window in walked for each in window["x"][3::6])
    assert 0.5 < turned < 2  # rad/s: degrees would be 57
    steps = [after["startMs"] - before["startMs"] for before, after in pairwise(stored)]
    assert all(step == pytest.approx(1280, abs=0.01) or step > 2560 for step in steps)
    assert abs(stored[-1]["startMs"] / 1e3 - time.time()) < DEADLINE_S

    phone.get_by_label("What", exact=True).select_option("stairs_up")
    phone.get_by_label("For the last").select_option("1800")
    phone.get_by_role("button", name="Label it").click()
    phone.get_by_text(f"{len(stored)} windows are stairs up now").wait_for()
    assert {each["label"] for each in windows_of(phone)} == {"stairs_up"}

    phone.goto(f"{address}/phone/#data")
    with phone.expect_download() as started:
        phone.get_by_role("button", name="Export everything").click()
    file = tmp_path / started.value.suggested_filename
    started.value.save_as(file)
    assert gzip.decompress(file.read_bytes()).decode().splitlines()[0] == HEADER
    before = windows_of(phone)
    phone.get_by_text("Delete everything …").click()
    phone.get_by_role("button", name="Delete everything", exact=True).click()
    phone.get_by_text("Everything was deleted.").wait_for()
    assert windows_of(phone) == []
    for said in (f"{len(before)} windows came in.", f"{len(before)} were there already"):
        phone.get_by_label("A file of this app").set_input_files(file)
        phone.get_by_role("button", name="Import").click()
        phone.get_by_text(said).wait_for()
        assert [(each["x"], each["label"]) for each in windows_of(phone)] == [
            (each["x"], each["label"]) for each in before
        ]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    phone.get_by_label("A file of this app").set_input_files(tmp_path / "other.csv")
    phone.get_by_role("button", name="Import").click()
    phone.get_by_text("Nothing was imported").wait_for()


ENROLMENT = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const keys = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
  const serverKey = btoa(String.fromCharCode(...new Uint8Array(await crypto.subtle.exportKey("raw", keys.publicKey))));
  const names = { server: location.origin, federation: "walks", device: "mine", token: "", pin: "" };
  await (await Store.open()).set("enrolment", { ...names, keys, serverKey, claimedAtS: 0 });
}"""
KEPT = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const store = await Store.open();
  return Promise.all(["enrolment", "agent", "outbox"].map((key) => store.get(key)));
}"""


def test_of_two_tabs_one_takes_part_and_either_leaves(address: str, browser: Browser) -> None:
    context = browser.new_context()
    one, other = context.new_page(), context.new_page()
    one.goto(f"{address}/phone/#join")
    one.get_by_role("button", name="Go on").wait_for()
    one.evaluate(ENROLMENT, web.version())
    one.reload()
    one.get_by_text("It was approved and takes part").wait_for()
    one.wait_for_function(f"async () => !!(await ({KEPT})('{web.version()}'))[1]")
    other.goto(f"{address}/phone/#take-part")
    other.get_by_text("This app takes part in another tab of this browser.").wait_for()
    other.goto(f"{address}/phone/#join")
    other.get_by_text("It was approved and takes part").wait_for()
    other.goto(f"{address}/phone/#data")
    other.get_by_text("Leave the federation …").click()
    other.get_by_role("button", name="Leave", exact=True).click()
    other.get_by_text("This phone has left the federation. The server could not be told (").wait_for()
    one.get_by_role("button", name="Go on").wait_for()
    assert other.evaluate(KEPT, web.version()) == [None, None, None]
    context.close()


PROMISED = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const store = await Store.open();
  const memory = await store.get("agent");
  const noise = { minNoise: 0, minExampleNoise: 0 };
  const pinned = { mode: "masked", minDevices: 50, minColludingShare: 0.3, ...noise, voucher: "" };
  const of = { instance: "0".repeat(32), epoch: 1, serial: 1 };
  const refused = { reason: "secure.min_devices is 3", promises: { ...pinned, minDevices: 3 }, of };
  await store.set("agent", { ...memory, pinned, refused });
}"""


def test_a_person_reads_what_a_phone_requires_and_loosens_or_raises_it(address: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    phone = context.new_page()
    phone.goto(f"{address}/phone/#join")
    phone.get_by_role("button", name="Go on").wait_for()
    phone.evaluate(ENROLMENT, web.version())
    phone.reload()
    phone.wait_for_function(f"async () => !!(await ({KEPT})('{web.version()}'))[1]")
    phone.evaluate(PROMISED, web.version())
    phone.goto(f"{address}/phone/#take-part")
    phone.reload()
    privacy = phone.get_by_role("region", name="Privacy")
    privacy.get_by_text("Required on this phone: The server learns only sums over at least 50 devices").wait_for()
    privacy.get_by_text("Accept the plan …").click()
    assert barriers(phone) == []
    assert excess_width(phone) == 0
    privacy.get_by_role("button", name="Accept", exact=True).click()
    privacy.get_by_text("Required on this phone: The server learns only sums over at least 3 devices").wait_for()
    privacy.get_by_text("Require more …").click()
    privacy.get_by_label("Take part only if").fill("70")
    privacy.get_by_role("button", name="Require this").click()
    privacy.get_by_text("Required on this phone: The server learns only sums over at least 70 devices").wait_for()
    context.close()


def test_a_server_that_is_gone_for_good_is_left_in_peace_until_somebody_asks(address: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    phone = context.new_page()
    phone.goto(f"{address}/phone/#join")
    phone.get_by_role("button", name="Go on").wait_for()
    phone.evaluate(ENROLMENT, web.version())
    asked: list[str] = []

    def cut(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    phone.route("**/v1/**", cut)
    phone.clock.install()
    phone.goto(f"{address}/phone/#take-part")
    phone.reload()
    gone = phone.get_by_text("may be gone for good. This phone tries again at about")
    deadline = time.monotonic() + DEADLINE_S
    while not gone.count():
        assert time.monotonic() < deadline, f"{len(asked)} tries"
        phone.clock.run_for(15_000)
    before = len(asked)
    assert before < 100
    phone.get_by_role("button", name="Try now").click()
    while len(asked) == before:
        assert time.monotonic() < deadline, "it does not try"
        phone.clock.run_for(100)
    assert barriers(phone) == []
    assert excess_width(phone) == 0
    context.close()


def test_calibration_finds_signs_that_are_the_wrong_way_round(address: str, phone: Page) -> None:
    phone.goto(f"{address}/phone/#collect")
    sensors = lie(phone, -9.8)
    phone.get_by_role("button", name="Check now").click()
    turn = phone.get_by_role("button", name="The screen was up: turn the signs")
    sensors.play_until(turn.count)
    turn.click()
    phone.get_by_text("The signs are turned").wait_for()
    phone.get_by_role("button", name="Check now").click()
    sensors.play_until(phone.get_by_text("Right: gravity is").count)
    sensors.end()
    walking = walk(phone, -1)
    phone.get_by_role("button", name="Start").click()
    walking.play_until(phone.get_by_role("row", name="no label").count)
    phone.get_by_role("button", name="Stop").click()
    z = windows_of(phone)[0]["x"][2::6]
    assert 9 < sum(z) / len(z) < 10.5


def test_a_phone_that_gives_zeros_is_told_how_to_switch_motion_on(address: str, phone: Page) -> None:
    phone.goto(f"{address}/phone/#collect")
    sensors = Sensors(
        phone, dict.fromkeys(("accelerometer", "gyroscope", "linear-acceleration"), lambda at: (0.0,) * 3)
    )
    phone.get_by_role("button", name="Check now").click()
    sensors.play_until(phone.get_by_text("Motion sensors").count)


def test_it_opens_without_the_server(address: str, phone: Page) -> None:
    phone.goto(f"{address}/phone/")
    phone.evaluate(CONTROLLED)
    phone.context.set_offline(True)
    for view in VIEWS:
        phone.goto("about:blank")
        phone.goto(f"{address}/phone/#{view}")
        phone.get_by_role("heading", level=1).wait_for()
        assert phone.evaluate("getComputedStyle(document.querySelector('.views')).position") == "fixed"
    phone.context.set_offline(False)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """What makes the server serve another version from then on."""

    def forget() -> None:
        for kept in (web.hashes, web.version, web.filled_page):
            kept.cache_clear()

    def change() -> None:
        files = {**web.files(), "main.js": tmp_path / "main.js"}
        files["main.js"].write_text((APP / "main.js").read_text() + "// a newer one\n")
        monkeypatch.setattr(web, "files", lambda: files)
        forget()

    yield change
    monkeypatch.undo()
    forget()


def test_a_newer_version_is_offered_and_never_mixed_with_the_one_before(
    address: str, phone: Page, newer: Callable[[], None]
) -> None:
    loaded = "performance.getEntriesByType('resource').map((one) => one.name.split('/')[4])"
    version = "document.documentElement.dataset.version"
    phone.goto(f"{address}/phone/")
    phone.evaluate(CONTROLLED)
    before = phone.evaluate(version)
    newer()
    phone.evaluate("navigator.serviceWorker.getRegistration().then((one) => one.update())")
    phone.get_by_text("A newer version of this app is here.").wait_for()
    phone.reload()
    offer = phone.get_by_role("button", name="Use it now")
    offer.wait_for()
    assert phone.evaluate(version) == before
    assert set(phone.evaluate(loaded)) - {"service_worker.js"} == {before}
    offer.click()
    phone.locator(f"html[data-version='{web.version()}']").wait_for()
    phone.get_by_role("heading", level=1).wait_for()
    assert phone.evaluate(version) == web.version() != before
    assert set(phone.evaluate(loaded)) - {"service_worker.js"} == {web.version()}
    assert set(phone.evaluate("caches.keys()")) == {f"gaitway-phone-{web.version()}", "gaitway-phone-runtime"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_suits_everybody(address: str, phone: Page, scheme: str) -> None:
    phone.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for width in (320, 1280):
        phone.set_viewport_size({"width": width, "height": 740})
        for view in VIEWS:
            phone.goto(f"{address}/phone/#{view}")
            phone.get_by_role("heading", level=1).wait_for()
            for more in phone.locator("main details > summary:visible").all():
                more.click()
            assert barriers(phone) == [], view
            assert excess_width(phone) == 0, view


def test_it_can_be_used_by_keyboard_and_begins_light(address: str, phone: Page) -> None:
    phone.goto(f"{address}/phone/#collect")
    phone.get_by_role("heading", level=1).wait_for()
    phone.keyboard.press("Tab")
    assert phone.evaluate("document.activeElement.textContent") == "Skip to the content"
    phone.keyboard.press("Enter")
    assert phone.evaluate("document.activeElement.id") == "main"
    phone.keyboard.press("Tab")
    assert phone.evaluate("document.activeElement.textContent") == "Start"
    weight = phone.evaluate(
        "performance.getEntriesByType('resource').filter((one) => !one.name.endsWith('service_worker.js'))"
        ".reduce((sum, one) => sum + one.encodedBodySize, 0)"
    )
    assert 20_000 < weight < 212_000, "compressed"
    assert not phone.evaluate("performance.getEntriesByType('resource').some((one) => one.name.endsWith('.wasm'))")


def test_a_certificate_that_was_accepted_by_hand_is_enough(browser: Browser, tmp_path: Path) -> None:
    """Browsers refuse workers from behind such a certificate: the app goes without, instead of giving up."""
    made = issue_for_server(tmp_path / "https", ["127.0.0.1"], days=2)
    app = create_app(Settings(data_dir=tmp_path / "data", aggregation_process=False), Wires)
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    files = {"ssl_certfile": str(made.certificate), "ssl_keyfile": str(made.key)}
    with served(app, **files) as port:
        page.goto(f"https://127.0.0.1:{port}/phone/")
        page.get_by_text("This browser could not keep the app").wait_for()
        page.get_by_role("button", name="Close").click()
        assert page.get_by_text("This browser could not keep the app").count() == 0
        assert page.get_by_role("heading", level=1).inner_text() == "Join"
        context.close()


def test_over_plain_http_it_says_what_to_do(address: str, browser: Browser) -> None:
    """A name that is not localhost, on this machine: what a phone gets that opens the server by plain HTTP."""
    options = [*OPTIONS, "--host-resolver-rules=MAP gaitway.example 127.0.0.1"]
    other = browser.browser_type.launch(executable_path=CHROMIUM, args=options)
    page = other.new_page(viewport={"width": 360, "height": 740})
    page.goto(address.replace("127.0.0.1", "gaitway.example") + "/phone/")
    page.get_by_text("This page came over plain HTTP").wait_for()
    assert page.get_by_text("open https://gaitway.example").count() == 1
    other.close()


DAY = """async ({ version, began }) => {
  const day = await import(`/phone/${version}/ui/day.js`);
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const store = await Store.open("gaitway-day");
  const still = new Float32Array(128 * 6).map((_, i) => (i % 6 === 2 ? 9.8 : 0));
  const moved = still.map((value, i) => (i % 6 === 2 ? value + 3 * Math.sin(i) : value));
  const windows = Array.from({ length: 300 }, (_, n) => ({
    startMs: began + 6000 * n, x: n < 100 ? moved : still, label: n < 200 ? null : "sitting", session: "a",
  }));
  await store.addWindows(windows);
  const models = { unavailableReason: "" };
  const ranking = (x) => (x[2] === x[8] ? [["lying", 0.5], ["sitting", 0.4]] : [["walking", 0.9]]);
  const recognition = { rank: async (x) => ({ ranking: ranking(x) }) };
  const activities = () => ["walking", "sitting", "lying"];
  const { PhoneDevice } = await import(`/phone/${version}/device.js`);
  const app = { store, models, recognition, marks: await store.marks(), activities, recorder: {} };
  app.device = new PhoneDevice(app);
  store.watchers.add(async () => { app.marks = await store.marks(); });
  location.hash = "#recognize";
  await new Promise((done) => setTimeout(done, 200));
  day.show(document.getElementById("main"), app);
  window.labelled = async () => (await store.marks()).filter(({ label }) => label === "lying").length;
}"""


def test_a_stretch_of_a_day_is_dragged_over_labelled_and_taken_back(
    address: str, phone: Page, screenshots: Screenshots
) -> None:
    phone.goto(f"{address}/phone/#join")
    phone.get_by_role("heading", level=1).wait_for()
    noon = datetime.now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    phone.evaluate(DAY, {"version": web.version(), "began": 1000 * noon.timestamp()})
    asked = phone.get_by_role("region", name="Help me with these")
    asked.get_by_text("12:10 to 12:20").wait_for()
    phone.get_by_text("labelled sitting (differs)").wait_for()
    assert asked.get_by_role("listitem").count() == 1, "what is certain is not asked"
    assert barriers(phone) == []
    assert excess_width(phone) == 0
    box = phone.locator(".day-chart").bounding_box()
    assert box
    minute = box["width"] / 60
    phone.mouse.move(box["x"] + 2.5 * minute, box["y"] + 20)
    phone.mouse.down()
    phone.mouse.move(box["x"] + 5.5 * minute, box["y"] + 20, steps=3)
    phone.mouse.up()
    screenshots.take(phone, "phone-day", height=1060)
    choices = phone.get_by_role("group", name="What you did")
    choices.get_by_role("button", name="lying").click()
    phone.get_by_text("40 windows are lying now, from 12:02 to 12:06.").wait_for()
    phone.get_by_role("button", name="Take it back").click()
    phone.get_by_text("Taken back").wait_for()
    assert phone.evaluate("labelled()") == 0
    phone.get_by_role("button", name="Correct 12:20 to 12:30").click()
    phone.get_by_text("100 windows are sitting now").wait_for()
