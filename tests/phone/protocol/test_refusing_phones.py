"""Three phones (node, with the browser's modules) that can't use a version: a real server counts and withdraws it."""

from __future__ import annotations

import httpx

from federation.protocol.enrolment_uri import EnrolmentUri
from tests.phone.protocol.test_against_the_server import PLAN, answer
from tests.phone.protocol.test_against_the_server import pytestmark as needs
from tests.phone.protocol.test_against_the_server import server as server
from tests.phone.test_javascript import HERE, by_node

pytestmark = needs
DIM = 183


def test_what_all_phones_refuse_is_withdrawn(server: httpx.Client) -> None:
    plan = PLAN | {
        "model": {"name": "har_features", "options": {"cosines": 0}},
        "training": {"classes": 2, "feature_dim": DIM},
    }
    answer(server.post("/v1/federations", json={"name": "walk", "plan": plan}))
    links = []
    for device in ("a", "b", "c"):
        made = answer(
            server.post("/v1/federations/walk/enrolment-tokens", json={"device": device, "auto_approve": True})
        )
        links.append(str(EnrolmentUri(str(server.base_url), "walk", device, made["token"])))
    refusals = by_node(HERE / "protocol" / "refusing_phones.mjs", {"links": links, "dim": DIM})
    assert {refusal["reason"] for refusal in refusals} == {"a head holds NaN or infinity"}
    events = answer(server.get("/v1/federations/walk/journal?limit=200"))["items"]
    assert {event["device"] for event in events if event["kind"] == "device.refuses_model"} == {"a", "b", "c"}
    [withdrawn] = [event["detail"] for event in events if event["kind"] == "model.withdrawn"]
    assert "3 of 3 devices can't use version" in withdrawn
