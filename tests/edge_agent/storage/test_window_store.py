"""Windows in SQLite: bit for bit, by activity, bounded in number, age and bytes, with rare classes kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import DamagedError
from edge_agent.storage.retention import DAY_S, ROW_BYTES, MachineClock, to_drop
from edge_agent.storage.window_store import FILE_NAME, RECORDING, SUSPECT, WindowStore
from har_pipeline import Window
from tests.edge_agent.window_factories import LABELS, SETTINGS, of_classes, window

PLENTY = WindowsSection()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WindowStore]:
    found = WindowStore(tmp_path)
    yield found
    found.close()


def keep(store: WindowStore, windows: list[Window], limits: WindowsSection = PLENTY, origin: str = "phone") -> None:
    store.add(windows, LABELS, SETTINGS, limits, origin=origin)


def numbers(store: WindowStore) -> list[int]:
    return [int(x[0, 0]) for x in store.read("c", SETTINGS, LABELS).x]


def test_labelled_windows_come_back_bit_for_bit_in_their_order(store: WindowStore) -> None:
    random = np.random.default_rng(0)
    kept = [
        Window(random.normal(size=(128, 6)).astype(np.float32), i % 4 - 1, 1e9 + i * 1.28, i // 4) for i in range(12)
    ]
    keep(store, kept[:5])
    keep(store, kept[5:])
    back, labelled = store.read("c", SETTINGS, LABELS), [each for each in kept if each.y >= 0]
    np.testing.assert_array_equal(back.x, np.stack([each.x for each in labelled]))
    for name in ("y", "start_s", "session"):
        assert getattr(back, name).tolist() == [getattr(each, name) for each in labelled]
    assert store.counts() == {"": 3, "sit": 3, "walk": 3, "run": 3}
    outline = store.outline("c", SETTINGS, LABELS)
    assert (outline.x.shape, outline.y.tolist()) == ((9, 0, 6), back.y.tolist())


def test_an_activity_is_a_word_and_another_plan_finds_its_own(store: WindowStore) -> None:
    keep(store, of_classes([0, 1, 2, 1]))
    again = store.read("c", SETTINGS, ("run", "fly", "walk"))
    assert again.y.tolist() == [2, 0, 2]
    assert len(store.read("c", replace(SETTINGS, rate_hz=100.0), LABELS)) == 0
    assert len(store.read("c", replace(SETTINGS, stride=16), LABELS)) == 4


def test_replayed_recordings_and_own_windows_do_not_mix(store: WindowStore) -> None:
    keep(store, of_classes([0, 0]), origin=RECORDING)
    keep(store, of_classes([1, 1, 1]))
    assert store.read("c", SETTINGS, LABELS).y.tolist() == [1, 1, 1]
    store.put(reads=RECORDING)
    assert (store.read("c", SETTINGS, LABELS).y.tolist(), store.counts()) == ([0, 0], {"sit": 2})
    store.drop_origin(RECORDING)
    assert store.counts() == {}


def test_of_too_many_the_oldest_of_the_largest_class_go(store: WindowStore) -> None:
    limits = WindowsSection(max_labelled=6, max_unlabelled=2)
    keep(store, of_classes([2, 0, 0, -1, 0, 1, 0, -1, 0, 0, -1]), limits)
    assert store.counts() == {"": 2, "run": 1, "walk": 1, "sit": 4}
    assert numbers(store) == [0, 4, 5, 6, 8, 9]


class SimulatedClock(MachineClock):
    """A machine's clocks, which go on, are set, and start anew."""

    def __init__(self) -> None:
        self.wall, self.running, self.boots = time.time(), 100.0, 0

    def wall_s(self) -> float:
        return self.wall

    def running_s(self) -> float:
        return self.running

    def boot(self) -> str:
        return str(self.boots)

    def goes_on(self, days: float) -> None:
        """Let time pass."""
        self.wall += days * DAY_S
        self.running += days * DAY_S

    def is_off(self, days: float) -> None:
        """Let time pass while it is switched off."""
        self.wall += days * DAY_S
        self.running, self.boots = 1.0, self.boots + 1


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def ageing_store(tmp_path: Path, clock: SimulatedClock) -> Iterator[WindowStore]:
    with closing(WindowStore(tmp_path / "ageing", clock)) as store:
        yield store


def test_windows_age_while_the_device_lives(ageing_store: WindowStore, clock: SimulatedClock) -> None:
    limits = WindowsSection(max_age_days=10, max_unlabelled_age_days=2)
    keep(ageing_store, of_classes([0, -1]), limits)
    clock.goes_on(1.5)
    keep(ageing_store, [], limits)
    clock.is_off(0.75)  # the program goes on with it
    with closing(WindowStore(ageing_store.folder, clock)) as again:
        keep(again, [window(1, 5), window(-1, 6)], limits)
    assert ageing_store.counts() == {"": 1, "sit": 1, "walk": 1}
    clock.goes_on(8)
    keep(ageing_store, [], limits)
    assert ageing_store.counts() == {"walk": 1}


@pytest.mark.parametrize("days", [1 / 24, 1, 3653, -1 / 24, -1, -3653, -20_000])
@pytest.mark.parametrize("how", ["set", "off", "off and set"])
def test_a_clock_that_leaps_makes_no_window_old(
    ageing_store: WindowStore, clock: SimulatedClock, days: float, how: str
) -> None:
    limits = WindowsSection(max_age_days=10, max_unlabelled_age_days=2)
    keep(ageing_store, of_classes([0, -1]), limits)
    before = clock.wall
    if "off" in how:
        clock.is_off(days)
        keep(ageing_store, [], limits)
    if "set" in how:
        clock.wall = before + (0 if "off" in how else DAY_S * days)
    keep(ageing_store, [window(1, 5)], limits)
    assert ageing_store.counts() == {"": 1, "sit": 1, "walk": 1}
    clock.goes_on(11)
    keep(ageing_store, [], limits)
    assert ageing_store.counts() == {}


def test_bytes_are_bounded_and_the_unlabelled_go_first(store: WindowStore) -> None:
    size = 128 * 6 * 4 + ROW_BYTES
    limits = WindowsSection(max_mb=5 * size / 1e6 + 1e-6)
    keep(store, of_classes([-1, -1, -1, 0, 0, 0, 1]), limits)
    assert store.counts() == {"": 1, "sit": 3, "walk": 1}
    keep(store, [window(1, 7), window(0, 8)], limits)
    assert store.counts() == {"sit": 3, "walk": 2}


def test_a_file_is_no_larger_than_its_rows_are_reckoned(store: WindowStore) -> None:
    for _ in range(4):
        keep(store, of_classes([0, 1, 2, -1] * 64))
    with store.reading() as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    per_window = (store.folder / FILE_NAME).stat().st_size / 1024
    assert 0.9 * (3072 + ROW_BYTES) < per_window < 1.05 * (3072 + ROW_BYTES)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 30), min_size=1), st.integers(1, 60))
def test_levelling_is_dropping_one_of_the_largest_class_at_a_time(counts: dict[str, int], limit: int) -> None:
    left = Counter(counts)
    while sum(left.values()) > limit:
        largest = max(left.values())
        left[min(name for name, count in left.items() if count == largest)] -= 1
    dropped = to_drop(counts, limit)
    assert {name: counts[name] - dropped.get(name, 0) for name in counts} == dict(left)


@pytest.mark.parametrize(("came", "size"), [(b"1234", 4), (b"123", 3), (b"", 0), ("text", 0)])
def test_a_window_of_a_wrong_size_is_an_error_and_raises_suspicion(
    store: WindowStore, came: bytes | str, size: int
) -> None:
    keep(store, of_classes([0]))
    with store.writing() as db:
        db.execute("UPDATE windows SET x = ?", (came,))
    with pytest.raises(DamagedError, match=f"{size} bytes, expected 3072"):
        store.read("c", SETTINGS, LABELS)
    assert (store.folder / SUSPECT).exists()


def test_a_batch_is_kept_whole_or_not_at_all(store: WindowStore) -> None:
    broken = window(0, 1)._replace(session="none")
    with pytest.raises(ValueError):
        keep(store, [window(0, 0), broken])
    assert store.counts() == {}
    assert store.next_session() == 0
