"""Three phones (node, with the browser's modules) in a private federation of a real server: killed, and exact."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import httpx
import numpy as np
import pytest

from federation.protocol.enrolment_uri import EnrolmentUri
from tests.phone.protocol.test_against_the_server import PLAN, answer, broadcast_of
from tests.phone.protocol.test_against_the_server import pytestmark as needs
from tests.phone.protocol.test_against_the_server import server as server
from tests.phone.test_javascript import HERE

pytestmark = [*needs, pytest.mark.slow]
COSINES = 0
DEVICES = ("a", "b", "c")


def test_their_sums_are_exact_although_each_is_killed_again_and_again(server: httpx.Client) -> None:
    plan = PLAN | {
        "model": {"name": "har_features", "options": {"cosines": COSINES}},
        "method": {"name": "analytic", "rotations": 0},
        "training": {"classes": 2, "feature_dim": 183},
        "publication": {"interval_s": 0, "send_after_windows": 10},
        "rounds": {"norm_factor": None, "max_weight_ratio": None, "deadline_s": 20},
        "secure": {"mode": "masked", "stage_s": 20},
    }
    answer(server.post("/v1/federations", json={"name": "walk", "plan": plan}))
    links = []
    for device in DEVICES:
        wanted = {"device": device, "auto_approve": True}
        made = answer(server.post("/v1/federations/walk/enrolment-tokens", json=wanted))
        links.append(str(EnrolmentUri(str(server.base_url), "walk", device, made["token"])))
    command = ["node", "--import", str(HERE / "register.mjs"), str(HERE / "protocol" / "private_phones.mjs")]
    request = json.dumps({"links": links, "dim": 183})
    ran = subprocess.run(command, input=request, capture_output=True, text=True, check=False, timeout=500)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout)
    print(told["kills"])
    assert min(told["kills"]) > 2, "each was killed some times"
    models = answer(server.get("/v1/federations/walk/models"))["items"]
    found = [broadcast_of(server, one)["sums"] for one in sorted(models, key=lambda one: int(one["version"]))]
    wanted = [summed(sums_of["sums"]) for sums_of in told["rounds"]]
    assert len(found) == 1 + len(wanted), "all three add to each sum, since fewer changes are no version"
    for sums, wanted_sums in zip(found[1:], wanted, strict=True):
        assert are_same(sums, wanted_sums)
        assert int(sums["clients"]) == len(DEVICES)


def are_same(sums: dict[str, Any], wanted: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(np.asarray(sums[name]).reshape(-1), value) for name, value in wanted.items())


def summed(phones: list[list[str]]) -> dict[str, np.ndarray]:
    """Add what the phones have, in the clear."""
    total = {}
    for at, name in enumerate(("gram", "moment")):
        parts = [np.frombuffer(base64.b64decode(phone[at]), "<i4").astype(np.int64) for phone in phones]
        total[name] = np.sum(parts, axis=0)
    return total
