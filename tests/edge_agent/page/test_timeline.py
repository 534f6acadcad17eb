"""The timeline of a day: what its minutes hold, and what its view is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.serving.classifier import MinuteLog
from edge_agent.storage.timeline import MAX_ASKED_MINUTES, Minute, read_minutes, stretches, uncertain
from edge_agent.storage.window_listing import Selection, delete
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.local_data import window_keys
from har_pipeline import Window
from har_pipeline.signals.wear import NOT_WORN
from tests.edge_agent.page.page_devices import PageDevice
from tests.edge_agent.window_factories import LABELS, SETTINGS

NOON = datetime.combine(datetime.now().date() - timedelta(days=1), datetime.min.time()).replace(hour=12)
NOON_S = NOON.timestamp()
DAY = NOON.date().isoformat()
WAVE = np.sin(np.arange(128))[:, None] * np.ones((1, 6)) + np.float32([0, 0, 9.8, 0, 0, 0])


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


def day_of(device: PageDevice, day: str | None = DAY) -> dict[str, Any]:
    status, found, _ = device.send("POST", "/api/day", {"day": day})
    assert status == 200, found
    return found


def minute(n: int) -> float:
    return NOON_S + 60 * n


def test_minutes_in_which_nobody_wore_it_are_no_guess_and_not_asked_about() -> None:
    minutes = {
        1: Minute({"walking": 20.0}, seen=40, movement=80.0, kept={"": 40}),
        2: Minute({NOT_WORN: 40.0}, seen=40, movement=0.4, kept={"": 40}),
    }
    assert [(each.recognized, each.certainty) for each in stretches(minutes)] == [("walking", 0.5), (NOT_WORN, None)]
    assert [each.recognized for each in uncertain(minutes)] == ["walking"]


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


def test_a_stretch_is_labelled_corrected_and_taken_back(device: PageDevice) -> None:
    with closing(WindowStore(device.data)) as store:
        before = window_keys(store.outline("c", SETTINGS, LABELS))
    shown = day_of(device)
    assert (shown["labels"], shown["days"][1]) == (list(LABELS), DAY)
    assert [(each["recognized"], each["label"]) for each in shown["stretches"]] == [
        ("walk", ""),
        ("run", ""),
        ("sit", "run"),
    ]
    assert len(shown["movement"]) == 30
    assert (shown["uncertain"][0]["from_s"], shown["uncertain_more"]) == (minute(10), 0)

    span = {"from_s": minute(10), "to_s": minute(20)}
    assert device.send("POST", "/api/label", {"activity": "SIT", **span})[1] == {"windows": 200, "activity": "sit"}
    assert minute(10) not in [each["from_s"] for each in day_of(device)["uncertain"]]
    device.send("POST", "/api/label", {"activity": "sit", "from_s": minute(20), "to_s": minute(30)})
    with closing(WindowStore(device.data)) as store:
        after = window_keys(store.outline("c", SETTINGS, LABELS))
    assert len(after) == len(before) + 200
    assert len(before - after) == 200, "a correction is other data: it counts in the next round, or the next sums"
    device.send("POST", "/api/undo", {})
    assert device.classes() == {"": 210, "sit": 202, "run": 200}


def test_the_newest_day_is_shown_first_and_what_is_no_day_is_refused(device: PageDevice) -> None:
    assert day_of(device, None)["day"] == datetime.now().date().isoformat()
    assert day_of(device, "2001-05-05")["stretches"] == []
    for wrong in ({"day": "yesterday"}, {"day": "2026-99-99"}, {"day": 1}, {"date": DAY}):
        assert device.send("POST", "/api/day", wrong)[0] == 422
    assert device.send("GET", "/timeline?day=2026-99-99")[0] == 200, "the page asks"
    assert device.send("POST", "/api/day", {"day": DAY}, {"Origin": "http://evil.example"})[0] == 403


def test_what_was_recognized_goes_with_its_windows(device: PageDevice) -> None:
    with closing(WindowStore(device.data)) as store:
        delete(store, Selection("run"))
        assert [each.seen for each in read_minutes(store, NOON_S + 1200, NOON_S + 1800).values()] == []
        assert len(read_minutes(store, NOON_S, NOON_S + 1200)) == 20
        delete(store, Selection(None, NOON_S, NOON_S + 86_400))
        assert read_minutes(store, NOON_S, NOON_S + 3600) == {}
