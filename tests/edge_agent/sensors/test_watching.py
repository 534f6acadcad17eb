"""A source whose recordings have all been read still says when other programs label or delete windows."""

from __future__ import annotations

import queue
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.machine.events import DataReady, Event
from edge_agent.sensors import collector, open_source
from edge_agent.storage.window_store import WindowStore
from tests.edge_agent.factories import PLANS, make_config


def test_deleted_and_relabelled_windows_are_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "REPORT_S", 0.05)
    monkeypatch.setattr(collector, "MAX_REPORT_DELAY_S", 0.05)
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = open_source(make_config(tmp_path), posted.put)
    source.start(PLANS["fedavg"])
    try:
        first = ready(posted)
        assert first.examples == len(first.keys) > 20
        with closing(WindowStore(tmp_path)) as other, other.writing() as db:
            db.execute("UPDATE windows SET activity = 'running' WHERE id = (SELECT MIN(id) FROM windows)")
        second = ready(posted)
        assert second.keys != first.keys
        with closing(WindowStore(tmp_path)) as other, other.writing() as db:
            db.execute("DELETE FROM windows WHERE id > (SELECT MIN(id) + 9 FROM windows)")
        assert ready(posted).examples < 10
    finally:
        source.stop(5.0)


def ready(posted: queue.SimpleQueue[Event]) -> DataReady:
    while not isinstance(event := posted.get(timeout=30), DataReady):
        pass
    return event
