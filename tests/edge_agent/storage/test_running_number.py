"""The running number of updates to a continuous federation, on the device and on the phone."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import SEQUENCE, next_sequence
from federation.protocol.messages import MAX_AHEAD_MS
from phone import APP
from tests.phone.test_javascript import by_node

NOW_MS = 1_800_000_000_000
CASES = {
    0: NOW_MS,
    NOW_MS - 5: NOW_MS,
    NOW_MS: NOW_MS + 1,
    NOW_MS + MAX_AHEAD_MS: NOW_MS + MAX_AHEAD_MS + 1,
    NOW_MS + MAX_AHEAD_MS + 1: NOW_MS,
    2**53 - 1: NOW_MS,
}
"""What the last number was, and what the next one is."""


def test_a_device_goes_on_after_a_wrong_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)
    with closing(StateStore(tmp_path)) as store:
        for last, following in CASES.items():
            store.put(**{SEQUENCE: str(last)})
            assert next_sequence(store) == following


def test_a_phone_goes_on_after_a_wrong_clock(tmp_path: Path) -> None:
    script = tmp_path / "numbers.mjs"
    script.write_text(
        f'import {{ nextSequence }} from "{(APP / "protocol" / "contribution.js").as_uri()}";\n'
        'import { readFileSync } from "node:fs";\n'
        'const numbers = JSON.parse(readFileSync(0, "utf8"));\n'
        f"console.log(JSON.stringify(numbers.map((sequence) => nextSequence({{ sequence }}, {NOW_MS}))));\n"
    )
    assert by_node(script, list(CASES)) == list(CASES.values())
