"""Whole sums to which each device adds its share of noise: what comes out, with which ε, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_api.storage.db.models import RoundRow
from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.plan import Plan, SecureSettings
from federation.privacy import discrete_gaussian
from federation.privacy.accounting import epsilon_of_discrete
from federation.privacy.discrete_gaussian import noisy_devices
from federation.secure_sums.live import check_live
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.continuous import sums_of
from tests.live.test_whole_sums import (
    NAMES,
    SumsDevice,
    begin,
    carry_out,
    published,
    say_all,
    whole_numbers,
    whole_sums_plan,
)

CLIP, MULTIPLIER = 2.0e5, 1.5


def noisy_plan(**changes: object) -> Plan:
    plan = whole_sums_plan()
    secure = SecureSettings(mode="masked", clip_norm=CLIP, noise_multiplier=MULTIPLIER, min_devices=4)
    return plan.model_copy(
        update={
            "secure": secure.model_copy(update=changes),
            "method": {**plan.method, "floor": 1e4},
        }
    )


@pytest.mark.ci
def test_a_sum_has_the_noise_that_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    server = Bench(tmp_path / "server", noisy_plan())
    devices = [SumsDevice(tmp_path, name) for name in NAMES]
    for number, device in enumerate(devices):
        device.enrol(server)
        device.has(number + 1)
    clipped, secure = [], noisy_plan().secure
    for number in range(1, len(devices) + 1):
        whole = whole_numbers(sums_of(number))[:-1]
        assert np.linalg.norm(whole) > CLIP  # else it tests nothing
        clipped.append(discrete_gaussian.clipped(whole, CLIP))
    say_all(server, devices)
    for number in (1, 2):
        begin(server, devices, number)
        carry_out(server, devices)  # what is sent twice has the same noise, or the device would give up
        sums = published(server, number)["sums"]
        assert int(sums["clients"]) == len(devices)  # how many they are has no noise
        found = np.concatenate([sums[name].numpy().reshape(-1) for name in ("gram", "moment")])
        # every device adds its share, of which the plan counts on fewer than there are
        deviation = MULTIPLIER * CLIP * math.sqrt(len(devices) / noisy_devices(secure))
        chi_square = float((((found - np.sum(clipped, axis=0)) / deviation) ** 2).sum())
        assert 0.5 < chi_square / len(found) < 1.7
        wanted = epsilon_of_discrete(number / MULTIPLIER**2, noisy_plan().rounds.delta)
        assert epsilon_of(server, number) == pytest.approx(wanted)
        for device in devices:  # all have other sums, so that there is another round; its noise is its own
            device.has((device.seed or 0) + 100)
        clipped = [discrete_gaussian.clipped(whole_numbers(sums_of(d.seed or 0))[:-1], CLIP) for d in devices]
        say_all(server, devices)
    server.stop()


def epsilon_of(server: Bench, number: int) -> float | None:
    with server.runtime.database.read() as session:
        return session.scalars(select(RoundRow.epsilon).where(RoundRow.number == number)).one()


def test_noise_that_protects_nobody_is_refused_in_words() -> None:
    plan = noisy_plan()
    check_live(plan, method_from_json(plan.method))
    wide = plan.model_copy(update={"training": plan.training.model_copy(update={"feature_dim": 400})})
    for refused, words in (
        (noisy_plan(mode="clear"), "the server would see each device's numbers with that share alone"),
        (noisy_plan(clip_norm=None), "without a bound, no noise is enough"),
        (noisy_plan(clip_norm=2.0), r"raise secure\.clip_norm"),
        (wide, "81,403 numbers would have noise"),
    ):
        with pytest.raises(SettingsError, match=words):
            check_live(refused, method_from_json(refused.method))
