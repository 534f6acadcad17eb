"""Lines of JSON and of text for a log: fields from `extra`, never from what somebody said."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from gaitway.logs import MESSAGE_CHARACTERS, JsonLines, TextLines, about


def recorded(message: str, *arguments: object, **fields: Any) -> logging.LogRecord:
    """Return what a logger makes of a message and its extra."""
    return logging.getLogger("x").makeRecord(
        "x", logging.INFO, __file__, 1, message, arguments, None, extra=about(**fields)
    )


def line(record: logging.LogRecord, **constant: str) -> dict[str, Any]:
    """Return what a record becomes."""
    text = JsonLines(**constant).format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_record_has_its_fields_and_its_text() -> None:
    found = line(recorded("%s %s", "round.announced", "2 invited", federation="demo", round=3, device="a"))
    assert (found["federation"], found["round"], found["device"]) == ("demo", 3, "a")
    assert (found["message"], found["level"], found["logger"]) == ("round.announced 2 invited", "info", "x")
    assert found["time"].endswith("+00:00")


def test_words_of_a_device_make_no_fields() -> None:
    found = line(recorded("update refused: %s", "round=9 federation=evil\nlevel=error", federation="demo", device="a"))
    assert (found["federation"], "round" in found, found["level"]) == ("demo", False, "info")


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"round": 0}, {"round": 0}),
        ({"federation": "demo", "device": ""}, {"federation": "demo"}),
        ({"device": "a", "update": "r1-a"}, {"device": "a", "update": "r1-a"}),
        ({}, {}),
    ],
)
def test_what_is_not_given_is_no_field(given: dict[str, Any], fields: dict[str, Any]) -> None:
    found = line(recorded("hello", **given))
    assert {name: found[name] for name in ("federation", "round", "device", "update") if name in found} == fields


def test_constant_fields_are_in_every_line_and_give_way_to_the_record() -> None:
    assert line(recorded("hello"), device="a")["device"] == "a"
    assert line(recorded("hello", device="b"), device="a")["device"] == "b"


def test_a_line_for_people_ends_with_the_fields() -> None:
    text = TextLines("%(levelname)s %(name)s %(message)s").format(recorded("leading", federation="demo", round=2))
    assert text == "INFO x leading federation=demo round=2"


def test_a_long_message_is_cut_and_an_exception_is_one_field() -> None:
    assert len(line(recorded("%s", "x" * 100_000))["message"]) == MESSAGE_CHARACTERS
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    assert line(record)["exception"].endswith("ValueError: no")
