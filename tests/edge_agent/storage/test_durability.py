"""Windows through kill −9, broken pages and a full disk: nothing half kept, nothing silently lost, and on it goes."""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.config.settings import Config
from edge_agent.errors import DamagedError, DiskFullError
from edge_agent.machine.events import CollectingPaused, CollectingResumed, Event
from edge_agent.sensors import collector as collecting
from edge_agent.sensors import window_writer
from edge_agent.sensors.collector import Collector
from edge_agent.storage.repair import DAMAGED_FILE, open_checked
from edge_agent.storage.state_store import FILE_NAME as AGENT_FILE
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import FILE_NAME, SUSPECT, WindowStore
from edge_agent.supervisor.status import collected_windows
from har_pipeline import Recording
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import BEGAN_S, walk
from tests.edge_agent.storage.locked import locked
from tests.edge_agent.window_factories import LABELS, SETTINGS, of_classes
from tests.edge_agent.write_until_killed import BATCH

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT = 400


# ---- kill −9


def killed_after(folder: Path, first: int, seconds: float) -> int:
    """Let a process write for so long, the first one at least a batch; returns the last that it said was kept."""
    command = [sys.executable, "-m", "tests.edge_agent.write_until_killed", str(folder), str(first), str(LIMIT)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        kept = process.stdout.readline() if first == 0 else ""
        time.sleep(seconds)
        process.kill()
        said = (kept + process.stdout.read()).split("\n")[:-1]  # a line may have been cut
    return int(said[-1]) if said else first - 1


def look(folder: Path, said: int) -> int:
    """Everything that was said to be kept is there, once, in whole batches; returns the batch to go on with."""
    store, connection_error = open_checked(folder)
    with closing(store), store.reading() as db:
        assert connection_error == ""
        rows = db.execute("SELECT x, activity FROM windows ORDER BY id").fetchall()
        orphans = db.execute("SELECT COUNT(*) FROM changes WHERE window NOT IN (SELECT id FROM windows)").fetchone()[0]
    numbers = [int(np.frombuffer(x, "<f4")[0]) for x, _ in rows]
    assert numbers == sorted(set(numbers))
    last, rest = divmod(numbers[-1] + 1, BATCH)
    assert rest == 0, "half of a batch"
    assert last - 1 in (said, said + 1), "a batch that was said to be kept is gone, or one came from nowhere"
    labels: dict[int, set[str]] = {}
    for number, (_, activity) in zip(numbers, rows, strict=True):
        labels.setdefault(number // BATCH, set()).add(activity)
    assert all(len(each) == 1 for each in labels.values()), "half of a batch was labelled"
    assert all(each == {""} or batch % 3 == 0 for batch, each in labels.items())
    for kind in ("", "walk"):  # a label moves a batch from one kind to the other; the next batch restores the limit
        assert sum(activity == kind for _, activity in rows) <= LIMIT + BATCH
    assert orphans == 0
    return last


def kill_again_and_again(folder: Path, seed: int, kills: int) -> None:
    chance, batch = random.Random(seed), 0
    for _ in range(kills):
        batch = look(folder, killed_after(folder, batch, chance.uniform(0.1, 0.5)))


@pytest.mark.service
def test_a_kill_leaves_whole_batches(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, seed=0, kills=1)


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_kill_leaves_whole_batches_many_times(tmp_path: Path, seed: int) -> None:
    kill_again_and_again(tmp_path, seed, kills=20)


# ---- broken pages


def filled(folder: Path, count: int = 600) -> Path:
    with closing(WindowStore(folder)) as store:
        store.add(of_classes([0, 1, 2] * (count // 3)), LABELS, SETTINGS, WindowsSection(), origin="phone")
    return folder / FILE_NAME


def break_bytes(path: Path, at: int, count: int, seed: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(random.Random(seed).randbytes(count))
        os.fsync(file.fileno())


@pytest.mark.parametrize(("where", "saved"), [(0.3, 300), (0.6, 300), (0.97, 400)])
def test_a_broken_page_costs_few_windows(tmp_path: Path, where: float, saved: int) -> None:
    path = filled(tmp_path)
    break_bytes(path, int(path.stat().st_size * where) // 4096 * 4096, 4096)
    store, connection_error = open_checked(tmp_path)
    assert "is damaged" in connection_error or "cannot be used" in connection_error
    assert DAMAGED_FILE in connection_error
    assert (tmp_path / DAMAGED_FILE).is_file()
    counts = store.counts()
    assert saved <= sum(counts.values()) < 600
    numbers = [int(x[0, 0]) for x in store.read("c", SETTINGS, LABELS).x]
    assert numbers == sorted(set(numbers))
    store.add(of_classes([0]), LABELS, SETTINGS, WindowsSection(), origin="phone")
    store.close()
    again, connection_error = open_checked(tmp_path)
    assert connection_error == ""
    again.close()
    assert DAMAGED_FILE in " ".join(collected_windows(tmp_path, WindowsSection()).words)


def test_a_file_that_is_no_database_gives_way_to_a_fresh_one(tmp_path: Path) -> None:
    path = filled(tmp_path)
    break_bytes(path, 0, 8192)
    assert "cannot be read" in collected_windows(tmp_path, WindowsSection()).words[0]
    store, connection_error = open_checked(tmp_path)
    assert "0 of its windows could be saved" in connection_error
    assert store.counts() == {}
    store.close()


def test_every_broken_page_is_found_or_harmless(tmp_path: Path) -> None:
    path = filled(tmp_path, 30)
    whole = path.read_bytes()
    for page in range(0, len(whole) // 4096, 8):
        path.write_bytes(whole)
        break_bytes(path, page * 4096, 4096, seed=page)
        store, connection_error = open_checked(tmp_path)
        with closing(store):
            assert connection_error, page
            assert len(store.read("c", SETTINGS, LABELS)) <= 30


def test_the_outbox_is_never_replaced(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.put(**{f"name{n}": "x" * 500 for n in range(200)})
    store.close()
    path = tmp_path / AGENT_FILE
    break_bytes(path, path.stat().st_size // 2 // 4096 * 4096, 4096)
    before = path.read_bytes()
    with closing(StateStore(tmp_path)) as broken, pytest.raises(DamagedError, match="n't replaced automatically"):
        broken.check()
    assert path.read_bytes() == before


# ---- a collector that meets them


@pytest.fixture
def posted() -> queue.SimpleQueue[Event]:
    return queue.SimpleQueue()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "REPORT_S", 0.0)
    for name, value in (("RETRY_S", 0.0), ("FLUSH_S", 1e9), ("MAX_QUEUED", 100)):
        monkeypatch.setattr(window_writer, name, value)


def a_collector(folder: Path, post: queue.SimpleQueue[Event], **limits: float) -> Collector:
    sections = {"windows": WindowsSection(**{"min_free_mb": 0, **limits})}
    config: Config = make_config(folder).model_copy(update=sections)
    return Collector(config, make_plan(), post.put, origin="phone", live=True, stop=threading.Event())


def feed(collector: Collector, minute: int) -> None:
    """One minute of walking: 46 windows."""
    times_s, sensors = walk(60.0, rate_hz=60.0, began_s=BEGAN_S + 100 * minute)
    for part in np.array_split(np.arange(len(times_s)), 3):
        collector.push(Recording("p", str(minute), "", "acc", times_s[part], sensors["gravity"][part]))
        collector.push(Recording("p", str(minute), "", "gyro", times_s[part], sensors["gyroscope"][part]))
    collector.end_session()
    collector.flush()
    collector.tick()


def of_kind(posted: queue.SimpleQueue[Event], *kinds: type[Event]) -> list[Event]:
    found = []
    while not posted.empty():
        if isinstance(event := posted.get(), kinds):
            found.append(event)
    return found


def test_a_reader_that_meets_a_broken_page_has_it_replaced(tmp_path: Path, posted: queue.SimpleQueue[Event]) -> None:
    collector = a_collector(tmp_path, posted)
    for minute in range(6):
        feed(collector, minute)
    with collector.store.reading() as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    path = tmp_path / FILE_NAME
    break_bytes(path, path.stat().st_size // 2 // 4096 * 4096, 4096 * 20)
    with closing(WindowStore(tmp_path)) as reader, pytest.raises(DamagedError), reader.reading() as db:
        db.execute("SELECT SUM(LENGTH(x)), MAX(activity), COUNT(pipeline || origin) FROM windows").fetchall()
    assert (tmp_path / SUSPECT).exists()
    collector.tick()
    assert not (tmp_path / SUSPECT).exists()
    feed(collector, 7)
    assert any("set aside" in note or DAMAGED_FILE in note for note in collector.health.summary()["notes"])
    assert collector.store.counts()[""] >= 46
    collector.close()
    _, connection_error = closing_check(tmp_path)
    assert connection_error == ""


def closing_check(folder: Path) -> tuple[None, str]:
    store, connection_error = open_checked(folder)
    store.close()
    return None, connection_error


def test_a_database_that_may_not_grow_pauses_collecting_until_it_may(
    tmp_path: Path, posted: queue.SimpleQueue[Event]
) -> None:
    collector = a_collector(tmp_path, posted)
    feed(collector, 0)
    kept = collector.store.counts()[""]
    with collector.store.reading() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 4}").fetchall()
    feed(collector, 1)
    (paused,) = of_kind(posted, CollectingPaused, CollectingResumed)
    assert isinstance(paused, CollectingPaused)
    assert "no space on the disk" in paused.reason
    assert collector.store.counts()[""] == kept
    with collector.store.reading() as db:
        db.execute("PRAGMA max_page_count = 1073741823").fetchall()
    collector.flush()
    assert [type(event) for event in of_kind(posted, CollectingPaused, CollectingResumed)] == [CollectingResumed]
    assert collector.store.counts()[""] == 2 * kept  # what came meanwhile had waited
    collector.close()


def test_windows_wait_in_memory_while_another_program_holds_the_file(
    tmp_path: Path, posted: queue.SimpleQueue[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_writer, "BUSY_S", 0.05)
    collector = a_collector(tmp_path, posted)
    feed(collector, 0)
    kept = collector.store.counts()[""]
    with locked(tmp_path / FILE_NAME):
        feed(collector, 1)
        (paused,) = of_kind(posted, CollectingPaused, CollectingResumed)
        assert isinstance(paused, CollectingPaused)
        assert "is locked by another program" in paused.reason
        assert collector.store.counts()[""] == kept
    collector.flush()
    assert [type(event) for event in of_kind(posted, CollectingPaused, CollectingResumed)] == [CollectingResumed]
    assert collector.store.counts()[""] == 2 * kept
    collector.close()


def test_collecting_begins_although_another_program_holds_the_file(
    tmp_path: Path, posted: queue.SimpleQueue[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_writer, "BUSY_S", 0.05)
    WindowStore(tmp_path).close()
    with locked(tmp_path / FILE_NAME):
        collector = a_collector(tmp_path, posted)
        feed(collector, 0)
        assert "is locked by another program" in of_kind(posted, CollectingPaused)[0].reason
    collector.flush()
    collector.tick()
    assert collector.store.counts()[""] > 0
    collector.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_on_a_full_disk_collecting_pauses_and_goes_on_when_there_is_room(
    small_disk: Path, posted: queue.SimpleQueue[Event]
) -> None:
    data = small_disk / "data"
    collector, state = a_collector(data, posted, min_free_mb=0.2), StateStore(data)
    feed(collector, 0)
    kept = collector.store.counts()[""]
    fill(small_disk / "filler")
    for minute in range(1, 5):
        feed(collector, minute)
    assert [type(event) for event in of_kind(posted, CollectingPaused, CollectingResumed)] == [CollectingPaused]
    with pytest.raises(DiskFullError):
        state.put(note="x" * 1_000_000)
    assert state.get("note") == ""
    assert collector.health.summary()["windows_lost"] > 0
    assert "It does not collect" in " ".join(collected_windows(data, WindowsSection(min_free_mb=1)).words)

    (small_disk / "filler").unlink()
    collector.tick()
    collector.flush()
    assert [type(event) for event in of_kind(posted, CollectingPaused, CollectingResumed)] == [CollectingResumed]
    state.put(works="again")
    assert state.get("works") == "again"
    state.check()
    state.close()
    collector.store.check()
    assert collector.store.counts()[""] > kept
    collector.close()
    assert closing_check(data)[1] == ""


def test_collecting_pauses_before_the_last_room_is_gone(tmp_path: Path, posted: queue.SimpleQueue[Event]) -> None:
    collector = a_collector(tmp_path, posted, min_free_mb=1e12)
    feed(collector, 0)
    (paused,) = of_kind(posted, CollectingPaused)
    assert "min_free_mb" in paused.reason
    assert collector.store.counts() == {}
    collector.close()


def test_in_order(tmp_path: Path, posted: queue.SimpleQueue[Event]) -> None:
    """Sessions after a restart do not continue those before."""
    for minute in range(2):
        collector = a_collector(tmp_path, posted)
        feed(collector, minute)
        collector.close()
    with closing(WindowStore(tmp_path)) as store, store.reading() as db:
        sessions = [row[0] for row in db.execute("SELECT session FROM windows ORDER BY id")]
    assert sorted(set(sessions)) == [0, 1]
    assert all(b - a in (0, 1) for a, b in pairwise(sessions))
