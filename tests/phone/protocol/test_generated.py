"""The phone's message readers are made from Python's models, and take what those take."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from federation.plan import Plan, Strict
from federation.protocol import messages
from federation.secure_sums import messages as sums
from phone import generate
from tests.phone.test_javascript import by_node
from tests.vectors.secure_sums import PATH as SUM_VECTORS

POINTER = {
    "sha256": "a" * 64,
    "size": 5,
    "url": "/v1/blobs/x",
    "score": {"metric": "accuracy", "value": 9, "trivial": 3, "devices": 5, "working": 4, "measured": "version"},
    "gains": {"personalized": [12, 900, 81, 10, -50]},
}
RELEASE = {"rollout": 2, "version": 3, "round": 4, "model": POINTER}
PLAN = Plan.model_validate(
    {
        "labels": ["still", "walking"],
        "model": {"name": "har_cnn", "options": {"width": 8}},
        "alternatives": [{"name": "har_mlp"}],
        "method": {"name": "fedavg"},
        "training": {"classes": 2},
        "rounds": {"clip_norm": 1.0, "deadline_s": 60, "interval_s": 5, "cohort_tags": ["pilot"]},
        "rollout": {"waves": [{"tags": ["pilot"]}, 0.5, 1.0]},
        "data": {
            "input": {"shape": [3, 96, 128]},
            "statistics": {"count": 4, "total": [1.0, 2.5], "square": [2.0, 3.0]},
        },
        "packages": {"models:other": "other 1.0"},
    }
)
ENVELOPE: dict[str, Any] = {"schema_version": 1, "instance": "0" * 32, "epoch": 3}
WHOLE: dict[str, tuple[type[Strict], dict[str, Any]]] = {
    "announcement": (
        messages.Announcement,
        {
            **ENVELOPE,
            "federation": "walk",
            "restored_at": 5.5,
            "serial": 4,
            "state": "waiting",
            "round": 2,
            "invited": 3,
            "deadline": 1.5,
            "plan": PLAN.model_dump(mode="json", exclude={"training": {"augmentation"}}),
            "model": POINTER,
            "continuous": True,
            "feature_model": POINTER,
            "program": POINTER,
            "release": {
                "serial": 1,
                "released": RELEASE,
                "candidate": None,
                "share_millionths": 9,
                "withdrawn": [1, 2],
            },
            "revoked": "r",
            "chunk_bytes": 4096,
            "presence_check": "x",
            "created": 1.0,
            "expires": 2_000_000_000,
        },
    ),
    "invitation": (
        messages.Invitation,
        {**ENVELOPE, "round": 3, "model": POINTER, "sum": {"kind": "request", "body": "{}"}, "voucher": "v"},
    ),
    "offer": (messages.Offer, {**ENVELOPE, "rollout": 2}),
    "notice": (messages.Notice, {"schema_version": 1, "session": "s", "reason": "two of a name"}),
    "acknowledgement": (
        messages.Acknowledgement,
        {"schema_version": 1, "update_id": "x", "nonce": "n", "status": "send", "next_chunk": 3, "reason": ""},
    ),
}
"""Messages whose every key has a value other than null where it may have one."""

ODD: list[Any] = [None, False, [], {}, "", "x" * 65, "x" * 1025, "A" * 32, 0.5, -1, 0, 1, 2, 1.5, 11]
ODD += [1023, 65_537, 1_000_001, 10**7 + 1, 2**31, 10**9 + 1, 10**12 + 1, 2**34 + 1, 2**53, 2**64, [1, 2], {"x": 1}]
NOT_IN_SCHEMAS = ("labels", "task", "waves", "metric", "value", "trivial", "personalized")
"""Fields that Python has rules for which the phone doesn't repeat: the server has checked them, and signs them."""


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the way to each value of a message, but into what the plan has in the words of others."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        if key not in NOT_IN_SCHEMAS:
            yield (*before, key)
            if key not in ("options", "method", "pipeline"):
                yield from paths(inner, (*before, key))


def changed(message: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(message)
    inner: Any = copied
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copied


def is_taken(kind: type[BaseModel], message: dict[str, Any]) -> bool:
    try:
        kind.model_validate_json(json.dumps(message), strict=True)
    except ValidationError:
        return False
    return True


def test_the_generated_file_is_what_the_models_say(tmp_path: Path) -> None:
    made = {tmp_path / "messages.js": generate.GENERATED, tmp_path / "manifest.js": generate.GENERATED_MANIFEST}
    made[tmp_path / "sums.js"] = generate.GENERATED_SUMS
    made[tmp_path / "labels.js"] = generate.GENERATED_LABELS
    generate.main(*made)
    for path, generated in made.items():
        assert path.read_text(encoding="utf-8") == generated.read_text(encoding="utf-8"), "make messages writes it anew"


def test_python_and_the_phone_take_the_same_messages_of_secure_sums() -> None:
    vectors = json.loads(SUM_VECTORS.read_text())["sums"][0]
    kinds: dict[str, tuple[str, type[BaseModel]]] = {
        "request": ("sumRequest", sums.SumRequest),
        "members": ("memberList", sums.MemberList),
        "shares": ("deliveredShares", sums.DeliveredShares),
        "included": ("includedList", sums.IncludedList),
        "confirmed": ("confirmedList", sums.ConfirmedList),
    }
    cases = []
    for event in vectors["events"]:
        message = json.loads(event["body"])
        ways = [(path, value) for path in paths(message) for value in ODD]
        cases += [(event["kind"], case) for case in (message, *(changed(message, *way) for way in ways))]
    read_by = [[kinds[kind][0], case] for kind, case in cases]
    by_phone = by_node(Path(__file__).parent / "read_of.mjs", read_by)
    taken = [is_taken(kinds[kind][1], case) for kind, case in cases]
    assert [case for case, took, refusal in zip(cases, taken, by_phone, strict=True) if took is bool(refusal)] == []
    assert len(kinds) <= sum(taken) < len(cases) / 2  # most odd values are refused, and none of the real messages


def test_a_phone_refuses_gains_of_an_odd_name() -> None:
    cases = [["blobPointer", {**POINTER, "gains": {name: [1, 0, 0]}}] for name in ("midway", "__proto__", "X", "")]
    refusals = by_node(Path(__file__).parent / "read_of.mjs", cases)
    assert [bool(refusal) for refusal in refusals] == [False, True, True, True]


@pytest.mark.parametrize("name", WHOLE)
def test_python_and_the_phone_take_the_same(name: str) -> None:
    kind, message = WHOLE[name]
    assert is_taken(kind, message)
    # of the plan a phone keeps keys that it does not know
    ways = [(path, value) for path in paths(message) for value in ODD if path[0] != "plan" or value != {"x": 1}]
    cases = [message, *(changed(message, path, value) for path, value in ways)]
    if name == "announcement":
        assert {key for key, *_ in paths(message)} == set(messages.Announcement.model_fields)
    by_phone = by_node(Path(__file__).parent / "read_of.mjs", [[name, case] for case in cases])
    differ = [
        (way, refusal)
        for way, case, refusal in zip([((), None), *ways], cases, by_phone, strict=True)
        if is_taken(kind, case) is bool(refusal)
    ]
    assert not differ
    assert 0.2 < sum(map(bool, by_phone)) / len(cases) < 1  # most odd values are refused, and not all
