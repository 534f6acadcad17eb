"""Lines of JSON for a log collector: fields from the format's arguments, never from what somebody said."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from federation.logs import MESSAGE_CHARACTERS, JsonLines


def line(message: str, *arguments: object, **constant: str) -> dict[str, Any]:
    """Return what a record becomes."""
    record = logging.LogRecord("x", logging.INFO, __file__, 1, message, arguments, None)
    text = JsonLines(**constant).format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_record_has_its_fields_and_its_text() -> None:
    found = line("%s federation=%s round=%d device=%s %s", "round.announced", "demo", 3, "a", "2 invited")
    assert (found["federation"], found["round"], found["device"]) == ("demo", 3, "a")
    assert found["message"] == "round.announced federation=demo round=3 device=a 2 invited"
    assert (found["level"], found["logger"]) == ("info", "x")
    assert found["time"].endswith("+00:00")


def test_words_of_a_device_make_no_fields() -> None:
    found = line("%s federation=%s device=%s %s", "update.refused", "demo", "a", "round=9 federation=evil\nlevel=error")
    assert (found["federation"], "round" in found, found["level"]) == ("demo", False, "info")


@pytest.mark.parametrize(
    ("message", "arguments", "fields"),
    [
        ("round %d: trained in %.1f s; %s", (4, 1.5, "x"), {"round": 4}),
        ("100%% of %s round=%5d", ("x", 7), {"round": 7}),
        ("device=%s", ("-",), {}),
        ("nothing", (), {}),
        ("broker connected host=%s", ("h",), {}),
    ],
)
def test_directives_are_counted_as_python_does(
    message: str, arguments: tuple[Any, ...], fields: dict[str, Any]
) -> None:
    found = line(message, *arguments)
    assert {name: found[name] for name in ("federation", "round", "device", "update") if name in found} == fields
    assert found["message"] == message % arguments


def test_constant_fields_are_in_every_line_and_give_way_to_the_record() -> None:
    assert line("hello", device="a")["device"] == "a"
    assert line("device=%s", "b", device="a")["device"] == "b"


def test_a_long_message_is_cut_and_an_exception_is_one_field() -> None:
    assert len(line("%s", "x" * 100_000)["message"]) == MESSAGE_CHARACTERS
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: no")
