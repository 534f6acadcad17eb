"""The vectors of privacy promises are what this version makes, and say what is meant."""

from __future__ import annotations

import json

from tests.vectors.promises import FILE, cases


def test_the_file_is_what_this_version_makes() -> None:
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(cases()))


def test_a_plan_is_refused_exactly_where_a_promise_is_smaller_than_required() -> None:
    for case in cases():
        promised, required = case["promised"], case["required"]
        order = {"off": 0, "masked": 1}
        less = order[promised["mode"]] < order[required["mode"]]
        less |= any(promised[name] < required[name] for name in promised if name not in ("mode", "voucher"))
        less |= required["voucher"] not in ("", promised["voucher"])
        assert bool(case["shortfall"]) == less, case
