"""The timeline of a day: what its minutes hold, its page by forms alone, and what its forms refuse."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.page import access
from edge_agent.page.access import password_hash
from edge_agent.serving.classifier import MinuteLog
from edge_agent.storage.timeline import MAX_ASKED_MINUTES, Minute, read_minutes, stretches, uncertain
from edge_agent.storage.window_listing import Selection, delete
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.local_data import window_keys
from har_pipeline import Window
from tests.edge_agent.page.page_devices import PageDevice
from tests.edge_agent.window_factories import LABELS, SETTINGS

NOON = datetime.combine(datetime.now().date() - timedelta(days=1), datetime.min.time()).replace(hour=12)
NOON_S = NOON.timestamp()
DAY = NOON.date().isoformat()
WAVE = np.sin(np.arange(128))[:, None] * np.ones((1, 6)) + np.float32([0, 0, 9.8, 0, 0, 0])
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def lived(folder: Path) -> None:
    """Half an hour: ten minutes of certain walking, ten of something between sit and run, ten that were labelled."""
    log, kept = MinuteLog(folder), list[Window]()
    for n in range(30 * 20):
        part = n // 200
        x = WAVE * np.float32([3, 0.02, 1][part])
        each = Window(x, [-1, -1, 2][part], NOON_S + 3.0 * n, 0)
        kept.append(each)
        label, p = [("walk", 0.97), (("sit", "run")[n % 2], (0.6, 0.62)[n % 2]), ("sit", 0.8)][part]
        log.add([each], [label], [p])
    with closing(WindowStore(folder)) as store:
        store.add(kept, LABELS, SETTINGS, WindowsSection(), origin="phone:2")
    log.keep()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[PageDevice]:
    found = PageDevice(tmp_path)
    lived(found.data)
    yield found
    found.close()


def page_of(device: PageDevice, path: str = f"/timeline?day={DAY}") -> str:
    status, text, headers = device.send("GET", path)
    assert status == 200, text
    assert headers["Content-Type"].startswith("text/html")
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text.decode())))


def send(device: PageDevice, name: str, **fields: str) -> tuple[int, str, str]:
    status, text, headers = device.send("POST", f"/timeline/{name}", urlencode(fields).encode(), FORM)
    return status, text.decode(), headers.get("Location", "")


def test_the_most_uncertain_stretches_come_first_and_none_is_long(device: PageDevice) -> None:
    with closing(WindowStore(device.data)) as store:
        minutes = read_minutes(store, NOON_S, NOON_S + 3600)
    walking, between, labelled = stretches(minutes)
    told = [(each.recognized, each.label) for each in (walking, between, labelled)]
    assert told == [("walk", ""), ("run", ""), ("sit", "run")]
    assert walking.certainty == pytest.approx(0.97)
    assert between.certainty == pytest.approx(0.31), "half of its windows speak for another label"
    assert walking.movement is not None
    assert between.movement is not None
    assert walking.movement > 10 * between.movement
    (asked,) = uncertain(minutes)
    assert (asked.from_s, asked.to_s, asked.unlabelled) == (NOON_S + 600, NOON_S + 1200, 200)
    long = {n: Minute(recognized={"sit": 0.3}, seen=1, kept={"": 20}) for n in range(40)}
    assert max(each.to_s - each.from_s for each in uncertain(long)) == MAX_ASKED_MINUTES * 60


def test_a_stretch_is_labelled_corrected_and_taken_back_by_forms_alone(device: PageDevice) -> None:
    with closing(WindowStore(device.data)) as store:
        before = window_keys(store.outline("c", SETTINGS, LABELS))
    shown = page_of(device)
    assert "Help me with these" in shown
    assert shown.index("12:10 to 12:20") < shown.index("Stretches of the day"), "what is asked stands above the day"
    assert "labelled run (differs)" in shown

    status, _, where = send(device, "label", **{"day": DAY, "from": "12:10", "to": "12:20", "activity": "SIT"})
    assert (status, where) == (303, f"/timeline?day={DAY}&done=200&activity=sit")
    said = page_of(device, where)
    assert "200 windows are now sitting. Take it back" in said
    assert "Nothing to ask" not in said, "this device has other windows without a label"
    assert "12:10 to 12:20" not in said[: said.index("Stretches of the day")]
    send(device, "label", **{"day": DAY, "from": "12:20", "to": "12:30", "activity": "sit"})
    with closing(WindowStore(device.data)) as store:
        after = window_keys(store.outline("c", SETTINGS, LABELS))
    assert len(after) == len(before) + 200
    assert len(before - after) == 200, "a correction is other data: it counts in the next round, or the next sums"
    send(device, "undo", day=DAY)
    assert device.classes() == {"": 210, "sit": 202, "run": 200}


def test_forms_of_others_and_what_is_no_form_are_refused(device: PageDevice) -> None:
    fields = {"day": DAY, "from": "12:10", "to": "12:20", "activity": "sit"}
    data = urlencode(fields).encode()
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
        assert device.send("POST", "/timeline/label", data, {**FORM, **headers})[0] == 403
    assert device.send("POST", "/timeline/label", data, {"Content-Type": "text/plain"})[0] == 403
    assert device.send("POST", "/api/label", data, FORM)[0] == 403, "the JSON requests take JSON alone"
    for wrong in ({"to": "12:09"}, {"from": "noon"}, {"day": "yesterday"}, {"more": "x"}, {"activity": "a" * 300}):
        assert send(device, "label", **{**fields, **wrong})[0] == 422
    status, text, _ = send(device, "label", **{**fields, "activity": "<b>flying</b>"})
    assert status == 409
    assert "&lt;b&gt;flying&lt;/b&gt;" in text
    assert device.send("GET", "/timeline?day=2026-99-99")[0] == 422
    _, _, headers = device.send("GET", "/timeline")
    assert "form-action 'self'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "same-origin", "else a form's Origin is null"
    assert device.classes() == {"": 410, "sit": 2, "run": 200}


def test_what_was_recognized_goes_with_its_windows(device: PageDevice) -> None:
    with closing(WindowStore(device.data)) as store:
        delete(store, Selection("run"))
        assert [each.seen for each in read_minutes(store, NOON_S + 1200, NOON_S + 1800).values()] == []
        assert len(read_minutes(store, NOON_S, NOON_S + 1200)) == 20
        delete(store, Selection(None, NOON_S, NOON_S + 86_400))
        assert read_minutes(store, NOON_S, NOON_S + 3600) == {}


def test_it_asks_for_the_password_by_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "N", 1 << 10)
    device = PageDevice(tmp_path, password_hash("correct horse"))
    assert "Password of this device" in page_of(device, "/timeline")
    assert send(device, "label", **{"day": DAY, "from": "12:10", "to": "12:20", "activity": "sit"})[0] == 401
    assert "This is not the password" in send(device, "login", password="wrong horse")[1]
    data = urlencode({"password": "correct horse"}).encode()
    status, _, headers = device.send("POST", "/timeline/login", data, FORM)
    assert (status, headers["Location"]) == (303, "/timeline")
    cookie = headers["Set-Cookie"].partition(";")[0]
    _, text, _ = device.send("GET", "/timeline", headers={"Cookie": cookie})
    device.close()
    assert b"Stretches of the day" in text
