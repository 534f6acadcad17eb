"""Batches to which each device adds its share of noise: what comes out, with which ε, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_api.db.models import RoundRow, SecureSumRow
from edge_agent.supervisor import masked_parts
from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.plan import Plan, SecureSettings
from federation.privacy.accounting import epsilon_of_discrete
from federation.privacy.discrete_gaussian import noisy_devices
from federation.secure_sums.live import check_live
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.continuous import sums_of
from tests.live.summing_devices import layout_of
from tests.live.test_masked_batches import (
    NAMES,
    BatchDevice,
    batch_plan,
    carry_out,
    fsck,
    opens,
    published,
    whole_numbers,
)

CLIP, MULTIPLIER = 2.0e5, 1.5


def noisy_plan(**changes: object) -> Plan:
    plan = batch_plan()
    secure = SecureSettings(mode="masked", clip_norm=CLIP, noise_multiplier=MULTIPLIER, min_devices=4)
    return plan.model_copy(
        update={
            "secure": secure.model_copy(update=changes),
            "method": {**plan.method, "floor": 1e4},
        }
    )


@pytest.mark.slow  # beside others it once waited longer than a minute for its second batch
def test_a_batch_has_the_noise_that_the_plan_says_and_leaves_with_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    server = Bench(tmp_path / "server", noisy_plan())
    devices = [BatchDevice(tmp_path, name) for name in NAMES]
    for number, one in enumerate(devices):
        one.enrol(server)
        one.has(number + 1)
    opens(server, devices, 1)
    carry_out(server, devices)  # what is sent twice has the same noise, or the device would give up
    published(server, 1, devices)
    length, secure = layout_of(server).length, noisy_plan().secure
    clipped = []
    for number, one in enumerate(devices):
        whole = whole_numbers(sums_of(number + 1))
        with one.store() as store:
            kept = np.frombuffer((store.folder / masked_parts.load(store).base).read_bytes(), "<i8")
        assert np.linalg.norm(whole[:-1]) > CLIP / 2  # else it tests nothing
        assert 0.99 * CLIP / 2 < np.linalg.norm(kept[:-1]) <= CLIP / 2
        assert np.abs(kept[:-1] - whole[:-1] * (CLIP / 2 / np.linalg.norm(whole[:-1]))).max() <= 1
        clipped.append(kept)
    found, wanted = added(server, 1), np.sum(clipped, axis=0)
    assert found[-1] == len(devices)  # how many they are has no noise
    # every device adds its share, of which the plan counts on fewer than there are
    deviation = MULTIPLIER * CLIP * math.sqrt(len(devices) / noisy_devices(secure))
    chi_square = float((((found - wanted)[:-1] / deviation) ** 2).sum())
    assert 0.5 < chi_square / (length - 1) < 1.7
    assert epsilon_of(server, 1) == pytest.approx(epsilon_of_discrete(1 / MULTIPLIER**2, noisy_plan().rounds.delta))

    for one in devices:
        one.has(None)
    opens(server, devices, 2)
    carry_out(server, devices)
    published(server, 2, devices)
    left = added(server, 2) + wanted
    assert left[-1] == 0
    assert 0.5 < float(((left[:-1] / deviation) ** 2).sum()) / (length - 1) < 1.7  # a negative has noise of its own
    assert epsilon_of(server, 2) == pytest.approx(epsilon_of_discrete(2 / MULTIPLIER**2, noisy_plan().rounds.delta))
    fsck(server)
    server.stop()


def added(server: Bench, number: int) -> np.ndarray:
    with server.runtime.database.read() as session:
        query = select(SecureSumRow).join(RoundRow, RoundRow.id == SecureSumRow.round_id)
        row = session.scalars(query.where(RoundRow.number == number)).one()
        return np.frombuffer(row.added or b"", "<i8").astype(np.int64)


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
