"""Rounds of a live federation whose devices add their share of noise to a secure sum: what comes out, with which ε."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_api.storage.db.models import RoundRow
from edge_agent.supervisor import secure_sum
from federation import wire
from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.privacy.accounting import epsilon_of_discrete
from federation.privacy.discrete_gaussian import clipped, noisy_devices
from federation.secure_sums.live import check_live
from tests.aggregator_api.bench import Bench, wait_for
from tests.live.summing_devices import SummingDevice, layout_of, stage_of
from tests.live.test_secure_sums import NAMES, begun, ended, federation, numbers_for, secure_plan

STEPS, CLIP, MULTIPLIER = 1 << 16, 2000.0, 1.5
NOISE = {"steps": STEPS, "clip_norm": CLIP, "noise_multiplier": MULTIPLIER, "max_weight": 1}


def carry_out(server: Bench, devices: list[SummingDevice]) -> None:
    for _stage in ("shares", "vectors", "lists", "opening"):
        for one in devices:
            one.take_part(server)


def parameters(server: Bench) -> np.ndarray:
    state = wire.decode(server.state(), limit_bytes=1 << 24)
    return np.concatenate([value.numpy().ravel() for value in state["params"].values()]).astype(np.float64)


@pytest.mark.ci
def test_the_mean_has_the_noise_that_the_plan_says_and_its_account_grows(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, **NOISE)
    before = parameters(server)
    begun(server, devices)
    carry_out(server, devices)
    wait_for(ended(server, "published"))
    weight = len(NAMES)  # secure.max_weight is 1
    whole = [numbers_for(server, name)[:-1] for name in NAMES]
    assert min(np.linalg.norm(each) for each in whole) > CLIP, "nobody is clipped: this tests nothing"
    moved = (parameters(server) - before) * STEPS * weight - np.sum([clipped(each, CLIP) for each in whole], axis=0)
    # every device adds its share, of which the plan counts on fewer than there are
    deviation = MULTIPLIER * CLIP * math.sqrt(len(NAMES) / noisy_devices(secure_plan(**NOISE).secure))
    assert 0.9 < moved.std() / deviation < 1.1
    assert abs(moved.mean()) < 5 * deviation / math.sqrt(moved.size)

    begun(server, devices, 2)
    carry_out(server, devices)
    wait_for(lambda: len(epsilons(server)) == 2)
    delta = secure_plan().rounds.delta
    assert epsilons(server) == pytest.approx([epsilon_of_discrete(n / MULTIPLIER**2, delta) for n in (1, 2)])
    server.stop()


def epsilons(server: Bench) -> list[float]:
    with server.runtime.database.read() as session:
        found = session.scalars(select(RoundRow.epsilon).order_by(RoundRow.number)).all()
    return [each for each in found if each is not None]


def test_a_device_draws_a_rounds_noise_once(tmp_path: Path) -> None:
    """The same numbers twice, with other noise, would show more of them."""
    server, devices = federation(tmp_path, **NOISE)
    begun(server, devices)
    files = []
    for _again in range(2):
        with devices[0].store() as store:
            kept = json.loads(store.get(secure_sum.SUM))
            assert secure_sum.files_of(store) == {Path(kept["numbers"]).name}
            files.append((store.folder / kept["numbers"]).read_bytes())
        devices[0].hear(server)
    assert files[0] == files[1]
    numbers = np.frombuffer(files[0], "<i8")
    assert np.linalg.norm(numbers[:-1]) > CLIP, "clipped, and noise added"
    assert numbers[-1] == 1, "that the device is there has no noise"
    assert np.abs(numbers).max() < layout_of(server).bound
    assert stage_of(server) == "shares"
    server.stop()


@pytest.mark.parametrize(("method", "changes", "words"), [
    ("fedavg", {"max_weight": 4096}, r"set secure\.max_weight=1"),
    ("fedavg", {"clip_norm": None}, "without a bound, no noise is enough"),
    ("fedavg", {"clip_norm": 2.0}, r"raise secure\.clip_norm"),
    ("fedavg", {"mode": "clear"}, "the server would see each device's numbers with that share alone"),
    ("scaffold", {}, "sends or combines more than a mean of parameters"),
])  # fmt: skip
def test_noise_that_would_bound_nothing_is_refused_in_words(method: str, changes: dict, words: str) -> None:
    plan = secure_plan(**NOISE)
    check_live(plan, method_from_json(plan.method))
    secure = plan.secure.model_copy(update=changes)
    with pytest.raises(SettingsError, match=words):
        check_live(plan.model_copy(update={"secure": secure}), method_from_json({"name": method}))
