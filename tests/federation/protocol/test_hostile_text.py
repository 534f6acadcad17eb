"""Text of devices and servers: words of programs are cleaned, everything else of an odd kind is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from federation.errors import WireError
from federation.plan import Strict
from federation.protocol.messages import Acknowledgement, DeviceStatus, Notice, UpdateManifest, read, write
from gaitway.plain_text import MAX_DEPTH, checked, checked_values, cleaned
from tests.aggregator_api.api.test_hostile_text import BAD_TEXTS, NOT_NUMBERS, changed, places

REPORT = {"instance": "0" * 32, "answer": "kept", "score": 0.5, "reason": "why"}
STATUS: dict[str, Any] = {
    "state": "ready", "round": 1, "examples": 5, "detail": "words", "metrics": {"loss": 0.5}, "sums": 5,
    "release": {**REPORT, "rollout": 1}, "adoption": {**REPORT, "round": 1, "source": "global"},
    "session": "s", "number": 3,
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "update_id": "u", "federation": "walk", "instance": "0" * 32, "client": "a", "round": 1, "method": "fedavg",
    "base_version": "0" * 64, "sequence": 5, "examples": 5, "steps": 5, "class_counts": [2, 3], "size": 9,
    "sha256": "0" * 64, "chunk_bytes": 1024, "nonce": "n" * 8, "created": 1.5, "metrics": {"loss": 0.5},
    "gains": {"personalized": [1, 900, 81, 1, -50]},
}  # fmt: skip
MESSAGES: dict[type[Strict], dict[str, Any]] = {
    DeviceStatus: STATUS,
    UpdateManifest: MANIFEST,
    Notice: {"session": "s", "reason": "two of a name"},
    Acknowledgement: {"update_id": "u", "nonce": "n" * 8, "status": "send", "next_chunk": 3, "reason": "words"},
}
WORDS = ("detail", "reason")
"""Fields that programs fill in with what went wrong."""


@pytest.mark.parametrize("kind", MESSAGES)
def test_odd_text_and_numbers_of_a_message_are_refused(kind: type[Strict]) -> None:
    message = MESSAGES[kind]
    read(kind, json.dumps(message).encode())
    for path, value in places(message):
        odd: list[Any] = BAD_TEXTS if isinstance(value, str) else NOT_NUMBERS
        for text in ["yes", 1] if isinstance(value, bool) else odd:
            body = changed(message, path, text).encode()
            if path[-1] not in WORDS:
                with pytest.raises(WireError):
                    read(kind, body)
            elif "\\ud" not in body.decode():  # what is no Unicode at all is refused with the message
                found: Any = read(kind, body)
                for key in path:
                    found = getattr(found, key)
                assert found == cleaned(text) == checked(found)


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_a_device_can_say_whatever_went_wrong(text: str) -> None:
    """An error names a file, and a file's name may have anything in it."""
    found = read(DeviceStatus, write(DeviceStatus(state="ready", detail=f"cannot read {text}")))
    assert found.detail == f"cannot read {cleaned(text)}"
    assert found.detail.isprintable() or "\ufffd" in found.detail


def test_a_name_of_a_metric_is_text() -> None:
    for name in (*BAD_TEXTS, "x" * 65, ""):
        with pytest.raises(WireError):
            read(DeviceStatus, json.dumps({"state": "ready", "metrics": {name: 1.0}}).encode())


def test_all_scripts_are_text() -> None:
    for text in ("Fußgänger", "سير", "走る", "ходьба", "👩‍🦽 rolling", "a b"):
        assert checked(text) == cleaned(text) == text


def test_values_lie_in_one_another_as_deep_as_is_said() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert checked_values({"a": ["b", 1, None, {"c": 2.5}]}) == {"a": ["b", 1, None, {"c": 2.5}]}
    checked_values(deep[0])
    with pytest.raises(ValueError, match="deeper"):
        checked_values([[deep]])
