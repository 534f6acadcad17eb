"""A server that is asked to stop in the middle of an aggregation stops at once, and makes it at its next start."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aggregator_api.core.errors import ServerStoppingError
from aggregator_api.core.settings import Settings
from aggregator_api.rounds.aggregation_executor import AggregationExecutor, WorkerProcessExecutor
from aggregator_api.rounds.background_jobs import BackgroundJobs
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.transport.mqtt import inbox
from aggregator_api.transport.mqtt.inbox import Inbox, Message
from federation import wire
from federation.methods import method_from_json
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import tiny_plan

STOP_S = 60.0
"""For a loaded machine; the aggregations here would take an hour."""
SLEEPS = (sys.executable, "-c", "import sys, time; sys.stdin.readline(); time.sleep(3600)")
"""A worker that takes an hour for its job."""


def stop(bench: Bench) -> None:
    """Stop a server, which must not wait for its aggregation."""
    thread = threading.Thread(target=bench.stop, daemon=True)
    thread.start()
    thread.join(STOP_S)
    assert not thread.is_alive(), "the server still waits for its aggregation"


def begin_aggregation(folder: Path, executor: AggregationExecutor | None = None) -> tuple[Bench, bytes]:
    """Return a server with the updates of two devices, and the state that must come of them."""
    bench = Bench(folder, tiny_plan(rounds=1), executor=executor)
    for device in "ab":
        bench.say(device, "ready")
    state = wire.decode(bench.state(), limit_bytes=1 << 20)
    updates = [bench.update_of(device) for device in "ab"]
    for update in updates:
        assert bench.upload(update).status == "accepted"
    expected = method_from_json({"name": "fedavg"}).aggregate(state, iter(update.update for update in updates))
    return bench, wire.encode(expected)


def assert_resumes(folder: Path, expected: bytes) -> None:
    after = Bench(folder)
    wait_for(lambda: after.now().state == "finished")
    assert after.state() == expected
    after.stop()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_worker_at_work_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = WorkerProcessExecutor(Settings(data_dir=tmp_path).blobs, torch_threads=1, attempts=3, command=SLEEPS)
    bench, expected = begin_aggregation(tmp_path, worker)
    wait_for(lambda: worker.pid is not None)
    stop(bench)
    assert worker.pid is None
    assert errors(caplog) == []
    assert_resumes(tmp_path, expected)


def test_an_aggregation_in_this_process_ends_with_its_next_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading, goes_on = threading.Event(), threading.Event()
    pieces = BlobStore.pieces

    def slow_pieces(store: BlobStore, sha256: str) -> Iterator[bytes]:
        if threading.current_thread().name.startswith("prefetch"):
            reading.set()
            goes_on.wait(STOP_S)
        return pieces(store, sha256)

    monkeypatch.setattr(BlobStore, "pieces", slow_pieces)
    bench, expected = begin_aggregation(tmp_path)
    assert reading.wait(STOP_S)
    threading.Thread(target=lambda: (bench.runtime.closing.wait(STOP_S), goes_on.set()), daemon=True).start()
    stop(bench)
    assert errors(caplog) == []
    monkeypatch.undo()
    assert_resumes(tmp_path, expected)


def test_no_job_is_submitted_once_the_server_stops() -> None:
    """An aggregation that ends as the server stops wants garbage collected, and maybe broadcasts written."""
    pool, closing = ThreadPoolExecutor(1), threading.Event()
    unused: Any = None
    jobs = BackgroundJobs(unused, unused, pool, closing, lambda: None)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        jobs.collect_garbage()
    closing.set()
    jobs.collect_garbage()


def test_a_closed_worker_takes_no_job(tmp_path: Path) -> None:
    worker = WorkerProcessExecutor(tmp_path.as_uri(), torch_threads=1, attempts=3, command=SLEEPS)
    worker.close()
    plan = tiny_plan()
    contract = Contract(plan, method_from_json(plan.method), {})
    with pytest.raises(ServerStoppingError):
        worker.broadcasts(contract, "0" * 64, ["a"])
    assert worker.pid is None


def test_a_long_queue_is_left_to_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not acknowledged the broker sends again."""
    monkeypatch.setattr(inbox, "STOP_S", 0.0)
    acknowledged, begun, goes_on = list[int](), threading.Event(), threading.Event()

    def handle(_topic: str, _payload: bytes) -> None:
        begun.set()
        assert goes_on.wait(STOP_S)

    queued = Inbox(handle, lambda: None, 8)
    for n in range(8):
        queued.put(Message("t", b"", lambda n=n: acknowledged.append(n)))  # type: ignore[misc]
    queued.start()
    assert begun.wait(STOP_S)
    stopping = threading.Thread(target=queued.stop, daemon=True)
    stopping.start()
    wait_for(lambda: queued.waiting == 8)  # seven messages, and the word to end
    goes_on.set()
    stopping.join(STOP_S)
    assert not queued.alive
    assert acknowledged == [0]
